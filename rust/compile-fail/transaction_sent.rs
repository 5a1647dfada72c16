// SPDX-License-Identifier: GPL-2.0

//! A transaction that is sent to another thread.
//!
//! error: cannot be sent between threads safely

use perf::{
    aux::Transaction,
    AuxPmu, //
};

fn send(_what: impl Send) {}

/// Sends a transaction to another thread, perhaps on another CPU.
pub fn away<T: AuxPmu>(transaction: &mut Transaction<'_, T>) {
    send(transaction);
}
