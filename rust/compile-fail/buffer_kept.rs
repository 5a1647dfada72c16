// SPDX-License-Identifier: GPL-2.0

//! The state of an AUX area, kept beyond the callback.
//!
//! error: lifetime may not live long enough

use perf::{
    aux::Transaction,
    AuxPmu, //
};

/// Keeps the state that `free_aux()` will drop.
pub fn keep<'a, T: AuxPmu>(transaction: &'a mut Transaction<'_, T>) -> &'static mut T::Buffer {
    transaction.buffer()
}
