// SPDX-License-Identifier: GPL-2.0

//! A second view of an AUX area, which would outlive it.
//!
//! error: expected `Pages`, found `&Pages`

use perf::aux::Pages;

/// Copies the view.
pub fn copy(pages: &Pages) -> Pages {
    pages.clone()
}
