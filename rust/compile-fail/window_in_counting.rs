// SPDX-License-Identifier: GPL-2.0

//! A driver that writes to a ring that its event does not have.
//!
//! error: no field `window`

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init, setup_aux, start, quiesce);

    fn count_start(&self, counting: &mut aux::Counting<'_, Self>) -> Result<()> {
        counting.window.reserve(8).map_err(|_| ENOSPC)?;
        Ok(())
    }

    fn count_stop(&self, _counting: &mut aux::Counting<'_, Self>, _run: ()) {}
}
