// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table against naive models: lists of ends of regions, and memory byte by byte.

use super::*;
use proptest::prelude::*;

/// Tables begin here.
const AT: u64 = 0x7000;

/// Chunks of these many pages, the `near` ones of them right behind the one before in memory.
fn chunks(pages: &[u64], near: impl Fn(usize) -> bool) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();

    for (i, &pages) in pages.iter().enumerate() {
        let address = match chunks.last() {
            Some(last) if near(i) => last.address + last.len,
            // Aligned to 64 pages, and with a gap.
            Some(last) => (last.address + last.len) / (64 * PAGE) * (64 * PAGE) + 128 * PAGE,
            None => 64 * PAGE,
        };
        let len = pages * PAGE;
        chunks.push(Chunk { address, len });
    }
    chunks
}

fn table(chunks: &[Chunk], capacity: usize, largest: u64) -> Table<Vec<Entry>> {
    let layout = Layout::new(AT, capacity).unwrap().largest(largest);
    let count = regions(chunks.iter().copied(), largest).count();
    let storage = vec![Entry::default(); layout.entries(count).unwrap()];

    Table::new(storage, layout, chunks.iter().copied()).unwrap()
}

/// The regions of a table, as a unit finds them: along the ends of the tables.
fn walk(table: &Table<Vec<Entry>>) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut address = AT;

    for _ in 0..1000 {
        let entry = Entry::from_bits(table.fetch(address).unwrap()).unwrap();
        if !entry.is_end() {
            found.push(entry);
            address += 8;
        } else if entry.base() == AT {
            return found;
        } else {
            address = entry.base();
        }
    }
    panic!("the tables are not a ring");
}

/// The address of each page of the ring.
fn pages(chunks: &[Chunk]) -> Vec<u64> {
    chunks
        .iter()
        .flat_map(|chunk| (0..chunk.len / PAGE).map(|i| chunk.address + i * PAGE))
        .collect()
}

#[test]
fn entry_roundtrips() {
    for base in [
        0,
        PAGE,
        PAGE + 2,
        3 * PAGE,
        1 << 27,
        (1 << 52) - PAGE,
        1 << 52,
        7,
    ] {
        for shift in 0..64 {
            let len = 1u64 << shift;
            let good = (12..=27).contains(&shift) && base % len == 0 && base < 1 << 52;
            let entry = Entry::region(base, len);

            assert_eq!(entry.is_some(), good, "{base:#x} {len:#x}");
            for (int, stop) in [(false, false), (false, true), (true, false), (true, true)] {
                let Some(entry) = entry.map(|entry| entry.marked(int, stop)) else {
                    continue;
                };
                assert_eq!((entry.base(), entry.len()), (base, len));
                assert_eq!((entry.has_int(), entry.has_stop()), (int, stop));
                assert!(!entry.is_end());
                assert_eq!(Entry::from_bits(entry.bits()), Some(entry));
                assert_eq!(
                    entry.marked(false, false),
                    Entry::region(base, len).unwrap()
                );
            }
            assert_eq!(Entry::region(base, len | 1), None);
        }

        let end = Entry::end(base);
        assert_eq!(end.is_some(), base % PAGE == 0 && base < 1 << 52);
        if let Some(end) = end {
            assert!(end.is_end());
            assert_eq!(end.base(), base);
            assert_eq!(Entry::from_bits(end.bits()), Some(end));
        }
    }
}

/// The bits are those of `struct topa_entry`, `arch/x86/events/intel/pt.h`.
#[test]
fn entry_is_laid_out_as_in_topa() {
    let entry = Entry::region(0x1234_5000 << 3, PAGE << 3).unwrap();
    assert_eq!(entry.bits(), 0x91a2_8000 | 3 << 6);
    assert_eq!(entry.marked(true, false).bits() & 0xfff, 3 << 6 | 1 << 2);
    assert_eq!(entry.marked(false, true).bits() & 0xfff, 3 << 6 | 1 << 4);
    assert_eq!(Entry::end(0x5000).unwrap().bits(), 0x5001);
    assert_eq!(
        format!("{:?} {:?}", entry.marked(true, true), Entry::end(0x5000)),
        "0x91a28000+0x8000 INT STOP Some(END -> 0x5000)"
    );
}

