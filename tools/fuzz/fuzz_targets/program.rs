// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs for the interpreter.

#![no_main]

fuzz::target!(fuzz::program);
