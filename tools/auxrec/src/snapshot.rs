// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Snapshots of AUX areas in overwrite mode.

use std::io;
use std::ops::Range;

use crate::drain::{Drain, FileSink};
use crate::error::{Error, Result};
use crate::ring::Area;
use crate::session::{Moment, Rings, Session};

mod laps;

use laps::Laps;

/// How long a ring was not traced because of snapshots, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Blind {
    /// The longest time.
    pub max: u64,
    /// The sum of all times.
    pub sum: u64,
}

/// The state of taking snapshots.
///
/// The rings are copied one after the other into memory that exists already, and mostly while their unit runs: see [`hold`]. So the trace
/// of a CPU is off only while the head of its own ring is read, and while the bytes that are overwritten first are copied. It is never off
/// because of another ring or the file.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// Maximum length of the snapshot of a ring.
    size: u64,
    copies: Vec<Held>,
    /// Memory for one more copy: for a ring that is compared with its last snapshot.
    spare: Vec<u8>,
    /// Number of snapshots.
    pub times: u64,
    pub blind: Blind,
}

impl Snapshots {
    /// For all rings of a session. The snapshot of a ring has at most `size` bytes.
    pub fn new(session: &Session, size: usize) -> Self {
        // A piece of trace in the file is a multiple of 8.
        let size = u64::try_from(size).unwrap_or(u64::MAX) / 8 * 8;
        let rings = session.rings().iter();
        Self {
            size,
            copies: rings.map(|ring| Held::new(ring.aux.size(), size)).collect(),
            spare: Vec::new(),
            times: 0,
            blind: Blind::default(),
        }
    }

    /// Takes a snapshot. Events that are off stay off.
    pub fn take(
        &mut self,
        session: &mut Session,
        drains: &mut [Drain],
        file: &mut impl FileSink,
    ) -> Result<Blind> {
        let mut blind = Blind::default();
        let clock = session.record_clock();
        let mut held: Vec<(Range<u64>, Moment)> = Vec::new();
        for (rings, copy) in session.rings_mut().iter_mut().zip(&mut self.copies) {
            if !rings.have_aux() {
                held.push((0..0, clock.moment()));
                continue;
            }
            let (range, ns) = hold(rings, self.size, copy, &mut self.spare).map_err(|e| {
                Error::failed(format!(
                    "cannot take a snapshot of {}: its PMU may be gone ({e})",
                    rings.name()
                ))
            })?;
            blind.max = blind.max.max(ns);
            blind.sum += ns;
            held.push((range, clock.moment()));
        }
        // The records about the copied trace come before it. A data ring in overwrite mode has lost its older records, which may have
        // reported names and mappings. So the current names and mappings come first, then the records that are left.
        let overwrite = session.plan().overwrite;
        if overwrite {
            file.describe()?;
        }
        for (rings, drain) in session.rings_mut().iter_mut().zip(drains.iter_mut()) {
            drain.records(rings, file)?;
            if overwrite {
                drain.newest(rings, file)?;
            }
        }
        let rings = session.rings().iter().zip(drains);
        for ((rings, drain), ((range, moment), copy)) in rings.zip(held.iter().zip(&self.copies)) {
            drain.held(rings, range, &copy.bytes, *moment, file)?;
        }
        file.round()?;
        self.times += 1;
        self.blind.max = self.blind.max.max(blind.max);
        self.blind.sum = self.blind.sum.saturating_add(blind.sum);
        Ok(blind)
    }
}

/// The copy of a ring.
#[derive(Debug)]
struct Held {
    /// Begins with the bytes of the last snapshot.
    bytes: Vec<u8>,
    laps: Laps,
}

