// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A QEMU plugin that counts a guest kernel's instructions and records which CPU writes which
//! cache line.
//!
//! ```text
//! qemu-system-x86_64 … -plugin libbench_plugin.so,out=FILE,from=ADDRESS,to=ADDRESS
//! ```
//!
//! The guest opens a window by executing one marker instruction, and closes it by another: see
//! [`record::Marker`]. Within a window the plugin records:
//!
//! - how often each CPU executes each block of kernel code;
//! - each cache line, by its physical address, that code between `from` and `to` writes, with the
//!   CPU and the instruction.
//!
//! At the end of a window both go to `FILE`; [`record::Recorder::report`] has the format.
//!
//! - [`record`]: what is recorded. Nothing of QEMU.
//! - `qemu`: what QEMU calls.

pub mod record;

// Its functions are in QEMU, which a test is not.
#[cfg(not(test))]
mod qemu;
