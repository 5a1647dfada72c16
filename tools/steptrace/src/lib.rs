// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A reference for branch traces: every instruction that a program executes, as ptrace sees it.
//!
//! [`tracer`] steps a program, with all threads and processes that it makes, and writes a [`log`]. [`compare`] says
//! whether what a decoder made of a trace is the same. Nothing here knows a tracing driver, and none is needed.
//!
//! What counts as executed is what a processor counts as retired, and what Intel PT decoders show:
//!
//! - an instruction with a REP prefix once, when it is left;
//! - a system call when it has entered the kernel, also if it does not return, and once more each time that it is
//!   restarted;
//! - nothing that faulted.

pub mod compare;
pub mod log;
pub mod sys;
pub mod tracer;
