// SPDX-License-Identifier: GPL-2.0

//! A driver that defers work, but has no deferred().
//!
//! error: deferred work needs AuxPmu::deferred()

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
        transaction.defer();
        Ok(())
    }
}
