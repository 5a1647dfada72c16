// SPDX-License-Identifier: GPL-2.0

//! Two writers to one region at once.
//!
//! error: cannot borrow `*region` as mutable more than once at a time

use perf::aux::{
    Full,
    Region, //
};

/// Writes to the same bytes with two writers.
pub fn write(region: &mut Region<'_>) -> Result<(), Full> {
    let mut first = region.reserve(8)?;
    let mut second = region.reserve(8)?;

    first.put(&[1; 8])?;
    second.put(&[2; 8])
}
