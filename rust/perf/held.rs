// SPDX-License-Identifier: GPL-2.0

//! Objects that C keeps, and that keep the code of their module.
//!
//! Whoever gives back the last reference to a module must not run its code any more: the text may
//! go at once. So what gives one back here is no generic function, which would be compiled into the
//! driver's module, but one of this crate's, which C itself calls. This crate's module is the last
//! to be unloaded, and waits for those that are on their last steps in it.
//!
//! C counterpart: `module_put()`.

use crate::bindings;
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    container_of,
    module::this_module,
    ModuleMetadata, //
};

/// What an object begins with that keeps the module of its code.
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
    /// The header of an object whose code is in the module `M`. When the object is
    /// [released](release), `end` gets its header, and frees it.
    pub(crate) fn new<M: ModuleMetadata>(end: unsafe fn(NonNull<Header>)) -> Self {
        // INVARIANT: By the safety requirements of `release()` and of those who call it.
        Self {
            end,
            module: this_module::<M>().as_ptr(),
        }
    }

    /// Takes the reference. Only called by code that another one keeps.
    pub(crate) fn hold(&self) {
        // SAFETY: `THIS_MODULE`, or null for built-in code. This is called for an event, which has
        // a reference to the module, so that the count is not 0.
        unsafe { bindings::__module_get(self.module) };
    }
}

impl Header {
    /// Takes the reference, for code that nothing keeps but a hook whose removal is waited for;
    /// false if the module is being unloaded.
    fn try_hold(&self) -> bool {
        // SAFETY: `THIS_MODULE`, or null for built-in code; its code runs, so it is there.
        unsafe { bindings::try_module_get(self.module) }
    }
}

/// Ends an object, and gives back its reference to its module.
///
/// # Safety
///
/// - `header` must be that of a live object that holds its module, and which nobody uses any more.
/// - Unless something else keeps the module, no code of it may come after this.
#[inline(never)]
pub(crate) unsafe fn release(header: NonNull<Header>) {
    // SAFETY: Live by the safety requirement.
    let Header { end, module } = unsafe { header.read() };

    // SAFETY: By the safety requirement.
    unsafe { end(header) };
    // SAFETY: Gives back the object's reference.
    unsafe { bindings::module_put(module) };
}

/// `pmu->free_aux()` of all PMUs.
///
/// # Safety
///
/// Called by perf with what `pmu->setup_aux()` returned: an object that begins with its [`Header`],
/// on a ring on which no transaction is open, or will be.
#[inline(never)]
pub(crate) unsafe extern "C" fn free_aux(private: *mut c_void) {
    if let Some(header) = NonNull::new(private.cast()) {
        // SAFETY: By the safety requirement; perf's code comes after this.
        unsafe { release(header) };
    }
}

/// What an object begins with that the kernel calls back for, once, in the task that it was made
/// for.
///
/// C counterpart: `struct callback_head`, as `task_work_add()` takes it.
pub(crate) struct TaskWork {
    head: bindings::callback_head,
    header: Header,
}

impl TaskWork {
    /// As [`Header::new`]: `end` does what is to be done, too.
    pub(crate) fn new<M: ModuleMetadata>(end: unsafe fn(NonNull<Header>)) -> Self {
        Self {
            head: bindings::callback_head {
                next: core::ptr::null_mut(),
                func: Some(run),
            },
            header: Header::new::<M>(end),
        }
    }

    /// The work whose header this is.
    ///
    /// # Safety
    ///
    /// `header` must be that of a [`TaskWork`].
    pub(crate) unsafe fn of(header: NonNull<Header>) -> *mut Self {
        // SAFETY: By the safety requirement.
        unsafe { container_of!(header.as_ptr(), Self, header) }
    }

    /// Has it run when the current task is about to return to user mode; false if that task will
    /// not, or if the module is being unloaded.
    ///
    /// # Safety
    ///
    /// - `work` must be at the beginning of an object that its `end` frees, live and not queued.
    /// - The module's code must not go before the caller has returned.
    pub(crate) unsafe fn queue(work: NonNull<Self>) -> bool {
        // SAFETY: Live by the safety requirement.
        let header = unsafe { &(*work.as_ptr()).header };
        let module = header.module;

        // Before it can run.
        if !header.try_hold() {
            return false;
        }
        // SAFETY: As above; not queued, and it stays until `run()`.
        let head = unsafe { &raw mut (*work.as_ptr()).head };
        // SAFETY: As above.
        if unsafe { bindings::rust_perf_task_work_on_return(head) } == 0 {
            return true;
        }

        // SAFETY: Gives back what `try_hold()` took. The text stays: by the safety requirement.
        unsafe { bindings::module_put(module) };
        false
    }
}

/// # Safety
///
/// Called by the kernel for a queued [`TaskWork`].
#[inline(never)]
unsafe extern "C" fn run(head: *mut bindings::callback_head) {
    // SAFETY: By the safety requirement.
    let work = unsafe { container_of!(head, TaskWork, head) };
    // SAFETY: Live: nobody but this frees it once it is queued.
    let header = NonNull::from(unsafe { &(*work).header });

    // SAFETY: Holds its module since `queue()`; the kernel's code comes after this.
    unsafe { release(header) };
}
