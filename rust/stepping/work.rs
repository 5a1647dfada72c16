// SPDX-License-Identifier: GPL-2.0

//! Task works, which run when a task is about to return to user mode.
//!
//! C header: [`include/linux/task_work.h`](srctree/include/linux/task_work.h)

use crate::{
    bindings,
    hooks,
    task::running,
    tracer,
    transit::Transit,
    Transition, //
};
use core::ptr::NonNull;
use kernel::{
    interrupt,
    module::this_module,
    prelude::*, //
};

/// The longest instruction, in bytes.
const TEXT: usize = 15;

/// Why a task is in transit.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    /// A signal is delivered to its handler.
    Signal,
    /// The task has hit a breakpoint at this address, which may belong to a uprobe.
    Breakpoint(c_ulong),
    /// The task has executed the copy of the probed instruction at this address.
    Copy(c_ulong),
    /// The kernel emulates a call of the vsyscall page.
    Vsyscall,
}

/// A queued task work. It holds a reference to this module. It may run long after the tracers are
/// gone, because the task may be stopped.
#[repr(C)]
struct Work {
    /// The first field, as the kernel has a pointer to it.
    head: bindings::callback_head,
    reason: Reason,
    transit: Option<Transit>,
}

/// Marks the current task as in transit until it is about to return to user mode. If there is no
/// memory, the task is in transit until it is seen to execute, and no transition is reported.
///
/// The current task must be on its way back to user mode.
pub(crate) fn queue(reason: Reason) {
    let Some(transit) = running().map(Transit::begin) else {
        return;
    };
    let module = this_module::<crate::LocalModule>().as_ptr();
    let mut work = Work {
        head: bindings::callback_head {
            next: core::ptr::null_mut(),
            func: Some(run),
        },
        reason,
        transit: None,
    };
    let Some(place) = allocate() else {
        transit.until_seen();
        return;
    };
    // SAFETY: `module` is `THIS_MODULE`, whose code this is.
    if !unsafe { bindings::try_module_get(module) } {
        // SAFETY: The memory is from `allocate()`, and not used after this.
        unsafe { bindings::rust_stepping_free(place.as_ptr().cast()) };
        return;
    }
    work.transit = Some(transit);

    // SAFETY: `allocate()` returns memory for a `Work`, aligned, which nothing else has.
    unsafe { place.write(work) };
    // SAFETY: `place` has a `Work`, just written.
    let head = unsafe { &raw mut (*place.as_ptr()).head };
    // SAFETY: A work of our own that is not queued; it stays until `run()`, as does this module,
    // to which it has a reference.
    if unsafe { bindings::rust_stepping_task_work(head) } != 0 {
        // SAFETY: `place` has a `Work`, which the kernel has not queued.
        drop(unsafe { take(place) });
        // SAFETY: This gives back the reference that `try_module_get()` has taken. The module
        // stays: its exit waits for this hook.
        unsafe { bindings::module_put(module) };
    }
}

/// Memory for a work. [`None`] if there is none.
///
/// This may run with interrupts off, and under the lock of the signal handlers.
fn allocate() -> Option<NonNull<Work>> {
    const { assert!(core::mem::align_of::<Work>() <= core::mem::align_of::<c_ulong>()) };
    // SAFETY: The function may be called in any context but NMI: exceptions of user code and
    // tracepoints of the current task are none.
    let memory = unsafe { bindings::rust_stepping_alloc(core::mem::size_of::<Work>()) };

    NonNull::new(memory.cast())
}

/// Takes the work out of its memory, and frees that.
///
/// # Safety
///
/// `place` must be from [`allocate`] and have a [`Work`]. It must not be used after this.
unsafe fn take(place: NonNull<Work>) -> Work {
    // SAFETY: The caller guarantees that there is a work, and that it is not used after this.
    let work = unsafe { place.read() };

    // SAFETY: The caller guarantees that the memory is from `allocate()`, and that it is not used
    // after this.
    unsafe { bindings::rust_stepping_free(place.as_ptr().cast()) };
    work
}

/// # Safety
///
/// Called by the kernel for a queued [`Work`], once, in its task.
#[inline(never)]
unsafe extern "C" fn run(head: *mut bindings::callback_head) {
    // SAFETY: The kernel passes the head that `queue()` has given it, which is not null.
    let place = unsafe { NonNull::new_unchecked(head.cast::<Work>()) };

    // SAFETY: The head is the first field of a `Work` that `queue()` has written, in memory from
    // `allocate()`. The kernel does not use it any more.
    unsafe { take(place) }.finish();
    // SAFETY: Gives back the reference that `queue()` took. The module's exit waits for tasks that
    // are on their last steps in this function.
    unsafe { bindings::module_put(this_module::<crate::LocalModule>().as_ptr()) };
}

impl Work {
    fn finish(mut self) {
        let Some(transit) = self.transit.take() else {
            return;
        };
        let from = match self.reason {
            // The handler's frame is complete.
            Reason::Signal => return end(transit, Transition::Handler),
            // The call is done.
            Reason::Vsyscall => return end(transit, Transition::Emulated),
            // SAFETY: This reads the current task, and there always is one.
            Reason::Breakpoint(_) if unsafe { bindings::rust_stepping_probe_address() } != 0 => {
                // The task returns to execute a copy of the instruction, with the kernel's trap
                // flag.
                transit.until_seen();
                return;
            }
            Reason::Breakpoint(from) | Reason::Copy(from) => from,
        };
        let mut text = [0; TEXT];
        let mut len = 0;
        if hooks::are_followed() {
            let wanted = text.len();
            // SAFETY: `text` may be written for that length; this is a task that may sleep.
            let read = unsafe {
                bindings::rust_stepping_read_file(text.as_mut_ptr().cast(), from, wanted)
            };
            len = read;
        }
        end(
            transit,
            Transition::Probed {
                // CAST: An address has 64 bits.
                from: from as u64,
                text: text.get(..len).unwrap_or(&[]),
            },
        );
    }
}

/// Ends the transit of the task, and reports this transition.
fn end(transit: Transit, transition: Transition<'_>) {
    // With interrupts on, a tracer that starts between the two would set the trap flag, and take it
    // for another's in the transition.
    let _irq = interrupt::local_interrupt_disable();

    drop(transit);
    tracer::dispatch(transition);
}
