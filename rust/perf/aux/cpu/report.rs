// SPDX-License-Identifier: GPL-2.0

//! Reports of the state of a CPU: counters, tracepoints, and the start of the trace.

use super::{
    failure::Failure,
    inner::Inner,
    CpuState, //
};
use crate::{
    aux::{
        core::Core,
        loss::Losses,
        AuxPmu,
        Loss, //
    },
    bindings, //
};
use core::ptr::NonNull;
use kernel::{
    jump_label::static_branch_unlikely,
    prelude::*, //
};

/// Whether a tracepoint is enabled.
macro_rules! is_traced {
    ($tracepoint:ident) => {
        // SAFETY: The static key of a tracepoint, which `helpers/trace.c` defines.
        unsafe { static_branch_unlikely!(bindings::$tracepoint, kernel::bindings::tracepoint, key) }
    };
}

impl<T: AuxPmu, C: Core> Inner<T, C> {
    /// A transaction was begun.
    #[inline]
    pub(super) fn report_begun(&self, state: &CpuState<T, C>) {
        state.stats.begins.add(1);
        if is_traced!(__tracepoint_rust_perf_begin) {
            self.trace_begin(0);
        }
    }

    /// No transaction was begun.
    #[cold]
    pub(super) fn report_failure(&self, state: &CpuState<T, C>, failure: Failure) {
        let stats = &state.stats;
        let counter = match failure {
            Failure::NoRing => &stats.begin_no_ring,
            Failure::NotMapped => &stats.begin_not_mapped,
            Failure::InUse => &stats.begin_in_use,
            Failure::NoSpace => &stats.begin_no_space,
            Failure::Foreign => &stats.begin_foreign,
            Failure::Refused(_) => &stats.begin_refused,
            Failure::Offline => &stats.begin_offline,
            Failure::Busy => return,
        };

        counter.add(1);
        self.trace_begin(failure.reason());
    }

    #[cold]
    fn trace_begin(&self, reason: c_uint) {
        if let Some(event) = self.event {
            let (head, space) = (self.handle.head().get(), self.handle.space());

            // SAFETY: The event is live, by the type invariant. Any context.
            unsafe { bindings::rust_perf_trace_begin(event.as_ptr(), head, space, reason) };
        }
    }
}

impl<T: AuxPmu, C: Core> CpuState<T, C> {
    /// Reports the commit of a live event's transaction that began at `head`.
    #[inline]
    pub(super) fn report_commit(
        &self,
        event: NonNull<bindings::perf_event>,
        head: u64,
        len: u64,
        flags: u64,
    ) {
        self.stats.commits.add(1);
        self.stats.bytes.add(len);
        if is_traced!(__tracepoint_rust_perf_commit) {
            // SAFETY: The event is live: the caller has it from `Inner`. Any context.
            unsafe { bindings::rust_perf_trace_commit(event.as_ptr(), head, len, flags) };
        }
    }

    /// Reports the losses of a commit of a live event. `flags` are the record's flags for these
    /// losses.
    pub(super) fn report_losses(
        &self,
        event: NonNull<bindings::perf_event>,
        losses: &Losses,
        flags: u64,
    ) {
        let stats = &self.stats;

        for (counter, flag) in [
            (&stats.truncated, bindings::PERF_AUX_FLAG_TRUNCATED),
            (&stats.partial, bindings::PERF_AUX_FLAG_PARTIAL),
            (&stats.collision, bindings::PERF_AUX_FLAG_COLLISION),
        ] {
            counter.add((flags & u64::from(flag) != 0).into());
        }
        for loss in losses.iter() {
            let (cause, bytes) = match loss {
                Loss::None => continue,
                Loss::Gap { bytes } => (1, bytes),
                Loss::NoSpace { bytes } => (2, bytes),
                Loss::Collision { bytes } => (3, bytes),
            };
            let known = bytes.is_some();
            let bytes = bytes.unwrap_or(0);

            stats.lost(loss);
            // SAFETY: The event is live: the caller has it from `Inner`. Any context.
            unsafe { bindings::rust_perf_trace_loss(event.as_ptr(), cause, known, bytes) };
        }
    }
}

/// Reports to perf that the trace of a live event has started, so that perf writes
/// `PERF_RECORD_ITRACE_START` at the first sched-in and not at every one.
///
/// C counterpart: `perf_event_itrace_started()`, which modules cannot call.
#[inline]
pub(super) fn itrace_started(event: NonNull<bindings::perf_event>) {
    // SAFETY: The event is live: the caller has it from `Inner`.
    let attach_state = unsafe { &raw mut (*event.as_ptr()).attach_state };
    // SAFETY: This is a field of a live event. The event is scheduled in on this CPU, and perf
    // writes the field only while it is not. The read is volatile, so it is a `READ_ONCE()`.
    let before = unsafe { attach_state.read_volatile() };

    // Written once, when the first transaction has begun.
    if before & bindings::PERF_ATTACH_ITRACE == 0 {
        // SAFETY: This is a field of a live event. The event is scheduled in on this CPU, and perf
        // writes the field only while it is not. For a child, perf may read it on another CPU, as
        // with `perf_event_itrace_started()`. The write is volatile, so it is a `WRITE_ONCE()`.
        unsafe { attach_state.write_volatile(before | bindings::PERF_ATTACH_ITRACE) };
    }
}
