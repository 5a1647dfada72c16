// SPDX-License-Identifier: GPL-2.0

//! Follows tasks through their user code, instruction by instruction, and into and out of the
//! kernel.
//!
//! A task whose [trap flag](Regs::set_trap_flag) is set traps after each instruction. A client
//! implements [`Tracer`], and gets a callback for each such trap and for each [`Transition`]
//! between user code and the kernel. The task must not notice that. So the client clears the flag
//! where the kernel would show it to the program, or take it for the program's own. The transitions
//! report these places.
//!
//! ```text
//!                       single_step
//!                      ┌───────────┐      Syscall, Breakpoint, Signal, SwitchOut
//!   trap flag set      │ user code │ ───────────────────────────────────────────►  trap flag clear
//!                      └───────────┘ ◄───────────────────────────────────────────
//!                                         Return, Probed, Handler, SwitchIn
//! ```
//!
//! - [`Handle`]: a client's access to this crate, which is created first.
//! - [`Registration`]: the client's registered tracer.
//! - [`Following`]: a guard. While it exists, the tracer is called, and there is a [`Current`]
//!   task. Without a guard, no task can be accessed, and system calls have no overhead.
//! - [`Current`]: the task to which this CPU returns, its registers and its memory. After a step it
//!   can be [interpreted](Current::interpret): its next instructions are executed without a trap.
//!
//! Safe code in a client can break a program by changing its registers, as a debugger can. It
//! cannot access a task that has exited or that runs. No callback runs after the tracer or its
//! module is gone: leaked guards and registrations keep both.
//!
//! C headers: [`include/linux/kdebug.h`](srctree/include/linux/kdebug.h),
//! [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

use kernel::prelude::*;

mod bindings;
mod check;
mod decoded;
mod handlers;
mod hooks;
mod interpret;
mod pending;
mod processor;
mod syscall;
mod table;
mod task;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod tracer;
mod transit;
mod work;

pub use decoded::Decoded;
pub use interpret::Reason;
pub use interpreter::{
    Branch,
    Ended,
    Observer,
    Ran,
    Registers,
    Width, //
};
pub use task::{
    Code,
    Current,
    Regs, //
};
pub use tracer::{
    Following,
    Handle,
    Registration,
    Tracer,
    Transition,
    Trap, //
};

module! {
    type: Stepping,
    name: "rust_stepping",
    authors: ["The auxpmu authors"],
    description: "Rust abstractions to follow tasks through their user code",
    license: "GPL",
}

/// A library for the clients that depend on it.
struct Stepping;

impl kernel::Module for Stepping {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        interpret::check();
        // SAFETY: The module's init calls this once, before any client, which depends on this
        // module, is loaded.
        unsafe { hooks::init()? };
        Ok(Self)
    }
}

impl Drop for Stepping {
    fn drop(&mut self) {
        hooks::exit();
        // A task may still execute the last instructions of this module's code, after it has
        // dropped its reference: see `work`.
        //
        // SAFETY: This is a task that may sleep.
        unsafe { bindings::rust_stepping_synchronize_rcu_tasks() };
    }
}
