// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A QEMU plugin that counts a guest kernel's instructions and records which CPU writes which
//! cache line.
//!
//! ```text
//! qemu-system-x86_64 … -plugin libbench_plugin.so,out=FILE,from=ADDRESS,to=ADDRESS
//! qemu-system-x86_64 … -plugin libbench_plugin.so,out=FILE,what=interrupts
//! ```
//!
//! The guest opens a window by executing one marker instruction, and closes it by another: see
//! [`record::Marker`]. Within a window the plugin records:
//!
//! - how often each CPU executes each block of kernel code;
//! - each cache line, by its physical address, that code between `from` and `to` writes, with the
//!   CPU and the instruction.
//!
//! With `what=interrupts` it records how many instructions each call of a function takes, such as the
//! handler of an interrupt, and how often the call calls a second function. The guest has the
//! addresses of both in `rdi` and `rsi` when it opens the window.
//!
//! At the end of a window all of this goes to `FILE`; [`record::Recorder::report`] and
//! [`calls::Calls::mark`] have the formats.
//!
//! - [`record`]: blocks and lines. Nothing of QEMU.
//! - [`calls`]: calls. Nothing of QEMU.
//! - `qemu`: what QEMU calls.

pub mod calls;
pub mod record;

// Its functions are in QEMU, which a test is not.
#[cfg(not(test))]
mod qemu;
