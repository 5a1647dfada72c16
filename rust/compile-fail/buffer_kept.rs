// SPDX-License-Identifier: GPL-2.0

//! What belongs to the ring, kept beyond the callback.
//!
//! error: lifetime may not live long enough

use perf::{
    aux::Session,
    Pmu, //
};

/// Keeps what `free_aux()` will drop.
pub fn keep<'a, T: Pmu>(session: &'a mut Session<'_, T>) -> &'static mut T::Buffer {
    session.buffer
}
