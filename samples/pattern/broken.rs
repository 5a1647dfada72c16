// SPDX-License-Identifier: GPL-2.0

//! Defects that drivers really have, one at a time, to show that the tests catch them. A build for
//! anything else has none: they are there only where `AUXPMU_BREAK` names one.

use auxcore::{
    lap::Take,
    ring::Size, //
};
use perf::aux::{
    Loss,
    Mode,
    Published, //
};

/// Barrier (B) is left out: the reader may see the length before the bytes. Not to be seen on x86,
/// which stores in order: `unpublished` of `rust/compile-fail` shows that it cannot be forgotten,
/// `Documentation/litmus` that it is needed.
pub(crate) fn published() -> Published {
    if cfg!(auxpmu_break = "barrier") {
        Published::device(|| ())
    } else {
        Published::cpu_stores()
    }
}

/// The length is one byte too many.
pub(crate) fn size(len: u64) -> u64 {
    if cfg!(auxpmu_break = "size") && len != 0 {
        len.saturating_add(1)
    } else {
        len
    }
}

/// How often the unit went round is forgotten.
pub(crate) fn wrap(len: u64, size: Size) -> u64 {
    if cfg!(auxpmu_break = "wrap") && len > size.len() {
        len % size.len()
    } else {
        len
    }
}

/// A full ring is not told.
pub(crate) fn truncated(loss: Loss, mode: Mode) -> Loss {
    match (loss, mode) {
        (Loss::NoSpace { .. }, Mode::Linear) if cfg!(auxpmu_break = "truncated") => Loss::None,
        _ => loss,
    }
}

/// As [`wrap`], of a buffer that was lapped.
pub(crate) fn lapped(take: &mut Take) {
    if cfg!(auxpmu_break = "wrap") {
        take.lapped = 0;
        take.barrier = false;
    }
}
