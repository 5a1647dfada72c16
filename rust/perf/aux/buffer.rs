// SPDX-License-Identifier: GPL-2.0

//! The driver's state of an AUX area, from `setup_aux()` to `free_aux()`.

use super::{
    pages::Pages,
    ring::{
        Claim,
        Registered,
        Ring, //
    },
    AuxPmu, //
};
use crate::{
    module_ref,
    pmu::Pmu,
    registration::PmuId,
    vtable::in_callback, //
};
use core::{
    cell::UnsafeCell,
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::prelude::*;

/// The `aux_priv` that the framework hands to perf.
///
/// perf holds no reference to the module for it: the event's reference is dropped when the PMU is
/// unregistered, and an event of another PMU can keep the AUX area mapped. So the header holds one.
///
/// # Invariants
///
/// `data` is accessed by the holder of the [`Claim`] of this AUX area while a transaction is open,
/// and by `free_aux()`.
#[repr(C)]
pub(crate) struct Buffer<T: AuxPmu> {
    // First: C has a pointer to it.
    header: module_ref::Header,
    // Dropped first of the rest: from then on no transaction is begun.
    registered: Option<Registered>,
    data: UnsafeCell<T::Buffer>,
    pages: Pages,
}

impl<T: AuxPmu> Buffer<T> {
    /// Gives `data` to perf, for the ring buffer `key`; `owner` identifies the PMU.
    ///
    /// The pointer must be passed to [`module_ref::free_aux`], once.
    ///
    /// Context: task, may sleep.
    pub(crate) fn into_foreign(
        data: T::Buffer,
        pages: Pages,
        owner: PmuId,
        key: *mut c_void,
    ) -> Result<*mut c_void> {
        let ring = Ring::new(owner)?;
        // INVARIANT: Not passed to perf yet.
        let mut buffer = KBox::new(
            Self {
                header: module_ref::Header::new::<<T as Pmu>::OwnerModule>(Self::free),
                registered: None,
                data: UnsafeCell::new(data),
                pages,
            },
            GFP_KERNEL,
        )?;
        let private = core::ptr::from_mut(&mut *buffer).cast();

        buffer.registered = Some(Registered::new(ring, key, private)?);
        buffer.header.hold();
        Ok(KBox::into_raw(buffer).cast())
    }

    /// Takes the buffer back from perf, and drops it.
    ///
    /// # Safety
    ///
    /// `header` must be that of a `Buffer<T>` from [`Self::into_foreign`], which must not be used
    /// after this call.
    unsafe fn free(header: NonNull<module_ref::Header>) {
        // SAFETY: The caller guarantees that the header is that of a buffer from
        // `KBox::into_raw()`, of which it is the first field.
        let buffer = unsafe { KBox::from_raw(header.cast::<Self>().as_ptr()) };

        in_callback(|| drop(buffer));
    }
}

/// The [`Buffer`] of an open transaction.
///
/// # Invariants
///
/// - `buffer` is live, and a transaction is open on its AUX area, until just before `self` is
///   dropped.
/// - Its `data` is accessed through `self` only: `_claim` is the claim of this AUX area.
pub(crate) struct OpenBuffer<T: AuxPmu> {
    buffer: NonNull<Buffer<T>>,
    /// Dropped with `self`, when the transaction has ended.
    _claim: Claim,
}

impl<T: AuxPmu> OpenBuffer<T> {
    /// # Safety
    ///
    /// A transaction must be open on the AUX area of `claim`, and its `aux_priv` be a `Buffer<T>`.
    /// It must stay open until `self` is dropped, or be ended just before.
    pub(crate) unsafe fn new(claim: Claim, buffer: NonNull<Buffer<T>>) -> Self {
        // INVARIANT: By the safety requirement: perf frees no AUX area with a transaction open.
        Self {
            buffer,
            _claim: claim,
        }
    }

    /// The driver's state of the AUX area.
    #[inline]
    pub(crate) fn data(&mut self) -> &mut T::Buffer {
        // SAFETY: The buffer is live, by the type invariant.
        let data = unsafe { &(*self.buffer.as_ptr()).data };

        // SAFETY: Accessed through `self` only, by the type invariant, which is borrowed mutably.
        unsafe { &mut *data.get() }
    }

    /// The pages of the AUX area.
    #[inline]
    pub(crate) fn pages(&self) -> &Pages {
        // SAFETY: The buffer is live, by the type invariant; only shared references are made of
        // this field.
        unsafe { &(*self.buffer.as_ptr()).pages }
    }

    /// The driver's state and the pages of the AUX area.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut T::Buffer, &Pages) {
        // SAFETY: The buffer is live, by the type invariant.
        let buffer = unsafe { &*self.buffer.as_ptr() };

        // SAFETY: `data` is accessed through `self` only, by the type invariant, which is borrowed
        // mutably. `pages` is another field.
        (unsafe { &mut *buffer.data.get() }, &buffer.pages)
    }
}
