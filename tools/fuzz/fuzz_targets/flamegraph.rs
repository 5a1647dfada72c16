// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A recording, as `auxrec report --flamegraph` sees it.

#![no_main]

fuzz::target!(fuzz::flamegraph);
