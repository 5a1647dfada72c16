// SPDX-License-Identifier: GPL-2.0

//! AUX samples: records of another event that carry the newest trace.
//!
//! C counterpart: `pmu->snapshot_aux()` and `perf_output_copy_aux()`.

use super::{
    core::Handle,
    AuxPmu,
    Transaction, //
};
use crate::bindings;
use auxcore::ring::Pos;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::prelude::*;

/// Copies trace into a sample.
///
/// # Safety
///
/// - A transaction must be open on `handle`, begun on this CPU, with interrupts off.
/// - `record` must be what perf has passed to `pmu->snapshot_aux()`, which has not returned, with
///   space for what is copied: from `from` up to `to`, at least 1 byte and at most the AUX area.
pub(super) type Copy = unsafe fn(
    handle: &mut Handle,
    record: NonNull<bindings::perf_output_handle>,
    from: Pos,
    to: Pos,
) -> c_long;

/// A sample of another event that requests the newest trace: see [`AuxPmu::snapshot`].
///
/// # Invariants
///
/// - `record` is what perf has passed to `pmu->snapshot_aux()`, which does not return as long as
///   `Self` exists; it has space for `size` bytes.
/// - `copy` is that of the [`Core`](super::core::Core) with which the callback's transaction was
///   begun.
pub struct Sample<'a> {
    record: NonNull<bindings::perf_output_handle>,
    size: u64,
    copy: Copy,
    _callback: PhantomData<&'a mut bindings::perf_output_handle>,
}

impl<'a> Sample<'a> {
    /// # Safety
    ///
    /// - `record` and `size` must be what perf has passed to `pmu->snapshot_aux()`, which must not
    ///   return during the lifetime that the caller picks.
    /// - `copy` must be that of the [`Core`](super::core::Core) with which the callback's
    ///   transaction was begun.
    #[cfg(any(perf_output_copy_aux, CONFIG_RUST_PERF_TESTING))]
    pub(super) unsafe fn new(
        record: NonNull<bindings::perf_output_handle>,
        size: u64,
        copy: Copy,
    ) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            record,
            size,
            copy,
            _callback: PhantomData,
        }
    }

    /// How many bytes perf requests; at most the AUX area.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Copies the newest trace: the bytes that end where the unit has written `written` bytes of
    /// the transaction's region, in either mode. In non-overwrite mode this includes trace that the
    /// reader has read: it stays in place until the area wraps.
    ///
    /// Bytes that are older than the mapping of the AUX area are zeroes, as its pages were then.
    pub fn copy<T: AuxPmu>(self, transaction: &mut Transaction<'_, T>, written: u64) -> Copied<'a> {
        // If a driver claims more than its region, the copy ends with the region.
        let written = transaction.extent().limit(written);
        let to = transaction.extent().head().advance(written);
        let len = self.size.min(transaction.region().size().len());

        // perf would take an empty range for the whole area.
        if len == 0 {
            return Copied::new(0);
        }
        // SAFETY:
        // - A transaction is open on the handle, begun on this CPU with interrupts off, as long as
        //   `transaction` exists, by the invariant of `Transaction`.
        // - `record` is what perf passed, by the type invariant; `len` is at least 1 and at most
        //   the area and the space of the record.
        let copied = unsafe { (self.copy)(transaction.handle(), self.record, to.retreat(len), to) };
        Copied::new(copied)
    }

    /// As [`copy`](Self::copy), up to the end of the bytes that the region's
    /// [`Writer`](super::Writer)s have written.
    pub fn copy_written<T: AuxPmu>(self, transaction: &mut Transaction<'_, T>) -> Copied<'a> {
        let written = transaction.extent().written();

        self.copy(transaction, written)
    }

    /// Copies nothing: the driver does not know how far the unit has written. The sample contains
    /// zeroes.
    pub fn skip(self) -> Copied<'a> {
        Copied::new(0)
    }
}

/// The result of [`AuxPmu::snapshot`], and proof that this callback's [`Sample`] was used: the
/// lifetime is that of the sample, and no callback can return what another has copied.
#[must_use]
#[cfg_attr(
    not(any(perf_output_copy_aux, CONFIG_RUST_PERF_TESTING)),
    expect(dead_code, reason = "perf asks for no samples without the export")
)]
pub struct Copied<'a>(c_long, PhantomData<fn(&'a ()) -> &'a ()>);

impl Copied<'_> {
    fn new(bytes: c_long) -> Self {
        Self(bytes, PhantomData)
    }

    /// Bytes copied, as `pmu->snapshot_aux()` returns them.
    #[cfg(any(perf_output_copy_aux, CONFIG_RUST_PERF_TESTING))]
    pub(super) fn get(self) -> c_long {
        self.0
    }
}

/// A [`Core`](super::core::Core) that can copy trace into samples.
#[cfg(any(perf_output_copy_aux, CONFIG_RUST_PERF_TESTING))]
pub trait Sampling: super::core::Core {
    /// Copies trace into a sample: see [`Copy`].
    ///
    /// # Safety
    ///
    /// As for [`Copy`].
    unsafe fn copy(
        handle: &mut Handle,
        record: NonNull<bindings::perf_output_handle>,
        from: Pos,
        to: Pos,
    ) -> c_long;
}

/// Only if the kernel exports `perf_output_copy_aux()`: see `rust/Makefile`.
#[cfg(perf_output_copy_aux)]
impl Sampling for super::core::Perf {
    unsafe fn copy(
        handle: &mut Handle,
        record: NonNull<bindings::perf_output_handle>,
        from: Pos,
        to: Pos,
    ) -> c_long {
        use super::core::bytes;

        // SAFETY: The caller guarantees what the function requires of the two handles. The function
        // takes positions, and masks them to offsets in the ring.
        unsafe {
            bindings::perf_output_copy_aux(
                &mut handle.0,
                record.as_ptr(),
                bytes(from.get()),
                bytes(to.get()),
            )
        }
    }
}
