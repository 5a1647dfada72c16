// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Times: `TSC`, `TMA` and `MTC`, and cycles: `CYC`.

use super::{Config, Encoder, Output, State};
use crate::packet::Group;

/// `MTC`s of which a decoder can miss all but the last.
const MTC_MAX: u64 = 255;

/// The coarse clock, of which `MTC` packets tell a part of each value, and `TMA` how it fits a `TSC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mtc {
    /// Ticks of the time stamp counter for one of the coarse clock, at most 512: what `CPUID` leaf 0x15 tells.
    pub ratio: u32,
    /// There is an `MTC` each 1 << this ticks of the coarse clock, if there are packets.
    pub shift: u8,
}

impl Mtc {
    /// The coarse clock at this time: its ticks, and ticks of the time stamp counter behind that.
    fn at(self, tsc: u64) -> (u64, u64) {
        let ratio = u64::from(self.ratio);
        let div = |n: Option<u64>| n.unwrap_or(0);

        (div(tsc.checked_div(ratio)), div(tsc.checked_rem(ratio)))
    }

    /// The number of `MTC`s up to this time.
    fn count(self, tsc: u64) -> u64 {
        self.at(tsc).0.wrapping_shr(self.shift.into())
    }
}

impl Encoder {
    /// Adds a `CYC`, and a `TSC` or an `MTC` if it is due.
    pub(super) fn time(&self, group: &mut Group, state: &mut State, output: &mut impl Output) {
        let Config {
            tsc,
            tsc_period,
            cyc,
            mtc,
            ..
        } = self.config;

        if cyc || tsc && (tsc_period != 0 || mtc.is_some()) {
            let now = output.tsc();

            if tsc && tsc_period != 0 && now.wrapping_sub(state.tsc) >= tsc_period {
                self.tsc(group, state, now, output);
            } else {
                self.cycles(group, state, output.cycles().unwrap_or(now));
                self.coarse(group, state, now, output);
            }
        }
    }

    /// Adds a `TSC`.
    pub(super) fn tsc(
        &self,
        group: &mut Group,
        state: &mut State,
        now: u64,
        output: &mut impl Output,
    ) {
        self.cycles(group, state, output.cycles().unwrap_or(now));
        group.tsc(now);
        state.tsc = now;
        if let Some(mtc) = self.config.mtc {
            let (coarse, fast) = mtc.at(now);

            group.tma(coarse, fast);
            state.mtc = mtc.count(now);
        }
    }

    /// Adds an `MTC` if it is due, for which a decoder knows the time up to now.
    pub(super) fn coarse(
        &self,
        group: &mut Group,
        state: &mut State,
        now: u64,
        output: &mut impl Output,
    ) {
        let Some(mtc) = self.config.mtc.filter(|_| self.config.tsc) else {
            return;
        };
        let count = mtc.count(now);

        match count.wrapping_sub(state.mtc) {
            0 => {}
            1..=MTC_MAX => {
                group.mtc(count);
                state.mtc = count;
            }
            // A decoder could not tell how many are missing.
            _ => self.tsc(group, state, now, output),
        }
    }

    /// Adds a `CYC` up to this cycle, if there are such packets, and enough cycles.
    pub(super) fn cycles(&self, group: &mut Group, state: &mut State, cycle: u64) {
        // Nothing counts before the first `PSB`.
        if self.config.cyc && state.begun {
            let cycles = cycle.wrapping_sub(state.counted);

            // Those that tracing ends with would be missing.
            if cycles < self.config.cyc_threshold && state.on {
                return;
            }
            if cycles != 0 {
                group.cyc(cycles);
            }
        }
        state.counted = cycle;
    }
}
