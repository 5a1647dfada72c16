// SPDX-License-Identifier: GPL-2.0

//! A driver that sets a timer, but has no tick().
//!
//! error: a timer needs Pmu::tick()

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init, setup_aux, quiesce);

    type Run = ();

    fn start(&self, session: &mut aux::Session<'_, Self>) -> Result<()> {
        session.set_timer(kernel::time::Delta::from_millis(1));
        Ok(())
    }
}
