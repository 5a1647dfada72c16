// SPDX-License-Identifier: GPL-2.0

//! Defects that real drivers have, to show that the tests detect them.
//!
//! `AUXPMU_BREAK` names the one defect that a build has. A build without it has none.

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

/// Defect `barrier`: a store buffer of the unit that is not drained when `quiesce()` returns. The
/// buffer holds back the newest block of a tick, so the driver commits a block that memory does not
/// have.
#[derive(Default)]
pub(crate) struct StoreBuffer(Option<(u64, u64, [u8; BLOCK_LEN])>);

impl StoreBuffer {
    /// Stores the previous block and holds back this one. Without the defect, stores this one.
    pub(crate) fn store(
        &mut self,
        offset: u64,
        address: u64,
        bytes: &[u8],
        mut store: impl FnMut(u64, u64, &[u8]) -> Result,
    ) -> Result {
        if !cfg!(auxpmu_break = "barrier") {
            return store(offset, address, bytes);
        }

        let block = bytes.try_into().map_err(|_| EINVAL)?;
        match self.0.replace((offset, address, block)) {
            Some((offset, address, bytes)) => store(offset, address, &bytes),
            None => Ok(()),
        }
    }
}

/// Defect `size`: the committed length is one byte too long.
pub(crate) fn size(len: u64) -> u64 {
    if cfg!(auxpmu_break = "size") && len != 0 {
        len.saturating_add(1)
    } else {
        len
    }
}

/// Defect `wrap`: the committed length does not include the laps of a unit that has wrapped.
pub(crate) fn wrap(len: u64, size: Size) -> u64 {
    if cfg!(auxpmu_break = "wrap") && len > size.len() {
        len % size.len()
    } else {
        len
    }
}

/// Defect `truncated`: in non-overwrite mode, a full AUX area is not reported.
pub(crate) fn truncated(loss: Loss, mode: Mode) -> Loss {
    match (loss, mode) {
        (Loss::NoSpace { .. }, Mode::Normal) if cfg!(auxpmu_break = "truncated") => Loss::None,
        _ => loss,
    }
}

/// Defect `wrap` for a flat sink: the bytes that the unit has overwritten are not reported.
pub(crate) fn overwritten(extent: &mut Extent) {
    if cfg!(auxpmu_break = "wrap") {
        extent.overwritten = 0;
        extent.barrier = false;
    }
}
