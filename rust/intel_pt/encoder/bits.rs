// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Branches that take a bit each: `TNT`.

use super::{Encoder, Full, Output};
use crate::packet::{Group, Tnt};

impl Encoder {
    /// Adds the bit of a branch that led to `to`.
    #[inline]
    pub(super) fn bit(
        &mut self,
        taken: bool,
        to: u64,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        let mut tnt = self.state.tnt;

        tnt.push(taken);
        if self.config.cyc || self.config.tnt_disable {
            return self.counted_bit(tnt, to, output);
        }
        if tnt.is_full() {
            return self.bits(tnt, to, output);
        }
        self.state.tnt = tnt;
        Ok(())
    }

    /// As [`bit`](Self::bit), with `CYC`s or without `TNT`s. `tnt` includes the bit.
    fn counted_bit(&mut self, tnt: Tnt, to: u64, output: &mut impl Output) -> Result<(), Full> {
        if self.config.tnt_disable {
            return Ok(());
        }
        // A decoder takes the `CYC` for the time of the first branch.
        if tnt.is_one() {
            self.state.first = output.cycles();
        }
        if tnt.fills_short() {
            return self.bits(tnt, to, output);
        }
        self.state.tnt = tnt;
        Ok(())
    }

    /// Writes the bits of branches, the last of which led to `to`.
    #[inline(never)]
    fn bits(&mut self, mut tnt: Tnt, to: u64, output: &mut impl Output) -> Result<(), Full> {
        let mut group = Group::new();
        let mut state = self.state;

        if self.config.cyc {
            let now = output.tsc();
            let cycle = state.first.take().unwrap_or(now);

            self.coarse(&mut group, &mut state, (now, cycle), output);
            self.cycles(&mut group, &mut state, cycle);
            group.tnt(&mut tnt);
        } else {
            group.tnt(&mut tnt);
            if self.config.mtc.is_some() {
                let now = output.tsc();

                // The time follows the branches, since they were executed before it.
                self.coarse(&mut group, &mut state, (now, now), output);
            }
        }
        state.tnt = tnt;
        self.finish(&mut group, state, to, output)?;
        Ok(())
    }
}
