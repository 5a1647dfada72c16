// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The events of tracefs in a recording.

use crate::loss::Loss;

/// The ids of these events in a file are above those that the kernel gives to its own.
pub const FIRST_ID: u64 = 1 << 62;

/// Whether a file has this event of tracefs by `auxrec record --trace`.
pub(super) fn is_ours(id: u64) -> bool {
    id >= FIRST_ID
}

/// The events of tracefs that a recording has of a CPU.
#[derive(Debug, Clone, Default)]
pub struct Tracefs {
    /// The time of each, ns.
    pub times: Vec<u64>,
    /// How many there are, and how many were lost.
    pub loss: Loss,
}

impl Tracefs {
    pub(super) fn event(&mut self, time: u64) {
        self.times.push(time);
        self.loss.events += 1;
    }

    pub(super) fn lost(&mut self, events: u64) {
        self.loss.events_lost = self.loss.events_lost.saturating_add(events);
    }
}
