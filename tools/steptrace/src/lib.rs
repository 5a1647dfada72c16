// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A reference for branch traces: every instruction that a program executes, as ptrace sees it.
//!
//! [`tracer`] steps a program, with all threads and processes that it creates, and writes a [`log`]. [`compare`] checks whether a decoder's
//! output for a trace is the same. Nothing here uses a tracing driver.
//!
//! An instruction counts as executed if a processor counts it as retired, and Intel PT decoders show it:
//!
//! - an instruction with a REP prefix once, when it is complete;
//! - a system call when it has entered the kernel, even if it does not return, and again each time that it is restarted;
//! - no instruction that has faulted.

pub mod compare;
pub mod log;
pub mod sys;
pub mod tracer;
