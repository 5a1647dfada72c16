// SPDX-License-Identifier: GPL-2.0

//! A transaction that is used while an entry runs in it.
//!
//! error: closure requires unique access to `*transaction` but it is already borrowed

use perf::{
    aux::{
        Next,
        Transaction, //
    },
    interrupt::Entry,
    AuxPmu, //
};

/// Holds the buffer during an entry that has the same transaction.
pub fn nest<T: AuxPmu>(transaction: &mut Transaction<'_, T>, entry: &Entry<T>) -> bool {
    let buffer = transaction.buffer();
    let entered = entry.with_transaction(|_, _| {
        transaction.region();
        (Next::Continue, ())
    });

    let _ = buffer;
    entered.is_some()
}
