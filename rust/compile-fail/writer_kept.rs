// SPDX-License-Identifier: GPL-2.0

//! A writer that is kept beyond the callback.
//!
//! error: explicit lifetime required in the type of `region`

use perf::aux::{
    Full,
    Region,
    Writer, //
};

/// Keeps a writer for longer than the region.
pub fn keep<'a>(region: &mut Region<'a>) -> Result<Writer<'a>, Full> {
    region.reserve(8)
}
