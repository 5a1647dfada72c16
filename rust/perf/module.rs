// SPDX-License-Identifier: GPL-2.0

//! Modules that consist of one PMU.

/// Declares a module that registers one PMU with an AUX area while it is loaded.
///
/// `type` is the type of the driver, `driver` its value, `pmu` its
/// [`Description`](crate::pmu::Description). The fields after them are those of `module!`, without
/// its `type`. A module that is more than one PMU uses `module!` and holds each
/// [`Registration`](crate::aux::Registration) itself.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, pmu::Description, Attr, AuxPmu, Event, Pmu};
/// struct Quiet;
///
/// // `Pmu` and `AuxPmu`.
/// # #[vtable]
/// # impl Pmu for Quiet {
/// #     type Config = ();
/// #     type Event = ();
/// #     type Count = ();
/// #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
/// #         Ok(())
/// #     }
/// # }
/// # #[vtable]
/// # impl AuxPmu for Quiet {
/// #     type Buffer = ();
/// #     type Trace = ();
/// #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
/// #         Ok(())
/// #     }
/// #     fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result {
/// #         Ok(())
/// #     }
/// #     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
/// #         aux::Commit::written(transaction, aux::Loss::None)
/// #     }
/// # }
/// perf::module_pmu! {
///     type: Quiet,
///     pmu: Description::new(c"quiet"),
///     driver: Quiet,
///     name: "quiet",
///     authors: ["Author"],
///     description: "A PMU that traces nothing",
///     license: "GPL",
/// }
/// # fn main() {}
/// ```
///
/// C counterpart: none for PMUs; `module_platform_driver()` is one for platform drivers.
#[macro_export]
macro_rules! module_pmu {
    (type: $Driver:ty, pmu: $pmu:expr, driver: $driver:expr, $($module:tt)*) => {
        struct PmuModule {
            _pmu: $crate::aux::Registration<$Driver>,
        }

        impl ::kernel::Module for PmuModule {
            fn init(_module: &'static ::kernel::ThisModule) -> ::kernel::error::Result<Self> {
                ::core::result::Result::Ok(Self {
                    _pmu: $crate::aux::Registration::new($pmu, $driver)?,
                })
            }
        }

        ::kernel::prelude::module! {
            type: PmuModule,
            $($module)*
        }
    };
}
