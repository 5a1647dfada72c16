// SPDX-License-Identifier: GPL-2.0

//! A driver that can panic in its callbacks. A panic with interrupts off stops the machine.
//!
//! The type system does not prevent this. The build check "no callback can panic" finds panics in
//! the objects of a driver, and must find both panics here. This module is never loaded.

use kernel::{
    prelude::*,
    time::Delta, //
};
use perf::{
    aux,
    pmu::Description,
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

perf::module_pmu! {
    type: Panics,
    pmu: Description::new(c"hostile_panics"),
    driver: Panics,
    name: "hostile_panics",
    authors: ["The auxpmu authors"],
    description: "A perf PMU that panics; not to be loaded",
    license: "GPL",
}

perf::format! {
    struct Config {
        index: config[0..=31],
    }
}

struct Panics;

const TABLE: [i64; 4] = [1, 2, 3, 5];

#[vtable]
impl Pmu for Panics {
    type Config = Config;
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, Config>) -> Result {
        Ok(())
    }
}

#[vtable]
impl AuxPmu for Panics {
    type Buffer = ();
    type Trace = u8;

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<u8> {
        let index = usize::try_from(transaction.event().config().index())?;

        // The index is out of bounds for most configurations.
        transaction.set_timer(Delta::from_millis(TABLE[index]));
        Ok(0)
    }

    fn tick(&self, _transaction: &mut aux::Transaction<'_, Self>, ticks: &mut u8) -> aux::Next {
        // The 256th tick overflows.
        *ticks += 1;
        aux::Next::Continue
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _ticks: u8) -> aux::Commit {
        aux::Commit::written(transaction, aux::Loss::None)
    }
}
