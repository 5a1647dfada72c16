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
//! ```ignore
//! #[kunit_tests(my_pmu)]
//! mod tests {
//!     use super::*;
//!     use perf::testing::{
//!         Bench,
//!         Setup, //
//!     };
//!
//!     #[test]
//!     fn trace_comes_out() -> Result {
//!         let mut bench = Bench::new(MyPmu, &Setup::default())?;
//!
//!         bench.add()?;
//!         bench.tick();
//!         bench.del();
//!
//!         assert_eq!(bench.read()?.len(), 16);
//!         assert!(bench.complaint().is_none());
//!         Ok(())
//!     }
//! }
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
    },
    scratch::{
        in_session,
        Scratch, //
    }, //
};