/// What an entry may be, read from the layout.
fn is_entry(bits: u64) -> bool {
    if bits & 1 != 0 {
        bits & 0xfff0_0000_0000_0ffe == 0
    } else {
        let len = PAGE << (bits >> 6 & 0xf);
        bits & 0xfff0_0000_0000_0c2b == 0 && (bits & !0xfff) % len == 0
    }
}

/// Each bit of an entry counts.
#[test]
fn entry_with_a_bit_flipped() {
    let plain = [
        Entry::region(0, PAGE),
        Entry::region(3 * PAGE, PAGE),
        Entry::region(5 << 27, Entry::LARGEST),
        Entry::end(7 * PAGE),
    ];

    for bits in plain.map(|entry| entry.unwrap().bits()) {
        for bit in 0..64 {
            let flipped = bits ^ 1 << bit;
            assert_eq!(
                Entry::from_bits(flipped).is_some(),
                is_entry(flipped),
                "{flipped:#x}"
            );
        }
    }
}

proptest! {
    /// What decodes is what encodes; all other bits are refused.
    #[test]
    fn entry_decodes_what_it_encodes(
        bits in prop_oneof![any::<u64>(), any::<u64>().prop_map(|bits| bits & 0x000f_ffff_ffff_f3d5)],
    ) {
        prop_assert_eq!(Entry::from_bits(bits).is_some(), is_entry(bits));
        if let Some(entry) = Entry::from_bits(bits) {
            prop_assert_eq!(entry.bits(), bits);
        }
    }
}

/// Each region is aligned, no longer than asked, and as long as can be; together they are the
/// chunks, in their order.
fn check_regions(chunks: &[Chunk], largest: u64) {
    let regions: Vec<Entry> = regions(chunks.iter().copied(), largest)
        .collect::<Result<_, _>>()
        .unwrap();
    let spread: Vec<u64> = regions
        .iter()
        .flat_map(|region| (0..region.len() / PAGE).map(|i| region.base() + i * PAGE))
        .collect();
    assert_eq!(spread, pages(chunks));

    let mut left = &spread[..];
    for region in regions {
        let run = 1 + left.windows(2).take_while(|w| w[1] == w[0] + PAGE).count();
        let best = (0..=15)
            .map(|shift| PAGE << shift)
            .filter(|len| *len <= largest.max(PAGE) && region.base() % len == 0)
            .filter(|len| *len <= run as u64 * PAGE)
            .max();

        assert_eq!(Some(region.len()), best);
        left = &left[(region.len() / PAGE) as usize..];
    }
}

#[test]
fn regions_follow_contiguity() {
    for near in 0..1 << 8 {
        for largest in [0, PAGE, 2 * PAGE, 3 * PAGE, 8 * PAGE, u64::MAX] {
            check_regions(&chunks(&[1; 8], |i| near >> i & 1 != 0), largest);
            check_regions(&chunks(&[4, 1, 2, 1], |i| near >> i & 1 != 0), largest);
            check_regions(&chunks(&[1, 3, 8, 4], |i| near >> i & 1 != 0), largest);
        }
    }

    // Longer than an entry can say, and not aligned.
    let far = [Chunk {
        address: Entry::LARGEST - PAGE,
        len: 3 * Entry::LARGEST + PAGE,
    }];
    let lens: Vec<u64> = regions(far, u64::MAX).map(|r| r.unwrap().len()).collect();
    let largest = Entry::LARGEST;
    assert_eq!(lens, [PAGE, largest, largest, largest]);
}

#[test]
fn tables_are_chained_and_closed() {
    for count in 1..10usize {
        for capacity in 2..8 {
            // A ring of `count` regions, the last of which makes it a power of two.
            let mut sizes = vec![1u64; count];
            let last = (count as u64).next_power_of_two() + 1 - count as u64;
            sizes[count - 1] = last;
            let chunks = chunks(&sizes, |_| false);
            let layout = Layout::new(AT, capacity).unwrap();
            let built: Vec<Entry> = regions(chunks.iter().copied(), u64::MAX)
                .collect::<Result<_, _>>()
                .unwrap();
            let table = table(&chunks, capacity, u64::MAX);

            assert_eq!(walk(&table), built);
            assert_eq!(table.count(), built.len());
            assert_eq!(table.size().len() / PAGE, pages(&chunks).len() as u64);

            // One entry less is too little, and says so.
            let few = layout.entries(built.len()).unwrap() - 1;
            let mut storage = vec![Entry::default(); few];
            let short = Table::new(&mut storage[..], layout, chunks.iter().copied());
            assert_eq!(short.err(), Some(Error::Storage));
        }
    }
}

