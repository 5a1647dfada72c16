// SPDX-License-Identifier: GPL-2.0

//! State of an event that is not safe to use from several CPUs.
//!
//! error: cannot be shared between threads safely

include!("common/driver.rs");

no_pmu!();

struct Driver;

#[vtable]
impl Pmu for Driver {
    type Config = ();
    type Event = core::cell::Cell<u64>;
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result<Self::Event> {
        Ok(core::cell::Cell::new(0))
    }
}
