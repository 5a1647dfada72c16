// SPDX-License-Identifier: GPL-2.0

//! A driver that counts without a ring, but cannot be stopped then.
//!
//! error: a driver that starts without a ring stops without one, and ticks only then

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init, setup_aux, start, quiesce);

    fn count_start(&self, _counting: &mut aux::Counting<'_, Self>) -> Result<()> {
        Ok(())
    }
}
