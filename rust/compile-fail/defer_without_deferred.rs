// SPDX-License-Identifier: GPL-2.0

//! A driver that defers something, but has no deferred().
//!
//! error: what is deferred needs Pmu::deferred()

include!("common/driver.rs");

register!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init, setup_aux, quiesce);

    type Run = ();

    fn start(&self, session: &mut aux::Session<'_, Self>) -> Result<()> {
        session.defer();
        Ok(())
    }
}
