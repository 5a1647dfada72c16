// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads recordings of AUX area trace: perf.data files, by `auxrec` or perf.
//!
//! The command `auxview` is a thin front end of this library, and so are the commands of `auxrec` with the same names. Only the part of a
//! file that is in use is in memory.
//!
//! The modules, from the lowest layer to the highest:
//!
//! - [`source`] is the input, and [`unpack`] decompresses trace that [`pack`] has compressed.
//! - [`trace`] is a recording in memory, without the bytes of its trace, which [`pieces`] reads. [`loss`] counts what was lost.
//! - [`check`] verifies a recording, and [`report`] shows it.
//! - [`flamegraph`] follows the programs in a recording, and [`export`] writes their calls for viewers.
//! - [`dump`](mod@dump) shows the records of a file, and [`convert`](mod@convert) decompresses its trace.
//! - [`join`](mod@join) joins the files of several recorder threads into one.
//! - [`recover`](mod@recover) finishes the file of a recorder that was killed.
//! - [`command`] has the options of the commands.
//!
//! `examples/losses.rs` reads a recording.

#![deny(missing_docs)]
// The print macros panic when the reader has closed the pipe.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod check;
pub mod command;
pub mod convert;
pub mod dump;
mod error;
pub mod export;
pub mod file;
mod finish;
pub mod flamegraph;
pub mod join;
pub mod json;
pub mod loss;
pub mod pack;
pub mod pages;
pub mod pieces;
pub mod recover;
pub mod report;
pub mod size;
pub mod source;
mod svg;
pub mod trace;
pub mod unpack;

pub use error::{Error, Result};
