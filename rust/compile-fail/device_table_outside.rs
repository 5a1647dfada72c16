// SPDX-License-Identifier: GPL-2.0

//! A table of regions, made outside of setup_aux(), where there are no pages.
//!
//! error: this function takes 3 arguments but 2 arguments were supplied

use kernel::prelude::*;
use perf::aux::{DeviceTable, DmaMapping, Pages};

/// Makes the table from a mapping alone.
pub fn make(mapping: &DmaMapping) -> Result<DeviceTable> {
    Pages::table(mapping, 4096)
}
