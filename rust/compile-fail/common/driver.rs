// SPDX-License-Identifier: GPL-2.0

// The common parts of the drivers in this folder. They include this file, and use `usual!()` for
// the parts that do not matter.

use kernel::prelude::*;
#[allow(unused_imports)]
use perf::{
    aux,
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

/// Declares the module of `Driver`.
#[allow(unused_macros)]
macro_rules! register {
    () => {
        perf::module_pmu! {
            type: Driver,
            pmu: perf::pmu::Description::new(c"driver"),
            driver: Driver,
            name: "compile_fail",
            authors: ["The auxpmu authors"],
            description: "Does not compile",
            license: "GPL",
        }
    };
}

/// A module without a PMU, for cases that only need a driver.
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
#[allow(unused_macros)]
macro_rules! usual {
    ($($part:ident),*) => {
        $(usual!(@$part);)*
    };
    (@types) => {
        type Config = ();
        type Event = ();
        type Count = ();
    };
    (@event_init) => {
        fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
            Ok(())
        }
    };
    (@aux) => {
        type Buffer = ();
        type Trace = ();
    };
    (@setup_aux) => {
        fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
            Ok(())
        }
    };
    (@start) => {
        fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result<()> {
            Ok(())
        }
    };
    (@quiesce) => {
        fn quiesce(
            &self,
            transaction: &mut aux::Transaction<'_, Self>,
            _trace: Self::Trace,
        ) -> aux::Commit {
            aux::Commit::written(transaction, aux::Loss::None)
        }
    };
}
