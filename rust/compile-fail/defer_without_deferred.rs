// SPDX-License-Identifier: GPL-2.0

//! A driver that defers something, but has no deferred().
//!
//! error: what is deferred needs Pmu::deferred()

use kernel::prelude::*;
use perf::{
    aux,
    Attr,
    Event,
    Pmu, //
};

perf::module_pmu! {
    type: Driver,
    pmu: c"driver",
    driver: Driver,
    name: "compile_fail",
    authors: ["The auxpmu authors"],
    description: "Does not compile",
    license: "GPL",
}

struct Driver;

#[vtable]
impl Pmu for Driver {
    type Config = ();
    type Event = ();
    type Buffer = ();
    type Run = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, session: &mut aux::Session<'_, Self>) -> Result<()> {
        session.defer();
        Ok(())
    }

    fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
        aux::Written::by_writer(session.window, aux::Loss::None)
    }
}
