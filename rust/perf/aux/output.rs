// SPDX-License-Identifier: GPL-2.0

//! perf's side of a transaction, as far as drivers see it; and a stand-in for tests.
//!
//! C counterpart: `perf_aux_output_*()`, `kernel/events/ring_buffer.c`.

use super::Published;
use crate::bindings;
use auxcore::ring::Pos;
use core::{
    ffi::c_void,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    error::to_result,
    prelude::*, //
};

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

    /// Gives `len` bytes to the reader that are no trace, and moves the handle's head, space and
    /// wakeup point; [`ENOSPC`] if there is less space, and in overwrite mode.
    ///
    /// # Safety
    ///
    /// - A transaction must be open on `handle`, begun on this CPU.
    /// - Those bytes must be visible to other CPUs: (B).
    unsafe fn skip(handle: &mut Handle, len: u64) -> Result;

    /// Closes the transaction; in linear mode `len` more bytes are trace.
    ///
    /// # Safety
    ///
    /// - A transaction must be open on `handle`, begun on this CPU.
    /// - `len` must not exceed its space, and those bytes must be visible to other CPUs: (B).
    unsafe fn end(handle: &mut Handle, len: u64);
}

/// The transaction that a callback runs in, whatever it was made with.
///
/// # Invariants
///
/// - A transaction is open on `handle`, begun on this CPU, which stays open as long as `Self` exists.
/// - `skip` is that of the [`Output`] that it was begun with.
pub(super) struct Transaction<'a> {
    handle: &'a mut Handle,
    skip: unsafe fn(&mut Handle, u64) -> Result,
}

impl<'a> Transaction<'a> {
    /// # Safety
    ///
    /// A transaction of `O` must be open on `handle`, begun on this CPU.
    pub(super) unsafe fn new<O: Output>(handle: &'a mut Handle) -> Self {
        // INVARIANT: By the safety requirement. Nobody else can end it while it is borrowed.
        Self {
            handle,
            skip: O::skip,
        }
    }

    /// The handle, for what leaves the transaction as it is.
    pub(super) fn handle(&mut self) -> &mut Handle {
        self.handle
    }

    /// As [`Output::skip`]; what is skipped has been published.
    pub(super) fn skip(&mut self, len: u64, _published: Published) -> Result<&Handle> {
        // SAFETY:
        // - A transaction is open on the handle, by the type invariants.
        // - The bytes are visible: `Published` is the proof of (B).
        unsafe { (self.skip)(self.handle, len)? };

        Ok(self.handle)
    }
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

    unsafe fn skip(handle: &mut Handle, len: u64) -> Result {
        // SAFETY: By the safety requirement.
        to_result(unsafe { bindings::perf_aux_output_skip(&mut handle.0, bytes(len)) })
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
pub(super) const fn bytes(len: u64) -> c_ulong {
    // CAST: As in `position()`.
    len as c_ulong
}
