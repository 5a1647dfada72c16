// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Snapshots: what AUX areas that are written over and over hold at a moment.

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
/// Ring after ring its events are switched off, it is copied into memory that is there already, and its events are switched on
/// again: so each CPU is blind for the time of one copy of its own ring, and never for that of another's, or of the file's.
/// If a ring has room for twice a snapshot or more, it is copied while the unit goes on, and then each CPU is blind only for
/// the time in which the kernel says where its head is.
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

/// Copies the newest bytes of a ring; which ones, and for how long nothing was traced.
fn hold(rings: &mut Rings, size: u64, buffer: &mut [u8]) -> std::io::Result<(Range<u64>, u64)> {
    let newest = |rings: &mut Rings| {
        let (reader, area) = rings.aux();
        reader.snapshot(&area, size)
    };
    let copy = |rings: &mut Rings, range: &Range<u64>, buffer: &mut [u8]| {
        let (reader, area) = rings.aux();
        let len = usize::try_from(range.end - range.start).unwrap_or(0);
        if let Some(buffer) = buffer.get_mut(..len) {
            reader.copy(&area, range.start, buffer);
        }
    };
    let all = rings.aux().0.size();
    let ((range, copied), first) = rings.pause(|rings| {
        let range = newest(rings);
        // A head that has gone beyond the ring's length is one that only grows, and will say how far the unit has come.
        let now = size > all / 2 || range.end <= all;
        if now {
            copy(rings, &range, buffer);
        }
        (range, now)
    })?;
    if copied {
        return Ok((range, first));
    }
    copy(rings, &range, buffer);
    // The head is that at which the unit was stopped, and the call that stopped it came after the copy: what was overwritten
    // meanwhile lies a ring's length before it.
    let (range, second) = rings.pause(|rings| {
        if !is_overwritten(&range, rings.aux().1.head(), all) {
            return range;
        }
        let range = newest(rings);
        copy(rings, &range, buffer);
        range
    })?;
    Ok((range, first + second))
}

/// Whether a ring of `size` bytes, now that its head is there, has something else at these positions.
fn is_overwritten(range: &Range<u64>, head: u64, size: u64) -> bool {
    head.saturating_sub(size) > range.start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwritten_is_what_lies_a_ring_before_the_head() {
        for (range, head, overwritten) in [
            (0..0, 0, false),
            (0..64, 64, false),
            (0..64, 256, false),
            (0..64, 257, true),
            (1000..1064, 1064, false),
            (1000..1064, 1256, false),
            (1000..1064, 1257, true),
            (1000..1064, u64::MAX, true),
        ] {
            assert_eq!(
                is_overwritten(&range, head, 256),
                overwritten,
                "{range:?}, {head}"
            );
        }
    }
}
