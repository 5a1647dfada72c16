// SPDX-License-Identifier: GPL-2.0

//! Module references for objects that C keeps.
//!
//! The code that drops the last reference to a module must not be in that module: the text may be
//! freed at once. So no generic function drops a reference here, since it would be compiled into
//! the driver's module. perf calls [`free_aux`], and [`release`] drops the reference. Both are
//! compiled into this crate's module, which is unloaded last. Its exit waits for tasks that are
//! preempted in it.
//!
//! An object holds the module that its code is in, whichever type the driver has for
//! `OwnerModule`. `THIS_MODULE` is the symbol `__this_module`, of which each module has its own:
//! `this_module()` is the module into which the call is compiled.
//!
//! C counterpart: `module_put()`.

use crate::bindings;
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    module::this_module,
    ModuleMetadata, //
};

/// The first field of an object that holds a reference to its module.
///
/// # Invariants
///
/// - `end` may be called once, with the object, and frees it.
/// - An object that holds its module has a reference to `module`.
pub(crate) struct Header {
    end: unsafe fn(NonNull<Header>),
    module: *mut bindings::module,
}

impl Header {
    /// The header of an object whose code is in the module `M`. [`release`] calls `end`, which
    /// frees the object.
    pub(crate) fn new<M: ModuleMetadata>(end: unsafe fn(NonNull<Header>)) -> Self {
        // INVARIANT: By the safety requirements of `release()` and of its callers.
        Self {
            end,
            module: this_module::<M>().as_ptr(),
        }
    }

    /// Takes the reference. Another reference must keep the module meanwhile.
    pub(crate) fn hold(&self) {
        // SAFETY: `THIS_MODULE`, or null for built-in code. This is called for an event, which has
        // a reference to the module, so that the count is not 0.
        unsafe { bindings::__module_get(self.module) };
    }
}

/// Frees an object, then drops its reference to its module.
///
/// # Safety
///
/// - `header` must be that of a live object that holds its module and that is not used any more.
/// - Unless something else keeps the module, none of its code may run after this.
#[inline(never)]
pub(crate) unsafe fn release(header: NonNull<Header>) {
    // SAFETY: The caller guarantees that the header is that of a live object.
    let Header { end, module } = unsafe { header.read() };

    // SAFETY: The caller guarantees that this is the only call for the object, whose function `end`
    // is.
    unsafe { end(header) };
    // SAFETY: This gives back the object's reference, which it does not drop itself.
    unsafe { bindings::module_put(module) };
}

/// `pmu->free_aux()` of all PMUs.
///
/// # Safety
///
/// Called by perf with what `pmu->setup_aux()` returned: an object that begins with its [`Header`],
/// of an AUX area on which no transaction is open, or will be.
#[inline(never)]
pub(crate) unsafe extern "C" fn free_aux(private: *mut c_void) {
    if let Some(header) = NonNull::new(private.cast()) {
        // SAFETY: perf passes what `setup_aux()` has returned, once. Only perf's code runs after
        // this.
        unsafe { release(header) };
    }
}
