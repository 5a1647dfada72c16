// SPDX-License-Identifier: GPL-2.0

//! State of the device that is changed when an event is opened. A running event uses it.
//!
//! error: cannot assign to `self.mode`, which is behind a `&` reference

include!("common/driver.rs");

no_pmu!();

struct Driver {
    mode: u32,
}

#[vtable]
impl Pmu for Driver {
    usual!(types);

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        self.mode = 1;
        Ok(())
    }
}
