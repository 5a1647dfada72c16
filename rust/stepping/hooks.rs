// SPDX-License-Identifier: GPL-2.0

//! The hooks in the kernel through which tasks are followed.
//!
//! Signals, breakpoints and traps are hooked while this module is loaded, because one of them may
//! be in progress when a task begins to be traced. System calls and task switches are hooked only
//! while there is a [`Following`](crate::Following), because these hooks slow down all tasks.
//!
//! C headers: [`include/linux/kdebug.h`](srctree/include/linux/kdebug.h),
//! [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

use crate::{
    bindings,
    pending,
    syscall,
    task::{
        clear_pending,
        running,
        Regs, //
    },
    tracer,
    transit,
    work::{
        self,
        Reason, //
    },
    Transition, //
};
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    interrupt,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Relaxed,
        Release, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// The number of [`Following`](crate::Following)s. It changes from 0 only with [`HOOKED`] locked.
/// While it is not 0, everything is hooked.
static FOLLOWINGS: Atomic<usize> = Atomic::new(0);

kernel::sync::global_lock! {
    // SAFETY: Initialised in `init()`, which is called before anything else.
    unsafe(uninit) static HOOKED: Mutex<bool> = false;
}

/// Hooks signals, breakpoints and traps.
///
/// # Safety
///
/// Called once, from the module's initialisation, before any other function.
pub(crate) unsafe fn init() -> Result {
    // SAFETY: Called once, by the safety requirement.
    unsafe { HOOKED.init() };
    // SAFETY: This is a task that may sleep; what the hooks use is initialised.
    to_result(unsafe { bindings::rust_stepping_hook_always() })
}

/// Unhooks everything, and waits until no hook runs.
///
/// There must be no [`Following`](crate::Following), and the caller must be able to sleep.
pub(crate) fn exit() {
    // SAFETY: This is a task that may sleep.
    unsafe { bindings::rust_stepping_idle_cancel() };
    while idle() {
        fsleep(Delta::from_millis(1));
    }
    // SAFETY: Hooked by `init()`; this is a task that may sleep.
    unsafe { bindings::rust_stepping_unhook_always() };
}

/// Whether there is a [`Following`](crate::Following).
pub(crate) fn are_followed() -> bool {
    FOLLOWINGS.load(Relaxed) != 0
}

/// Adds a [`Following`](crate::Following) if there is one already. Returns whether there is.
fn join() -> bool {
    let mut count = FOLLOWINGS.load(Relaxed);

    while count != 0 {
        // Pairs with the release in `follow()`: the hooks that another task has set are in place.
        match FOLLOWINGS.cmpxchg(count, count.wrapping_add(1), Acquire) {
            Ok(_) => return true,
            Err(now) => count = now,
        }
    }
    false
}

/// Follows tasks until [`unfollow`] is called as often. The caller must be able to sleep.
///
/// Only the first call takes locks. Callers of the others may hold locks.
pub(crate) fn follow() -> Result {
    if join() {
        return Ok(());
    }
    let mut hooked = HOOKED.lock();
    if join() {
        return Ok(());
    }
    if !*hooked {
        // SAFETY: This is a task that may sleep; `HOOKED` is locked.
        to_result(unsafe { bindings::rust_stepping_hook() })?;
        *hooked = true;
    }
    FOLLOWINGS.store(1, Release);
    Ok(())
}

/// Undoes [`follow`]. May be called in any context. A work item unhooks, because that waits for
/// CPUs that go offline, whose callbacks take locks that the caller may hold.
pub(crate) fn unfollow() {
    // Pairs with the acquire in `join()`.
    if FOLLOWINGS.fetch_sub(1, Release) == 1 {
        // SAFETY: No requirements.
        unsafe { bindings::rust_stepping_idle_later() };
    }
}

