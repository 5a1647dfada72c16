// SPDX-License-Identifier: GPL-2.0

//! Why an event was not started: for errnos, counters and tracepoints.

use kernel::prelude::*;

/// Why an event was not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The event has no ring buffer.
    NoRing,
    /// The ring buffer has no AUX area, or the area is being unmapped.
    NotMapped,
    /// A transaction is open on the AUX area.
    InUse,
    /// The AUX area is full. perf disables the event, and user space enables it again.
    NoSpace,
    /// The AUX area belongs to another PMU.
    Foreign,
    /// The driver's `start()` refused.
    Refused(Error),
    /// The CPU is offline.
    Offline,
    /// Another event owns the unit.
    Busy,
}

impl Failure {
    /// The errno that `add()` returns to perf. perf does not look at the value: it retries at the
    /// next rotation of the context's events.
    pub(crate) fn to_errno(self) -> c_int {
        match self {
            Self::Refused(error) => error.to_errno(),
            Self::Busy | Self::InUse | Self::Foreign => EBUSY.to_errno(),
            Self::NoRing | Self::NotMapped | Self::NoSpace | Self::Offline => EAGAIN.to_errno(),
        }
    }

    /// The number in the tracepoint `rust_perf_begin`, where 0 is success.
    pub(super) fn reason(self) -> c_uint {
        match self {
            Self::NoRing => 1,
            Self::NotMapped => 2,
            Self::NoSpace => 3,
            Self::Foreign => 4,
            Self::Refused(_) => 5,
            Self::Offline => 6,
            Self::InUse | Self::Busy => 7,
        }
    }
}
