// SPDX-License-Identifier: GPL-2.0

//! A run with state that must stay in one thread.
//!
//! error: cannot be sent between threads safely

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
    type Run = *mut u8;

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, _session: &mut aux::Session<'_, Self>) -> Result<*mut u8> {
        Ok(core::ptr::null_mut())
    }

    fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: *mut u8) -> aux::Written {
        aux::Written::by_writer(session.window, aux::Loss::None)
    }
}
