// SPDX-License-Identifier: GPL-2.0

//! Trace state that must stay in one thread.
//!
//! error: cannot be sent between threads safely

include!("common/driver.rs");

no_pmu!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    usual!(types, event_init);
}

#[vtable]
impl AuxPmu for Driver {
    usual!(setup_aux, quiesce);

    type Buffer = ();
    type Trace = *mut u8;

    fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result<*mut u8> {
        Ok(core::ptr::null_mut())
    }
}
