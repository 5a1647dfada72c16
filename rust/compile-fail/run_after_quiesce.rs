// SPDX-License-Identifier: GPL-2.0

//! A run that is used after it was quiesced.
//!
//! error: cannot move out of `*run`

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
    type Run = KBox<u64>;

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, _session: &mut aux::Session<'_, Self>) -> Result<KBox<u64>> {
        Ok(KBox::new(0, GFP_ATOMIC)?)
    }

    fn tick(&self, session: &mut aux::Session<'_, Self>, run: &mut KBox<u64>) -> aux::Next {
        let _ = self.quiesce(session, *run);
        **run = 1;
        aux::Next::Continue
    }

    fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: KBox<u64>) -> aux::Written {
        aux::Written::by_writer(session.window, aux::Loss::None)
    }
}
