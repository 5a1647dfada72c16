// SPDX-License-Identifier: GPL-2.0

//! The output of the encoder: the AUX area, the processor's clock, and the tracer's cycles.

use crate::sampler::Sampler;
use intel_pt::{
    Full,
    Output, //
};
use perf::{
    aux::Region,
    clock, //
};

/// The output to the region of a transaction.
pub(crate) struct Ring<'a> {
    region: Region<'a>,
    /// Traced instructions: each counts as one cycle.
    pub(crate) cycles: u64,
    pub(crate) sampler: &'a Sampler,
}

impl<'a> Ring<'a> {
    /// An output to this region. `cycles`: traced instructions so far.
    pub(crate) fn new(region: Region<'a>, cycles: u64, sampler: &'a Sampler) -> Self {
        Self {
            region,
            cycles,
            sampler,
        }
    }

    /// Adds traced instructions.
    pub(crate) fn advance(&mut self, instructions: u64) {
        self.cycles = self.cycles.wrapping_add(instructions);
    }
}

impl Output for Ring<'_> {
    fn write(&mut self, bytes: &[u8], keep: usize) -> Result<(), Full> {
        let left = self
            .region
            .space()
            .map(|space| space.saturating_sub(self.region.written()));
        let wanted = u64::try_from(bytes.len().saturating_add(keep)).map_err(|_| Full)?;

        // In overwrite mode the space has no limit.
        if left.is_some_and(|left| left < wanted) {
            return Err(Full);
        }

        let mut writer = self.region.reserve(bytes.len()).map_err(|_| Full)?;
        writer.put(bytes).map_err(|_| Full)?;
        writer.commit();
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        clock::tsc()
    }

    fn cycles(&mut self) -> Option<u64> {
        Some(self.cycles)
    }
}
