// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The clock of a guest. perf orders records and trace by it.
//!
//! The guest's clock starts when its kernel has determined the frequency of the TSC. Code that the kernel has executed and changed before
//! has negative times, which perf takes for times in the far future. So this clock is some seconds ahead of the guest's.

use crate::error::{OnFile, Result};
use perfdata::{Event, TimeConv};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The conversion if the guest's clock is unknown: times are ticks.
pub(super) const TICKS: TimeConv = TimeConv {
    shift: 0,
    mult: 1,
    zero: 0,
    cycles: 0,
    mask: 0,
    cap_zero: true,
    cap_short: false,
};

const SECOND: u64 = 1_000_000_000;

/// The clock of a guest's recording.
#[derive(Debug)]
pub(super) struct Clock {
    /// The conversion from ticks to times, for perf.
    pub(super) of_perf: TimeConv,
    /// How far it is ahead of the guest's own clock, in nanoseconds: whole seconds.
    pub(super) lead: u64,
}

impl Clock {
    /// The guest's clock, set ahead so far that no time in these traces is negative.
    pub(super) fn new(of_guest: TimeConv, traces: &[PathBuf]) -> Result<Self> {
        let firsts: Vec<_> = traces
            .iter()
            .map(|trace| first(trace))
            .collect::<Result<_>>()?;
        Ok(Self::with_firsts(of_guest, firsts.into_iter().flatten()))
    }

    fn with_firsts(mut of_perf: TimeConv, firsts: impl Iterator<Item = u64>) -> Self {
        let signed = |time: u64| i64::from_ne_bytes(time.to_ne_bytes());
        let times = firsts.map(|ticks| signed(nanoseconds(&of_perf, ticks)));
        let before = times.min().filter(|time| *time < 0).unwrap_or(0);
        let lead = before.unsigned_abs().next_multiple_of(SECOND);
        of_perf.zero = of_perf.zero.wrapping_add(lead);
        Self { of_perf, lead }
    }

    /// Converts ticks to a time in nanoseconds.
    pub(super) fn nanoseconds(&self, ticks: u64) -> u64 {
        nanoseconds(&self.of_perf, ticks)
    }
}

fn nanoseconds(clock: &TimeConv, ticks: u64) -> u64 {
    let shift = u32::try_from(clock.shift).unwrap_or(0);
    let quotient = ticks.checked_shr(shift).unwrap_or(0);
    let rest = ticks & (1u64.checked_shl(shift).unwrap_or(0).wrapping_sub(1));
    clock
        .zero
        .wrapping_add(quotient.wrapping_mul(clock.mult))
        .wrapping_add(
            rest.wrapping_mul(clock.mult)
                .checked_shr(shift)
                .unwrap_or(0),
        )
}

/// The clock of a recording, if it has a usable TIME_CONV record.
pub(super) fn of(file: &perfdata::File<'_>) -> perfdata::Result<Option<TimeConv>> {
    for record in file.records() {
        if let (Event::TimeConv(clock), _) = file.decode(&record?)? {
            return Ok(Some(clock).filter(|clock| clock.cap_zero));
        }
    }
    Ok(None)
}

/// The first time in a trace, in ticks: that of the `TSC` after the first `PSB`. `None` if there is no such packet.
fn first(trace: &Path) -> Result<Option<u64>> {
    let mut packets = Vec::new();
    let file = File::open(trace).on("open", trace)?;
    file.take(24).read_to_end(&mut packets).on("read", trace)?;
    Ok(match packets.get(16..24) {
        Some([0x19, a, b, c, d, e, f, g]) => {
            Some(u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, 0]))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_before_the_first() {
        let of_guest = |zero: i64| TimeConv {
            zero: u64::from_ne_bytes(zero.to_ne_bytes()),
            ..TICKS
        };
        let table: [(i64, &[u64], u64); 6] = [
            (0, &[], 0),
            (0, &[5], 0),
            (-100, &[100], 0),
            (-100, &[99, 300], 1),
            (-1_000_000_005, &[300, 5], 1),
            (-1_000_000_005, &[300, 4], 2),
        ];
        for (zero, firsts, seconds) in table {
            let clock = Clock::with_firsts(of_guest(zero), firsts.iter().copied());
            assert_eq!(clock.lead, seconds * SECOND, "{zero} {firsts:?}");
            for first in firsts {
                let time = clock.nanoseconds(*first);
                assert!(time < 3 * SECOND, "{zero} {firsts:?}: {time}");
            }
        }
    }

    #[test]
    fn the_first_time_is_behind_the_first_psb() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        let write = |bytes: &[u8]| std::fs::write(&path, bytes).unwrap();
        let mut packets = [2, 0x82].repeat(8);
        write(&packets);
        assert_eq!(first(&path).unwrap(), None);
        packets.extend([0x19, 1, 2, 0, 0, 0, 0, 0, 0x99]);
        write(&packets);
        assert_eq!(first(&path).unwrap(), Some(0x201));
        write(&[]);
        assert_eq!(first(&path).unwrap(), None);
    }
}
