// SPDX-License-Identifier: GPL-2.0

//! A driver that cannot be stopped.
//!
//! error: not all trait items implemented, missing: `quiesce`

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);
}

#[vtable]
impl AuxPmu for Driver {
    usual!(aux, setup_aux, start);
}
