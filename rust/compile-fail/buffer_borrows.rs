// SPDX-License-Identifier: GPL-2.0

//! State of an AUX area that borrows: it outlives the event and the PMU.
//!
//! error: may not live long enough

use perf::AuxPmu;

/// Wants the state to be able to borrow for less than ever.
pub fn keep<'a, T: AuxPmu<Buffer = &'a u8>>(_driver: &T) {}

/// The state is `'static`, and this is not.
pub fn borrow<'a, T: AuxPmu<Buffer = &'a u8>>(driver: &T, byte: &'a u8) -> &'static u8 {
    keep(driver);
    byte
}
