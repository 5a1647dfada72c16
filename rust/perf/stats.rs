// SPDX-License-Identifier: GPL-2.0

//! Counters of what happened to a PMU's transactions: `/sys/kernel/debug/perf-NAME/`.

use crate::{
    aux::Loss,
    local::Local, //
};
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// A counter of one CPU. Only the holder of that CPU's guard adds to it, so no addition is lost;
/// any CPU reads it.
pub(crate) struct Counter(Local<u64>);

impl Counter {
    const fn new() -> Self {
        Self(Local::new(0))
    }

    /// Adds `n`. One writer at a time: not an atomic read-modify-write.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.set(self.0.get().wrapping_add(n));
    }

    /// The value.
    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }
}

/// A counter of one CPU, to which an NMI may add while the holder of the guard does.
pub(crate) struct AnyCounter(Atomic<u64>);

impl AnyCounter {
    const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Adds `n`.
    #[cfg(any(perf_output_copy_aux, CONFIG_RUST_PERF_TESTING))]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The value.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident: $counter:ident,)*) => {
        /// The counters of one CPU.
        pub struct Stats {
            $($(#[$meta])* pub(crate) $name: $counter,)*
        }

        impl Stats {
            pub(crate) const fn new() -> Self {
                Self {
                    $($name: $counter::new(),)*
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

/// An object that has [`Stats`] for each CPU.
pub(crate) trait Sum: Send + Sync + 'static {
    /// The sum of a counter over all CPUs.
    fn sum(&self, counter: fn(&Stats) -> u64) -> u64;
}

counters! {
    /// Transactions that were begun.
    begins: Counter,
    /// Transactions that were committed.
    commits: Counter,
    /// Bytes that were committed.
    bytes: Counter,
    /// Commits with `PERF_AUX_FLAG_TRUNCATED`.
    truncated: Counter,
    /// Commits with `PERF_AUX_FLAG_PARTIAL`.
    partial: Counter,
    /// Commits with `PERF_AUX_FLAG_COLLISION`.
    collision: Counter,
    /// Bytes that drivers reported lost because the AUX area was full.
    lost_no_space: Counter,
    /// Bytes that drivers reported lost for other reasons.
    lost_gap: Counter,
    /// Bytes that drivers reported lost in collisions.
    lost_collision: Counter,
    /// Commits that lost a number of bytes that the driver does not know.
    lost_unknown: Counter,
    /// Commits of more bytes than there was space, cut to the space: a defect of the driver.
    overclaimed: Counter,
    /// Failed begins: the event has no ring buffer.
    begin_no_ring: Counter,
    /// Failed begins: the ring buffer has no AUX area, or the area is being unmapped.
    begin_not_mapped: Counter,
    /// Failed begins: a transaction is open on the AUX area, on another CPU or of another event.
    begin_in_use: Counter,
    /// Failed begins: the AUX area was full.
    begin_no_space: Counter,
    /// Failed begins: the AUX area belongs to another PMU.
    begin_foreign: Counter,
    /// Failed begins: the driver refused.
    begin_refused: Counter,
    /// Failed begins: the CPU is offline.
    begin_offline: Counter,
    /// Failed adds: another event owned the unit.
    add_busy: Counter,
    /// AUX samples that got trace.
    samples: AnyCounter,
    /// AUX samples that got zeroes: no transaction was open, the driver had no trace, or an NMI
    /// interrupted a callback.
    samples_missed: AnyCounter,
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
