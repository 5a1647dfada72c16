// SPDX-License-Identifier: GPL-2.0

//! Module references for objects that C keeps.
//!
//! The code that drops the last reference to a module must not be in that module: the text may be
//! freed at once. So no generic function drops a reference here, since it would be compiled into
//! the driver's module. perf calls [`free_aux`], and [`release`] drops the reference. Both are
//! compiled into this crate's module, which is unloaded last. Its exit waits for tasks that are
//! preempted in it.
//!
//! C counterpart: `module_put()`.

use crate::bindings;
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    module::this_module,
    prelude::*,
    ModuleMetadata, //
};

/// The module `M`, which contains `code`. [`EINVAL`] if it does not.
///
/// A driver can name the module of another driver as its own, and register a driver of another
/// module. Generic code is compiled into the module that uses it. So an object that holds `M` while
/// C has a pointer to `code` must check this.
pub(crate) fn containing<M: ModuleMetadata>(code: *const ()) -> Result<*mut bindings::module> {
    let module = this_module::<M>().as_ptr();

    // SAFETY: `THIS_MODULE`, or null for built-in code. A module stays while code of it runs, or
    // code that depends on it. `code` is only compared.
    match unsafe { bindings::rust_perf_module_contains(module, code.cast()) } {
        true => Ok(module),
        false => {
            pr_err!("a driver's module does not contain the code that is compiled for it\n");
            Err(EINVAL)
        }
    }
}

/// The first field of an object that holds a reference to its module.
///
/// # Invariants
///
/// - `end` may be called once, with the object, and frees it. `module` contains it.
/// - An object that holds its module has a reference to `module`.
pub(crate) struct Header {
    end: unsafe fn(NonNull<Header>),
    module: *mut bindings::module,
}

impl Header {
    /// The header of an object whose code is in the module `M`. [`release`] calls `end`, which
    /// frees the object. [`EINVAL`] if `M` does not contain `end`.
    pub(crate) fn new<M: ModuleMetadata>(end: unsafe fn(NonNull<Header>)) -> Result<Self> {
        // CAST: The address of the function.
        let module = containing::<M>(end as *const ())?;

        // INVARIANT: `release()` calls `end` once, by its safety requirements and those of its
        // callers.
        Ok(Self { end, module })
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

#[cfg(CONFIG_RUST_PERF_TESTING)]
#[kunit_tests(rust_perf_module_ref)]
mod tests {
    use super::*;
    use kernel::{
        types::Opaque,
        ThisModule, //
    };

    /// A module that contains nothing.
    struct Elsewhere;

    /// Zeroed: it has no memory.
    struct Nothing(Opaque<bindings::module>);

    // SAFETY: It is only read.
    unsafe impl Sync for Nothing {}

    static NOTHING: Nothing = Nothing(Opaque::zeroed());

    impl ModuleMetadata for Elsewhere {
        const NAME: &'static CStr = c"elsewhere";
        const THIS_MODULE: ThisModule = {
            // SAFETY: A module's description, of no memory. It stays, and nothing takes a reference
            // to the module.
            unsafe { ThisModule::from_ptr(NOTHING.0.get()) }
        };
    }

    #[test]
    fn code_is_in_its_module() {
        // CAST: The address of a function.
        let code = free_aux as *const ();

        assert_eq!(
            containing::<crate::LocalModule>(code),
            Ok(this_module::<crate::LocalModule>().as_ptr())
        );
        assert_eq!(containing::<Elsewhere>(code), Err(EINVAL));
        // Code of the kernel.
        let code = bindings::perf_aux_output_end as *const ();
        assert_eq!(containing::<crate::LocalModule>(code), Err(EINVAL));
    }
}
