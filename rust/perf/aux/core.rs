// SPDX-License-Identifier: GPL-2.0

//! perf's core, as the state of a CPU uses it.
//!
//! C counterpart: `perf_aux_output_*()`, `kernel/events/ring_buffer.c`.

use crate::bindings;
use auxcore::{
    guard::{
        Guard,
        Memory, //
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
    error::to_result,
    prelude::*,
    time::Delta,
    types::Opaque, //
};

/// Why perf began no transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The AUX area is being unmapped, or the ring buffer has none.
    NotMapped,
    /// The AUX area is full. perf disables the event, and user space enables it again.
    NoSpace,
}

/// A `struct perf_output_handle`, as it is used for AUX.
///
/// perf may keep its address while a transaction is open.
pub struct Handle(pub(crate) bindings::perf_output_handle);

impl Handle {
    /// A handle without an open transaction.
    pub(crate) fn new() -> Self {
        // SAFETY: All fields are pointers and integers, for which 0 is a value.
        Self(unsafe { core::mem::zeroed() })
    }

    /// The position at which the transaction begins.
    #[inline]
    pub(crate) fn head(&self) -> Pos {
        // SAFETY: Both members of the union are as wide. For AUX it is `head`.
        position(unsafe { self.0.__bindgen_anon_2.head })
    }

    /// In overwrite mode: sets the position at which the transaction ends.
    #[inline]
    pub(crate) fn set_head(&mut self, head: Pos) {
        self.0.__bindgen_anon_2.head = bytes(head.get());
    }

    /// In non-overwrite mode: the bytes that may be written.
    #[inline]
    pub(crate) fn space(&self) -> u64 {
        position(self.0.size).get()
    }

    /// In non-overwrite mode: the position whose commit wakes the reader.
    #[inline]
    pub(crate) fn wakeup(&self) -> Pos {
        position(self.0.wakeup)
    }

    /// The ring buffer of the open transaction.
    #[inline]
    pub(crate) fn ring(&self) -> *mut c_void {
        self.0.rb.cast()
    }
}

/// The functions of perf's core and of the timer subsystem that the state of a CPU calls. [`Perf`]
/// calls the kernel's own; tests use a model.
pub trait Core: 'static {
    /// The identity of the ring buffer that `event` writes to; null if it has none. Never
    /// dereferenced.
    ///
    /// # Safety
    ///
    /// `event` must be live.
    unsafe fn ring(event: NonNull<bindings::perf_event>) -> *mut c_void;

    /// Opens a transaction of `event` and returns the `aux_priv` of its ring buffer.
    ///
    /// # Safety
    ///
    /// - No transaction may be open on `handle`.
    /// - `event` must be live, on this CPU, with interrupts off.
    unsafe fn begin(
        handle: &mut Handle,
        event: NonNull<bindings::perf_event>,
    ) -> Result<NonNull<c_void>, Refusal>;

    /// Adds `PERF_AUX_FLAG_*` to the record of the transaction.
    ///
    /// # Safety
    ///
    /// A transaction must be open on `handle`.
    unsafe fn flag(handle: &mut Handle, flags: u64);

    /// Publishes `len` bytes of padding, and moves the handle's head, space and wakeup position.
    /// [`ENOSPC`] if there is less space, and in overwrite mode.
    ///
    /// # Safety
    ///
    /// - A transaction must be open on `handle`, begun on this CPU.
    /// - The bytes must be stored, and barrier (B) must stand between their stores and this call.
    unsafe fn skip(handle: &mut Handle, len: u64) -> Result;

    /// Closes the transaction. In non-overwrite mode `len` more bytes are published.
    ///
    /// # Safety
    ///
    /// - A transaction must be open on `handle`, begun on this CPU.
    /// - `len` must not exceed its space. The bytes must be stored, and barrier (B) must stand
    ///   between their stores and this call.
    unsafe fn end(handle: &mut Handle, len: u64);

    /// Arms `timer` on this CPU, also if it is armed already.
    ///
    /// # Safety
    ///
    /// `timer` must be set up. Interrupts must be off, this must not be an NMI, and no lock of the
    /// timer subsystem may be held.
    unsafe fn arm(timer: &Opaque<bindings::hrtimer>, interval: Delta);

    /// Queues `work` on this CPU. Any context.
    ///
    /// # Safety
    ///
    /// `work` must be set up.
    unsafe fn queue(work: &Opaque<bindings::irq_work>);

    /// In tests, lets an NMI interrupt a callback that holds `guard`. The kernel's NMIs arrive by
    /// themselves.
    #[inline]
    fn interrupt<M: Memory>(_guard: &Guard<M>) {}
}

