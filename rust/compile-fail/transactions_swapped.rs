// SPDX-License-Identifier: GPL-2.0

//! The transactions of two PMUs, swapped in a callback. Each would continue with the other's pages.
//!
//! error: borrowed data escapes outside of closure

use core::mem;
use perf::{
    aux::{
        Next,
        Transaction, //
    },
    interrupt::Entry,
    AuxPmu, //
};

/// Puts the other PMU's transaction in place of this one.
pub fn swap<T: AuxPmu>(transaction: &mut Transaction<'_, T>, other: &Entry<T>) {
    other.with_transaction(|inner, _| {
        mem::swap(transaction, inner);
        (Next::Continue, ())
    });
}
