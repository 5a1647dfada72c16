// SPDX-License-Identifier: GPL-2.0

//! The functions that the hooks call: traps, breakpoints, system calls, signals and switches of the
//! tasks that are followed.

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
    interrupt,
    prelude::*, //
};

// The functions below have the prototypes that C sees.
const _: () = {
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
    // SAFETY: This reads the current task, and there always is one.
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
    // SAFETY: This reads the current task, and there always is one.
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
    // SAFETY: The tracepoint passes the two tasks, in the switch.
    unsafe { bindings::rust_stepping_note_switch(prev, next) };
    tracer::dispatch(Transition::SwitchIn);

    if running().is_none() {
        // SAFETY: The tracepoint passes the running task, which has a stack.
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
