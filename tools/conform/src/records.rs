// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The records of a data ring, as `include/uapi/linux/perf_event.h` defines them, and the ledger of the AUX area.

use anyhow::{bail, ensure, Context, Result};

/// A record. All events here request a [`SampleId`], so each record ends with one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// `perf_event_header.type`.
    pub kind: u32,
    /// The bytes after the header, without the sample id.
    pub body: Vec<u8>,
    /// Task, time, CPU and event of the record.
    pub id: SampleId,
}

/// `PERF_SAMPLE_TID`, `TIME`, `CPU` and `IDENTIFIER`, as `attr.sample_id_all` puts them at the end of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleId {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Time, by the event's clock.
    pub time: u64,
    /// CPU.
    pub cpu: u32,
    /// Id of the event.
    pub id: u64,
}

/// `PERF_RECORD_LOST`.
pub const LOST: u32 = 2;
/// `PERF_RECORD_THROTTLE`.
pub const THROTTLE: u32 = 5;
/// `PERF_RECORD_SAMPLE`.
pub const SAMPLE: u32 = 9;
/// `PERF_RECORD_AUX`.
pub const AUX: u32 = 11;
/// `PERF_RECORD_ITRACE_START`.
pub const ITRACE_START: u32 = 12;

/// The length of a sample id.
const ID_LEN: usize = 32;

impl Record {
    /// Parses a record, including its header. A sample has these fields at its front, and stays as it is.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let kind = u32::try_from(number(bytes, 0, 4)?)?;
        let body = bytes.get(8..).context("a record without a header")?;
        if kind == SAMPLE {
            return Ok(Self {
                kind,
                body: body.to_vec(),
                id: SampleId::default(),
            });
        }
        let at = body
            .len()
            .checked_sub(ID_LEN)
            .context("a record without a sample id")?;
        let (body, id) = body.split_at(at);
        Ok(Self {
            kind,
            body: body.to_vec(),
            id: SampleId {
                pid: u32::try_from(number(id, 0, 4)?)?,
                tid: u32::try_from(number(id, 4, 4)?)?,
                time: number(id, 8, 8)?,
                cpu: u32::try_from(number(id, 16, 4)?)?,
                id: number(id, 24, 8)?,
            },
        })
    }

    /// `aux_offset`, `aux_size` and `flags`, if this is an AUX record.
    pub fn aux(&self) -> Result<Option<Aux>> {
        if self.kind != AUX {
            return Ok(None);
        }
        Ok(Some(Aux {
            offset: number(&self.body, 0, 8)?,
            size: number(&self.body, 8, 8)?,
            flags: number(&self.body, 16, 8)?,
        }))
    }
}

/// Reads a little-endian number.
pub fn number(bytes: &[u8], at: usize, len: usize) -> Result<u64> {
    let end = at
        .checked_add(len)
        .context("a number at the end of memory")?;
    let field = bytes.get(at..end).context("a record ends too early")?;
    Ok(field
        .iter()
        .rev()
        .fold(0, |n, byte| n << 8 | u64::from(*byte)))
}

/// The fields of an AUX record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aux {
    /// The position of its trace.
    pub offset: u64,
    /// The length of its trace.
    pub size: u64,
    /// `PERF_AUX_FLAG_*`.
    pub flags: u64,
}

/// `PERF_AUX_FLAG_TRUNCATED`.
pub const TRUNCATED: u64 = 1;
/// `PERF_AUX_FLAG_OVERWRITE`.
pub const OVERWRITE: u64 = 2;
/// `PERF_AUX_FLAG_PARTIAL`.
pub const PARTIAL: u64 = 4;
/// `PERF_AUX_FLAG_COLLISION`.
pub const COLLISION: u64 = 8;
/// `PERF_AUX_FLAG_PMU_FORMAT_TYPE_MASK`.
pub const FORMAT: u64 = 0xff00;

