// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Kernels, guests and test runs for auxpmu, inside the build root that `root.sh` makes.
//!
//! - [`kernel`] prepares the two kernels: Debian's own, unmodified, and a lean one with KUnit.
//! - [`modules`] builds the modules against them, [`tools`] the programs that go into guests.
//! - [`guest`] boots one in QEMU: a command and files in, files and an exit status out.
//! - [`ktap`] is the format in which all layers report; [`suites`] are the layers.

#![deny(missing_docs)]

pub mod aarch64;
pub mod accel;
mod archive;
pub mod bench;
pub mod bounce;
pub mod broken;
pub mod cache;
pub mod compile_fail;
pub mod conform;
pub mod contract;
pub mod coverage;
pub mod cpio;
pub mod demo;
pub mod disk;
pub mod error;
pub mod exact;
pub mod figures;
pub mod fuzz;
pub mod guest;
mod install;
pub mod kernel;
pub mod ktap;
pub mod libtest;
pub mod litmus;
pub mod modules;
pub mod old;
pub mod panics;
pub mod plugin;
pub mod python;
pub mod readers;
pub mod recorders;
pub mod release;
pub mod restarts;
pub mod ring;
pub mod selftests;
pub mod slowdown;
pub mod splat;
pub mod step;
pub mod steps;
pub mod suites;
pub mod symbols;
pub mod template;
pub mod tools;
pub mod trace;
pub mod traced;
pub mod twins;
pub mod vng;
pub mod windows;
