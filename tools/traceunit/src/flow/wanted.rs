// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which code is traced.

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First address of the range.
    pub low: u64,
    /// Last address of the range.
    pub high: u64,
    /// Whether the range ends the trace. Otherwise it is a filter: only code in such ranges is traced.
    pub stops: bool,
}

/// Maximum number of ranges.
pub const RANGES: usize = 4;

/// Selects the code to trace by address. Kernel addresses are negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// Whether kernel code is traced.
    pub kernel: bool,
    /// Whether code of programs is traced.
    pub user: bool,
    /// The ranges. Without ranges, addresses are not restricted further.
    pub ranges: [Option<Range>; RANGES],
}

/// How an instruction is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    Trace,
    Nothing,
    /// Neither this instruction nor any later one is traced.
    Stop,
}

impl Wanted {
    pub(super) fn at(&self, address: u64) -> Does {
        match self.is_privileged(address) {
            true if self.has_ranges() => self.in_ranges(address),
            true => Does::Trace,
            false => Does::Nothing,
        }
    }

    /// Whether code at this address is traced, if ranges are not considered.
    #[inline]
    pub(super) fn is_privileged(&self, address: u64) -> bool {
        match address >> 63 {
            0 => self.user,
            _ => self.kernel,
        }
    }

    pub(super) fn has_ranges(&self) -> bool {
        self.ranges.iter().any(Option::is_some)
    }

    fn in_ranges(&self, address: u64) -> Does {
        let (mut inside, mut filtered) = (false, false);
        for range in self.ranges.iter().flatten() {
            let has = (range.low..=range.high).contains(&address);
            if range.stops && has {
                return Does::Stop;
            }
            filtered |= !range.stops;
            inside |= !range.stops && has;
        }
        match inside || !filtered {
            true => Does::Trace,
            false => Does::Nothing,
        }
    }
}
