// SPDX-License-Identifier: GPL-2.0

//! perf's side of a transaction, as far as drivers see it; and a stand-in for tests.
//!
//! C counterpart: `perf_aux_output_*()`, `kernel/events/ring_buffer.c`.

use crate::bindings;
use auxcore::ring::Pos;
use core::{
    ffi::c_void,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::prelude::*;

/// Why a transaction was not begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// The event has no ring at all.
    NoRing,
    /// The ring has no AUX area, or it is being unmapped, or a transaction is open on it (which
    /// perf warns of).
    NotMapped,
    /// The ring is full. perf disables the event; user space enables it again.
    NoSpace,
}

/// A `struct perf_output_handle`, as it is used for AUX.
///
/// Its place in memory may be kept by perf while a transaction is open.
pub(super) struct Handle(pub(super) bindings::perf_output_handle);

impl Handle {
    /// One that no transaction is open on.
    pub(super) fn new() -> Self {
        // SAFETY: Pointers and integers, for which 0 is a value.
        Self(unsafe { core::mem::zeroed() })
    }

    /// Where the transaction begins.
    pub(super) fn head(&self) -> Pos {
        // SAFETY: Both halves of the union are as wide; for AUX it is `head`.
        position(unsafe { self.0.__bindgen_anon_2.head })
    }

    /// In overwrite mode: where it ends.
    pub(super) fn set_head(&mut self, head: Pos) {
        self.0.__bindgen_anon_2.head = bytes(head.get());
    }

    /// In linear mode: bytes that may be written.
    pub(super) fn space(&self) -> u64 {
        position(self.0.size).get()
    }

    /// In linear mode: where user space wants to be woken.
    pub(super) fn wakeup(&self) -> Pos {
        position(self.0.wakeup)
    }
}

/// What a transaction is made with.
pub(super) trait Output: 'static {
    /// Opens a transaction of `event`, and gives the `aux_priv` of the ring that it is on.
    ///
    /// # Safety
    ///
    /// - No transaction may be open on `handle`.
    /// - `event` must be live and this its CPU, with interrupts off.
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

    /// Closes the transaction; in linear mode `len` more bytes are trace.
    ///
    /// # Safety
    ///
    /// - A transaction must be open on `handle`, begun on this CPU.
    /// - `len` must not exceed its space, and those bytes must be visible to other CPUs: (B).
    unsafe fn end(handle: &mut Handle, len: u64);
}

/// The kernel's own.
pub(crate) struct Perf;

impl Output for Perf {
    unsafe fn begin(
        handle: &mut Handle,
        event: NonNull<bindings::perf_event>,
    ) -> Result<NonNull<c_void>, Refusal> {
        // perf writes `rb` only when it has got as far as to look for space, and `event` unless
        // there is no ring at all. That tells three of the four failures apart; the two in the
        // middle leave the same traces.
        let untouched = NonNull::dangling().as_ptr();
        handle.0.rb = ptr::null_mut();
        handle.0.event = untouched;

        // SAFETY: By the safety requirement.
        let private = unsafe { bindings::perf_aux_output_begin(&mut handle.0, event.as_ptr()) };

        if let Some(private) = NonNull::new(private) {
            return Ok(private);
        }

        let refusal = if handle.0.event == untouched {
            Refusal::NoRing
        } else if handle.0.rb.is_null() {
            Refusal::NotMapped
        } else {
            Refusal::NoSpace
        };
        handle.0.event = ptr::null_mut();
        Err(refusal)
    }

    unsafe fn flag(handle: &mut Handle, flags: u64) {
        // SAFETY: By the safety requirement.
        unsafe { bindings::perf_aux_output_flag(&mut handle.0, flags) };
    }

    unsafe fn end(handle: &mut Handle, len: u64) {
        // SAFETY: By the safety requirement.
        unsafe { bindings::perf_aux_output_end(&mut handle.0, bytes(len)) };
    }
}

/// A position or a length as C's `unsigned long` has it.
const fn position(bytes: c_ulong) -> Pos {
    // CAST: Both have 64 bits: the crate refuses to be built for others.
    Pos::new(bytes as u64)
}

/// A length or a position, for C.
const fn bytes(len: u64) -> c_ulong {
    // CAST: As in `position()`.
    len as c_ulong
}
