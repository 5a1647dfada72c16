// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The records that recorders add: synthesised records, and the AUX trace with its payload.

use super::{Encode, RecordType};
use crate::bytes::{to_u64, Cursor};
use crate::{Error, Result};

/// The ring, CPU and thread of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdIndexEntry {
    /// Id of the event.
    pub id: u64,
    /// Number of the ring.
    pub idx: u64,
    /// CPU, or -1.
    pub cpu: i64,
    /// Thread, or -1.
    pub tid: i64,
}

/// The ids of the events. A record holds at most [`IdIndex::MAX`] entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdIndex<'a>(pub &'a [IdIndexEntry]);

impl IdIndex<'_> {
    /// Maximum number of entries in a record. Leaves space for the fields that newer layouts add to each entry.
    pub const MAX: usize = 1364;
}

impl Encode for IdIndex<'_> {
    const KIND: RecordType = RecordType::ID_INDEX;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(to_u64(self.0.len()).to_le_bytes());
        for entry in self.0 {
            out.extend(entry.id.to_le_bytes());
            out.extend(entry.idx.to_le_bytes());
            out.extend(entry.cpu.to_le_bytes());
            out.extend(entry.tid.to_le_bytes());
        }
    }
}

/// Information that a decoder of the trace needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuxtraceInfo<'a> {
    /// The decoder: 1 `intel_pt`, 2 `intel_bts`, …
    pub kind: u32,
    /// Private words of the decoder.
    pub private: &'a [u64],
}

impl Encode for AuxtraceInfo<'_> {
    const KIND: RecordType = RecordType::AUXTRACE_INFO;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.kind.to_le_bytes());
        out.extend([0; 4]);
        for word in self.private {
            out.extend(word.to_le_bytes());
        }
    }
}

/// A piece of an AUX area; its payload follows the record and is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Auxtrace {
    /// Length of the payload: a multiple of 8.
    pub size: u64,
    /// Where the payload begins, in bytes since the first byte that was written into the area.
    pub offset: u64,
    /// Time at which the recorder read the piece.
    pub reference: u64,
    /// Number of the ring.
    pub idx: u32,
    /// Thread of the ring, or [`u32::MAX`].
    pub tid: u32,
    /// CPU of the ring, or [`u32::MAX`].
    pub cpu: u32,
}

impl Encode for Auxtrace {
    const KIND: RecordType = RecordType::AUXTRACE;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.size.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.reference.to_le_bytes());
        out.extend(self.idx.to_le_bytes());
        out.extend(self.tid.to_le_bytes());
        out.extend(self.cpu.to_le_bytes());
        out.extend([0; 4]);
    }
}

impl Auxtrace {
    pub(crate) fn decode(c: &mut Cursor<'_>) -> Result<Self> {
        let at = c.offset();
        let size = c.u64("AUXTRACE.size")?;
        if size % 8 != 0 {
            return Err(Error::Invalid {
                field: "AUXTRACE.size",
                offset: at,
                value: size,
                why: "not a multiple of 8",
            });
        }
        Ok(Self {
            size,
            offset: c.u64("AUXTRACE.offset")?,
            reference: c.u64("AUXTRACE.reference")?,
            idx: c.u32("AUXTRACE.idx")?,
            tid: c.u32("AUXTRACE.tid")?,
            cpu: c.u32("AUXTRACE.cpu")?,
        })
    }
}

/// A part of a piece of the AUX area, compressed by zstd.
///
/// A piece, as [`Auxtrace`] describes it, is cut into parts of at most [`MAX`](Self::MAX) bytes.
/// Each part is a zstd frame of its own, in an ordinary record. So a reader that does not know the
/// type skips the record, and in a file that was cut off only the last part can be incomplete. This
/// crate does not compress: the frame is bytes.
///
/// Before compression, a part is at most [`RATIO`](Self::RATIO) times as long as its record. Zeros after the frame lengthen a record that
/// would be too short. So the length of a file limits the memory that its content needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AuxtraceZstd<'a> {
    /// The whole piece. Its size is the sum of the lengths of all its parts before compression.
    pub aux: Auxtrace,
    /// Offset of this part in the piece: a multiple of 8.
    pub at: u64,
    /// Length of the part before compression: a multiple of 8.
    pub len: u32,
    /// The compressed part.
    pub frame: &'a [u8],
}

impl<'a> AuxtraceZstd<'a> {
    /// Maximum length of a part: its frame fits into a record even if compression does not shorten it.
    pub const MAX: u32 = 60 * 1024;
    /// Maximum ratio of the length of a part before compression to the length of its record.
    pub const RATIO: u32 = 16;
    /// Length of the header and of the fields before the frame.
    const FRONT: usize = 8 + 40 + 16;

