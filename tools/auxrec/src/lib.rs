// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records the AUX area trace of any perf PMU into a perf.data file, and says what of it was lost.
//!
//! The command `auxrec` is a thin front of this library. What it needs to know about a PMU it reads from sysfs. What reads
//! recordings is the library [`auxview`].
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
//! From below to above: [`ring`] is the reader's side of the two rings and its barriers; [`session`] opens events and maps
//! their rings; [`drain`] moves what is in them into a file, and counts what was lost; [`record`](mod@record) puts these together.

#![deny(missing_docs)]
// They panic when the reader has ended, and wait when it has stopped reading: see `message`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod apart;
pub mod code;
pub mod control;
mod decoder;
pub mod delay;
pub mod doctor;
pub mod drain;
mod error;
mod filter;
mod host;
pub mod json;
pub mod limits;
pub mod live;
pub mod message;
mod newcomers;
mod output;
mod parallel;
pub mod pmu;
pub mod record;
pub mod ring;
pub mod session;
pub mod size;
mod snapshot;
pub mod sys;
pub mod target;
pub mod tracepoints;
mod trigger;
mod watch;

pub use error::{Error, Result};
pub use snapshot::Blind;
