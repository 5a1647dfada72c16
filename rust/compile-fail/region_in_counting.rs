// SPDX-License-Identifier: GPL-2.0

//! A driver that writes to an AUX area while it counts. Then the event has no AUX area.
//!
//! error: no method named `region` found

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);

    fn count_start(&self, counting: &mut perf::pmu::Counting<'_, Self>) -> Result<()> {
        counting.region().reserve(8).map_err(|_| ENOSPC)?;
        Ok(())
    }

    fn count_stop(&self, _counting: &mut perf::pmu::Counting<'_, Self>, _count: ()) {}
}

#[vtable]
impl AuxPmu for Driver {
    usual!(aux, setup_aux, start, quiesce);
}
