// SPDX-License-Identifier: GPL-2.0

//! An entry of a table of regions, written by the driver.
//!
//! error: field `table` of struct `DeviceTable` is private

use perf::aux::DeviceTable;

/// Leads the device to any address.
pub fn redirect(table: &mut DeviceTable) {
    let _ = &mut table.table;
}
