// SPDX-License-Identifier: GPL-2.0

//! The counter of an event, changed outside of its callbacks.
//!
//! error: method `count` is private

use perf::{
    context::Cpu,
    Event,
    Pmu, //
};

/// Counts for another event.
pub fn count<T: Pmu>(event: &Event<'_, T>, cpu: &Cpu) {
    event.count(1, cpu);
}
