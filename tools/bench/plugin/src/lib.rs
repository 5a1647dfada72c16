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
//! With `what=interrupts` it records how many instructions each call of a function takes, such as the handler of an interrupt, and how
//! often the call calls a second function. When the guest opens the window, it passes the addresses of the two functions in `rdi` and
//! `rsi`.
//!
//! At the end of a window the plugin writes all of this to `FILE`. `report()` in [`record`] and in [`calls`] documents the formats.
//!
//! - [`record`]: blocks and lines. Does not depend on QEMU.
//! - [`calls`]: calls. Does not depend on QEMU.
//! - `qemu`: the functions that QEMU calls.

pub mod calls;
pub mod record;

// It uses functions of QEMU, which tests do not have.
#[cfg(not(test))]
mod qemu;
