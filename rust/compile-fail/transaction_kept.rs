// SPDX-License-Identifier: GPL-2.0

//! A transaction that is kept beyond the callback.
//!
//! error: explicit lifetime required in the type of `transaction`

use perf::{
    aux::Transaction,
    AuxPmu, //
};

/// Keeps a transaction where it outlives the callback.
pub fn keep<'a, T: AuxPmu>(
    kept: &mut Option<&'a mut Transaction<'a, T>>,
    transaction: &mut Transaction<'_, T>,
) {
    *kept = Some(transaction);
}
