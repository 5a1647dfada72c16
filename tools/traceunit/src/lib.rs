// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A trace unit in QEMU: it writes Intel PT packets of what a guest's kernel executes.
//!
//! ```text
//! qemu-system-x86_64 … -plugin libtraceunit.so,out=PREFIX[,from=user][,log=yes]
//! qemu-system-x86_64 … -plugin libtraceunit.so,device=SOCKET
//! ```
//!
//! With `device=SOCKET` it is a PCI function of the guest: `Documentation/trace-unit.md`. QEMU's
//! `vfio-user-pci` connects to the socket, and the guest's memory must be a
//! `memory-backend-memfd,share=on`. With `out=PREFIX` it writes files:
//!
//! | file | contents |
//! |---|---|
//! | `PREFIX.cpuN.pt` | the trace of virtual CPU N |
//! | `PREFIX.image` | pages of code, each as it was last |
//! | `PREFIX.list` | where in it what addresses are: offset, length, address, as hexadecimal numbers |
//! | `PREFIX.cpuN.log` | with `log=yes`: the address of each executed instruction, which is what a decoder must show |
//!
//! With `from=user` the trace begins when the first program does. Until then the kernel patches its
//! code, and an address may have had other instructions than the image says.
//!
//! - [`device`]: what the device's registers do. [`serve`]: how QEMU and memory are reached.
//! - [`flow`]: from blocks and discontinuities to packets. Nothing of QEMU.
//! - [`image`]: the code that was executed.
//! - `qemu`: what QEMU calls.
//!
//! `make exact CASE="kernel code"` compares what libipt shows with the log.
//!
//! # What is missing
//!
//! - Programs: their addresses mean something only with an address space, so the trace needs `PIP`
//!   packets, and the image one set of pages for each.
//! - Code that changes while it is traced: the image keeps the last bytes. A translation of other
//!   bytes at a known address is what perf calls a text poke, and has a time.
//! - Modes other than 64 bits.
//! - `CYC` and `MTC` packets. `TSC` stands at each `PSB` only.
//! - The device makes a pattern, and not the packets of instructions.
//! - Speed: a callback for each block, and one for its last instruction, are more than is needed.
//!   The second could be an inline store to a scoreboard.

pub mod device;
pub mod flow;
pub mod image;
pub mod serve;

// Its functions are in QEMU, which a test is not.
#[cfg(not(test))]
mod qemu;
