// SPDX-License-Identifier: GPL-2.0

//! The raw bindings, from a driver.
//!
//! error: module `bindings` is private

use perf::bindings;

/// perf's own function.
pub fn begin() -> usize {
    core::mem::size_of::<bindings::perf_output_handle>()
}
