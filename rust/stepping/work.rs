// SPDX-License-Identifier: GPL-2.0

//! What is done when a task is about to return to user mode.
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

/// The longest instruction.
const TEXT: usize = 15;

/// Why a task is in transit.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    /// A signal comes to its handler.
    Signal,
    /// It has hit a breakpoint at this address, perhaps a uprobe's.
    Breakpoint(c_ulong),
    /// It has executed the copy of the probed instruction at this address.
    Copy(c_ulong),
    /// The kernel makes a call of the vsyscall page for it.
    Vsyscall,
}

/// A work that is queued. It holds this module, and may run long after the tracers are gone: the
/// task may be stopped.
#[repr(C)]
struct Work {
    /// First: the kernel has a pointer to it.
    head: bindings::callback_head,
    reason: Reason,
    transit: Option<Transit>,
}

/// The current task is in transit until it is about to return to user mode. Without memory it is
/// until it is seen to execute, and no transition follows.
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
    // The lock of the signal handlers may be held.
    let Ok(mut work) = KBox::new(work, GFP_ATOMIC) else {
        transit.until_seen();
        return;
    };
    // SAFETY: `THIS_MODULE`, whose code this is.
    if !unsafe { bindings::try_module_get(module) } {
        return;
    }
    work.transit = Some(transit);

    let work = KBox::into_raw(work);
    // SAFETY: From `into_raw()`, live.
    let head = unsafe { &raw mut (*work).head };
    // SAFETY: A work of our own that is not queued; it stays until `run()`, as does this module,
    // to which it has a reference.
    if unsafe { bindings::rust_stepping_task_work(head) } != 0 {
        // SAFETY: From `into_raw()` above, and not queued.
        drop(unsafe { KBox::from_raw(work) });
        // SAFETY: Gives back the reference taken above. The module stays: its exit waits for this
        // hook.
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
            // The frame is complete.
            Reason::Signal => return end(transit, Transition::Handler),
            // The call is made.
            Reason::Vsyscall => return end(transit, Transition::Emulated),
            // SAFETY: There always is a current task.
            Reason::Breakpoint(_) if unsafe { bindings::rust_stepping_probe_address() } != 0 => {
                // It goes back to execute a copy of the instruction, with the kernel's trap flag.
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

/// The task is not in transit any more, which this transition reports.
fn end(transit: Transit, transition: Transition<'_>) {
    // A tracer that starts in between would set the trap flag, and take it for another's in the transition.
    let _irq = interrupt::local_interrupt_disable();

    drop(transit);
    tracer::dispatch(transition);
}
