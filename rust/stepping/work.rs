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
    let work = Work {
        head: bindings::callback_head {
            next: core::ptr::null_mut(),
            func: Some(run),
        },
        reason,
        transit: None,
    };
    // The lock of the signal handlers may be held, so the allocation must not sleep.
    let Ok(mut work) = KBox::new(work, GFP_ATOMIC) else {
        transit.until_seen();
        return;
    };
    // SAFETY: `module` is `THIS_MODULE`, whose code this is.
    if !unsafe { bindings::try_module_get(module) } {
        return;
    }
    work.transit = Some(transit);

    let work = KBox::into_raw(work);
    // SAFETY: `work` is from `KBox::into_raw()`, so it is live, and nothing else has it.
    let head = unsafe { &raw mut (*work).head };
    // SAFETY: A work of our own that is not queued; it stays until `run()`, as does this module,
    // to which it has a reference.
    if unsafe { bindings::rust_stepping_task_work(head) } != 0 {
        // SAFETY: `work` is from `KBox::into_raw()`, and the kernel has not queued it.
        drop(unsafe { KBox::from_raw(work) });
        // SAFETY: This gives back the reference that `try_module_get()` has taken. The module
        // stays: its exit waits for this hook.
        unsafe { bindings::module_put(module) };
    }
}

/// # Safety
///
/// Called by the kernel for a queued [`Work`], once, in its task.
#[inline(never)]
unsafe extern "C" fn run(head: *mut bindings::callback_head) {
    // SAFETY: `head` is the first field of a `Work`, from `KBox::into_raw()` in `queue()`.
    let work = unsafe { KBox::from_raw(head.cast::<Work>()) };

    work.finish();
    // SAFETY: Gives back the reference that `queue()` took. The module's exit waits for tasks that
    // are on their last steps in this function.
    unsafe { bindings::module_put(this_module::<crate::LocalModule>().as_ptr()) };
}

impl Work {
    fn finish(mut self: KBox<Self>) {
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
