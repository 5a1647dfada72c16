// SPDX-License-Identifier: GPL-2.0

//! The space of a region, taken without a look at the mode: in overwrite mode there is none.
//!
//! error: expected `u64`, found `Option<u64>`

use perf::aux::Region;

/// What is left.
pub fn left(region: &Region<'_>) -> u64 {
    region.space()
}
