// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Words of a command line, and files of sysfs.

#![no_main]

fuzz::target!(fuzz::text);
