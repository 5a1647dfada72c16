// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The packets of times, `TSC`, `TMA` and `MTC`, and of cycles, `CYC`.

use super::{Config, Encoder, Output, State};
use crate::packet::Group;

/// The largest step between two `MTC`s that a decoder recognises.
const MTC_MAX: u64 = 255;

/// The coarse clock. An `MTC` has a part of its value, and a `TMA` relates it to a `TSC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mtc {
    /// The ticks of the time stamp counter in a tick of the coarse clock, at most 512. `CPUID` leaf
    /// 0x15 has the ratio.
    pub ratio: u32,
    /// An `MTC` is due each 1 << `shift` ticks of the coarse clock. It is written with other
    /// packets.
    pub shift: u8,
}

impl Mtc {
    /// The ticks of the coarse clock at this time, and the remaining ticks of the time stamp
    /// counter.
    fn at(self, tsc: u64) -> (u64, u64) {
        let ratio = u64::from(self.ratio);
        let div = |n: Option<u64>| n.unwrap_or(0);

        (div(tsc.checked_div(ratio)), div(tsc.checked_rem(ratio)))
    }

    /// The number of `MTC`s that are due up to this time.
    fn count(self, tsc: u64) -> u64 {
        self.at(tsc).0.wrapping_shr(self.shift.into())
    }

    /// The ticks of the time stamp counter since the newest `MTC` became due.
    fn late(self, tsc: u64) -> u64 {
        let ticks = u64::from(self.ratio).wrapping_shl(self.shift.into());

        tsc.checked_rem(ticks).unwrap_or(0)
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
                let cycle = output.cycles().unwrap_or(now);

                self.coarse(group, state, (now, cycle), output);
                self.cycles(group, state, cycle);
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

    /// Adds an `MTC` if one is due, and a `CYC` in front of it. `cycle` is the cycle of the next
    /// packet.
    ///
    /// Decoders assume that the `CYC`s in front of an `MTC` count up to the cycle in which the
    /// `MTC` became due.
    pub(super) fn coarse(
        &self,
        group: &mut Group,
        state: &mut State,
        (now, cycle): (u64, u64),
        output: &mut impl Output,
    ) {
        let Some(mtc) = self.config.mtc.filter(|_| self.config.tsc) else {
            return;
        };
        let count = mtc.count(now);

        match count.wrapping_sub(state.mtc) {
            0 => {}
            1..=MTC_MAX => {
                let since = |cycle: u64| cycle.wrapping_sub(state.counted);
                let due = since(output.cycles().unwrap_or(now)).saturating_sub(mtc.late(now));
                let due = state.counted.wrapping_add(due.min(since(cycle)));

                self.cycles(group, state, due);
                group.mtc(count);
                state.mtc = count;
            }
            // A decoder could not tell how many `MTC`s are missing.
            _ => self.tsc(group, state, now, output),
        }
    }

    /// Adds a `CYC` that counts up to this cycle, if there are such packets and enough cycles.
    pub(super) fn cycles(&self, group: &mut Group, state: &mut State, cycle: u64) {
        // `CYC`s count from the first `PSB` on.
        if self.config.cyc && state.begun {
            let cycles = cycle.wrapping_sub(state.counted);

            // At the end of tracing no later `CYC` can count these cycles, so they are written.
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
