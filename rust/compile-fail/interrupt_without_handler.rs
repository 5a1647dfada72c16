// SPDX-License-Identifier: GPL-2.0

//! A driver whose interrupt enters its transaction, but which has no interrupt().
//!
//! error: an interrupt needs AuxPmu::interrupt()

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);
}

#[vtable]
impl AuxPmu for Driver {
    usual!(aux, setup_aux, start, quiesce);
}

/// The handler of the driver's interrupt.
pub fn handle(entry: &perf::interrupt::Entry<Driver>) -> bool {
    entry.interrupt()
}
