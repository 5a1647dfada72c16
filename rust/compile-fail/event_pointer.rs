// SPDX-License-Identifier: GPL-2.0

//! The C object of perf's event, taken by a driver.
//!
//! error: method `as_ptr` is private

use perf::{
    Event,
    Pmu, //
};

/// Takes the C object.
pub fn pointer<T: Pmu>(event: &Event<'_, T>) -> *mut kernel::ffi::c_void {
    event.as_ptr().cast()
}
