// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A file, read whole.

#![no_main]

fuzz::target!(fuzz::file);
