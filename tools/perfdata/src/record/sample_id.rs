// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sample id: the fields at the end of each record of the kernel.

use crate::attr::{Attr, SampleType};
use crate::bytes::Cursor;
use crate::Result;

/// Thread, time, event and CPU of a record of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleId {
    /// Process.
    pub pid: Option<u32>,
    /// Thread.
    pub tid: Option<u32>,
    /// Time of the event's clock, ns.
    pub time: Option<u64>,
    /// Id of the event (from `ID` or `IDENTIFIER`).
    pub id: Option<u64>,
    /// Id of the event itself. If the event is inherited, [`id`](Self::id) is that of the event it
    /// was inherited from.
    pub stream_id: Option<u64>,
    /// CPU.
    pub cpu: Option<u32>,
}

/// The bits of a sample type that have a field in the sample id.
const IN_SAMPLE_ID: SampleType = SampleType::TID
    .union(SampleType::TIME)
    .union(SampleType::ID)
    .union(SampleType::STREAM_ID)
    .union(SampleType::CPU)
    .union(SampleType::IDENTIFIER);

impl SampleId {
    /// Length of the sample ids of events of this sample type.
    #[must_use]
    pub fn len(kind: SampleType) -> usize {
        usize::try_from((kind & IN_SAMPLE_ID).bits().count_ones() * 8).unwrap_or(0)
    }

    /// Appends the sample id. A field that is [`None`] becomes 0.
    pub fn encode(&self, kind: SampleType, out: &mut Vec<u8>) {
        if kind.contains(SampleType::TID) {
            out.extend(self.pid.unwrap_or(0).to_le_bytes());
            out.extend(self.tid.unwrap_or(0).to_le_bytes());
        }
        if kind.contains(SampleType::TIME) {
            out.extend(self.time.unwrap_or(0).to_le_bytes());
        }
        if kind.contains(SampleType::ID) {
            out.extend(self.id.unwrap_or(0).to_le_bytes());
        }
        if kind.contains(SampleType::STREAM_ID) {
            out.extend(self.stream_id.unwrap_or(0).to_le_bytes());
        }
        if kind.contains(SampleType::CPU) {
            out.extend(self.cpu.unwrap_or(0).to_le_bytes());
            out.extend([0; 4]);
        }
        if kind.contains(SampleType::IDENTIFIER) {
            out.extend(self.id.unwrap_or(0).to_le_bytes());
        }
    }

    pub(super) fn decode(kind: SampleType, c: &mut Cursor<'_>) -> Result<Self> {
        let mut out = Self::default();
        if kind.contains(SampleType::TID) {
            out.pid = Some(c.u32("sample_id.pid")?);
            out.tid = Some(c.u32("sample_id.tid")?);
        }
        if kind.contains(SampleType::TIME) {
            out.time = Some(c.u64("sample_id.time")?);
        }
        if kind.contains(SampleType::ID) {
            out.id = Some(c.u64("sample_id.id")?);
        }
        if kind.contains(SampleType::STREAM_ID) {
            out.stream_id = Some(c.u64("sample_id.stream_id")?);
        }
        if kind.contains(SampleType::CPU) {
            out.cpu = Some(c.u32("sample_id.cpu")?);
            c.u32("sample_id.res")?;
        }
        if kind.contains(SampleType::IDENTIFIER) {
            out.id = Some(c.u64("sample_id.identifier")?);
        }
        Ok(out)
    }
}

/// Place of the time in the records of an event: the length of their sample ids, and the offset of
/// the time in a sample id. [`None`] if the records have no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimePlace(pub(super) Option<(usize, usize)>);

impl TimePlace {
    /// The place of the time in the records of this event.
    #[must_use]
    pub fn of(attr: &Attr) -> Self {
        let (all, kind) = (crate::Flags::SAMPLE_ID_ALL, attr.sample_type);
        let has = attr.flags.contains(all) && kind.contains(SampleType::TIME);
        let before = SampleId::len(kind & SampleType::TID);
        Self(has.then(|| (SampleId::len(kind), before)))
    }
}
