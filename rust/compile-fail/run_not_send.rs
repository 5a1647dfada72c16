// SPDX-License-Identifier: GPL-2.0

//! A run with state that must stay in one thread.
//!
//! error: cannot be sent between threads safely

include!("common/driver.rs");

no_pmu!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init, setup_aux, quiesce);

    type Run = *mut u8;

    fn start(&self, _session: &mut aux::Session<'_, Self>) -> Result<*mut u8> {
        Ok(core::ptr::null_mut())
    }
}
