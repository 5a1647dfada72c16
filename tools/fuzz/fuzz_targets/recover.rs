// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A file that is to be finished.

#![no_main]

fuzz::target!(fuzz::recover);
