// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Content of a ring buffer of tracefs, and its descriptions.

#![no_main]

fuzz::target!(fuzz::tracering);
