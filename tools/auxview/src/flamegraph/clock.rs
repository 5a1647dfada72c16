// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Computes the time stamp counter between two `TSC` packets, from the packets of the coarse clock (`TMA`, `MTC`) and of cycles (`CYC`,
//! `CBR`).
//!
//! The arithmetic is that of perf's decoder (`intel_pt_calc_tma()`, `intel_pt_calc_mtc_timestamp()`,
//! `intel_pt_calc_cyc_timestamp()` in `tools/perf/util/intel-pt-decoder/intel-pt-decoder.c`), without its calibration of cycles:
//! cycles are used only if `CBR` and the processor's ratio give their length.

/// How the clocks of the processor are related.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ratios {
    /// Ticks of the time stamp counter, and of the coarse clock in the same time.
    pub(super) tsc: u64,
    pub(super) coarse: u64,
    /// An `MTC` comes each `1 << mtc_period` ticks of the coarse clock.
    pub(super) mtc_period: u32,
    /// The `CBR` at which a cycle is as long as a tick of the time stamp counter.
    pub(super) max_nonturbo: u64,
}

/// Computes the times of packets.
#[derive(Debug, Default)]
pub(super) struct Clock {
    ratios: Ratios,
    now: Option<u64>,
    /// The time stamp counter at the last multiple of the `MTC` period before the `TMA`, and the ticks of the coarse clock since then.
    coarse: Option<(u64, u64)>,
    last_mtc: u64,
    /// The time stamp counter when the count of cycles began, and that count.
    cycles: (u64, u64),
    cbr: u64,
}

impl Clock {
    pub(super) fn new(ratios: Ratios) -> Self {
        Self {
            ratios,
            ..Self::default()
        }
    }

    /// Trace is missing: times are unknown up to the next `TSC`.
    pub(super) fn forget(&mut self) {
        (self.now, self.coarse) = (None, None);
    }

    pub(super) fn tsc(&mut self, tsc: u64) -> u64 {
        self.now = Some(tsc);
        self.coarse = None;
        self.cycles = (tsc, 0);
        tsc
    }

    pub(super) fn cbr(&mut self, cbr: u8) {
        if let Some(now) = self.now {
            self.cycles = (now, 0);
        }
        self.cbr = cbr.into();
    }

    /// Converts ticks of the coarse clock to ticks of the time stamp counter.
    fn ticks(&self, coarse: u64) -> Option<u64> {
        let ticks = u128::from(coarse) * u128::from(self.ratios.tsc);
        let ticks = ticks.checked_div(self.ratios.coarse.into())?;
        u64::try_from(ticks).ok()
    }

    pub(super) fn tma(&mut self, coarse: u16, fast: u16) {
        let Some(now) = self.now else {
            return;
        };
        let coarse = u64::from(coarse);
        // The file can have any number here.
        let period = self.ratios.mtc_period.min(15);
        self.last_mtc = coarse >> period & 0xff;
        self.coarse = self
            .ticks(coarse & ((1 << period) - 1))
            .and_then(|over| now.checked_sub(over)?.checked_sub(fast.into()))
            .map(|base| (base, 0));
    }

    /// The time at an `MTC`, if it is known and not before the last one.
    pub(super) fn mtc(&mut self, mtc: u8) -> Option<u64> {
        let (base, ticks) = self.coarse?;
        let mtc = u64::from(mtc);
        let periods = mtc.wrapping_sub(self.last_mtc) & 0xff;
        self.last_mtc = mtc;
        let ticks = ticks.checked_add(periods << self.ratios.mtc_period.min(15))?;
        self.coarse = Some((base, ticks));
        let now = base.checked_add(self.ticks(ticks)?)?;
        self.later(now)?;
        self.cycles = (now, 0);
        Some(now)
    }

    /// The time after `count` more cycles, if it is known.
    pub(super) fn cyc(&mut self, count: u64) -> Option<u64> {
        self.cycles.1 = self.cycles.1.saturating_add(count);
        let ticks = u128::from(self.cycles.1) * u128::from(self.ratios.max_nonturbo);
        let ticks = ticks.checked_div(self.cbr.into())?;
        if self.ratios.max_nonturbo == 0 {
            return None;
        }
        self.later(self.cycles.0.checked_add(u64::try_from(ticks).ok()?)?)
    }

    fn later(&mut self, now: u64) -> Option<u64> {
        if now < self.now? {
            return None;
        }
        self.now = Some(now);
        Some(now)
    }
}

/// The number in a `CYC` packet: five bits of its first byte, and seven of each other.
pub(super) fn cycles(packet: &[u8]) -> u64 {
    let mut shift = 5;
    let mut count = packet.first().map_or(0, |byte| u64::from(byte >> 3));
    for byte in packet.iter().skip(1) {
        count |= u64::from(byte >> 1).checked_shl(shift).unwrap_or(0);
        shift += 7;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_clock() {
        let mut clock = Clock::new(Ratios {
            tsc: 512,
            coarse: 1,
            mtc_period: 3,
            max_nonturbo: 0,
        });
        // Nothing is known before the first TSC.
        clock.tma(5, 0);
        assert_eq!(clock.mtc(1), None);
        clock.tsc(1_000_000);
        assert_eq!(clock.mtc(1), None);
        // 5 ticks of the coarse clock and 100 of the counter since its last multiple of 8.
        clock.tma(0x7fd, 100);
        let base = 1_000_000 - 5 * 512 - 100;
        assert_eq!(clock.mtc(0), Some(base + 8 * 512));
        assert_eq!(clock.mtc(3), Some(base + 4 * 8 * 512));
        clock.forget();
        assert_eq!(clock.mtc(4), None);
        // Without a ratio there are no times.
        let mut clock = Clock::new(Ratios::default());
        clock.tsc(1000);
        clock.tma(0, 0);
        assert_eq!(clock.mtc(9), None);
    }

    #[test]
    fn cycles_by_their_length() {
        let mut clock = Clock::new(Ratios {
            max_nonturbo: 20,
            ..Ratios::default()
        });
        clock.tsc(1000);
        assert_eq!(clock.cyc(10), None);
        clock.tsc(1000);
        clock.cbr(40);
        assert_eq!(clock.cyc(10), Some(1005));
        assert_eq!(clock.cyc(1), Some(1005));
        assert_eq!(clock.cyc(1), Some(1006));
        // At another frequency.
        clock.cbr(10);
        assert_eq!(clock.cyc(3), Some(1012));
    }

    #[test]
    fn numbers_of_cycles() {
        for (packet, count) in [
            (&[0b0000_1011][..], 1),
            (&[0b1111_1111, 0b0000_0010], 31 | 1 << 5),
            (&[0b0000_0111, 0b0000_0001, 0b0000_0010], 1 << 12),
            (&[0xff; 15], u64::MAX),
        ] {
            assert_eq!(cycles(packet), count, "{packet:x?}");
        }
    }
}
