// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A trace unit in QEMU: it writes Intel PT packets of what a guest executes.
//!
//! ```text
//! qemu-system-x86_64 … -plugin libtraceunit.so,out=PREFIX[,from=user][,cyc=yes][,log=yes|COUNT]
//! qemu-system-x86_64 … -plugin libtraceunit.so,device=SOCKET[,out=PREFIX[,log=yes|COUNT]]
//! ```
//!
//! With `device=SOCKET` it is a PCI function of the guest: `Documentation/trace-unit.md`. QEMU's
//! `vfio-user-pci` connects to the socket, and the guest's memory must be a
//! `memory-backend-memfd,share=on`. With `out=PREFIX` it writes files:
//!
//! | file | contents |
//! |---|---|
//! | `PREFIX.cpuN.pt` | without a device: the trace of virtual CPU N, kernel code |
//! | `PREFIX.image` | pages of the kernel's code, each as it was last |
//! | `PREFIX.list` | where in it what addresses are: offset, length, address, as hexadecimal numbers |
//! | `PREFIX.pokes` | without a device: a line for each change of that code: when, where, the bytes before, the bytes now |
//! | `PREFIX.cpuN.log` | with `log=`: the address of each executed instruction, or of the first so many, which is what a decoder must show |
//!
//! With `cyc=yes` there are `CYC` packets. The trace begins with the first instruction at an address of the
//! kernel's. With `from=user` it begins with the first of a program, and changes of the code are not written.
//! When QEMU translates other bytes at an address than before, the code has changed: what perf calls a text
//! poke. Each trace then has a `TSC` and a `PTW` with the address, so that a decoder executes the new bytes
//! only behind it.
//!
//! - [`device`]: what the device's registers do. [`serve`]: how QEMU and memory are reached.
//! - [`flow`]: from blocks and discontinuities to packets. Nothing of QEMU.
//! - [`source`]: the flows of all CPUs, their locks, and when they are on. Nothing of QEMU.
//! - [`image`]: the code that was executed.
//! - [`idt`]: which vector leads to a handler.
//! - `qemu`: what QEMU calls.
//!
//! Blocks are reported only while a unit traces instructions. To begin, QEMU forgets its translations
//! while no CPU executes anything; it does so again when no unit has traced for a second.
//!
//! `make exact CASE="kernel code"` compares what libipt shows with the log.
//!
//! # What is missing
//!
//! - The image has no programs: their addresses mean something only with an address space.
//! - Modes other than 64 bits.

pub mod device;
pub mod flow;
pub mod idt;
pub mod image;
pub mod serve;
pub mod source;

// Its functions are in QEMU, which a test is not.
#[cfg(not(test))]
mod qemu;
