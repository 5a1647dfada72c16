// SPDX-License-Identifier: GPL-2.0

//! The pages of an AUX area, written to outside of a transaction.
//!
//! error: method `store` is private

use kernel::prelude::*;
use perf::aux::Pages;

/// Writes in `setup_aux()`.
pub fn write(pages: &Pages) -> Result {
    pages.store(0, 0, &[1])
}
