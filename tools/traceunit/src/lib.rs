// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A trace unit in QEMU. It writes Intel PT packets of the code that a guest executes.
//!
//! ```text
//! qemu-system-x86_64 … -plugin libtraceunit.so,out=PREFIX[,from=user][,cyc=yes][,log=yes|COUNT]
//! qemu-system-x86_64 … -plugin libtraceunit.so,device=SOCKET[,out=PREFIX[,log=yes|COUNT]]
//! ```
//!
//! With `device=SOCKET` the plugin serves a PCI function to the guest, which `Documentation/trace-unit.md` describes. QEMU's
//! `vfio-user-pci` connects to the socket, and the guest's memory must be a `memory-backend-memfd,share=on`. With `out=PREFIX` the plugin
//! writes files:
//!
//! | file | contents |
//! |---|---|
//! | `PREFIX.cpuN.pt` | without a device: the trace of virtual CPU N, kernel code |
//! | `PREFIX.image` | pages of the kernel's code, each with its last content |
//! | `PREFIX.list` | a line for each run of pages in the image: offset, length, address, as hexadecimal numbers |
//! | `PREFIX.pokes` | without a device: a line for each change of that code: time, address, old bytes, new bytes |
//! | `PREFIX.cpuN.log` | with `log=`: the addresses of the executed instructions, or of the first COUNT, as a decoder must show them |
//!
//! With `cyc=yes` there are `CYC` packets. The trace begins with the first instruction at a kernel address. With `from=user` it begins with
//! the first instruction of a program, and changes of the code are not written.
//!
//! If QEMU translates other bytes at an address than before, the code has changed. perf calls this a text poke. Each trace then has a `TSC`
//! and a `PTW` with the address, so that a decoder uses the new bytes only from there on.
//!
//! - [`device`]: the device's registers. [`serve`]: the connection to QEMU and to the guest's memory.
//! - [`flow`]: turns blocks and discontinuities into packets. Independent of QEMU.
//! - [`source`]: the flows of all CPUs, their locks, and their start and stop. Independent of QEMU.
//! - [`image`]: the code that was executed.
//! - [`idt`]: the vectors of interrupt handlers.
//! - `qemu`: the callbacks from QEMU.
//!
//! QEMU calls the plugin for blocks only while a unit traces instructions. To begin, QEMU discards its translations while no CPU executes
//! anything. It discards them again when no unit has traced for a second.
//!
//! `make exact CASE="kernel code"` compares the output of libipt with the log.
//!
//! # What is missing
//!
//! - The image has no code of programs, since their addresses are valid only in one address space.
//! - Modes other than 64 bits.

pub mod device;
pub mod flow;
pub mod idt;
pub mod image;
pub mod serve;
pub mod source;

// It calls functions of QEMU, which a test does not have.
#[cfg(not(test))]
mod qemu;
