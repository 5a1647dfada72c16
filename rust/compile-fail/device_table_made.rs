// SPDX-License-Identifier: GPL-2.0

//! A table of regions that the framework has not made.
//!
//! error: cannot construct `DeviceTable` with struct literal syntax due to private fields

use perf::aux::DeviceTable;

/// A table of no AUX area.
pub fn make() -> DeviceTable {
    DeviceTable {}
}