/// The kernel's own functions.
pub struct Perf;

impl Core for Perf {
    #[inline]
    unsafe fn ring(event: NonNull<bindings::perf_event>) -> *mut c_void {
        // SAFETY: The caller guarantees that the event is live; `parent` is set when the event is
        // made.
        let parent = unsafe { (*event.as_ptr()).parent };
        let output = if parent.is_null() {
            event.as_ptr()
        } else {
            parent
        };
        // SAFETY: `output` is the event, which the caller guarantees to be live, or its parent,
        // which the event keeps.
        let ring = unsafe { &raw mut (*output).rb };

        // SAFETY: `ring` is a field of a live event. perf replaces it by `rcu_assign_pointer()`;
        // the value is compared and never dereferenced.
        unsafe { ring.read_volatile() }.cast()
    }

    #[inline]
    unsafe fn begin(
        handle: &mut Handle,
        event: NonNull<bindings::perf_event>,
    ) -> Result<NonNull<c_void>, Refusal> {
        // perf writes `handle->rb` only after the checks of the AUX area and before the space
        // check.
        handle.0.rb = ptr::null_mut();

        // SAFETY: The caller guarantees that no transaction is open on the handle, and that the
        // event is live and on this CPU, with interrupts off.
        let private = unsafe { bindings::perf_aux_output_begin(&mut handle.0, event.as_ptr()) };

        NonNull::new(private).ok_or_else(|| {
            // perf does not clear the event in the handle if there is no ring buffer at all.
            handle.0.event = ptr::null_mut();
            match handle.0.rb.is_null() {
                true => Refusal::NotMapped,
                false => Refusal::NoSpace,
            }
        })
    }

    #[inline]
    unsafe fn flag(handle: &mut Handle, flags: u64) {
        // SAFETY: The caller guarantees that a transaction is open on the handle.
        unsafe { bindings::perf_aux_output_flag(&mut handle.0, flags) };
    }

    #[inline]
    unsafe fn skip(handle: &mut Handle, len: u64) -> Result {
        // SAFETY: The caller guarantees that a transaction is open on the handle, begun on this
        // CPU, and that the padding is stored before (B). perf compares the length with the space.
        to_result(unsafe { bindings::perf_aux_output_skip(&mut handle.0, bytes(len)) })
    }

    #[inline]
    unsafe fn end(handle: &mut Handle, len: u64) {
        // SAFETY: The caller guarantees that a transaction is open on the handle, begun on this
        // CPU, that the length is within its space, and that the trace is stored before (B).
        unsafe { bindings::perf_aux_output_end(&mut handle.0, bytes(len)) };
    }

    unsafe fn arm(timer: &Opaque<bindings::hrtimer>, interval: Delta) {
        // SAFETY: The caller guarantees that the timer is set up, that interrupts are off, and that
        // this is neither an NMI nor under a lock of the timer subsystem.
        unsafe {
            bindings::hrtimer_start_range_ns(
                timer.get(),
                interval.as_nanos(),
                0,
                bindings::hrtimer_mode_HRTIMER_MODE_REL_PINNED_HARD,
            )
        };
    }

    unsafe fn queue(work: &Opaque<bindings::irq_work>) {
        // SAFETY: The caller guarantees that the work is set up. Works may be queued in any
        // context, NMI included.
        unsafe { bindings::irq_work_queue(work.get()) };
    }
}

/// A position or a length, from C's `unsigned long`.
const fn position(bytes: c_ulong) -> Pos {
    // CAST: Both have 64 bits: the crate refuses to be built for others.
    Pos::new(bytes as u64)
}

/// A length or a position, for C.
pub(crate) const fn bytes(len: u64) -> c_ulong {
    // CAST: Both have 64 bits: the crate refuses to be built for others.
    len as c_ulong
}
