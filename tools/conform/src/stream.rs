// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the bytes of traces whose format is known. It shares no code with the drivers that write them.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{bail, ensure, Context, Result};

use crate::records::{number, COLLISION, PARTIAL, TRUNCATED};

/// A kind of trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Known {
    /// Packets that state their position in an endless stream: `samples/pattern/codec`.
    Pattern,
    /// Packets of Intel PT: Intel's manual, volume 3, chapter "Intel Processor Trace".
    IntelPt,
    /// Pages with the same content: `samples/edu_trace`.
    Edu,
}

impl Known {
    /// The kind of trace of a PMU with this name.
    pub fn of(pmu: &str) -> Option<Self> {
        match pmu {
            "pattern" | "c_pattern" => Some(Self::Pattern),
            "intel_pt" | "soft_pt" => Some(Self::IntelPt),
            other if other.starts_with("trace_unit") => Some(Self::IntelPt),
            "edu" => Some(Self::Edu),
            _ => None,
        }
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pattern => "packets of pattern",
            Self::IntelPt => "packets of Intel PT",
            Self::Edu => "pages of edu",
        })
    }
}

/// Checks a trace from its beginning.
#[derive(Debug)]
pub struct Stream {
    known: Known,
    /// Bytes that could not be checked yet, as their packet is incomplete.
    rest: Vec<u8>,
    /// Whether a packet may be cut here, so that the next packet may begin at any byte after it.
    anew: bool,
    /// Whether the boundaries of Intel PT's packets are known.
    synced: bool,
    packets: u64,
    /// For each stream of `pattern`: the position of its next packet, and the number of missing bytes.
    streams: BTreeMap<u32, (u64, u64)>,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} packets", self.packets)
    }
}

impl Stream {
    /// A checker at the beginning of a trace.
    pub fn new(known: Known) -> Self {
        Self {
            known,
            rest: Vec::new(),
            anew: true,
            synced: false,
            packets: 0,
            streams: BTreeMap::new(),
        }
    }

    /// Checks the next bytes, which are at this position of the area.
    pub fn feed(&mut self, index: u64, bytes: &[u8]) -> Result<()> {
        self.rest.extend_from_slice(bytes);
        let mut rest = std::mem::take(&mut self.rest);
        let mut at = 0;
        while let Some(left) = rest.get(at..).filter(|left| !left.is_empty()) {
            let len = match self.known {
                Known::Pattern => self.pattern(left),
                Known::IntelPt => self.intel_pt(left),
                // `edu` leaves no bytes for later.
                Known::Edu => self.edu(index, left),
            };
            match len.with_context(|| format!("after {} packets", self.packets))? {
                Some(len) => at += len,
                None => break,
            }
        }
        rest.drain(..at);
        self.rest = rest;
        Ok(())
    }

    /// The area was full: Intel PT may have cut a packet there.
    pub fn may_begin_anew(&mut self) {
        if self.known == Known::IntelPt {
            self.anew = true;
            self.synced = false;
        }
    }

    /// Compares the trace with the event's count, and with the flags of its records. Returns how many bytes are missing in the trace.
    pub fn accounts(&self, counted: u64, flags: u64) -> Result<u64> {
        if self.known != Known::Pattern {
            return Ok(0);
        }
        ensure!(
            self.rest.is_empty(),
            "{} bytes at the end are no packet",
            self.rest.len()
        );
        let (mut ends, mut gaps) = (0, 0);
        for (end, gap) in self.streams.values() {
            ends += end;
            gaps += gap;
        }
        let unread = counted.checked_sub(ends).with_context(|| {
            format!("the trace has bytes up to {ends}, and the event counted {counted}")
        })?;
        let lost = gaps + unread;
        ensure!(
            lost == 0 || flags & (TRUNCATED | PARTIAL | COLLISION) != 0,
            "{lost} of {counted} bytes are not in the trace, and no record has a flag that says so"
        );
        Ok(lost)
    }

    /// Each byte of `edu` shows its offset in a page.
    fn edu(&mut self, index: u64, bytes: &[u8]) -> Result<Option<usize>> {
        for (index, &byte) in (index..).zip(bytes) {
            let right = u8::try_from(index % 4096 % 251)?;
            ensure!(
                byte == right,
                "the byte at {index:#x} is wrong: {byte:#04x} for {right:#04x}"
            );
        }
        self.packets += 1;
        Ok(Some(bytes.len()))
    }

