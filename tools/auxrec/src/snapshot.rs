// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Snapshots: what AUX areas that are written over and over hold at a moment.

use std::io;
use std::ops::Range;

use crate::drain::{Drain, Tape};
use crate::error::{Error, Result};
use crate::ring::Area;
use crate::session::{Rings, Session};
use crate::sys;

/// For how long nothing was traced, because a snapshot was taken: of one ring, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Blind {
    /// The longest.
    pub max: u64,
    /// All together.
    pub sum: u64,
}

/// What taking snapshots needs and keeps.
///
/// Ring after ring is copied into memory that is there already, most of it while its unit goes on: see [`hold`]. So a CPU is blind
/// only while its own ring's head is found, and what is overwritten first is copied; never for another's, or for the file.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// So much of each ring.
    size: u64,
    buffers: Vec<Vec<u8>>,
    /// How many there were.
    pub times: u64,
    pub blind: Blind,
}

impl Snapshots {
    /// For all rings of a session, which hold `size` bytes each at most.
    pub fn new(session: &Session, size: usize) -> Self {
        // Not zeros: the system would give memory only when it is written, which would be in the blind time.
        let buffer = || vec![0xff; size];
        Self {
            size: u64::try_from(size).unwrap_or(u64::MAX),
            buffers: session.rings().iter().map(|_| buffer()).collect(),
            times: 0,
            blind: Blind::default(),
        }
    }

    /// Takes one. Events that are off stay off.
    pub fn take(
        &mut self,
        session: &mut Session,
        drains: &mut [Drain],
        file: &mut impl Tape,
    ) -> Result<Blind> {
        let mut blind = Blind::default();
        let mut held: Vec<(Range<u64>, u64)> = Vec::new();
        for (rings, buffer) in session.rings_mut().iter_mut().zip(&mut self.buffers) {
            if !rings.have_aux() {
                held.push((0..0, sys::now()));
                continue;
            }
            let (range, ns) = hold(rings, self.size, buffer).map_err(|e| {
                Error::failed(format!(
                    "cannot take a snapshot of {}: its PMU may be gone ({e})",
                    rings.name()
                ))
            })?;
            blind.max = blind.max.max(ns);
            blind.sum += ns;
            held.push((range, sys::now()));
        }
        // The records of what was copied come before it; and before what of them is left of a ring that is overwritten, that which
        // may have been told of in records that are not.
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
        for ((rings, drain), ((range, time), buffer)) in rings.zip(held.iter().zip(&self.buffers)) {
            drain.held(rings, range, buffer, *time, file)?;
        }
        file.round()?;
        self.times += 1;
        self.blind.max = self.blind.max.max(blind.max);
        self.blind.sum = self.blind.sum.saturating_add(blind.sum);
        Ok(blind)
    }
}

/// Between the unit and what is copied while it goes on there is this part of the ring.
const AHEAD: u64 = 8;

/// A ring that is overwritten, and its unit.
trait Unit {
    /// Length of the ring.
    fn size(&self) -> u64;
    /// How far the unit had come when it was stopped last.
    fn head(&self) -> u64;
    /// Positions of so many of the newest bytes, or of all there are.
    fn newest(&self, most: u64) -> Range<u64>;
    /// Copies what is at position `from`.
    fn copy(&self, from: u64, out: &mut [u8]);
    /// Runs `still` while the unit stands still, and says for how long at most that was, ns.
    fn pause<T>(&mut self, still: impl FnOnce(&mut Self) -> T) -> io::Result<(T, u64)>;
}

impl Unit for Rings {
    fn size(&self) -> u64 {
        self.aux.size()
    }

    fn head(&self) -> u64 {
        self.area().head()
    }

    fn newest(&self, most: u64) -> Range<u64> {
        self.aux.snapshot(&self.area(), most)
    }

    fn copy(&self, from: u64, out: &mut [u8]) {
        self.aux.copy(&self.area(), from, out);
    }

