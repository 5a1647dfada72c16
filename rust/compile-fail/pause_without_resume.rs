// SPDX-License-Identifier: GPL-2.0

//! A driver that can pause, but not resume.
//!
//! error: a driver that can pause can resume, and the other way round

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init, setup_aux, start, quiesce);

    fn pause(&self, _session: &mut aux::Session<'_, Self>, _run: &mut ()) {}
}
