// SPDX-License-Identifier: GPL-2.0

//! Modules that are one PMU, and nothing else.

/// Declares a module that registers one PMU while it is loaded.
///
/// `type` is the type of the driver, `driver` its value, `pmu` the name of the PMU. All that
/// follows is as in `module!`, without its `type`. A module that is more than one PMU uses
/// `module!` and holds each [`Registration`](crate::Registration) itself.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, Attr, Event, Pmu};
/// struct Quiet;
///
/// #[vtable]
/// impl Pmu for Quiet {
///     // What it has to have.
///     # type Config = ();
///     # type Event = ();
///     # type Buffer = ();
///     # type Run = ();
///     #
///     # fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
///     #     Ok(())
///     # }
///     # fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
///     #     Ok(())
///     # }
///     # fn start(&self, _session: &mut aux::Session<'_, Self>) -> Result {
///     #     Ok(())
///     # }
///     # fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
///     #     aux::Written::by_writer(session.window, aux::Loss::None)
///     # }
/// }
///
/// perf::module_pmu! {
///     type: Quiet,
///     pmu: c"quiet",
///     driver: Quiet,
///     name: "quiet",
///     authors: ["Author"],
///     description: "A PMU that is there, and traces nothing",
///     license: "GPL",
/// }
/// # fn main() {}
/// ```
///
/// C counterpart: none for PMUs; `module_platform_driver()` is one for platform drivers.
#[macro_export]
macro_rules! module_pmu {
    (type: $Driver:ty, pmu: $pmu:expr, driver: $driver:expr, $($module:tt)*) => {
        #[::kernel::prelude::pin_data]
        struct PmuModule {
            #[pin]
            _pmu: $crate::Registration<$Driver>,
        }

        impl ::kernel::InPlaceModule for PmuModule {
            fn init(
                _module: &'static ::kernel::ThisModule,
            ) -> impl ::pin_init::PinInit<Self, ::kernel::error::Error> {
                ::kernel::prelude::try_pin_init!(Self {
                    _pmu <- $crate::Registration::new($pmu, $driver),
                })
            }
        }

        ::kernel::prelude::module! {
            type: PmuModule,
            $($module)*
        }
    };
}
