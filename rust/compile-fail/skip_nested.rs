// SPDX-License-Identifier: GPL-2.0

//! Padding that is skipped while other padding is written.
//!
//! error: closure requires unique access to `*transaction` but it is already borrowed

use kernel::prelude::*;
use perf::{
    aux::Transaction,
    AuxPmu, //
};

/// Skips while it skips.
pub fn skip<T: AuxPmu>(transaction: &mut Transaction<'_, T>) -> Result {
    transaction.skip(8, |writer| {
        let _ = transaction.skip(8, |writer| writer.put(&[0; 8]));
        writer.put(&[0; 8])
    })
}
