// SPDX-License-Identifier: GPL-2.0

//! The token of a CPU, kept beyond the callback.
//!
//! error: explicit lifetime required in the type of `transaction`

use perf::{
    aux::Transaction,
    context::Cpu,
    AuxPmu, //
};

/// Keeps the proof that interrupts are off.
pub fn keep<'a, T: AuxPmu>(transaction: &Transaction<'_, T>) -> &'a Cpu {
    transaction.cpu()
}
