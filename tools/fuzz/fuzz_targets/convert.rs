// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A file, whose trace may be compressed, made plain.

#![no_main]

fuzz::target!(fuzz::convert);
