// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records the AUX area trace of any perf PMU into a perf.data file, and reports what was lost.
//!
//! The command `auxrec` is a thin front end of this library. It reads the properties of a PMU from sysfs. The library [`auxview`] reads
//! recordings.
//!
//! ```no_run
//! use auxrec::record::{record, Options};
//!
//! let outcome = record(&Options {
//!     events: vec!["pattern/rate=1024/u".into()],
//!     output: "perf.data".into(),
//!     command: vec!["true".into()],
//!     ..Options::default()
//! })?;
//! println!("{} bytes of trace", outcome.total().read);
//! # Ok::<(), auxrec::Error>(())
//! ```
//!
//! `examples/follow.rs` reads trace in its own process, without a file.
//!
//! The layers, from the lowest to the highest:
//!
//! * [`ring`] is the reader's side of the two rings, with its barriers.
//! * [`session`] opens events and maps their rings.
//! * [`drain`] copies the content of the rings into a file, and counts the losses.
//! * [`record`](mod@record) combines these.

#![deny(missing_docs)]
// These macros panic when the reader of the output has ended, and block when it has stopped reading: see `message`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod code;
pub mod control;
mod decoder;
pub mod delay;
pub mod doctor;
pub mod drain;
mod error;
mod filter;
mod host;
mod hotplugged;
pub mod json;
pub mod limits;
pub mod live;
pub mod message;
mod output;
mod parallel;
pub mod pmu;
pub mod record;
pub mod ring;
pub mod session;
pub mod size;
mod snapshot;
mod split_files;
pub mod sys;
pub mod target;
pub mod tracepoints;
mod trigger;
mod watch;

pub use error::{Error, Result};
pub use snapshot::Blind;
