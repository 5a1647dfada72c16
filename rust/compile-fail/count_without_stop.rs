// SPDX-License-Identifier: GPL-2.0

//! A driver that can start to count, but cannot stop.
//!
//! error: a driver that starts counting stops counting, and ticks only then

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);

    fn count_start(&self, _counting: &mut perf::pmu::Counting<'_, Self>) -> Result<()> {
        Ok(())
    }
}

#[vtable]
impl AuxPmu for Driver {
    usual!(aux, setup_aux, start, quiesce);
}
