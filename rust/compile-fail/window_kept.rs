// SPDX-License-Identifier: GPL-2.0

//! A window that is kept beyond the callback.
//!
//! error: lifetime may not live long enough

include!("common/driver.rs");

no_pmu!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init, setup_aux, quiesce);

    type Run = &'static aux::Window;

    fn start(&self, session: &mut aux::Session<'_, Self>) -> Result<&'static aux::Window> {
        Ok(session.window)
    }
}