impl Held {
    /// A copy of at most `max` bytes of a ring of `ring` bytes.
    fn new(ring: u64, max: u64) -> Self {
        Self {
            // Not zeros: the kernel would allocate the memory at the first write, while the trace is off.
            bytes: vec![0xff; to_usize(max)],
            laps: Laps::new(ring),
        }
    }
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Bytes are copied while the unit runs only if they are ahead of it by the length of the ring divided by this number, or more.
const AHEAD: u64 = 8;

/// A ring in overwrite mode, and the unit that writes it.
trait Unit {
    /// Length of the ring.
    fn size(&self) -> u64;
    /// The head when the unit was stopped last.
    fn head(&self) -> u64;
    /// The positions of the newest bytes, at most `max`.
    fn newest(&self, max: u64) -> Range<u64>;
    /// Copies the bytes at position `from`.
    fn copy(&self, from: u64, out: &mut [u8]);
    /// Runs `still` while the unit is stopped. Also returns the longest time that it can have been stopped, ns.
    fn pause<T>(&mut self, still: impl FnOnce(&mut Self) -> T) -> io::Result<(T, u64)>;
}

impl Unit for Rings {
    fn size(&self) -> u64 {
        self.aux.size()
    }

    fn head(&self) -> u64 {
        self.area().head()
    }

    fn newest(&self, max: u64) -> Range<u64> {
        self.aux.snapshot(&self.area(), max)
    }

    fn copy(&self, from: u64, out: &mut [u8]) {
        self.aux.copy(&self.area(), from, out);
    }

