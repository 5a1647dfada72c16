// SPDX-License-Identifier: GPL-2.0

//! Two writers to one window at once.
//!
//! error: cannot borrow `*window` as mutable more than once at a time

use perf::aux::{
    Full,
    Window, //
};

/// Writes to one place twice.
pub fn write(window: &mut Window) -> Result<(), Full> {
    let mut first = window.reserve(8)?;
    let mut second = window.reserve(8)?;

    first.put(&[1; 8])?;
    second.put(&[2; 8])
}
