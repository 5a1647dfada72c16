// SPDX-License-Identifier: GPL-2.0

//! A table of regions that is marked through a shared reference.
//!
//! error: cannot borrow `*table` as mutable

use auxcore::{ring::Pos, table::Marks};
use perf::aux::DeviceTable;

/// Marks the table while another reference may be in use.
pub fn mark(table: &DeviceTable) -> Option<Marks> {
    table.mark(Pos::new(0), 1, Pos::new(0)).ok()
}
