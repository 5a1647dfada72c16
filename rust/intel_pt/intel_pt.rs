// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Intel Processor Trace in software.
//!
//! The caller reports each instruction that a thread executes, and an [`Encoder`] writes the
//! packets that Intel's trace unit would write. A decoder for Intel PT reconstructs the execution
//! from them and from the program's text.
//!
//! | call | packets |
//! |---|---|
//! | [`begin`](Encoder::begin) | `PSB`, `TSC`, `CBR`, `PIP`, `PSBEND`; `OVF` in front after a loss |
//! | [`address_space`](Encoder::address_space) | `PIP` |
//! | [`enable`](Encoder::enable) | `TSC`, `MODE.Exec`, `TIP.PGE` |
//! | [`step`](Encoder::step): conditional branch, and return to the address behind its call | a bit in a `TNT`, unless [`tnt_disable`](Config::tnt_disable) |
//! | [`step`](Encoder::step): indirect branch, other return, far transfer | `TIP`; `MODE.Exec` in front where the mode changes |
//! | [`step`](Encoder::step): the instruction does not lead to the next address | `FUP`, `TIP` |
//! | [`step`](Encoder::step): any other instruction, direct jumps and calls included | none |
//! | [`branch`](Encoder::branch): as [`step`](Encoder::step), where the caller knows which branch it is | |
//! | [`ptwrite`](Encoder::ptwrite): PTWRITE | `PTW`, and `FUP` with [`fup_on_ptw`](Config::fup_on_ptw) |
//! | [`sample`](Encoder::sample): a counter has sampled an instruction | `BBP`, `BIP`, `BEP`, and `FUP` |
//! | [`disable`](Encoder::disable): tracing stops between two instructions | `FUP`, `TIP.PGD` |
//! | [`far`](Encoder::far): a far transfer, such as `syscall`, leaves the traced code | `TIP.PGD` |
//! | [`leave`](Encoder::leave): a branch leaves the traced addresses | `TIP.PGD` with an address |
//! | [`stopped`](Encoder::stopped): after an end, at an address that stops the trace | `TraceStop` |
//! | [`tsc_period`](Config::tsc_period) ticks after the last | `TSC`, in front of a `FUP` or `TIP` |
//! | [`mtc`](Config::mtc): the coarse clock is further | `MTC`, in front of a `FUP` or `TIP`, behind a full `TNT`; `TMA` behind each `TSC` |
//! | the same with [`cyc`](Config::cyc) | `CYC` up to the tick of the coarse clock, `MTC`, `CYC`, in front of a `FUP`, `TIP` or full `TNT` |
//! | [`psb_period`](Config::psb_period) bytes after the last | `PSB`, `TSC`, `CBR`, `PIP`, `MODE.Exec`, `FUP`, `PSBEND`, after a `TNT` or `TIP` |
//!
//! The packets of one call are written as a group: all of them, or none if there is no space. While
//! tracing is on, [`CLOSE_MAX`] bytes stay free behind them. So [`disable`](Encoder::disable)
//! always has space, and the trace in a full ring ends like any other.
//!
//! [`insn`] classifies x86 instructions.
//!
//! The crate is `no_std`, calls no kernel function, allocates nothing and has no `unsafe`. No
//! function panics. Kbuild builds it into each module that uses it, and cargo builds it for tools.
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
    encoder::{Branch, Cause, Config, Encoder, Event, Full, Mtc, Output, Sample, Step, CLOSE_MAX},
    packet::{Group, Payload, GROUP_MAX, PSB},
};

#[cfg(test)]
mod tests;
