// SPDX-License-Identifier: GPL-2.0

//! A bench on which a driver is tested, without perf.
//!
//! It exists in builds with `CONFIG_RUST_PERF_TESTING` (`make CONFIG_RUST_PERF_TESTING=y modules`,
//! on a kernel with `CONFIG_KUNIT=y`), and so must the code that uses it.
//!
//! A [`Bench`] is one event of a driver, an AUX area and a CPU. perf is a model, but the driver
//! runs as it does under perf: through the same per-CPU state, on the event's CPU, with interrupts
//! off. The test decides what perf, user space and time do.
//!
//! ```
//! # use kernel::{prelude::*, time::Delta};
//! # use perf::{aux, Attr, AuxPmu, Event, Pmu};
//! # struct MyPmu;
//! # #[vtable]
//! # impl Pmu for MyPmu {
//! #     type Config = ();
//! #     type Event = ();
//! #     type Count = ();
//! #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
//! #         Ok(())
//! #     }
//! # }
//! # #[vtable]
//! # impl AuxPmu for MyPmu {
//! #     type Buffer = ();
//! #     type Trace = ();
//! #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
//! #         Ok(())
//! #     }
//! #     fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
//! #         transaction.set_timer(Delta::from_millis(1));
//! #         Ok(())
//! #     }
//! #     fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: &mut ()) -> aux::Next {
//! #         let _ = transaction.region().reserve(16).and_then(|mut writer| {
//! #             writer.put(&[7; 16])?;
//! #             writer.commit();
//! #             Ok(())
//! #         });
//! #         aux::Next::Continue
//! #     }
//! #     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
//! #         aux::Commit::written(transaction, aux::Loss::None)
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
//!     assert!(bench.violation().is_none());
//!     Ok(())
//! }
//! # trace_comes_out()?;
//! # Ok::<(), Error>(())
//! ```
//!
//! A driver under test must not assert in its callbacks: a failed assertion ends the test's thread
//! at once, without unwinding, and callbacks run with interrupts off. For the same reason a test
//! that fails keeps what it holds, such as a reference to the module for each mapped ring.

mod bench;
mod model;
mod percpu;
mod ring;
mod sample;
mod skip;
mod tests;
mod timer;

pub use bench::{
    Bench,
    Nmi,
    Setup, //
};
pub use ring::{
    Padding,
    Record,
    Violation, //
};
