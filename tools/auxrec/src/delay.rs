// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Times in a recording: when its events are enabled (`--delay`), and when a new file begins (`--switch-output`).

use crate::error::{Error, Result};
use crate::size::parse_size;

/// When trace is recorded, relative to the beginning of the recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Delay {
    /// From the beginning.
    #[default]
    None,
    /// Only when a command of `--control` enables it.
    Off,
    /// From this number of milliseconds on.
    From(u64),
    /// In these ranges, in milliseconds. The recording ends with the last one.
    Ranges(Vec<(u64, u64)>),
}

impl Delay {
    /// Parses `MS`, `-1`, or `MS-MS,…`: perf's syntax.
    ///
    /// # Errors
    /// If the text is none of these.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || {
            Error::usage(format!(
                "`{text}` is not a delay: give milliseconds, -1 to begin with everything off, or ranges in rising order such as 10-20,30-40"
            ))
        };
        match text.trim() {
            "-1" => return Ok(Self::Off),
            "0" => return Ok(Self::None),
            _ => {}
        }
        if let Ok(ms) = text.trim().parse() {
            return Ok(Self::From(ms));
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for range in text.split(',') {
            let (from, to) = range.split_once('-').ok_or_else(bad)?;
            let from: u64 = from.trim().parse().map_err(|_| bad())?;
            let to: u64 = to.trim().parse().map_err(|_| bad())?;
            if to <= from || ranges.last().is_some_and(|(_, end)| from <= *end) {
                return Err(bad());
            }
            ranges.push((from, to));
        }
        Ok(Self::Ranges(ranges))
    }

    /// The steps and their times: nanoseconds after the beginning, in rising order.
    #[must_use]
    pub fn steps(&self) -> Vec<(u64, Step)> {
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        match self {
            Self::None | Self::Off => Vec::new(),
            Self::From(ms) => vec![(ns(*ms), Step::On)],
            Self::Ranges(ranges) => {
                let mut steps: Vec<_> = ranges
                    .iter()
                    .flat_map(|(from, to)| [(ns(*from), Step::On), (ns(*to), Step::Off)])
                    .collect();
                if let Some((_, last)) = steps.last_mut() {
                    *last = Step::End;
                }
                steps
            }
        }
    }
}

/// What the recorder does at a given time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Enable the trace.
    On,
    /// Disable the trace.
    Off,
    /// End the recording.
    End,
}

/// When the recorder begins a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// On SIGUSR2.
    Signal,
    /// When the file has this number of bytes.
    Size(u64),
    /// After this number of nanoseconds.
    Time(u64),
}

impl Switch {
    /// Parses `signal`, a size with a unit of B, K, M or G, or a time with a unit of s, m, h or d.
    ///
    /// # Errors
    /// If the text is none of these.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || {
            Error::usage(format!(
                "--switch-output takes `signal`, a size with a unit (B, K, M or G), or a time with a unit (s, m, h or d), not `{text}`"
            ))
        };
        if text.is_empty() || text == "signal" {
            return Ok(Self::Signal);
        }
        let seconds = match text.char_indices().last() {
            Some((at, 's')) => Some((at, 1)),
            Some((at, 'm')) => Some((at, 60)),
            Some((at, 'h')) => Some((at, 3600)),
            Some((at, 'd')) => Some((at, 86400)),
            _ => None,
        };
        if let Some((at, unit)) = seconds {
            let n: u64 = text[..at].parse().map_err(|_| bad())?;
            let ns = n
                .checked_mul(unit)
                .and_then(|s| s.checked_mul(1_000_000_000));
            return ns.filter(|ns| *ns != 0).map(Self::Time).ok_or_else(bad);
        }
        if text.ends_with(|c: char| c.is_ascii_digit()) {
            return Err(bad());
        }
        let bytes = parse_size(text, 1).map_err(|_| bad())?;
        u64::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes != 0)
            .map(Self::Size)
            .ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn delays() {
        assert_eq!(Delay::parse("0").unwrap(), Delay::None);
        assert_eq!(Delay::parse("-1").unwrap(), Delay::Off);
        assert_eq!(
            Delay::parse("20").unwrap().steps(),
            [(20_000_000, Step::On)]
        );
        assert_eq!(
            Delay::parse("1-2, 3-5").unwrap().steps(),
            [
                (1_000_000, Step::On),
                (2_000_000, Step::Off),
                (3_000_000, Step::On),
                (5_000_000, Step::End)
            ]
        );
        for bad in ["", "x", "-2", "5-5", "5-4", "1-3,3-4", "1-2,", "1-2;3-4"] {
            assert!(Delay::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn switches() {
        assert_eq!(Switch::parse("signal").unwrap(), Switch::Signal);
        assert_eq!(Switch::parse("").unwrap(), Switch::Signal);
        assert_eq!(Switch::parse("10K").unwrap(), Switch::Size(10240));
        assert_eq!(Switch::parse("2m").unwrap(), Switch::Time(120_000_000_000));
        assert_eq!(Switch::parse("1M").unwrap(), Switch::Size(1 << 20));
        for bad in ["x", "10", "0s", "0K", "s", "-1s", "99999999999999d"] {
            assert!(Switch::parse(bad).is_err(), "{bad}");
        }
    }
}
