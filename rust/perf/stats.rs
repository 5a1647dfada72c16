// SPDX-License-Identifier: GPL-2.0

//! Counters of what happened to a PMU's transactions: `/sys/kernel/debug/perf-NAME/`.

use crate::aux::Loss;
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// A counter of one CPU. Only the holder of that CPU's guard adds to it, so no addition is lost;
/// any CPU reads it.
pub(crate) struct Counter(Atomic<u64>);

impl Counter {
    const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Adds `n`. One writer at a time: not an atomic read-modify-write.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    #[cfg(any(perf_output_copy_aux, CONFIG_RUST_PERF_TESTING))]
    /// Adds `n`, also in an NMI that interrupted the holder of the guard.
    pub(crate) fn add_any(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The value.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// The counters of one CPU.
        pub struct Stats {
            $($(#[$meta])* pub(crate) $name: Counter,)*
        }

        impl Stats {
            pub(crate) const fn new() -> Self {
                Self {
                    $($name: Counter::new(),)*
                }
            }
        }

        /// Makes a debugfs file for each counter, which reads the sum of the CPUs' counters.
        pub(crate) fn show<'data, S: Sum>(
            sum: &'data S,
            dir: &kernel::debugfs::ScopedDir<'data, '_>,
        ) {
            $(
                dir.read_callback_file(
                    ::kernel::c_str!(stringify!($name)),
                    sum,
                    &|sum: &S, f: &mut kernel::fmt::Formatter<'_>| {
                        writeln!(f, "{}", sum.sum(|stats| stats.$name.get()))
                    },
                );
            )*
        }
    };
}

/// What has [`Stats`] for each CPU.
pub(crate) trait Sum: Send + Sync + 'static {
    /// The sum of a counter over all CPUs.
    fn sum(&self, counter: fn(&Stats) -> u64) -> u64;
}

counters! {
    /// Transactions that were begun.
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
    /// Bytes that drivers reported lost because the AUX area was full.
    lost_no_space,
    /// Bytes that drivers reported lost for other reasons.
    lost_gap,
    /// Bytes that drivers reported lost in collisions.
    lost_collision,
    /// Commits that lost a number of bytes that the driver does not know.
    lost_unknown,
    /// Commits of more bytes than there was space, cut to the space: a defect of the driver.
    overclaimed,
    /// Failed begins: the event has no ring buffer.
    begin_no_ring,
    /// Failed begins: the ring buffer has no AUX area, or the area is being unmapped.
    begin_not_mapped,
    /// Failed begins: a transaction is open on the AUX area, on another CPU or of another event.
    begin_in_use,
    /// Failed begins: the AUX area was full.
    begin_no_space,
    /// Failed begins: the AUX area belongs to another PMU.
    begin_foreign,
    /// Failed begins: the driver refused.
    begin_refused,
    /// Failed begins: the CPU is offline.
    begin_offline,
    /// Failed adds: another event owned the unit.
    add_busy,
    /// AUX samples that got trace.
    samples,
    /// AUX samples that got zeroes: no transaction was open, the driver had no trace, or an NMI
    /// interrupted a callback.
    samples_missed,
}

impl Stats {
    /// Counts a loss.
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
