// SPDX-License-Identifier: GPL-2.0

//! A token of a CPU that is kept beyond the callback.
//!
//! error: explicit lifetime required in the type of `session`

use perf::{
    aux::Session,
    context::Cpu,
    Pmu, //
};

/// Keeps the proof that interrupts are off.
pub fn keep<'a, T: Pmu>(session: &Session<'_, T>) -> &'a Cpu {
    session.cpu
}
