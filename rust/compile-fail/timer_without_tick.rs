// SPDX-License-Identifier: GPL-2.0

//! A driver that sets a timer, but has no tick().
//!
//! error: a timer needs AuxPmu::tick()

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);
}

#[vtable]
impl AuxPmu for Driver {
    usual!(aux, setup_aux, quiesce);

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<()> {
        transaction.set_timer(kernel::time::Delta::from_millis(1));
        Ok(())
    }
}
