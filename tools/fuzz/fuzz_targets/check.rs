// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A file, as `auxrec check` and `report` see it.

#![no_main]

fuzz::target!(fuzz::check);
