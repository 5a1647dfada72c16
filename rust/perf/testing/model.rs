// SPDX-License-Identifier: GPL-2.0

//! A model of perf's side of the AUX area, for KUnit.
//!
//! It checks the rules of `kernel/events/ring_buffer.c` that a driver can break, and misbehaves
//! where a test requests it. A call that perf would answer with a warning or a leak, or not at all,
//! is a [`Violation`].

use super::ring::{
    Ring,
    Sampled,
    Violation, //
};
use crate::{
    aux::{
        core::{
            Core,
            Handle,
            Refusal, //
        },
        sample::Sampling, //
    },
    bindings, //
};
use auxcore::{
    guard::{
        Guard,
        Memory,
        Pending, //
    },
    ring::Pos, //
};
use core::{
    ffi::c_void,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Delta,
    types::Opaque, //
};

/// The request of an NMI that interrupts the next callback before it releases its guard: bits of
/// [`Pending`].
static NMI: Atomic<u32> = Atomic::new(0);

/// Whether perf's caller holds a raw lock, perhaps that of the timers.
static LOCKED: Atomic<bool> = Atomic::new(false);

/// Whether a timer was armed while `LOCKED` was set.
static ARMED_UNDER_LOCK: Atomic<bool> = Atomic::new(false);

/// Whether the work was queued.
static QUEUED: Atomic<bool> = Atomic::new(false);

/// The model of perf. `event->rb` points to the [`Ring`] of an event.
pub(crate) struct Model;

impl Model {
    /// Has an NMI interrupt the next callback.
    pub(super) fn interrupt_next(pending: Pending) {
        NMI.store(pending.bits(), Relaxed);
    }

    /// Runs `f` as if its caller held a raw lock. Also returns whether `f` armed a timer.
    pub(super) fn under_lock<R>(f: impl FnOnce() -> R) -> (R, bool) {
        LOCKED.store(true, Relaxed);
        let result = f();

        LOCKED.store(false, Relaxed);
        (result, ARMED_UNDER_LOCK.xchg(false, Relaxed))
    }

    /// Whether the work was queued since the last call.
    pub(super) fn is_queued() -> bool {
        QUEUED.xchg(false, Relaxed)
    }

    /// The ring buffer of an event on a bench.
    ///
    /// # Safety
    ///
    /// `event` must be live, and its `rb` null or point to a [`Ring`] that nothing else refers to
    /// during the lifetime that the caller picks.
    unsafe fn ring_of<'a>(event: NonNull<bindings::perf_event>) -> Option<&'a mut Ring> {
        // SAFETY: The caller guarantees that the event is live.
        let ring = unsafe { (*event.as_ptr()).rb };

        // SAFETY: The caller guarantees that the event's ring buffer is null or a `Ring`, to which
        // nothing else refers.
        unsafe { ring.cast::<Ring>().as_mut() }
    }

    /// The ring buffer that the transaction on `handle` is open on.
    ///
    /// # Safety
    ///
    /// As for [`Self::ring_of`], of the event that the transaction was begun with.
    unsafe fn ring_of_handle<'a>(handle: &Handle) -> Option<&'a mut Ring> {
        // SAFETY: The caller guarantees that the handle's event is null or on a bench, to whose
        // ring buffer nothing else refers.
        NonNull::new(handle.0.event).and_then(|event| unsafe { Self::ring_of(event) })
    }
}

impl Core for Model {
    unsafe fn ring(event: NonNull<bindings::perf_event>) -> *mut c_void {
        // SAFETY: The caller guarantees that the event is live.
        unsafe { (*event.as_ptr()).rb }.cast()
    }

    unsafe fn begin(
        handle: &mut Handle,
        event: NonNull<bindings::perf_event>,
    ) -> Result<NonNull<c_void>, Refusal> {
        // SAFETY: The event is on a bench, whose ring buffer nothing refers to during a callback,
        // by the invariant of `Bench`.
        let ring = unsafe { Self::ring_of(event) }.ok_or(Refusal::NotMapped)?;
        let private = ring.begin(handle)?;

        handle.0.event = event.as_ptr();
        handle.0.rb = ptr::from_mut(ring).cast();
        Ok(private)
    }

    unsafe fn flag(handle: &mut Handle, flags: u64) {
        // SAFETY: The union holds integers only; for AUX it is `aux_flags`.
        unsafe { *handle.0.__bindgen_anon_1.aux_flags.as_mut() |= flags };
    }

    unsafe fn skip(handle: &mut Handle, len: u64) -> Result {
        // SAFETY: The event was set by `begin()`; it is on a bench, in a callback.
        let ring = unsafe { Self::ring_of_handle(handle) };

        ring.ok_or(ENOSPC)?.skip(handle, len)
    }

    unsafe fn end(handle: &mut Handle, len: u64) {
        // SAFETY: The union holds integers only; for AUX it is `aux_flags`.
        let flags = *unsafe { handle.0.__bindgen_anon_1.aux_flags.as_ref() };
        // SAFETY: The event was set by `begin()`; it is on a bench, in a callback.
        let ring = unsafe { Self::ring_of_handle(handle) };

        if let Some(ring) = ring {
            ring.end(handle, len, flags);
        }
        handle.0.event = ptr::null_mut();
    }

    unsafe fn arm(_timer: &Opaque<bindings::hrtimer>, _interval: Delta) {
        // The test decides when it expires.
        if LOCKED.load(Relaxed) {
            ARMED_UNDER_LOCK.store(true, Relaxed);
        }
    }

    unsafe fn queue(_work: &Opaque<bindings::irq_work>) {
        // `Bench::on_cpu()` does the work.
        QUEUED.store(true, Relaxed);
    }

    fn interrupt<M: Memory>(guard: &Guard<M>) {
        let pending = Pending::from_bits(NMI.xchg(0, Relaxed));

        if pending != Pending::NONE {
            guard.request(pending);
        }
    }
}

impl Sampling for Model {
    unsafe fn copy(
        handle: &mut Handle,
        record: NonNull<bindings::perf_output_handle>,
        from: Pos,
        to: Pos,
    ) -> c_long {
        // SAFETY: The event was set by `begin()`; it is on a bench, in a callback.
        let ring = unsafe { Self::ring_of_handle(handle) };
        // SAFETY: The record is from `Sampled::as_record()`, whose caller accesses it only later.
        let sampled = unsafe { record.cast::<Sampled<'_>>().as_mut() };

        ring.and_then(|ring| match ring.copy(sampled, from, to) {
            Ok(copied) => c_long::try_from(copied).ok(),
            Err(_) => {
                ring.violate(Violation::NoMemory);
                None
            }
        })
        .unwrap_or(0)
    }
}
