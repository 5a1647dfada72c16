// SPDX-License-Identifier: GPL-2.0

//! A clock for every context.
//!
//! C header: [`include/linux/timekeeping.h`](srctree/include/linux/timekeeping.h)

use crate::bindings;

/// `CLOCK_MONOTONIC` in ns; safe in NMI, where it may run behind by an update of the timekeeper.
///
/// C counterpart: `ktime_get_mono_fast_ns()`.
///
/// # Examples
///
/// ```
/// let before = perf::clock::monotonic_fast();
///
/// assert!(perf::clock::monotonic_fast() >= before);
/// ```
#[inline]
pub fn monotonic_fast() -> u64 {
    // SAFETY: May be called from any context, NMI included.
    unsafe { bindings::ktime_get_mono_fast_ns() }
}

/// The processor's time stamp counter, which gives the timestamps in Intel PT's trace. It is read
/// after all earlier instructions have been executed.
///
/// C counterpart: `rdtsc_ordered()`.
#[cfg(CONFIG_X86_64)]
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: May be called from any context.
    unsafe { bindings::rust_perf_tsc() }
}
