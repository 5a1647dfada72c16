// SPDX-License-Identifier: GPL-2.0

//! State of an AUX area that borrows. The state outlives the event and the PMU.
//!
//! error: may not live long enough

use perf::AuxPmu;

/// Accepts a driver whose state borrows for less than `'static`.
pub fn keep<'a, T: AuxPmu<Buffer = &'a u8>>(_driver: &T) {}

/// The state is `'static`, but the borrowed byte is not.
pub fn borrow<'a, T: AuxPmu<Buffer = &'a u8>>(driver: &T, byte: &'a u8) -> &'static u8 {
    keep(driver);
    byte
}
