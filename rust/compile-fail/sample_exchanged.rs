// SPDX-License-Identifier: GPL-2.0

//! A copy into one sample that is returned for another.
//!
//! error: lifetime may not live long enough

use perf::{
    aux::{
        Copied,
        Sample, //
    }, //
};

/// perf would take the length of the one for that of the other.
pub fn exchange<'a, 'b>(sample: Sample<'a>, other: Sample<'b>) -> Copied<'a> {
    let _ = sample.skip();

    other.skip()
}
