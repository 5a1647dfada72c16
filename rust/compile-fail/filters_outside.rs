// SPDX-License-Identifier: GPL-2.0

//! Address filters of an event, read outside of its transaction, while perf replaces them.
//!
//! error: method `filters` is private

use perf::{
    filter::Filter,
    Event,
    Pmu, //
};

/// Reads the filters in `setup_aux()`.
pub fn read<'a, T: Pmu>(event: &Event<'a, T>) -> &'a [Filter] {
    event.filters()
}
