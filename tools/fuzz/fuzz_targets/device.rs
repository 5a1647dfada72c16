// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a guest does to the trace unit.

#![no_main]

fuzz::target!(fuzz::device);
