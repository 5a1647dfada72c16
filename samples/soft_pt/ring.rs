// SPDX-License-Identifier: GPL-2.0

//! Where packets go: into the AUX ring, with the processor's clock.

use intel_pt::{
    Full,
    Output, //
};
use perf::{
    aux::Region,
    clock, //
};

/// The region of a transaction.
pub(crate) struct Ring<'a>(pub(crate) Region<'a>);

impl Output for Ring<'_> {
    fn write(&mut self, bytes: &[u8], keep: usize) -> Result<(), Full> {
        let left = self
            .0
            .space()
            .map(|space| space.saturating_sub(self.0.written()));
        let wanted = u64::try_from(bytes.len().saturating_add(keep)).map_err(|_| Full)?;

        // In overwrite mode there is no end.
        if left.is_some_and(|left| left < wanted) {
            return Err(Full);
        }

        let mut writer = self.0.reserve(bytes.len()).map_err(|_| Full)?;
        writer.put(bytes).map_err(|_| Full)?;
        writer.commit();
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        clock::tsc()
    }
}
