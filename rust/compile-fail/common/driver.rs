// SPDX-License-Identifier: GPL-2.0

// What the drivers here have in common: they include this, and `usual!()` what is not to the point.

use kernel::prelude::*;
use perf::{
    aux,
    Attr,
    Event,
    Pmu, //
};

/// The module of `Driver`.
#[allow(unused_macros)]
macro_rules! register {
    () => {
        perf::module_pmu! {
            type: Driver,
            pmu: c"driver",
            driver: Driver,
            name: "compile_fail",
            authors: ["The auxpmu authors"],
            description: "Does not compile",
            license: "GPL",
        }
    };
}

/// A module without a PMU, where it is enough that there is a driver.
#[allow(unused_macros)]
macro_rules! no_pmu {
    () => {
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
    };
}

/// Parts of a driver that does nothing.
macro_rules! usual {
    ($($part:ident),*) => {
        $(usual!(@$part);)*
    };
    (@types) => {
        type Config = ();
        type Event = ();
        type Buffer = ();
    };
    (@event_init) => {
        fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
            Ok(())
        }
    };
    (@setup_aux) => {
        fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
            Ok(())
        }
    };
    (@start) => {
        type Run = ();

        fn start(&self, _session: &mut aux::Session<'_, Self>) -> Result<()> {
            Ok(())
        }
    };
    (@quiesce) => {
        fn quiesce(
            &self,
            session: &mut aux::Session<'_, Self>,
            _run: Self::Run,
        ) -> aux::Written {
            aux::Written::by_writer(session.window, aux::Loss::None)
        }
    };
}
