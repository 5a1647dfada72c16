// SPDX-License-Identifier: GPL-2.0

//! The addresses that are traced.

use kernel::prelude::*;
use perf::filter::{
    Action,
    AddrFilter,
    Filter, //
};

/// As many as Intel's units have at most.
pub(crate) const MAX: usize = 4;

/// Whether these can be had: ranges in which to trace, and no addresses at which to start or stop.
pub(crate) fn validate(filters: &[AddrFilter]) -> Result {
    let can = |filter: &AddrFilter| filter.action == Action::Filter && filter.size > 0;

    if filters.iter().all(can) {
        Ok(())
    } else {
        Err(EOPNOTSUPP)
    }
}

/// What an event wants traced.
pub(crate) enum Ranges {
    /// All code.
    All,
    /// First and last addresses; [`None`] where there is no range, or nothing mapped that it is in.
    These([Option<(u64, u64)>; MAX]),
}

impl Ranges {
    /// Those of an event's filters.
    pub(crate) fn new(filters: &[Filter]) -> Self {
        let mut ranges = [None; MAX];

        for (range, filter) in ranges.iter_mut().zip(filters) {
            *range = filter.range;
        }
        if filters.is_empty() {
            Self::All
        } else {
            Self::These(ranges)
        }
    }

    /// The first and the last address of code around `ip` that is traced as a whole, or not at all; and
    /// whether it is.
    pub(crate) fn around(&self, ip: u64) -> (u64, u64, bool) {
        let (mut first, mut last) = (0, u64::MAX);
        let Self::These(ranges) = self else {
            return (first, last, true);
        };

        for (from, to) in ranges.iter().flatten() {
            if (*from..=*to).contains(&ip) {
                return (*from, *to, true);
            }
            if *from > ip {
                last = last.min(from.saturating_sub(1));
            } else {
                first = first.max(to.saturating_add(1));
            }
        }
        (first, last, false)
    }

    /// Whether code at `ip` is traced.
    pub(crate) fn has(&self, ip: u64) -> bool {
        match self {
            Self::All => true,
            Self::These(ranges) => ranges
                .iter()
                .flatten()
                .any(|(first, last)| (*first..=*last).contains(&ip)),
        }
    }
}
