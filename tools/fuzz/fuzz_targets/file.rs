// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads everything in a file.

#![no_main]

fuzz::target!(fuzz::file);
