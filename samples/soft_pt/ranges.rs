// SPDX-License-Identifier: GPL-2.0

//! The addresses that are traced.

use kernel::prelude::*;
use perf::filter::{
    Action,
    AddrFilter,
    Filter, //
};

/// Maximum number of ranges: that of Intel's units.
pub(crate) const MAX: usize = 4;

/// Checks that these filters are supported: ranges to trace, but no start or stop addresses.
pub(crate) fn validate(filters: &[AddrFilter]) -> Result {
    let can = |filter: &AddrFilter| filter.action == Action::Filter && filter.size > 0;

    if filters.iter().all(can) {
        Ok(())
    } else {
        Err(EOPNOTSUPP)
    }
}

/// The code that an event traces.
pub(crate) enum Ranges {
    /// All code.
    All,
    /// First and last address of each range; [`None`] if it is unused, or its file is not mapped.
    These([Option<(u64, u64)>; MAX]),
}

impl Ranges {
    /// The ranges of an event's filters.
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

    /// A range of code around `ip` that is traced as a whole, or not at all. Returns its first
    /// address, its last address, and whether it is traced.
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
