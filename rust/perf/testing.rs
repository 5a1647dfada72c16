// SPDX-License-Identifier: GPL-2.0

//! A bench on which a driver is tested, without perf.
//!
//! There only is a bench where the kernel has KUnit built in: `CONFIG_KUNIT=y`.
//! `#[kunit_tests]` leaves its module out anywhere else, and so should whatever uses the bench.
//!
//! A [`Bench`] is one event of a driver, an AUX ring and a CPU. The ring is a model of perf's, but
//! the driver runs as it does under perf: through the same state machine, on the event's CPU, with
//! interrupts off. The test says what perf, user space and time do.
//!
//! ```
//! # use kernel::{prelude::*, time::Delta};
//! # use perf::{aux, Attr, Event, Pmu};
//! # struct MyPmu;
//! # #[vtable]
//! # impl Pmu for MyPmu {
//! #     type Config = ();
//! #     type Event = ();
//! #     type Buffer = ();
//! #     type Run = ();
//! #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
//! #         Ok(())
//! #     }
//! #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
//! #         Ok(())
//! #     }
//! #     fn start(&self, session: &mut aux::Session<'_, Self>) -> Result {
//! #         session.set_timer(Delta::from_millis(1));
//! #         Ok(())
//! #     }
//! #     fn tick(&self, session: &mut aux::Session<'_, Self>, _run: &mut ()) -> aux::Next {
//! #         let _ = session.window.reserve(16).and_then(|mut writer| {
//! #             writer.put(&[7; 16])?;
//! #             writer.commit();
//! #             Ok(())
//! #         });
//! #         aux::Next::Continue
//! #     }
//! #     fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
//! #         aux::Written::by_writer(session.window, aux::Loss::None)
//! #     }
//! # }
//! use perf::testing::{
//!     Bench,
//!     Setup, //
//! };
//!
//! // A case of a `#[kunit_tests(my_pmu)] mod tests`.
//! fn trace_comes_out() -> Result {
//!     let mut bench = Bench::new(MyPmu, &Setup::default())?;
//!
//!     bench.add()?;
//!     bench.tick();
//!     bench.del();
//!
//!     assert_eq!(bench.read()?.len(), 16);
//!     assert!(bench.complaint().is_none());
//!     Ok(())
//! }
//! # trace_comes_out()?;
//! # Ok::<(), Error>(())
//! ```
//!
//! A driver under test must not assert in its callbacks: a failed assertion ends the test's
//! thread, on the spot and without unwinding, but there interrupts are off. For the same reason
//! a test that fails keeps what it holds, such as a reference to the module for each mapped ring.

pub use crate::aux::{
    bench::{
        Bench,
        Nmi,
        Setup, //
    },
    fake::{
        Complaint,
        Padding,
        Record, //
    }, //
};
