// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The events of tracefs in a recording.

use crate::loss::Loss;

/// First id of the events of tracefs in a file. The ids that the kernel gives to its events are
/// lower.
pub const FIRST_ID: u64 = 1 << 62;

/// Whether this is the id of an event of tracefs that `auxrec record --trace` has recorded.
pub(super) fn is_ours(id: u64) -> bool {
    id >= FIRST_ID
}

/// The events of tracefs on one CPU.
#[derive(Debug, Clone, Default)]
pub struct Tracefs {
    /// The times of the events, ns.
    pub times: Vec<u64>,
    /// Number of events, and of lost events.
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