#[test]
fn what_cannot_be_built_is_refused() {
    let build = |chunks: &[(u64, u64)]| {
        let layout = Layout::new(AT, 512).unwrap();
        let chunks = chunks.iter().map(|&(address, len)| Chunk { address, len });
        Table::new(vec![Entry::default(); 512], layout, chunks).err()
    };

    assert_eq!(build(&[(0, PAGE), (PAGE, PAGE)]), None);
    assert_eq!(build(&[]), Some(Error::Size));
    assert_eq!(build(&[(0, 3 * PAGE)]), Some(Error::Size));
    assert_eq!(build(&[(8, PAGE)]), Some(Error::Unaligned));
    assert_eq!(build(&[(0, PAGE + 8)]), Some(Error::Unaligned));
    assert_eq!(build(&[(0, PAGE), (PAGE, 0)]), Some(Error::Unaligned));
    assert_eq!(build(&[(1 << 52, PAGE)]), Some(Error::Address));
    assert_eq!(build(&[(u64::MAX - PAGE + 1, PAGE)]), Some(Error::Address));

    assert_eq!(Layout::new(AT, 1), None);
    assert_eq!(Layout::new(AT + 8, 8), None);
    assert_eq!(Layout::new(AT, usize::MAX), None);

    // The tables themselves may lie too high.
    let high = Layout::new((1 << 52) - PAGE, 2).unwrap();
    let built = Table::new(vec![Entry::default(); 4], high, chunks(&[1, 1], |_| false));
    assert_eq!(built.err(), Some(Error::Address));
}

