// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Arithmetic of AUX rings.
//!
//! The kernel writes to an AUX ring, and user space reads from it. Both must compute positions in
//! the same way. So kbuild builds this crate into `rust_perf.ko`, and cargo builds it for the
//! recorder.
//!
//! The crate is `no_std`, calls no kernel function, allocates nothing and has no `unsafe`. No
//! function panics: an argument that can be out of range makes the result an [`Option`] or a
//! [`Result`].
//!
//! - [`circular`]: reads a circular buffer that a unit overwrites without stopping.
//! - [`ring`]: positions, sizes, free space, and the split of a range at the end of the ring.
//! - [`guard`], [`lifecycle`]: the guard against re-entrance from NMI, and the state machine of a
//!   CPU.
//! - [`table`]: tables of regions, which direct a unit that writes to memory by itself.

// Kbuild passes `no_std` itself and sets `MODULE`.
#![cfg_attr(not(any(MODULE, test)), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod circular;
pub mod guard;
pub mod lifecycle;
pub mod ring;
pub mod table;
