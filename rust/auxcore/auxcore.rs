// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What both ends of an AUX ring must agree on.
//!
//! The kernel fills an AUX ring, user space drains it; they share positions and sizes. Those rules
//! are written once, here, and built twice: by kbuild into `rust_perf.ko` and by cargo for the
//! recorder and its tests.
//!
//! The crate is `no_std`, calls no kernel function, allocates nothing and has no `unsafe`. No
//! function panics: what may be out of range is an [`Option`] or a [`Result`].
//!
//! - [`circular`]: reads a circular buffer that a unit overwrites without stopping.
//! - [`ring`]: positions, sizes, free space, and the split of a range at the end of the ring.
//! - [`table`]: where a unit that writes by itself may write: regions, interrupts, stops.

// Kbuild passes `no_std` itself and sets `MODULE`.
#![cfg_attr(not(any(MODULE, test)), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod circular;
pub mod ring;
pub mod table;
