// SPDX-License-Identifier: GPL-2.0

//! A commit of trace that was not published: barrier (B) is missing.
//!
//! error: expected `Published`, found `()`

use perf::aux::{
    Loss,
    Written, //
};

/// Commits what other CPUs may not see yet.
pub fn commit(len: u64) -> Written {
    Written::new(len, (), Loss::None)
}
