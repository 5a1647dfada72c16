// SPDX-License-Identifier: GPL-2.0

//! A sample that is kept beyond the callback.
//!
//! error: explicit lifetime required in the type of `sample`

use perf::aux::Sample;

/// Keeps the place to which perf writes its record.
pub fn keep<'a>(kept: &mut Option<Sample<'a>>, sample: Sample<'_>) {
    *kept = Some(sample);
}