/// Unhooks system calls and task switches if there is no [`Following`](crate::Following) any more.
/// Returns whether to try again: a task whose trap flag has a pending clear has yet to reach a
/// hook.
fn idle() -> bool {
    let mut hooked = HOOKED.lock();

    if FOLLOWINGS.load(Acquire) != 0 || !*hooked {
        return false;
    }
    if !pending::is_empty() {
        return true;
    }
    // SAFETY: Hooked by `follow()`; this is a task that may sleep, and `HOOKED` is locked.
    unsafe { bindings::rust_stepping_unhook() };
    syscall::forget();
    *hooked = false;
    false
}

// The functions below have the prototypes that C sees.
const _: () = {
    let _ = [rust_stepping_idle, bindings::rust_stepping_idle];
    let _ = [
        rust_stepping_single_step,
        bindings::rust_stepping_single_step,
    ];
    let _ = [
        rust_stepping_invalid_opcode,
        bindings::rust_stepping_invalid_opcode,
    ];
    let _ = [rust_stepping_breakpoint, bindings::rust_stepping_breakpoint];
    let _ = [rust_stepping_sys_enter, bindings::rust_stepping_sys_enter];
    let _ = [rust_stepping_sys_exit, bindings::rust_stepping_sys_exit];
    let _ = [
        rust_stepping_sched_switch,
        bindings::rust_stepping_sched_switch,
    ];
    let _ = [
        rust_stepping_signal_deliver,
        bindings::rust_stepping_signal_deliver,
    ];
    let _ = [rust_stepping_rseq_abort, bindings::rust_stepping_rseq_abort];
    let _ = [rust_stepping_vsyscall, bindings::rust_stepping_vsyscall];
};

/// # Safety
///
/// Called by C, from a work.
#[no_mangle]
unsafe extern "C" fn rust_stepping_idle() -> bool {
    idle()
}

/// Handles a single-step trap of the running task's user code. Returns whether the trap is claimed.
///
/// # Safety
///
/// Called by the die notifier for such a trap, with interrupts off.
#[no_mangle]
unsafe extern "C" fn rust_stepping_single_step() -> bool {
    let Some(regs) = running() else {
        return false;
    };
    syscall::has_returned(regs);
    // SAFETY: There always is a current task.
    let probed = unsafe { bindings::rust_stepping_probe_address() };
    if probed != 0 {
        // The trap belongs to uprobes: the task has executed the copy of an instruction.
        work::queue(Reason::Copy(probed));
        return false;
    }
    transit::seen(regs);
    // SAFETY: The frame of the running task, which is in this trap; references to frames are not
    // made.
    let pending = unsafe { clear_pending(regs) };
    tracer::single_step() || pending
}

/// Handles the running task's next instruction, which the processor does not know. Returns whether
/// a tracer has executed it.
///
/// # Safety
///
/// Called by the die notifier for such a trap, with interrupts off.
#[no_mangle]
unsafe extern "C" fn rust_stepping_invalid_opcode() -> bool {
    let Some(regs) = running() else {
        return false;
    };
    syscall::has_returned(regs);
    // SAFETY: There always is a current task.
    if unsafe { bindings::rust_stepping_probe_address() } != 0 {
        // The instruction is in the copy that uprobes has made.
        return false;
    }
    transit::seen(regs);
    // SAFETY: The frame of the running task, which is in this trap; references to frames are not
    // made.
    unsafe { clear_pending(regs) };
    tracer::invalid_opcode()
}

/// Handles a breakpoint that the running task has executed at this address.
///
/// # Safety
///
/// Called by the die notifier for such a trap, with interrupts off.
#[no_mangle]
unsafe extern "C" fn rust_stepping_breakpoint(address: c_ulong) {
    let Some(regs) = running() else {
        return;
    };
    syscall::has_returned(regs);
    // SAFETY: The frame of the running task, which is in this trap; references to frames are not
    // made.
    unsafe { clear_pending(regs) };
    work::queue(Reason::Breakpoint(address));
    tracer::dispatch(Transition::Breakpoint);
}

