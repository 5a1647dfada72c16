// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Kernels, guests and test runs for auxpmu, inside the build root that `root.sh` makes.
//!
//! - [`kernel`] prepares kernels: Debian's own, unmodified, and others built from its source.
//! - [`modules`] builds the modules against them, [`tools`] the programs that go into guests.
//! - [`guest`] boots one in QEMU: a command and files in, files and an exit status out. [`plugin`] builds what QEMU loads.
//! - [`suites`] are the layers of tests, a module each; [`bench`] is what is measured; [`verify`] runs all of both.
//! - [`results`] is what they come to: cases in KTAP, figures, documents made of them.
//! - [`demo`], [`trace`] and [`fuzz`] are commands of their own.

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
pub mod plugin;
pub mod results;
pub mod step;
pub mod suites;
pub mod tools;
pub mod trace;
pub mod verify;
