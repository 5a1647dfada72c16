// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Intel Processor Trace, made in software.
//!
//! An [`Encoder`] is told what a thread does, instruction by instruction, and writes what Intel's
//! trace unit would: a bit for each conditional branch, an address where the code does not say
//! where it goes on, and packets that say where tracing begins and ends. Who has the program's
//! text can follow it with any decoder that is made for Intel PT.
//!
//! | event | packets |
//! |---|---|
//! | [`begin`](Encoder::begin) | `PSB`, `TSC`, `CBR`, `PSBEND`; `OVF` in front after a loss |
//! | [`enable`](Encoder::enable) | `TSC`, `MODE.Exec`, `TIP.PGE` |
//! | [`step`](Encoder::step): conditional branch, and return to where its call wanted it | a bit in a `TNT` |
//! | indirect branch, other return, far transfer | `TIP`; `MODE.Exec` in front where the mode changes |
//! | what the instruction at hand does not explain | `FUP`, `TIP` |
//! | all else, direct jumps and calls too | none |
//! | [`disable`](Encoder::disable): stopped between two instructions | `FUP`, `TIP.PGD` |
//! | [`far`](Encoder::far): gone by a far transfer, as `syscall` | `TIP.PGD` |
//! | [`leave`](Encoder::leave): a branch out of what is traced | `TIP.PGD` with an address |
//! | [`psb_period`](Config::psb_period) bytes after the last | `PSB`, `TSC`, `CBR`, `MODE.Exec`, `FUP`, `PSBEND`, after a `TNT` or `TIP` |
//!
//! What an event writes is one group: it finds room as a whole, or the event did not happen.
//! While tracing is on, [`CLOSE_MAX`] bytes are kept free behind it, so that
//! [`disable`](Encoder::disable) finds room always, and a full ring ends as cleanly as any other.
//!
//! [`insn`] reads x86 instructions as far as such a trace has to know them.
//!
//! The crate is `no_std`, calls no kernel function, allocates nothing and has no `unsafe`. No
//! function panics. It is built by kbuild into each module that uses it, and by cargo for tools.
//!
//! Reference: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, "Intel
//! Processor Trace".

// Kbuild passes `no_std` itself and sets `MODULE`.
#![cfg_attr(not(any(MODULE, test)), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod encoder;
pub mod insn;
mod packet;

pub use self::{
    encoder::{Cause, Config, Encoder, Full, Output, Step, CLOSE_MAX},
    packet::{Group, GROUP_MAX, PSB},
};

#[cfg(test)]
mod tests;