    fn pause<T>(&mut self, still: impl FnOnce(&mut Self) -> T) -> io::Result<(T, u64)> {
        Rings::pause(self, still)
    }
}

/// Copies the newest bytes of a ring to the front of `buffer`; which ones, and for how long nothing was traced.
///
/// The unit is stopped, and then its head is there. It will overwrite the oldest bytes first: of these as many are copied at once as
/// it takes to have an [`AHEAD`]th of the ring between it and the others. Those are copied while it goes on. Then it is stopped again,
/// and its head tells whether it came as far as them; if so, the newest bytes are copied while it stands still.
fn hold(ring: &mut impl Unit, most: u64, buffer: &mut [u8]) -> io::Result<(Range<u64>, u64)> {
    let size = ring.size();
    let ((range, first), stopped) = ring.pause(|ring| {
        let range = ring.newest(most);
        let len = range.end - range.start;
        // One that has not gone beyond the ring's length may be one that never does, and would not tell.
        let first = if range.end <= size {
            len
        } else {
            (size / AHEAD).saturating_sub(size - len).min(len)
        };
        copy(ring, range.start..range.start + first, &range, buffer);
        (range, first)
    })?;
    if first == range.end - range.start {
        return Ok((range, stopped));
    }
    copy(ring, range.start + first..range.end, &range, buffer);
    let (range, again) = ring.pause(|ring| {
        // What is not in the ring any more lies a ring's length before the head.
        if ring.head().saturating_sub(size) <= range.start + first {
            return range;
        }
        let range = ring.newest(most);
        copy(ring, range.clone(), &range, buffer);
        range
    })?;
    Ok((range, stopped + again))
}

/// Copies what is at these positions to where it is in the snapshot, which has those of `all`.
fn copy(ring: &impl Unit, part: Range<u64>, all: &Range<u64>, buffer: &mut [u8]) {
    let place = |at: u64| usize::try_from(at - all.start).unwrap_or(usize::MAX);
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

    /// The unit writes at each position of all that it ever writes the same byte.
    fn byte(at: u64) -> u8 {
        u8::try_from(at * 7 % 251).unwrap()
    }

    /// A ring whose unit writes so many bytes each time that 16 were copied.
    struct Model {
        head: Cell<u64>,
        speed: u64,
        still: bool,
        /// How many bytes were copied while it stood still.
        copied: Cell<u64>,
    }

    impl Unit for Model {
        fn size(&self) -> u64 {
            SIZE
        }

        fn head(&self) -> u64 {
            assert!(self.still, "the kernel tells only then");
            self.head.get()
        }

        fn newest(&self, most: u64) -> Range<u64> {
            let head = self.head();
            head - head.min(most).min(SIZE)..head
        }

        fn copy(&self, from: u64, out: &mut [u8]) {
            for (at, out) in (from..).zip(out) {
                let head = self.head.get();
                // The newest that was written there.
                *out = byte(head - 1 - (head - 1 - at) % SIZE);
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

    proptest! {
        #[test]
        fn a_snapshot_is_whole(head in 1_u64..2000, most in 1_u64..=SIZE, speed in 0_u64..40) {
            let mut ring = Model { head: Cell::new(head), speed, still: false, copied: Cell::new(0) };
            let mut buffer = vec![0; usize::try_from(most).unwrap()];
            let (range, _) = hold(&mut ring, most, &mut buffer).unwrap();
            prop_assert_eq!(range.end - range.start, most.min(head));
            prop_assert!((head..=ring.head.get()).contains(&range.end));
            for (at, got) in range.clone().zip(&buffer) {
                prop_assert_eq!(*got, byte(at), "{} of {:?}", at, range);
            }
            // Of a ring that has gone round, only what the unit comes to first, if it is slower than the copy.
            if head > SIZE && speed < 2 {
                prop_assert!(ring.copied.get() <= SIZE / AHEAD);
            }
        }
    }
}
