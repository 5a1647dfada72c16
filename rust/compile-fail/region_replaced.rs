// SPDX-License-Identifier: GPL-2.0

//! A region of another transaction, put in place of a transaction's own region.
//!
//! error: field `extent` of struct `Region` is private

use core::mem;
use perf::aux::Region;

/// Swaps the extents of two regions.
pub fn swap(one: &mut Region<'_>, other: &mut Region<'_>) {
    mem::swap(one.extent, other.extent);
}
