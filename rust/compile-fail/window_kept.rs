// SPDX-License-Identifier: GPL-2.0

//! A window that is kept beyond the callback.
//!
//! error: lifetime may not live long enough

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

struct Driver;

#[vtable]
impl Pmu for Driver {
    type Config = ();
    type Event = ();
    type Buffer = ();
    type Run = &'static aux::Window;

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, session: &mut aux::Session<'_, Self>) -> Result<&'static aux::Window> {
        Ok(session.window)
    }

    fn quiesce(
        &self,
        session: &mut aux::Session<'_, Self>,
        _run: &'static aux::Window,
    ) -> aux::Written {
        aux::Written::by_writer(session.window, aux::Loss::None)
    }
}
