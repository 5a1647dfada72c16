// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a ring buffer of tracefs has, and what describes it.

#![no_main]

fuzz::target!(fuzz::tracering);
