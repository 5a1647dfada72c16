// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the marks, and of a unit that reaches them, against lists of ends of regions.

use super::{regions::check_regions, *};

/// The model: it applies the rules to the list of distances from the head at which regions end.
fn model(lens: &[u64], head: u64, space: u64, wakeup: u64) -> Option<Marks> {
    let size: u64 = lens.iter().sum();
    let mut ends = Vec::new();
    let mut end = 0;

    for len in lens.iter().chain(lens) {
        end += len;
        if end > head % size && end - head % size <= space {
            ends.push(end - head % size);
        }
    }
    let stop = *ends.last()?;
    let due = wakeup.wrapping_sub(head);
    let past = due > 1 << 63 || due == 0;
    let up = ends.iter().copied().find(|end| past || *end >= due);
    let before = ends.iter().rev().nth(1).copied().unwrap_or(stop);

    Some(Marks {
        int: Pos::new(head).advance(up.map_or(before, |up| up.min(before))),
        stop: Pos::new(head).advance(stop),
    })
}

/// Places the marks of a transaction and runs a unit. The unit must raise its interrupts and stop
/// exactly at the marks.
fn check_session(
    table: &mut Ring,
    memory: &[u64],
    lens: &[u64],
    (head, space, wakeup): (u64, u64, u64),
    steps: impl Iterator<Item = u64>,
) {
    let what = format!("{lens:x?} head {head:#x} space {space:#x} wakeup {wakeup:#x}");
    let from = Pos::new(head);
    let size = table.size();
    let marks = table.mark(from, space, Pos::new(wakeup));
    let marked = walk(table);
    let stops = marked.iter().filter(|entry| entry.has_stop()).count();
    let ints = marked.iter().filter(|entry| entry.has_int()).count();

    assert_eq!(marks.ok(), model(lens, head, space, wakeup), "{what}");
    let Ok(marks) = marks else {
        assert_eq!((stops, ints), (0, 0), "{what}");
        return;
    };
    assert_eq!(stops, 1, "{what}");
    assert_eq!(ints, if marks.int == marks.stop { 1 } else { 2 }, "{what}");

    let mut unit = Walker::new(table.seek(from));
    let mut at = from;
    for len in steps {
        let mut stores = Vec::new();
        let outcome = unit
            .write(len, |a| table.fetch(a), |a, len| stores.push((a, len)))
            .unwrap();
        let left = marks.stop.distance_from(at);
        let to = at.advance(len.min(left));

        assert_eq!(outcome.written, len.min(left), "{what}");
        assert_eq!(outcome.stopped, len >= left, "{what}");
        let crossed = |mark: Pos| {
            let distance = mark.distance_from(at);
            distance > 0 && distance <= outcome.written
        };
        assert_eq!(
            outcome.int,
            crossed(marks.int) || crossed(marks.stop),
            "{what}"
        );

        // The unit stores each piece at the address of its position in the ring.
        for (address, len) in stores {
            for byte in [0, len - 1] {
                let offset = size.offset(at.advance(byte)) as u64;
                let page = memory[(offset / PAGE) as usize];
                assert_eq!(address + byte, page + offset % PAGE, "{what}");
            }
            at = at.advance(len);
        }
        assert_eq!(at, to, "{what}");
        // A unit that has written the whole ring is at the same place as one that has written
        // nothing. perf never gives that much space.
        if at.distance_from(from) < size.len() {
            assert_eq!(table.position(from, unit.cursor()), Some(at), "{what}");
        }
        if outcome.stopped {
            assert!(unit.is_stopped());
            let again = unit.write(1, |a| table.fetch(a), |_, _| unreachable!());
            assert_eq!(again.unwrap().written, 0);
            return;
        }
    }
}

/// Offsets around the beginning, the middle and the end of each of `count` pages.
fn around(count: u64) -> impl Iterator<Item = u64> + Clone {
    (0..count).flat_map(|page| [0, 1, PAGE / 2, PAGE - 1].map(|d| page * PAGE + d))
}

/// All rings of four pages, with heads, spaces and wakeup points at the edges and in the middle of
/// pages.
#[test]
fn marks_are_exact() {
    for layout in 0..1 << 4 {
        for (capacity, largest) in [(2, u64::MAX), (3, u64::MAX), (8, u64::MAX), (3, PAGE)] {
            let chunks = chunks(&[1; 4], |i| layout >> i & 1 != 0);
            let memory = pages(&chunks);
            let mut table = table(&chunks, capacity, largest);
            let lens: Vec<u64> = walk(&table).iter().map(|entry| entry.len()).collect();

            for head in around(4) {
                for space in around(4).chain([4 * PAGE]) {
                    for wakeup in around(6) {
                        // The wakeup point may be before the head.
                        let base = 40 * PAGE;
                        let case = (base + head, space, base + wakeup);
                        let steps = [1, PAGE - 1, PAGE, 3 * PAGE, 4 * PAGE].into_iter();

                        check_session(&mut table, &memory, &lens, case, steps);
                    }
                }
            }
        }
    }
}