    pub(super) fn decode(c: &mut Cursor<'a>) -> Result<Self> {
        let aux = Auxtrace::decode(c)?;
        c.take(4, "AUXTRACE_ZSTD.reserved")?;
        let at_place = c.offset();
        let at = c.u64("AUXTRACE_ZSTD.at")?;
        let len_place = c.offset();
        let len = c.u32("AUXTRACE_ZSTD.len")?;
        let frame = usize::try_from(c.u32("AUXTRACE_ZSTD.frame")?).unwrap_or(usize::MAX);
        let space = to_u64(Self::FRONT + c.left()) * u64::from(Self::RATIO);
        let invalid = |field, offset, value, why| Error::Invalid {
            field,
            offset,
            value,
            why,
        };
        if len == 0 || len % 8 != 0 || len > Self::MAX || u64::from(len) > space {
            let why = "no multiple of 8 of the length that a part can have";
            return Err(invalid("AUXTRACE_ZSTD.len", len_place, len.into(), why));
        }
        if at % 8 != 0 || at.checked_add(len.into()).is_none_or(|end| end > aux.size) {
            let why = "the part is not within its piece";
            return Err(invalid("AUXTRACE_ZSTD.at", at_place, at, why));
        }
        let frame = c.take(frame, "AUXTRACE_ZSTD frame")?;
        Ok(Self {
            aux,
            at,
            len,
            frame,
        })
    }
}

impl Encode for AuxtraceZstd<'_> {
    const KIND: RecordType = RecordType::AUXTRACE_ZSTD;
    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        self.aux.encode(out);
        out.extend(self.at.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        let frame = u32::try_from(self.frame.len()).unwrap_or(u32::MAX);
        out.extend(frame.to_le_bytes());
        out.extend(self.frame);
        let len = out.len() - start + 8;
        let least = usize::try_from(self.len.div_ceil(Self::RATIO)).unwrap_or(0);
        let len = len.max(least).next_multiple_of(8);
        out.resize(start + len - 8, 0);
    }
}

/// How to convert the cycle counter to perf's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeConv {
    /// `time_shift` of the user page.
    pub shift: u64,
    /// `time_mult` of the user page.
    pub mult: u64,
    /// `time_zero` of the user page.
    pub zero: u64,
    /// `time_cycles` of the user page.
    pub cycles: u64,
    /// `time_mask` of the user page.
    pub mask: u64,
    /// Whether `zero` is valid.
    pub cap_zero: bool,
    /// Whether `cycles` and `mask` are valid.
    pub cap_short: bool,
}

impl Encode for TimeConv {
    const KIND: RecordType = RecordType::TIME_CONV;
    fn encode(&self, out: &mut Vec<u8>) {
        for word in [self.shift, self.mult, self.zero, self.cycles, self.mask] {
            out.extend(word.to_le_bytes());
        }
        out.extend([
            u8::from(self.cap_zero),
            u8::from(self.cap_short),
            0,
            0,
            0,
            0,
            0,
            0,
        ]);
    }
}

impl TimeConv {
    /// Converts `cycles` of the cycle counter to perf's time in ns, as `tsc_to_perf_time()` of `tools/perf/util/tsc.c` does. [`None`] if
    /// the parameters give no conversion.
    #[must_use]
    pub fn time(&self, cycles: u64) -> Option<u64> {
        let shift = u32::try_from(self.shift).ok().filter(|shift| *shift < 64)?;
        if self.mult == 0 {
            return None;
        }
        let cycles = if self.cap_short {
            let since = cycles.wrapping_sub(self.cycles) & self.mask;
            self.cycles.wrapping_add(since)
        } else {
            cycles
        };
        let (whole, rest) = (cycles >> shift, cycles & ((1 << shift) - 1));
        let time = self.zero.wrapping_add(whole.wrapping_mul(self.mult));
        Some(time.wrapping_add(rest.wrapping_mul(self.mult) >> shift))
    }

    /// Old files have only the first three words, and their `zero` is valid.
    pub(super) fn decode(c: &mut Cursor<'_>) -> Result<Self> {
        let mut conv = Self {
            shift: c.u64("TIME_CONV.time_shift")?,
            mult: c.u64("TIME_CONV.time_mult")?,
            zero: c.u64("TIME_CONV.time_zero")?,
            cap_zero: true,
            ..Self::default()
        };
        if c.left() != 0 {
            conv.cycles = c.u64("TIME_CONV.time_cycles")?;
            conv.mask = c.u64("TIME_CONV.time_mask")?;
            let caps = c.take(2, "TIME_CONV.cap_user_time_zero")?;
            conv.cap_zero = caps.first() != Some(&0);
            conv.cap_short = caps.last() != Some(&0);
        }
        Ok(conv)
    }
}

/// The recorder has read every ring once: a reader may sort and process the records so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishedRound;

impl Encode for FinishedRound {
    const KIND: RecordType = RecordType::FINISHED_ROUND;
    fn encode(&self, _: &mut Vec<u8>) {}
}

/// The synthesised records are all written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishedInit;

impl Encode for FinishedInit {
    const KIND: RecordType = RecordType::FINISHED_INIT;
    fn encode(&self, _: &mut Vec<u8>) {}
}
