// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Kernels, guests and test runs for auxpmu, inside the build root that `root.sh` makes.
//!
//! - [`kernel`] prepares kernels: Debian's unmodified images, and kernels that are built from Debian's source.
//! - [`modules`] builds the auxpmu modules for these kernels. [`tools`] builds the programs that guests run.
//! - [`guest`] boots a kernel in QEMU. It takes a command and files, and returns files and an exit status. [`plugin`] builds QEMU plugins.
//! - [`suites`] holds the test suites, one module each. [`bench`] holds the measurements. [`verify`] runs all of both.
//! - [`results`] reads their results: cases in KTAP and figures. It also writes the documents that are made of them.
//! - [`demo`], [`trace`] and [`fuzz`] implement one command each.
//! - [`output`] writes what a user reads, and accepts a reader that has gone.

#![deny(missing_docs)]

mod archive;
pub mod bench;
pub mod cache;
pub mod demo;
pub mod error;
pub mod fuzz;
pub mod guest;
pub mod kernel;
pub mod modules;
pub mod output;
mod parallel;
pub mod plugin;
pub mod results;
pub mod step;
pub mod suites;
pub mod tools;
pub mod trace;
pub mod verify;