/// Checks the AUX records of one ring.
#[derive(Debug)]
pub struct Ledger {
    /// The length of the AUX area.
    len: u64,
    overwrite: bool,
    /// The position where the last record ended; [`None`] before the first one.
    pub end: Option<u64>,
    /// Bytes of trace in all records.
    pub bytes: u64,
    /// Bytes between records. A driver may skip some, and no record reports that.
    pub skipped: u64,
    /// Number of records.
    pub records: u64,
    /// Number of records with `TRUNCATED`.
    pub truncated: u64,
    /// The most space that there was at one of them, computed with the tail when its transaction began.
    pub space: u64,
    /// A tail that was set by the time the transaction of the next record began.
    before: u64,
    /// The tail while user space last looked for records.
    looked: u64,
    /// The format of the trace, from the first record.
    format: Option<u64>,
    /// The flags of all records.
    pub flags: u64,
    /// The longest record.
    pub longest: u64,
}

impl Ledger {
    /// The ledger of an area of `len` bytes.
    pub fn new(len: u64, overwrite: bool) -> Self {
        Self {
            len,
            overwrite,
            end: None,
            bytes: 0,
            skipped: 0,
            records: 0,
            truncated: 0,
            space: 0,
            before: 0,
            looked: 0,
            format: None,
            flags: 0,
            longest: 0,
        }
    }

    /// Continues at `head`: the records up to there were lost.
    pub fn goes_to(&mut self, head: u64) {
        let end = self.end.unwrap_or(0);
        self.skipped += head.saturating_sub(end);
        self.end = Some(end.max(head));
    }

    /// Ends a batch: all existing records were added, while user space had read up to `tail`.
    pub fn ends_batch(&mut self, tail: u64) {
        self.looked = tail;
    }

    /// The event is disabled, all existing records were added, and user space has read up to `tail`: the next transaction begins later.
    pub fn begins(&mut self, tail: u64) {
        self.before = tail;
    }

    /// Adds the next record, while user space has read up to `tail`.
    pub fn add(&mut self, aux: Aux, tail: u64) -> Result<()> {
        let Aux {
            offset,
            size,
            flags,
        } = aux;
        let known = TRUNCATED | OVERWRITE | PARTIAL | COLLISION | FORMAT;
        ensure!(
            flags & !known == 0,
            "{aux:x?} has flags that perf does not know"
        );
        ensure!(
            (flags & OVERWRITE != 0) == self.overwrite,
            "{aux:x?} of an area that is {}in overwrite mode",
            if self.overwrite { "" } else { "not " }
        );
        ensure!(
            size != 0 || flags & !(OVERWRITE | FORMAT) != 0,
            "{aux:x?} says nothing"
        );
        let format = *self.format.get_or_insert(flags & FORMAT);
        ensure!(
            size == 0 || flags & FORMAT == format,
            "{aux:x?} has another format than those before, {format:#x}"
        );
        let end = offset
            .checked_add(size)
            .with_context(|| format!("{aux:x?} ends beyond all"))?;
        if self.overwrite {
            ensure!(
                flags & TRUNCATED == 0,
                "{aux:x?}: an area in overwrite mode is never full, and perf disables the event"
            );
        } else {
            let before = self.end.unwrap_or(offset);
            let skipped = offset.checked_sub(before).with_context(|| {
                format!("{aux:x?} begins before {before:x}, where the record before ended")
            })?;
            let taken = end.wrapping_sub(tail);
            ensure!(
                taken < self.len,
                "{aux:x?} ends {taken:#x} bytes behind what was read, in an area of {:#x}: no more than one less fits",
                self.len
            );
            self.skipped += skipped;
            if flags & TRUNCATED != 0 {
                let taken = end.saturating_sub(self.before);
                self.space = self.space.max(self.len.saturating_sub(taken));
            }
        }
        // At the last look, this record was not there, so the next transaction began after it.
        self.before = self.looked;
        self.end = Some(end);
        self.bytes += size;
        self.records += 1;
        self.truncated += u64::from(flags & TRUNCATED != 0);
        self.flags |= flags;
        self.longest = self.longest.max(size);
        Ok(())
    }
}

