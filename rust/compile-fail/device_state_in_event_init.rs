// SPDX-License-Identifier: GPL-2.0

//! State of the device that is changed when an event is opened, which a running event uses.
//!
//! error: cannot assign to `self.mode`, which is behind a `&` reference

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
    mode: u32,
}

#[vtable]
impl Pmu for Driver {
    type Config = ();
    type Event = ();
    type Buffer = ();
    type Run = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        self.mode = 1;
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
