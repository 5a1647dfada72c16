// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decompresses a file, whose trace may be compressed.

#![no_main]

fuzz::target!(fuzz::convert);