/// How often a unit can start in a ring with few regions while the reader reads nothing. It starts
/// at the head, and commits at its first interrupt.
#[test]
fn few_regions_are_few_sessions() {
    for (count, sessions) in [(1u64, 0), (2, 1), (3, 2), (4, 2), (8, 3)] {
        let len = 64 * PAGE / count.next_power_of_two();
        let size = len * count.next_power_of_two();
        // Three regions: a half of the ring and two quarters.
        let lens: Vec<u64> = match count {
            3 => vec![size / PAGE / 2, size / PAGE / 4, size / PAGE / 4],
            _ => vec![len / PAGE; usize::try_from(count).unwrap()],
        };
        let mut table = table(&chunks(&lens, |_| false), 512, u64::MAX);
        let mut head = Pos::new(0);
        let mut started = 0;

        assert_eq!(u64::try_from(table.count()).unwrap(), count);
        // As perf does it: one byte stays free, and the watermark is half the ring.
        while let Ok(marks) = table.mark(
            head,
            size - 1 - head.get(),
            Pos::new((head.get() / (size / 2) + 1) * (size / 2)),
        ) {
            head = marks.int;
            started += 1;
        }
        assert_eq!(started, sessions, "{count} regions: up to {head:?}");
    }
}

/// A ring of eight pages with regions of three lengths, and transactions in many orders.
#[test]
fn marks_do_not_depend_on_what_was_before() {
    let chunks = chunks(&[4, 1, 2, 1], |_| false);
    let memory = pages(&chunks);
    let lens = [4 * PAGE, PAGE, 2 * PAGE, PAGE];
    let mut table = table(&chunks, 3, u64::MAX);
    let mut head = 0u64;
    let mut space = 0u64;

    for _ in 0..20_000 {
        // The steps are odd numbers of pages and bytes, so that all pairs of pages occur.
        head = head.wrapping_add(7 * PAGE + 13);
        space = (space + 5 * PAGE + 11) % (8 * PAGE);
        let wakeup = head.wrapping_add(space / 3 * 2);
        let steps = || [space / 2, 1, space, PAGE, 8 * PAGE].into_iter();

        // The second transaction finds the marks in place.
        for _ in 0..2 {
            check_session(&mut table, &memory, &lens, (head, space, wakeup), steps());
        }
    }
}

/// Marks are correct where the position wraps at 2^64.
#[test]
fn marks_at_the_end_of_the_counter() {
    let chunks = chunks(&[1; 4], |_| false);
    let memory = pages(&chunks);
    let mut table = table(&chunks, 8, u64::MAX);

    for back in around(4) {
        for distance in around(4) {
            let head = 0u64.wrapping_sub(back);
            let case = (head, 4 * PAGE - 1, head.wrapping_add(distance));
            check_session(
                &mut table,
                &memory,
                &[PAGE; 4],
                case,
                [4 * PAGE].into_iter(),
            );
        }
    }
}

#[test]
fn clear_lets_the_unit_go_round() {
    let mut table = table(&chunks(&[1, 1, 2], |_| false), 3, u64::MAX);
    table.mark(Pos::new(5), 3 * PAGE, Pos::new(9)).unwrap();
    table.clear();

    let head = Pos::new(PAGE + 17);
    let mut unit = Walker::new(table.seek(head));
    let mut sum = 0;
    let outcome = unit
        .write(100 * PAGE, |a| table.fetch(a), |_, len| sum += len)
        .unwrap();
    assert_eq!(outcome.written, 100 * PAGE);
    assert!(!outcome.int && !outcome.stopped);
    assert_eq!(sum, 100 * PAGE);
    // The unit has wrapped 25 times, so it is at the same place.
    assert_eq!(table.position(head, unit.cursor()), Some(head));
}

prop_compose! {
    /// A ring of up to 32 pages, in chunks that are adjacent in memory or not, with the capacity of
    /// its tables and the limit of its regions.
    pub(super) fn ring()(shift in 1u32..6)(
        pages in Just(1u64 << shift),
        cuts in prop::collection::vec(any::<bool>(), 1usize << shift),
        near in prop::collection::vec(any::<bool>(), 1usize << shift),
        capacity in 2usize..9,
        largest in 0u32..7,
    ) -> (Vec<Chunk>, usize, u64) {
        let mut sizes = vec![];
        for i in 0..pages {
            match sizes.last_mut() {
                Some(last) if !cuts[i as usize] => *last += 1,
                _ => sizes.push(1),
            }
        }
        (chunks(&sizes, |i| near[i]), capacity, PAGE << largest)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any ring, with any sequence of transactions and any reader.
    #[test]
    fn sessions_follow_the_model(
        (chunks, capacity, largest) in ring(),
        start in any::<u64>(),
        sessions in prop::collection::vec(
            (any::<u64>(), any::<u64>(), -70_000i64..70_000, prop::collection::vec(1u64..20_000, 0..12)),
            1..12,
        ),
    ) {
        check_regions(&chunks, largest);
        let memory = pages(&chunks);
        let mut table = table(&chunks, capacity, largest);
        let lens: Vec<u64> = walk(&table).iter().map(|entry| entry.len()).collect();
        let size = table.size().len();
        let mut head = start;

        for (step, space, wakeup, steps) in sessions {
            let space = space % (size + 1);
            let wakeup = head.wrapping_add_signed(wakeup);
            let steps = steps.into_iter().chain([size, size]);

            check_session(&mut table, &memory, &lens, (head, space, wakeup), steps);
            head = head.wrapping_add(step % (size + 1));
        }
    }
}
