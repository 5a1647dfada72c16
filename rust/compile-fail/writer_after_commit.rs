// SPDX-License-Identifier: GPL-2.0

//! A writer that is used after its commit.
//!
//! error: borrow of moved value: `writer`

use perf::aux::{
    Full,
    Window, //
};

/// Writes to what counts as written already.
pub fn write(window: &mut Window) -> Result<(), Full> {
    let mut writer = window.reserve(8)?;

    writer.commit();
    writer.put(&[0; 8])
}
