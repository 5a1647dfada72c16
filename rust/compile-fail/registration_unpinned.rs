// SPDX-License-Identifier: GPL-2.0

//! A registration that is moved, away from where perf has its address.
//!
//! error: cannot be unpinned

use core::pin::Pin;
use perf::{
    Pmu,
    Registration, //
};

/// Gets at what is pinned.
pub fn unpin<T: Pmu>(registration: Pin<&mut Registration<T>>) -> &mut Registration<T> {
    Pin::into_inner(registration)
}
