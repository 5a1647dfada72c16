// SPDX-License-Identifier: GPL-2.0

//! A mapping of an AUX area, written to outside of a transaction.
//!
//! error: no method named `copy_in` found

use auxcore::ring::Pos;
use perf::aux::VirtualMapping;

/// Writes outside of a transaction.
pub fn write(mapping: &mut VirtualMapping) {
    let _ = mapping.copy_in(Pos::new(0), &[1]);
}
