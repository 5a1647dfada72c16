// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The positions of a snapshot in all that a unit has written into its area.
//!
//! The head of most drivers counts all bytes, and so is a position. The head of `intel_pt`, Intel BTS and Arm SPE is an offset in
//! the area: their hardware does not count how often it wraps. A driver does not say which of the two its head is. A head beyond
//! the area counts. For any other head the recorder examines the bytes:
//!
//! - A new area is zeros. Bytes behind the head that are not zero were written before the unit wrapped. If they are all zero, a
//!   snapshot can leave them out, whether the unit has wrapped or not.
//! - A unit that has written less than an area since the last snapshot has left the older bytes as they were. If they are the
//!   same, both snapshots hold them. Otherwise the unit has written over all of them, an unknown number of times. The positions
//!   of the snapshot then follow those of the last one after a gap.

use std::ops::Range;

/// How many bytes must be the same to be in both snapshots. A few are the same by chance.
const SURE: u64 = 64;

/// What the recorder knows of the positions in a ring.
#[derive(Debug)]
pub(super) struct Laps {
    /// Length of the ring.
    size: u64,
    /// Whether the head counts all bytes.
    counted: bool,
    /// The positions of the last snapshot.
    last: Range<u64>,
}

impl Laps {
    pub(super) fn new(size: u64) -> Self {
        Self {
            size,
            counted: false,
            last: 0..0,
        }
    }

    /// Whether the head is known to count all bytes.
    pub(super) fn are_counted(&self) -> bool {
        self.counted
    }

    /// Whether this head counts all bytes. If not, it may be an offset.
    pub(super) fn count(&mut self, head: u64) -> bool {
        // An offset is never beyond the area. The head of a unit that was seen to wrap is an offset for good.
        self.counted |= head > self.size && self.last.end <= self.size;
        self.counted
    }

    /// The first position from `from` on that is at this head.
    fn end_from(&self, head: u64, from: u64) -> u64 {
        from.saturating_add(head.wrapping_sub(from) % self.size)
    }

    /// The positions of a snapshot that ends at this head, which may be an offset. `bytes` are the newest bytes of the ring, of
    /// which those that the unit has not written are removed. `before` are the bytes of the last snapshot.
    pub(super) fn place(&mut self, head: u64, bytes: &mut Vec<u8>, before: &[u8]) -> Range<u64> {
        let len = to_u64(bytes.len());
        let last = self.last.clone();
        // If the head counts all bytes, a head at the end of the area is not at its beginning.
        let from = last.end.max(u64::from(head == self.size));
        let end = self.end_from(head, from);
        let unwritten = to_usize(len.saturating_sub(end));
        let (front, written) = bytes.split_at(unwritten.min(bytes.len()));
        let start = end.saturating_sub(len);
        let both = start.max(last.start)..last.end;
        let same = part(written, start, &both) == part(before, last.start, &both);
        let sure = end <= self.size || both.end.saturating_sub(both.start) >= SURE;
        if same && sure && front.iter().all(|&byte| byte == 0) {
            bytes.drain(..unwritten);
            self.last = start..end;
        } else {
            let end = self.end_from(head, last.end.saturating_add(len).saturating_add(1));
            self.last = end.saturating_sub(len)..end;
        }
        self.last.clone()
    }
}

/// The part of `bytes`, which begin at position `start`, that is at the positions `of`.
fn part<'a>(bytes: &'a [u8], start: u64, of: &Range<u64>) -> &'a [u8] {
    let at = |pos: u64| to_usize(pos.saturating_sub(start));
    bytes.get(at(of.start)..at(of.end)).unwrap_or_default()
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A ring of 256 bytes in which the unit writes at each position a byte that it writes nowhere else in its ring.
    fn newest(wrote: u64, len: u64) -> Vec<u8> {
        let at = |pos: u64| match pos.checked_sub(256) {
            Some(pos) => u8::try_from(pos * 7 % 251 + 1).unwrap(),
            None => 0,
        };
        (256 + wrote - len..256 + wrote).map(at).collect()
    }

    /// How many bytes the unit had written, and the positions that are found.
    type Step = (u64, Range<u64>);

    /// Successive snapshots of `len` bytes.
    #[test]
    fn positions() {
        #[rustfmt::skip]
        let table: &[(u64, &[Step])] = &[
            // Nothing, a part, the same again, more, the whole area; then the wrap shows in what is the same.
            (256, &[(0, 0..0), (80, 0..80), (80, 0..80), (200, 0..200), (256, 0..256), (300, 44..300)]),
            // The first is of a unit that has wrapped: it is not at the beginning.
            (256, &[(300, 44..300), (300, 44..300), (450, 194..450)]),
            (256, &[(512, 256..512)]),
            // Three areas later: nothing is the same, and there is a gap.
            (256, &[(100, 0..100), (3 * 256 + 100, 356..612)]),
            // Nearly an area later: too little is the same.
            (256, &[(300, 44..300), (300 + 256 - 60, 496..752)]),
            (256, &[(300, 44..300), (300 + 256 - 64, 236..492)]),
            // Snapshots that are shorter than the area.
            (128, &[(80, 0..80), (130, 2..130), (140, 12..140), (400, 272..400), (420, 292..420)]),
            (128, &[(300, 172..300), (320, 192..320), (320 + 256, 448..576)]),
            (128, &[(50, 0..50), (150, 22..150), (250, 122..250), (520, 392..520)]),
        ];
        for (len, steps) in table {
            let mut laps = Laps::new(256);
            let mut before = Vec::new();
            for (wrote, at) in *steps {
                let mut bytes = newest(*wrote, *len);
                // The head of a whole area is at its end or at its beginning.
                let head = if *wrote == 256 { 256 } else { wrote % 256 };
                assert!(!laps.count(head));
                let found = laps.place(head, &mut bytes, &before);
                assert_eq!(found, *at, "{len} bytes, {wrote} of {steps:?}");
                assert_eq!(to_u64(bytes.len()), at.end - at.start);
                assert_eq!(bytes, newest(*wrote, at.end - at.start));
                before = bytes;
            }
        }
    }

    #[test]
    fn a_head_beyond_the_area_counts() {
        let mut laps = Laps::new(256);
        assert!(!laps.count(256) && !laps.are_counted());
        assert!(laps.count(257) && laps.count(3));
        // The head of this unit is known to be an offset.
        let mut laps = Laps::new(256);
        laps.place(44, &mut newest(300, 256), &[]);
        assert!(!laps.count(300));
    }
}