/// The model: distances from the head at which regions end, in order; and the rules in prose.
fn model(lens: &[u64], head: u64, room: u64, wakeup: u64) -> Option<Marks> {
    let size: u64 = lens.iter().sum();
    let mut ends = Vec::new();
    let mut end = 0;

    for len in lens.iter().chain(lens) {
        end += len;
        if end > head % size && end - head % size <= room {
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

/// Marks a session and lets a unit run into them: nothing else happens, nowhere else.
fn check_session(
    table: &mut Table<Vec<Entry>>,
    memory: &[u64],
    lens: &[u64],
    (head, room, wakeup): (u64, u64, u64),
    steps: impl Iterator<Item = u64>,
) {
    let what = format!("{lens:x?} head {head:#x} room {room:#x} wakeup {wakeup:#x}");
    let from = Pos::new(head);
    let size = table.size();
    let marks = table.mark(from, room, Pos::new(wakeup));
    let marked = walk(table);
    let stops = marked.iter().filter(|entry| entry.has_stop()).count();
    let ints = marked.iter().filter(|entry| entry.has_int()).count();

    assert_eq!(marks.ok(), model(lens, head, room, wakeup), "{what}");
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
            let way = mark.distance_from(at);
            way > 0 && way <= outcome.written
        };
        assert_eq!(
            outcome.int,
            crossed(marks.int) || crossed(marks.stop),
            "{what}"
        );

        // Each piece is where the ring has it.
        for (address, len) in stores {
            for byte in [0, len - 1] {
                let offset = size.offset(at.advance(byte)) as u64;
                let page = memory[(offset / PAGE) as usize];
                assert_eq!(address + byte, page + offset % PAGE, "{what}");
            }
            at = at.advance(len);
        }
        assert_eq!(at, to, "{what}");
        // A whole ring looks like nothing: perf never offers it.
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

/// Every head, every room and every wakeup point of every ring of four pages, at the places where
/// something can change.
#[test]
fn marks_are_exact() {
    for layout in 0..1 << 4 {
        for (capacity, largest) in [(2, u64::MAX), (3, u64::MAX), (8, u64::MAX), (3, PAGE)] {
            let chunks = chunks(&[1; 4], |i| layout >> i & 1 != 0);
            let memory = pages(&chunks);
            let mut table = table(&chunks, capacity, largest);
            let lens: Vec<u64> = walk(&table).iter().map(|entry| entry.len()).collect();

            for head in around(4) {
                for room in around(4).chain([4 * PAGE]) {
                    for wakeup in around(6) {
                        // Somewhere in the middle of the stream, and a point before the head too.
                        let base = 40 * PAGE;
                        let case = (base + head, room, base + wakeup);
                        let steps = [1, PAGE - 1, PAGE, 3 * PAGE, 4 * PAGE].into_iter();

                        check_session(&mut table, &memory, &lens, case, steps);
                    }
                }
            }
        }
    }
}

/// A shape of eight pages with regions of three lengths, in every order of sessions.
/// How often a unit in a ring of so many regions can be started while nothing is read: it is started
/// at the head, and commits at its interrupt.
#[test]
fn few_regions_are_few_sessions() {
    for (count, sessions) in [(1u64, 0), (2, 1), (3, 2), (4, 2), (8, 3)] {
        let len = 64 * PAGE / count.next_power_of_two();
        let size = len * count.next_power_of_two();
        // Three are a half and two quarters.
        let lens: Vec<u64> = match count {
            3 => vec![size / PAGE / 2, size / PAGE / 4, size / PAGE / 4],
            _ => vec![len / PAGE; usize::try_from(count).unwrap()],
        };
        let mut table = table(&chunks(&lens, |_| false), 512, u64::MAX);
        let mut head = Pos::new(0);
        let mut started = 0;

        assert_eq!(u64::try_from(table.count()).unwrap(), count);
        // perf's own: one byte stays free, and the watermark is half the ring.
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

#[test]
fn marks_do_not_depend_on_what_was_before() {
    let chunks = chunks(&[4, 1, 2, 1], |_| false);
    let memory = pages(&chunks);
    let lens = [4 * PAGE, PAGE, 2 * PAGE, PAGE];
    let mut table = table(&chunks, 3, u64::MAX);
    let mut head = 0u64;
    let mut room = 0u64;

    for _ in 0..20_000 {
        // Steps that are prime to the ring: all pairs of pages come.
        head = head.wrapping_add(7 * PAGE + 13);
        room = (room + 5 * PAGE + 11) % (8 * PAGE);
        let wakeup = head.wrapping_add(room / 3 * 2);
        let steps = [room / 2, 1, room, PAGE, 8 * PAGE].into_iter();

        check_session(&mut table, &memory, &lens, (head, room, wakeup), steps);
    }
}

/// Where the counter of bytes wraps, positions still have distances.
#[test]
fn marks_at_the_end_of_the_counter() {
    let chunks = chunks(&[1; 4], |_| false);
    let memory = pages(&chunks);
    let mut table = table(&chunks, 8, u64::MAX);

    for back in around(4) {
        for way in around(4) {
            let head = 0u64.wrapping_sub(back);
            let case = (head, 4 * PAGE - 1, head.wrapping_add(way));
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
    // 25 times round: to the same place.
    assert_eq!(table.position(head, unit.cursor()), Some(head));
}

/// A unit that has filled the last region of a table, or of all of them, is at the next one.
#[test]
fn end_of_a_table_is_a_place() {
    let mut table = table(&chunks(&[1; 4], |_| false), 3, u64::MAX);

    // From the beginning to the end of the first table; from byte 7 to the end of the last.
    for (from, len) in [(4 * PAGE, 2 * PAGE), (4 * PAGE + 7, 4 * PAGE - 7)] {
        let from = Pos::new(from);
        let mut unit = Walker::new(table.seek(from));
        let _ = unit.write(len, |a| table.fetch(a), |_, _| ()).unwrap();

        assert_eq!(unit.cursor().offset, 0);
        assert_eq!(table.position(from, unit.cursor()), Some(from.advance(len)));
    }
}

#[test]
fn places_that_no_unit_can_be_at() {
    let table = table(&chunks(&[1; 4], |_| false), 3, u64::MAX);
    let place = |table, entry, offset| Cursor {
        table,
        entry,
        offset,
    };
    let second = AT + PAGE;

    let bad = [
        place(AT - PAGE, 0, 0),
        place(AT + 8, 0, 0),
        place(AT, 3, 0),
        place(AT, 0, PAGE + 1),
        // The end of a table has no bytes.
        place(AT, 2, 1),
        place(second, 2, 1),
        place(second + PAGE, 0, 0),
        place(AT, u64::MAX, 0),
        place(0u64.wrapping_sub(PAGE), 0, 0),
    ];
    for cursor in bad {
        assert_eq!(table.position(Pos::new(0), cursor), None, "{cursor:?}");
    }
    for address in [AT - 8, AT + 4, AT + 24, second + 24, AT + 2 * PAGE] {
        assert_eq!(table.fetch(address), None, "{address:#x}");
    }
}

/// A table that leads nowhere stops the unit with a fault, and not in a loop.
#[test]
fn walker_meets_bad_tables() {
    let start = Cursor {
        table: 0,
        entry: 0,
        offset: 0,
    };
    let end = Entry::end(0).unwrap().bits();
    let region = Entry::region(PAGE, PAGE).unwrap().bits();
    let far = Cursor {
        offset: PAGE + 1,
        ..start
    };
    let last = Cursor {
        entry: u64::MAX,
        ..start
    };
    let run = |cursor, bits| Walker::new(cursor).write(1, |_| bits, |_, _| ());

    assert_eq!(run(start, None), Err(Fault::Fetch(0)));
    assert_eq!(run(start, Some(end)), Err(Fault::Cursor));
    assert_eq!(run(start, Some(region | 2)), Err(Fault::Entry(region | 2)));
    assert_eq!(run(far, Some(region)), Err(Fault::Cursor));
    assert_eq!(run(last, Some(region)), Err(Fault::Cursor));
    assert!(run(start, Some(region)).is_ok());

    // Started at the end of a region with marks, as where it stopped: the region is not full twice.
    let marked = region | 1 << 2 | 1 << 4;
    let full = Cursor {
        offset: PAGE,
        ..start
    };
    let plain = |at| Some(if at == 0 { marked } else { region });
    let outcome = Walker::new(full).write(1, plain, |_, _| ()).unwrap();
    assert_eq!(
        (outcome.int, outcome.stopped, outcome.written),
        (false, false, 1)
    );
}

prop_compose! {
    /// A ring of up to 32 pages in chunks, near and far, its tables and their regions.
    fn ring()(shift in 1u32..6)(
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

    /// Any ring, any sequence of sessions with a reader that frees what it likes.
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

        for (step, room, wakeup, steps) in sessions {
            let room = room % (size + 1);
            let wakeup = head.wrapping_add_signed(wakeup);
            let steps = steps.into_iter().chain([size, size]);

            check_session(&mut table, &memory, &lens, (head, room, wakeup), steps);
            head = head.wrapping_add(step % (size + 1));
        }
    }
}

proptest! {
    /// With regions of one length a place is arithmetic: that which the search finds, from wherever
    /// it begins; and there is none where the search finds none.
    #[test]
    fn arithmetic_finds_what_the_search_finds(
        shift in 0u32..7,
        len in 0u32..4,
        capacity in 2usize..70,
        sessions in prop::collection::vec(
            (any::<u64>(), any::<u64>(), any::<u64>(), 0..9 * PAGE, 0u64..9, 0u64..9, 0u64..70),
            1..20,
        ),
    ) {
        let chunks = chunks(&vec![1 << len; 1 << shift], |_| false);
        let build = || table(&chunks, capacity, u64::MAX);
        let (mut quick, mut slow) = (build(), build());
        prop_assert_eq!(quick.uniform.map(NonZeroU64::get), Some(PAGE << len));
        slow.uniform = None;

        for (head, room, wakeup, offset, chain, skew, entry) in sessions {
            let head = Pos::new(head);
            let room = room % (quick.size().len() + 1);
            let wakeup = head.advance(wakeup % (2 * quick.size().len()));

            prop_assert_eq!(quick.mark(head, room, wakeup), slow.mark(head, room, wakeup));
            prop_assert_eq!(walk(&quick), walk(&slow));
            prop_assert_eq!(quick.seek(head), slow.seek(head));
            prop_assert_eq!(quick.head, slow.head);

            let skew = if skew == 0 { 8 } else { 0 };
            for offset in [offset, 0, PAGE << len] {
                let cursor = Cursor { table: AT + chain * PAGE + skew, entry, offset };
                prop_assert_eq!(quick.position(head, cursor), slow.position(head, cursor));
            }
        }
    }
}

/// One region of another length, at any place, and it is looked for.
#[test]
fn regions_of_several_lengths_are_not_uniform() {
    for odd in 0..3 {
        let mut sizes = [1; 3];
        sizes[odd] = 2;
        assert_eq!(table(&chunks(&sizes, |_| false), 4, u64::MAX).uniform, None);
    }
}
