// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The results of runs: cases in KTAP, figures, and the documents that are made of them.

pub mod comparison;
pub mod coverage;
pub mod figures;
pub mod ktap;
pub mod libtest;
pub mod splat;
