// SPDX-License-Identifier: GPL-2.0

//! A driver with state that is not safe to use from several CPUs.
//!
//! error: cannot be shared between threads safely

use kernel::prelude::*;
use perf::{
    aux,
    Attr,
    Event,
    Pmu, //
};

module! {
    type: Module,
    name: "compile_fail",
    authors: ["The auxpmu authors"],
    description: "Does not compile",
    license: "GPL",
}

struct Module;

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}

struct Driver {
    ticks: core::cell::Cell<u64>,
}

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

    fn start(&self, _session: &mut aux::Session<'_, Self>) -> Result<()> {
        Ok(())
    }

    fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
        aux::Written::by_writer(session.window, aux::Loss::None)
    }
}
