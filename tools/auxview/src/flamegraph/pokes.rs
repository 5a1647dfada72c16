// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Code that the kernel has changed while it was traced: static keys, probes, alternatives.

use std::ops::Range;

/// A change of code, from a record.
#[derive(Debug, Clone)]
pub(super) struct Poke {
    pub(super) time: u64,
    pub(super) at: u64,
    pub(super) old: Vec<u8>,
    pub(super) new: Vec<u8>,
}

impl Poke {
    /// The addresses that change.
    fn place(&self) -> Range<u64> {
        let len = u64::try_from(self.old.len().max(self.new.len())).unwrap_or(u64::MAX);
        self.at..self.at.saturating_add(len)
    }
}

/// All changes of code.
#[derive(Debug, Default)]
pub(super) struct Pokes {
    /// Their times, sorted.
    times: Vec<u64>,
    /// Address ranges that change, sorted and without overlap; and the changes in each, in order of time.
    places: Vec<(Range<u64>, Vec<Poke>)>,
}

impl Pokes {
    pub(super) fn new(mut all: Vec<Poke>) -> Self {
        // Records can have any address, but files of programs do not change.
        all.retain(|poke| super::kernel::has(poke.at));
        let mut times: Vec<_> = all.iter().map(|poke| poke.time).collect();
        times.sort_unstable();
        all.sort_by_key(|poke| poke.at);
        let mut places: Vec<(Range<u64>, Vec<Poke>)> = Vec::new();
        for poke in all {
            let place = poke.place();
            match places
                .last_mut()
                .filter(|(last, _)| last.end >= place.start)
            {
                Some((last, pokes)) => {
                    last.end = last.end.max(place.end);
                    pokes.push(poke);
                }
                None => places.push((place, vec![poke])),
            }
        }
        for (_, pokes) in &mut places {
            pokes.sort_by_key(|poke| poke.time);
        }
        Self { times, places }
    }

    /// The changes of each place that overlaps a range.
    fn within(&self, place: &Range<u64>) -> impl Iterator<Item = &[Poke]> {
        let first = self.places.partition_point(|(at, _)| at.end <= place.start);
        let found = self.places.get(first..).unwrap_or_default().iter();
        let end = place.end;
        found
            .take_while(move |(at, _)| at.start < end)
            .map(|(_, pokes)| pokes.as_slice())
    }

    /// Whether anything in a range changes.
    pub(super) fn touch(&self, place: &Range<u64>) -> bool {
        self.within(place).next().is_some()
    }

    /// The end of the changing range that has an address.
    pub(super) fn end(&self, at: u64) -> Option<u64> {
        let after = self.places.partition_point(|(place, _)| place.start <= at);
        let (place, _) = self.places.get(after.checked_sub(1)?)?;
        place.contains(&at).then_some(place.end)
    }

    /// How many changes there were up to a time.
    pub(super) fn count(&self, time: u64) -> usize {
        self.times.partition_point(|at| *at <= time)
    }

    /// Sets the bytes from `start` on to what they were at a time, no matter when they were copied.
    pub(super) fn apply(&self, time: u64, start: u64, bytes: &mut [u8]) {
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        for pokes in self.within(&(start..start.saturating_add(len))) {
            let past = pokes.partition_point(|poke| poke.time <= time);
            let (before, after) = pokes.split_at_checked(past).unwrap_or((pokes, &[]));
            for poke in after.iter().rev() {
                put(&poke.old, poke.at, start, bytes);
            }
            for poke in before {
                put(&poke.new, poke.at, start, bytes);
            }
        }
    }
}

/// Copies `from`, which is at address `at`, into bytes that begin at address `start`.
fn put(from: &[u8], at: u64, start: u64, bytes: &mut [u8]) {
    let distance = |a: u64, b: u64| usize::try_from(a.saturating_sub(b)).unwrap_or(usize::MAX);
    let from = from.get(distance(start, at)..).unwrap_or_default();
    let to = bytes.get_mut(distance(at, start)..).unwrap_or_default();
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// First address of the kernel.
    const K: u64 = 1 << 63;

    fn pokes() -> Pokes {
        let poke = |time, at, old: &[u8], new: &[u8]| Poke {
            time,
            at: K + at,
            old: old.to_vec(),
            new: new.to_vec(),
        };
        Pokes::new(vec![
            poke(30, 102, &[7, 8], &[9, 10]),
            poke(20, 102, &[1, 1], &[7, 8]),
            poke(20, 110, &[0; 5], &[5; 5]),
        ])
    }

    #[test]
    fn bytes_are_those_of_the_time() {
        let pokes = pokes();
        for (time, want) in [
            (0, [0, 0, 1, 1, 0, 0, 0]),
            (19, [0, 0, 1, 1, 0, 0, 0]),
            (20, [0, 0, 7, 8, 0, 0, 0]),
            (30, [0, 0, 9, 10, 0, 0, 0]),
        ] {
            // Copied at any time.
            for copied in [
                [0, 0, 1, 1, 0, 0, 0],
                [0, 0, 7, 8, 0, 0, 0],
                [0, 0, 9, 10, 0, 0, 0],
            ] {
                let mut bytes = copied;
                pokes.apply(time, K + 100, &mut bytes);
                assert_eq!(bytes, want, "at {time}");
            }
        }
        let mut bytes = [3; 4];
        pokes.apply(25, K + 113, &mut bytes);
        assert_eq!(bytes, [5, 5, 3, 3]);
        pokes.apply(99, 0, &mut []);
        assert_eq!(
            [0, 19, 20, 29, 30].map(|time| pokes.count(time)),
            [0, 0, 2, 2, 3]
        );
    }

    #[test]
    fn places() {
        for (place, want) in [
            (0..102, false),
            (0..103, true),
            (103..104, true),
            (104..110, false),
            (104..111, true),
            (115..200, false),
        ] {
            let at = K + place.start..K + place.end;
            assert_eq!(pokes().touch(&at), want, "{place:?}");
        }
        assert!(!Pokes::default().touch(&(0..u64::MAX)));
        for (at, want) in [(101, None), (103, Some(104)), (104, None), (110, Some(115))] {
            let end = pokes().end(K + at);
            assert_eq!(end, want.map(|end| K + end), "{at}");
        }
    }

    /// Changes at the end of the address space, and at small addresses, which can be offsets in files of programs.
    #[test]
    fn hostile_places() {
        let poke = |at| Poke {
            time: 1,
            at,
            old: vec![1; 8],
            new: vec![2; 8],
        };
        let pokes = Pokes::new(vec![poke(u64::MAX), poke(u64::MAX - 3), poke(4)]);
        let mut bytes = [0; 8];
        pokes.apply(1, u64::MAX - 7, &mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 2, 2, 2, 2]);
        assert!(!pokes.touch(&(0..100)));
    }
}
