// SPDX-License-Identifier: GPL-2.0

//! The space of a window, taken without a look at the mode: in overwrite mode there is none.
//!
//! error: expected `u64`, found `Option<u64>`

use perf::aux::Window;

/// What is left.
pub fn left(window: &Window) -> u64 {
    window.space()
}
