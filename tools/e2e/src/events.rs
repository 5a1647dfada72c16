// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events with AUX areas as perf's core and a driver show them, without the recorder.

pub mod contract;
pub mod locks;
pub mod minimal;
pub mod overwrite;
pub mod probe;
pub mod restart;
pub mod sampling;
pub mod siblings;
