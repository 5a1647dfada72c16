// SPDX-License-Identifier: GPL-2.0

//! A region that escapes from the closure that borrows it.
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
