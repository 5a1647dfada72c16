// SPDX-License-Identifier: GPL-2.0

//! A writer that is used after its commit.
//!
//! error: borrow of moved value: `writer`

use perf::aux::{
    Full,
    Region, //
};

/// Writes to bytes that are already committed.
pub fn write(region: &mut Region<'_>) -> Result<(), Full> {
    let mut writer = region.reserve(8)?;

    writer.commit();
    writer.put(&[0; 8])
}