    fn pause<T>(&mut self, still: impl FnOnce(&mut Self) -> T) -> io::Result<(T, u64)> {
        Rings::pause(self, still)
    }
}

/// Copies the newest bytes of a ring to the front of `held.bytes`. Returns their positions, and how long the unit was stopped.
///
/// * The unit is stopped, and its head is read. It will overwrite the oldest bytes first. These are copied at once, until there is an
///   [`AHEAD`]th of the ring between the unit and the others.
/// * The others are copied while the unit runs.
/// * The unit is stopped again. If its head shows that it has reached the others, the newest bytes are copied while it is stopped.
///
/// This needs a head that counts all bytes. A ring with another head is copied completely while the unit is stopped, and [`Laps`]
/// determines the positions. This copy goes to `spare`, which has the memory of the last snapshot afterwards.
fn hold(
    ring: &mut impl Unit,
    max: u64,
    held: &mut Held,
    spare: &mut Vec<u8>,
) -> io::Result<(Range<u64>, u64)> {
    let size = ring.size();
    let is_new = !held.laps.are_counted();
    if is_new {
        spare.resize(to_usize(max), 0xff);
    }
    let (found, stopped) = ring.pause(|ring| {
        let head = ring.head();
        if !held.laps.count(head) {
            // Any positions with this offset have the right places in the ring.
            let end = head % size + size;
            let range = end - max..end;
            copy(ring, range.clone(), &range, spare);
            return Err(head);
        }
        if is_new {
            // The buffer of the last snapshot may be shorter.
            std::mem::swap(&mut held.bytes, spare);
        }
        let range = ring.newest(max);
        let len = range.end - range.start;
        let first = (size / AHEAD).saturating_sub(size - len).min(len);
        copy(
            ring,
            range.start..range.start + first,
            &range,
            &mut held.bytes,
        );
        Ok((range, first))
    })?;
    let (range, first) = match found {
        Ok(found) => found,
        Err(head) => {
            let range = held.laps.place(head, spare, &held.bytes);
            std::mem::swap(&mut held.bytes, spare);
            return Ok((range, stopped));
        }
    };
    if first == range.end - range.start {
        return Ok((range, stopped));
    }
    copy(
        ring,
        range.start + first..range.end,
        &range,
        &mut held.bytes,
    );
    let (range, again) = ring.pause(|ring| {
        // Bytes that are not in the ring any more are more than a ring length before the head.
        if ring.head().saturating_sub(size) <= range.start + first {
            return range;
        }
        let range = ring.newest(max);
        copy(ring, range.clone(), &range, &mut held.bytes);
        range
    })?;
    Ok((range, stopped + again))
}

/// Copies the bytes at the positions `part` to their place in the snapshot, which has the positions `all`.
fn copy(ring: &impl Unit, part: Range<u64>, all: &Range<u64>, buffer: &mut [u8]) {
    let place = |at: u64| to_usize(at - all.start);
    if let Some(out) = buffer.get_mut(place(part.start)..place(part.end)) {
        ring.copy(part.start, out);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 256;

    /// The byte that the unit writes at this position. It is the same each time.
    fn byte(at: u64) -> u8 {
        u8::try_from(at * 7 % 251).unwrap()
    }

    /// A ring whose unit writes `speed` bytes after each 16 bytes that are copied.
    struct Model {
        head: Cell<u64>,
        /// Whether the head is an offset in the ring.
        is_offset: bool,
        speed: u64,
        still: bool,
        /// Number of bytes that were copied while the unit was stopped.
        copied: Cell<u64>,
    }

    impl Unit for Model {
        fn size(&self) -> u64 {
            SIZE
        }

        fn head(&self) -> u64 {
            assert!(self.still, "the kernel tells only then");
            match self.is_offset {
                true => self.head.get() % SIZE,
                false => self.head.get(),
            }
        }

        fn newest(&self, max: u64) -> Range<u64> {
            let head = self.head();
            head - head.min(max).min(SIZE)..head
        }

        fn copy(&self, from: u64, out: &mut [u8]) {
            for (at, out) in (from..).zip(out) {
                let head = self.head.get();
                // The newest byte that was written there, if there was any.
                let back = (head + SIZE - 1 - at % SIZE) % SIZE;
                *out = (head - 1).checked_sub(back).map_or(0, byte);
                if self.still {
                    self.copied.set(self.copied.get() + 1);
                } else if at % 16 == 0 {
                    self.head.set(head + self.speed);
                }
            }
        }

        fn pause<T>(&mut self, still: impl FnOnce(&mut Self) -> T) -> io::Result<(T, u64)> {
            self.still = true;
            let out = still(self);
            self.still = false;
            Ok((out, 1))
        }
    }

    impl Model {
        fn new(head: u64, is_offset: bool, speed: u64) -> Self {
            Self {
                head: Cell::new(head),
                is_offset,
                speed,
                still: false,
                copied: Cell::new(0),
            }
        }
    }

    proptest! {
        #[test]
        fn a_snapshot_is_whole(head in 1_u64..2000, max in 1_u64..=SIZE / 8, speed in 0_u64..40) {
            let max = max * 8;
            let mut ring = Model::new(head, false, speed);
            let (mut held, mut spare) = (Held::new(SIZE, max), Vec::new());
            let (range, _) = hold(&mut ring, max, &mut held, &mut spare).unwrap();
            prop_assert_eq!(range.end - range.start, max.min(head));
            prop_assert!((head..=ring.head.get()).contains(&range.end));
            for (at, got) in range.clone().zip(&held.bytes) {
                prop_assert_eq!(*got, byte(at), "{} of {:?}", at, range);
            }
            // If the ring has wrapped, and the unit is slower than the copy, only the bytes that it reaches first are copied while it is
            // stopped.
            if head > SIZE && speed < 2 {
                prop_assert!(ring.copied.get() <= SIZE / AHEAD);
            }
        }

        /// Whatever the head is, each snapshot has the newest bytes, except zeros at its front. Positions that two snapshots share have the
        /// same bytes.
        #[test]
        fn snapshots_follow_each_other(
            is_offset: bool,
            steps in prop::collection::vec(0_u64..700, 1..12),
            max in 8_u64..=SIZE / 8,
        ) {
            let max = max * 8;
            let mut ring = Model::new(1, is_offset, 0);
            let (mut held, mut spare) = (Held::new(SIZE, max), Vec::new());
            // The positions found, and their difference from the unit's positions.
            let mut last: Option<(Range<u64>, u64)> = None;
            for step in steps {
                ring.head.set(ring.head.get() + step);
                let head = ring.head.get();
                let (range, _) = hold(&mut ring, max, &mut held, &mut spare).unwrap();
                let len = range.end - range.start;
                for (at, got) in (head - len..head).zip(&held.bytes) {
                    prop_assert_eq!(*got, byte(at), "{} to {}", at, head);
                }
                prop_assert!((head - max.min(head)..head - len).all(|at| byte(at) == 0));
                prop_assert_eq!(range.end % SIZE, head % SIZE);
                if !is_offset {
                    prop_assert_eq!(range.end, head);
                }
                let off = head.wrapping_sub(range.end);
                if let Some((before, was_off)) = last {
                    // Either a gap, or no difference. In an area that may not have wrapped, the snapshots may also be adjacent.
                    let apart = range.start > before.end
                        || range.start == before.end && range.end <= SIZE;
                    prop_assert!(apart || off == was_off, "{:?} {:?}", before, range);
                }
                last = Some((range, off));
            }
        }
    }
}