/// # Safety
///
/// Called by the tracepoint.
#[no_mangle]
unsafe extern "C" fn rust_stepping_sys_enter(
    _data: *mut c_void,
    regs: *mut bindings::pt_regs,
    _number: c_long,
) {
    if let Some(regs) = NonNull::new(regs) {
        transit::seen(regs);
        syscall::has_returned(regs);
        // SAFETY: The frame of the running task, which is in a system call; references to frames
        // are not made.
        unsafe { clear_pending(regs) };
    }
    tracer::dispatch(Transition::Syscall);
}

/// # Safety
///
/// Called by the tracepoint.
#[no_mangle]
unsafe extern "C" fn rust_stepping_sys_exit(
    _data: *mut c_void,
    regs: *mut bindings::pt_regs,
    _result: c_long,
) {
    // The task must not leave the CPU between the two.
    let _irq = interrupt::local_interrupt_disable();
    tracer::dispatch(Transition::Return);

    if let Some(raw) = NonNull::new(regs) {
        // SAFETY: The frame of the running task, which is in a system call until this returns;
        // references to frames are not made.
        let regs = unsafe { Regs::new(raw, false) };

        // With the trap flag set, the task is traced, and steps next.
        if regs.trap_flag() && regs.has_no_result() {
            syscall::returns(raw);
        }
    }
}

/// # Safety
///
/// Called by the tracepoint, in the task that gets the signal.
#[no_mangle]
unsafe extern "C" fn rust_stepping_signal_deliver(
    _data: *mut c_void,
    signal: c_int,
    _info: *mut bindings::kernel_siginfo,
    action: *mut bindings::k_sigaction,
) {
    // SAFETY: The tracepoint passes a valid `action`.
    if unsafe { bindings::rust_stepping_signal_passes(signal, action) } {
        return;
    }
    clear_pending_of_running();
    // The caller is `get_signal()`: it continues to the return to user mode, or ends the task.
    work::queue(Reason::Signal);
    tracer::dispatch(Transition::Signal);
}

/// # Safety
///
/// Called by the tracepoint, with the run queue locked.
#[no_mangle]
unsafe extern "C" fn rust_stepping_sched_switch(
    _data: *mut c_void,
    _preempt: bool,
    prev: *mut bindings::task_struct,
    next: *mut bindings::task_struct,
    _prev_state: c_uint,
) {
    clear_pending_of_running();
    tracer::dispatch(Transition::SwitchOut);
    // SAFETY: In `trace_sched_switch()`, with its tasks.
    unsafe { bindings::rust_stepping_note_switch(prev, next) };
    tracer::dispatch(Transition::SwitchIn);

    if running().is_none() {
        // SAFETY: What the tracepoint passes: the running task, which has a stack.
        let frame = NonNull::new(unsafe { bindings::rust_stepping_frame(prev) });
        if let Some(frame) = frame {
            // The task exits, and its stack may become another task's.
            transit::seen(frame);
            syscall::has_returned(frame);
            pending::take(frame);
        }
    }
}

/// # Safety
///
/// Called by the tracepoint, in the task whose restartable sequence is aborted.
#[no_mangle]
unsafe extern "C" fn rust_stepping_rseq_abort(
    _data: *mut c_void,
    _ip: c_ulong,
    _start_ip: c_ulong,
    _offset: c_ulong,
    _abort_ip: c_ulong,
) {
    tracer::dispatch(Transition::Redirected);
}

/// # Safety
///
/// Called by the tracepoint, in the task for which the kernel makes the call.
#[no_mangle]
unsafe extern "C" fn rust_stepping_vsyscall(_data: *mut c_void, _number: c_int) {
    // This is a page fault, or a general protection fault, of the task's user code.
    work::queue(Reason::Vsyscall);
}

/// Clears the running task's trap flag if a clear is pending.
fn clear_pending_of_running() {
    if let Some(regs) = running() {
        // SAFETY: The frame of the running task, which is in the kernel, as this is; references to
        // frames are not made.
        unsafe { clear_pending(regs) };
    }
}
