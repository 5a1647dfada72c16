// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Snapshots: what AUX areas that are written over and over hold at a moment.

use std::ops::Range;

use crate::drain::{Drain, Tape};
use crate::error::{Error, Result};
use crate::session::Session;
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
            let copied = rings.pause(|rings| {
                let (reader, area) = rings.aux();
                let range = reader.snapshot(&area, self.size);
                let len = usize::try_from(range.end - range.start).unwrap_or(0);
                if let Some(buffer) = buffer.get_mut(..len) {
                    reader.copy(&area, range.start, buffer);
                }
                range
            });
            let (range, ns) = copied.map_err(|e| {
                Error::failed(format!(
                    "cannot take a snapshot of {}: its PMU may be gone ({e})",
                    rings.name()
                ))
            })?;
            blind.max = blind.max.max(ns);
            blind.sum += ns;
            held.push((range, sys::now()));
        }
        // The records of what was copied come before it.
        for (rings, drain) in session.rings_mut().iter_mut().zip(drains.iter_mut()) {
            drain.records(rings, file)?;
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
