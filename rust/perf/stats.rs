// SPDX-License-Identifier: GPL-2.0

//! What a PMU has done, for people: counters in debugfs, `/sys/kernel/debug/perf-NAME/`.

use crate::aux::Loss;
use core::fmt;
use kernel::{
    debugfs::ScopedDir,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// A number that only grows. May be counted from any context, NMI included.
pub(crate) struct Counter(Atomic<u64>);

impl Counter {
    const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Counts `n` more.
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The number.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

// How debugfs shows it.
impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.get(), f)
    }
}

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// The counters of a PMU, a file each.
        pub(crate) struct Stats {
            $($(#[$meta])* pub(crate) $name: Counter,)*
        }

        impl Stats {
            pub(crate) const fn new() -> Self {
                Self {
                    $($name: Counter::new(),)*
                }
            }

            /// Makes the files.
            pub(crate) fn show<'data>(&'data self, dir: &ScopedDir<'data, '_>) {
                $(dir.read_only_file(::kernel::c_str!(stringify!($name)), &self.$name);)*
            }
        }
    };
}

counters! {
    /// Sessions that were begun.
    begins,
    /// Transactions that were committed.
    commits,
    /// Bytes that were committed.
    bytes,
    /// Commits with `PERF_AUX_FLAG_TRUNCATED`.
    truncated,
    /// Commits with `PERF_AUX_FLAG_PARTIAL`.
    partial,
    /// Commits with `PERF_AUX_FLAG_COLLISION`.
    collision,
    /// Bytes that drivers reported lost for want of room.
    lost_no_space,
    /// Bytes that drivers reported lost for other reasons.
    lost_gap,
    /// Bytes that drivers reported lost in collisions.
    lost_collision,
    /// Commits that lost a number of bytes that the driver cannot tell.
    lost_unknown,
    /// Commits of more than there was room for, cut: a defect of the driver.
    overclaimed,
    /// Begins that failed: no ring at all.
    begin_no_ring,
    /// Begins that failed: no AUX ring, or one being unmapped, or with a transaction open.
    begin_not_mapped,
    /// Begins that failed: the ring was full.
    begin_no_space,
    /// Begins that failed: the ring is another PMU's.
    begin_foreign,
    /// Begins that failed: the driver refused.
    begin_refused,
    /// Begins that failed: the CPU is going offline.
    begin_offline,
    /// Adds that failed: another event had the unit.
    add_busy,
    /// Samples that asked for trace and got some.
    samples,
    /// Samples that asked for trace and got zeroes: no session was open, the driver could not
    /// tell, or an NMI asked that broke into a callback.
    samples_missed,
}

impl Stats {
    /// Counts what was lost.
    pub(crate) fn lost(&self, loss: Loss) {
        let (counter, bytes) = match loss {
            Loss::None => return,
            Loss::NoSpace { bytes } => (&self.lost_no_space, bytes),
            Loss::Gap { bytes } => (&self.lost_gap, bytes),
            Loss::Collision { bytes } => (&self.lost_collision, bytes),
        };

        match bytes {
            Some(bytes) => counter.add(bytes),
            None => self.lost_unknown.add(1),
        }
    }
}
