// SPDX-License-Identifier: GPL-2.0

//! A commit that a driver makes itself, so that the framework cannot check its length.
//!
//! error: cannot construct `Commit` with struct literal syntax due to private fields

use perf::aux::Commit;

/// Claims that all of the address space was written.
pub fn claim() -> Commit {
    Commit { len: u64::MAX }
}
