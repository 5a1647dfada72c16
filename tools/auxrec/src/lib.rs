// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records the AUX area trace of any perf PMU into a perf.data file, and says what of it was lost.
//!
//! The command `auxrec` is a thin front of this library. What it needs to know about a PMU it reads from sysfs; only
//! [`check`] knows the content of one PMU's trace, that of `pattern`.
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
//! `examples/follow.rs` reads trace in its own process, without a file; `examples/losses.rs` reads a recording.
//!
//! From below to above: [`ring`] is the reader's side of the two rings and its barriers; [`session`] opens events and maps
//! their rings; [`drain`] moves what is in them into a file; [`loss`] counts what was lost; [`record`](mod@record) puts
//! these together; [`join`](mod@join) makes one file of those of several threads; [`recover`](mod@recover) finishes the file of a recorder that was killed; [`trace`] is a file read back from a [`source`], but for the bytes of its [`pieces`], which [`check`] verifies and
//! [`report`] shows; [`flamegraph`] follows the programs in it; [`dump`](mod@dump) shows its records; [`convert`](mod@convert) undoes
//! what compression did to it.

#![deny(missing_docs)]
// They panic when the reader has ended, and wait when it has stopped reading: see `message`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod apart;
pub mod check;
pub mod code;
pub mod control;
pub mod convert;
mod decoder;
pub mod delay;
pub mod drain;
pub mod dump;
mod error;
mod filter;
pub mod flamegraph;
mod host;
pub mod intel_pt;
pub mod join;
pub mod json;
pub mod limits;
pub mod live;
pub mod loss;
pub mod message;
mod newcomers;
mod output;
mod pack;
mod parallel;
pub mod pieces;
pub mod pmu;
pub mod record;
pub mod recover;
pub mod report;
pub mod ring;
pub mod session;
pub mod size;
mod snapshot;
pub mod source;
mod svg;
pub mod sys;
pub mod target;
pub mod trace;
pub mod tracepoints;
mod unpack;
mod watch;

pub use error::{Error, Result};
pub use pack::LEVELS;
pub use snapshot::Blind;
