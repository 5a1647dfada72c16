// SPDX-License-Identifier: GPL-2.0

//! The raw bindings, used by a driver.
//!
//! error: module `bindings` is private

use perf::bindings;

/// Uses a type of perf's core.
pub fn begin() -> usize {
    core::mem::size_of::<bindings::perf_output_handle>()
}
