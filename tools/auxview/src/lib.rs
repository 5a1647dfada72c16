// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads recordings of AUX area trace: perf.data files, by `auxrec` or perf.
//!
//! The command `auxview` is a thin front of this library, as are `auxrec`'s commands of the same names.
//! A file is read from where it is: no more of it is in memory than what is being looked at.
//!
//! From below to above: a [`source`] is what is read; [`unpack`] undoes what [`pack`] did to it; [`trace`] is a recording read
//! back, but for the bytes of its [`pieces`], and counts what was lost in [`loss`]. [`check`] verifies it and [`report`] shows it;
//! [`flamegraph`] follows the programs in it; [`dump`](mod@dump) shows its records; [`convert`](mod@convert) undoes compression;
//! [`join`](mod@join) makes one file of those of several threads, and [`recover`](mod@recover) finishes the file of a recorder that
//! was killed. [`command`] has the options of all of these.
//!
//! `examples/losses.rs` reads a recording.

#![deny(missing_docs)]
// They panic when the reader has ended.
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
