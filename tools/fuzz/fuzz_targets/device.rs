// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Actions of a guest on the trace unit.

#![no_main]

fuzz::target!(fuzz::device);
