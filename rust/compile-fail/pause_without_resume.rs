// SPDX-License-Identifier: GPL-2.0

//! A driver that can pause, but not resume.
//!
//! error: a driver that can pause can resume, and the other way round

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

    fn pause(&self, _transaction: &mut aux::Transaction<'_, Self>, _trace: &mut ()) {}
}
