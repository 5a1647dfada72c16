// SPDX-License-Identifier: GPL-2.0

//! A driver with state that is not safe to use from several CPUs.
//!
//! error: cannot be shared between threads safely

include!("common/driver.rs");

no_pmu!();

struct Driver {
    ticks: core::cell::Cell<u64>,
}

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);
}

#[vtable]
impl AuxPmu for Driver {
    usual!(aux, setup_aux, start, quiesce);
}
