// SPDX-License-Identifier: GPL-2.0

//! A sample that is used for a second copy.
//!
//! error: use of moved value: `sample`

use perf::{
    aux::{
        Copied,
        Sample,
        Transaction, //
    },
    AuxPmu, //
};

/// Copies twice into the space for one copy.
pub fn copy<'a, T: AuxPmu>(transaction: &mut Transaction<'_, T>, sample: Sample<'a>) -> Copied<'a> {
    let _ = sample.copy_written(transaction);

    sample.copy_written(transaction)
}