    /// The length of the packet at the front; [`None`] if it is incomplete.
    fn pattern(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        const UNIT: usize = 64;
        if bytes.len() < UNIT {
            return Ok(None);
        }
        let word = |index: usize| number(bytes, index * 8, 8);
        let (first, pos, third) = (word(0)?, word(1)?, word(3)?);
        ensure!(
            first & 0xffff_ffff == 0x4e52_5450 && first >> 56 == 1,
            "no packet begins with {first:#018x}"
        );
        let len = usize::try_from(first >> 32 & 0xffff)?;
        ensure!(len >= UNIT && len % UNIT == 0, "a packet of {len} bytes");
        let Some(packet) = bytes.get(..len) else {
            return Ok(None);
        };
        let run = word(4)?;
        let mut sum = 0;
        for header in [first, pos, word(2)?, third, run & 0xffff_ffff] {
            sum = mix(sum ^ header);
        }
        ensure!(
            sum & 0xffff_ffff == run >> 32,
            "the header of the packet at position {pos:#x} is wrong"
        );
        let stream = u32::try_from(third & 0xffff_ffff)?;
        let key = third >> 48 << 48 ^ u64::from(stream) << 16;
        let mut lost = 0;
        for at in (40..len).step_by(8) {
            let found = number(packet, at, 8)?;
            let right = match first >> 48 & 0xff {
                1 => mix(key ^ pos.wrapping_add(u64::try_from(at)?)),
                2 if at == 40 => {
                    lost = found;
                    found
                }
                2 | 3 => 0,
                kind => bail!("a packet of kind {kind}"),
            };
            ensure!(
                found == right,
                "byte {at} of the packet at position {pos:#x} is wrong: {found:#x} for {right:#x}"
            );
        }
        let (end, gap) = self.streams.entry(stream).or_default();
        match first >> 48 & 0xff {
            1 => {
                let missing = pos.checked_sub(*end);
                *gap +=
                    missing.with_context(|| format!("position {pos:#x} comes behind {end:#x}"))?;
                *end = pos.wrapping_add(u64::try_from(len)?);
            }
            // A barrier packet reports the gap before the next packet.
            2 => ensure!(lost > 0, "a barrier says that nothing was lost"),
            _ => {}
        }
        self.packets += 1;
        Ok(Some(len))
    }

    /// The same for Intel PT.
    fn intel_pt(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        const PSB: [u8; 16] = [
            0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82,
            0x02, 0x82,
        ];
        if !self.synced {
            let Some(at) = bytes.windows(PSB.len()).position(|window| window == PSB) else {
                return Ok(None);
            };
            ensure!(at == 0 || self.anew, "{at} bytes in front of the first PSB");
            (self.synced, self.anew) = (true, false);
            return Ok(Some(at));
        }
        let Some(len) = packet_len(bytes)? else {
            return Ok(None);
        };
        if bytes.starts_with(&[0x02, 0x82]) {
            let Some(front) = bytes.get(..PSB.len()) else {
                return Ok(None);
            };
            ensure!(front == PSB, "a PSB that is not whole: {front:x?}");
        }
        self.packets += 1;
        Ok(Some(len).filter(|len| *len <= bytes.len()))
    }
}

/// The finaliser of splitmix64.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// The length of a packet of Intel PT; [`None`] if it takes more bytes to know it.
fn packet_len(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(&first) = bytes.first() else {
        return Ok(None);
    };
    let wrong = || {
        format!(
            "no packet begins with {:02x?}",
            bytes.get(..8).unwrap_or(bytes)
        )
    };
    Ok(Some(match first {
        0x00 => 1,
        0x02 => {
            let Some(&second) = bytes.get(1) else {
                return Ok(None);
            };
            match second {
                0x82 => 16,
                0x23 | 0x83 | 0xf3 | 0x62 | 0xe2 | 0x33 | 0xb3 => 2,
                0x63 => 3,
                0x03 | 0x22 | 0x13 => 4,
                0x73 | 0xc8 | 0xa2 => 7,
                0x43 | 0xa3 => 8,
                0xc2 => 10,
                0xc3 | 0x53 => 11,
                ptw if ptw & 0x1f == 0x12 => match ptw >> 5 & 3 {
                    0 => 6,
                    1 => 10,
                    _ => bail!(wrong()),
                },
                _ => bail!(wrong()),
            }
        }
        0x59 | 0x99 => 2,
        0x19 => 8,
        cyc if cyc & 3 == 3 => {
            let more = |byte: &u8, at: usize| byte & if at == 0 { 4 } else { 1 } != 0;
            let mut bytes = bytes.iter().enumerate();
            match bytes.find(|(at, byte)| !more(byte, *at)) {
                Some((at, _)) => at + 1,
                None => return Ok(None),
            }
        }
        ip if matches!(ip & 0x1f, 0x01 | 0x0d | 0x11 | 0x1d) => match ip >> 5 {
            0 => 1,
            1 => 3,
            2 => 5,
            3 | 4 => 7,
            6 => 9,
            _ => bail!(wrong()),
        },
        tnt if tnt & 1 == 0 => 1,
        _ => bail!(wrong()),
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A byte is right only at its offset, and the pages repeat after 4096 bytes.
    #[test]
    fn pages_of_edu() {
        let mut stream = Stream::new(Known::Edu);
        stream.feed(4094, &[78, 79, 0, 1]).unwrap();
        stream.feed(8192 + 250, &[250, 0]).unwrap();
        for (index, byte) in [(4095, 78), (4096, 79), (251, 251)] {
            let text = format!("{:#}", stream.feed(index, &[byte]).unwrap_err());
            assert!(text.contains("is wrong"), "{text}");
        }
    }
}
