// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The clock of a session's events.

use perfdata::TimeConv;

use crate::sys;

/// A point in time, in the forms that a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// For AUXTRACE records, as in perf: the processor's cycle counter if perf's clock is based on it, otherwise the time.
    pub reference: u64,
    /// Time by the clock of the events' records, ns; [`None`] if the kernel provides no conversion.
    pub time: Option<u64>,
}

/// The clock of the events' records.
#[derive(Debug, Clone, Copy)]
pub enum Clock {
    /// [`sys::now`].
    Monotonic,
    /// perf's own clock, with the conversion from the processor's cycle counter.
    Perf(Option<TimeConv>),
}

impl Clock {
    /// The current point in time.
    #[must_use]
    pub fn moment(self) -> Moment {
        let of_counter = |conv: Option<TimeConv>, cycles| Moment {
            reference: cycles,
            time: conv.and_then(|conv| conv.time(cycles)),
        };
        match (self, sys::cycles()) {
            (Self::Perf(conv), Some(cycles)) => of_counter(conv, cycles),
            (Self::Perf(_), None) => Moment {
                reference: sys::now(),
                time: None,
            },
            (Self::Monotonic, _) => {
                let now = sys::now();
                Moment {
                    reference: now,
                    time: Some(now),
                }
            }
        }
    }

    /// The time now, ns; [`None`] if the kernel provides no conversion to perf's clock.
    #[must_use]
    pub fn now(self) -> Option<u64> {
        match self {
            Self::Monotonic => Some(sys::now()),
            Self::Perf(conv) => conv?.time(sys::cycles()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_each_clock() {
        let conv = TimeConv {
            shift: 3,
            mult: 5,
            zero: 7,
            cap_zero: true,
            ..TimeConv::default()
        };
        for conv in [Some(conv), None] {
            let Some(before) = sys::cycles() else { break };
            let moment = Clock::Perf(conv).moment();
            let after = sys::cycles().unwrap_or(0);
            assert!((before..=after).contains(&moment.reference));
            let time = conv.and_then(|conv| conv.time(moment.reference));
            assert_eq!(moment.time, time);
        }
        let before = sys::now();
        let moment = Clock::Monotonic.moment();
        assert_eq!(moment.time, Some(moment.reference));
        assert!((before..=sys::now()).contains(&moment.reference));
    }
}
