// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which code is traced.

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Its first address.
    pub low: u64,
    /// Its last address.
    pub high: u64,
    /// Whether it ends the trace. Else only such ranges are traced.
    pub stops: bool,
}

/// The most ranges.
pub const RANGES: usize = 4;

/// Which code is traced, by its addresses. The kernel's are negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// That of the kernel.
    pub kernel: bool,
    /// That of programs.
    pub user: bool,
    /// Ranges.
    pub ranges: [Option<Range>; RANGES],
}

/// What is done with an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    Trace,
    Nothing,
    /// Nothing, and with all that follow.
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

    /// Whether code there is traced, apart from ranges.
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
