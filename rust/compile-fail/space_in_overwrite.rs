// SPDX-License-Identifier: GPL-2.0

//! The space of a region, used without a check of the mode. In overwrite mode there is none.
//!
//! error: expected `u64`, found `Option<u64>`

use perf::aux::Region;

/// The space that is left.
pub fn left(region: &Region<'_>) -> u64 {
    region.space()
}
