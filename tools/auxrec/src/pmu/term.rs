// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The terms of a PMU's format: the bits of an event's configuration that a name stands for.

/// A field of an event's configuration: bits of one of its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// Number of the word: 0 is `config`, 1 `config1`, and so on.
    pub word: usize,
    /// Ranges of bits. The first takes the lowest bits of the value.
    pub bits: Vec<(u32, u32)>,
}

impl Term {
    /// Parses the format of a term in sysfs, such as `config1:0-7,12`.
    #[must_use]
    pub fn parse(format: &str) -> Option<Self> {
        let (word, ranges) = format.split_once(':').unwrap_or((format, "0-63"));
        let word = match word.trim().strip_prefix("config")? {
            "" => 0,
            n => n.parse().ok().filter(|n| (1..5).contains(n))?,
        };
        let bits = ranges
            .split(',')
            .map(|range| {
                let (low, high) = range.split_once('-').unwrap_or((range, range));
                let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
                (low <= high && high < 64).then_some((low, high))
            })
            .collect::<Option<_>>()?;
        Some(Self { word, bits })
    }

    /// The largest value.
    #[must_use]
    pub fn max(&self) -> u64 {
        let width: u32 = self.bits.iter().map(|(low, high)| high - low + 1).sum();
        u64::MAX >> 64_u32.saturating_sub(width).min(63)
    }

    /// Whether the two have a bit in common.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let bits = |term: &Self| term.put(0, term.max()).unwrap_or(0);
        self.word == other.word && bits(self) & bits(other) != 0
    }

    /// The value in the bits of a word.
    #[must_use]
    pub fn get(&self, word: u64) -> u64 {
        let mut value = 0;
        let mut at = 0;
        for &(low, high) in &self.bits {
            let width = high - low + 1;
            let mask = u64::MAX >> (64 - width);
            value |= (word >> low & mask).checked_shl(at).unwrap_or(0);
            at += width;
        }
        value
    }

    /// Puts a value into the bits of a word; [`None`] if it is too large.
    #[must_use]
    pub fn put(&self, word: u64, value: u64) -> Option<u64> {
        if value > self.max() {
            return None;
        }
        let mut word = word;
        let mut rest = value;
        for &(low, high) in &self.bits {
            let width = high - low + 1;
            let mask = u64::MAX >> (64 - width);
            word = word & !(mask << low) | (rest & mask) << low;
            rest = rest.checked_shr(width).unwrap_or(0);
        }
        Some(word)
    }
}
