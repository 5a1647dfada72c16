// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The clock of a session's events.

use perfdata::TimeConv;

use crate::sys;

/// What the times of the events' records are by.
#[derive(Debug, Clone, Copy)]
pub enum Clock {
    /// [`sys::now`].
    Monotonic,
    /// perf's own clock, and how it is made of the processor's cycle counter.
    Perf(Option<TimeConv>),
}

impl Clock {
    /// The time now, ns; [`None`] if the kernel does not say how perf's clock is made.
    #[must_use]
    pub fn now(self) -> Option<u64> {
        match self {
            Self::Monotonic => Some(sys::now()),
            Self::Perf(conv) => conv?.time(sys::cycles()?),
        }
    }
}