/// Splits these bytes into records. They must begin and end with a whole record.
pub fn split(mut bytes: &[u8]) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let len = usize::try_from(number(bytes, 6, 2)?)?;
        let record = bytes.get(..len).filter(|_| len >= 8);
        let Some(record) = record else {
            bail!(
                "the data ring has a record of {len} bytes, and {} are left",
                bytes.len()
            );
        };
        records.push(Record::parse(record)?);
        bytes = bytes.get(len..).unwrap_or_default();
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const fn aux(offset: u64, size: u64, flags: u64) -> Aux {
        Aux {
            offset,
            size,
            flags,
        }
    }

    /// Each wrong record is refused for the right reason, and no correct record is refused.
    #[test]
    fn ledger() {
        type Row<'a> = (bool, &'a [(Aux, u64)], Option<&'a str>);
        let table: [Row<'_>; 12] = [
            (false, &[(aux(0, 10, 0), 0), (aux(10, 20, 0), 10)], None),
            (false, &[(aux(0, 10, 0), 0), (aux(16, 4, 0), 0)], None),
            (false, &[(aux(0, 4095, 0), 0)], None),
            (
                false,
                &[(aux(0, 4096, 0), 0)],
                Some("no more than one less"),
            ),
            (
                false,
                &[(aux(0, 10, 0), 0), (aux(8, 4, 0), 0)],
                Some("begins before"),
            ),
            (false, &[(aux(0, 10, 2), 0)], Some("not in overwrite")),
            (false, &[(aux(0, 10, 0x10), 0)], Some("does not know")),
            (false, &[(aux(0, 0, 0), 0)], Some("says nothing")),
            (
                false,
                &[(aux(0, 8, 0x100), 0), (aux(8, 8, 0), 0)],
                Some("another format"),
            ),
            (false, &[(aux(u64::MAX, 2, 0), 0)], Some("beyond all")),
            (true, &[(aux(0, 9000, 2), 0), (aux(9000, 8, 2), 0)], None),
            (true, &[(aux(0, 10, 3), 0)], Some("never full")),
        ];
        for (overwrite, records, wrong) in table {
            let mut ledger = Ledger::new(4096, overwrite);
            let seen: Result<()> = records
                .iter()
                .try_for_each(|(aux, tail)| ledger.add(*aux, *tail));
            match (seen, wrong) {
                (Ok(()), None) => {}
                (Err(error), Some(wrong)) => {
                    assert!(error.to_string().contains(wrong), "{error} for {wrong}");
                }
                (seen, wrong) => panic!("{records:x?}: {seen:?} for {wrong:?}"),
            }
        }
    }

    /// A transaction may begin before the tail is set up to the record in front of it.
    #[test]
    fn space_is_computed_with_the_tail_at_the_begin() {
        let mut ledger = Ledger::new(4096, false);
        ledger.ends_batch(0);
        ledger.add(aux(0, 2000, 0), 0).unwrap();
        ledger.ends_batch(0);
        // User space reads this record, and sets the tail. By then the second transaction has ended, and the third has begun.
        ledger.add(aux(2000, 500, 0), 2000).unwrap();
        ledger.ends_batch(2000);
        ledger.add(aux(2500, 1500, TRUNCATED), 2500).unwrap();
        ledger.ends_batch(2500);
        assert_eq!(ledger.space, 96);
        // The area is full, so the event is off until user space enables it.
        ledger.begins(4000);
        ledger.add(aux(4000, 96, TRUNCATED), 4000).unwrap();
        assert_eq!(ledger.space, 4000);
    }

    #[test]
    fn records_have_sample_ids() {
        let mut bytes = vec![0; 8 + 24 + 32];
        bytes[0] = 11;
        bytes[6] = 64;
        bytes[8] = 7;
        bytes[16] = 9;
        bytes[24] = 1;
        bytes[32] = 42;
        bytes[48] = 3;
        let records = split(&bytes.repeat(2)).unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!(records[1].aux().unwrap(), Some(aux(7, 9, 1)));
        assert_eq!((records[0].id.pid, records[0].id.cpu), (42, 3));
        bytes[6] = 7;
        split(&bytes).unwrap_err();
        bytes[6] = 65;
        split(&bytes).unwrap_err();
    }
}
