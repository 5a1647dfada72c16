// SPDX-License-Identifier: GPL-2.0

//! Defects that drivers really have, one at a time, to show that the tests catch them. A build for
//! anything else has none: they are there only where `AUXPMU_BREAK` names one.

use auxcore::{
    circular::Extent,
    ring::Size, //
};
use kernel::prelude::*;
use pattern_codec::BLOCK_LEN;
use perf::aux::{
    Loss,
    Mode, //
};

/// The store buffer of a unit that is not drained when `quiesce()` returns: it keeps the newest block of
/// a tick, so that the length is published before that block is in memory.
#[derive(Default)]
pub(crate) struct StoreBuffer(Option<(u64, u64, [u8; BLOCK_LEN])>);

impl StoreBuffer {
    /// Stores what came before, and keeps this.
    pub(crate) fn store(
        &mut self,
        way: u64,
        address: u64,
        bytes: &[u8],
        mut store: impl FnMut(u64, u64, &[u8]) -> Result,
    ) -> Result {
        if !cfg!(auxpmu_break = "barrier") {
            return store(way, address, bytes);
        }

        let block = bytes.try_into().map_err(|_| EINVAL)?;
        match self.0.replace((way, address, block)) {
            Some((way, address, bytes)) => store(way, address, &bytes),
            None => Ok(()),
        }
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

/// A full ring is not reported.
pub(crate) fn truncated(loss: Loss, mode: Mode) -> Loss {
    match (loss, mode) {
        (Loss::NoSpace { .. }, Mode::Linear) if cfg!(auxpmu_break = "truncated") => Loss::None,
        _ => loss,
    }
}

/// As [`wrap`], of a buffer that the unit has overwritten.
pub(crate) fn overwritten(extent: &mut Extent) {
    if cfg!(auxpmu_break = "wrap") {
        extent.overwritten = 0;
        extent.barrier = false;
    }
}
