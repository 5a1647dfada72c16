// SPDX-License-Identifier: GPL-2.0

//! A region that leaves the closure that it was lent to.
//!
//! error: lifetime may not live long enough

use perf::{
    aux::{
        Next,
        Region, //
    },
    interrupt::Entry,
    AuxPmu, //
};

/// Takes the region out of its transaction.
pub fn take<T: AuxPmu>(entry: &Entry<T>) -> Option<Region<'_>> {
    entry.with_transaction(|transaction, _| (Next::Continue, transaction.region()))
}
