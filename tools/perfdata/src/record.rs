// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The records of the data section: those that the kernel writes into its rings, and those that recorders add.
//!
//! A record that can be written implements [`Encode`]; reading gives an [`Event`]. A record of the
//! kernel ends with a [`SampleId`] when its event asks for one. Records of user space
//! ([`RecordType::is_user`]) have none.

use crate::attr::Attr;
use crate::bytes::{to_u64, Cursor};
use crate::{Error, Result};

mod event;
mod kernel;
mod kind;
mod rename;
mod sample_id;
mod user;

pub use event::Event;
pub use kernel::{
    Aux, AuxFlags, Comm, FileId, ItraceStart, KernelMmap, Ksymbol, Lost, Mmap2, Read, Task,
    TextPoke, Tracepoint, MISC_BUILD_ID, MISC_COMM_EXEC, MISC_KERNEL, MISC_SWITCH_OUT, MISC_USER,
};
pub use kind::RecordType;
pub use rename::rename;
pub use sample_id::{SampleId, TimePlace};
pub use user::{
    Auxtrace, AuxtraceInfo, AuxtraceZstd, FinishedInit, FinishedRound, IdIndex, IdIndexEntry,
    TimeConv,
};

/// A record that can be written.
pub trait Encode {
    /// Its type.
    const KIND: RecordType;

    /// `misc` of its header.
    fn misc(&self) -> u16 {
        0
    }

    /// Appends the bytes between the header and the sample id.
    fn encode(&self, out: &mut Vec<u8>);
}

/// A record of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset of its header in the file.
    pub offset: u64,
    /// Its type.
    pub kind: RecordType,
    /// `misc` of its header.
    pub misc: u16,
    /// The bytes after the header, including the sample id.
    pub body: &'a [u8],
    /// The payload that follows the record. Only AUXTRACE records have one.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    fn cursor(&self, body: &'a [u8]) -> Cursor<'a> {
        Cursor::new(body, self.offset.saturating_add(8))
    }

    /// Splits the body into the sample id and the fields before it. `attr` is the record's event.
    ///
    /// # Errors
    /// If the record is shorter than the sample id.
    pub fn sample_id(&self, attr: &Attr) -> Result<(Option<SampleId>, &'a [u8])> {
        if self.kind.is_user()
            || self.kind == RecordType::SAMPLE
            || !attr.flags.contains(crate::Flags::SAMPLE_ID_ALL)
        {
            return Ok((None, self.body));
        }
        let len = SampleId::len(attr.sample_type);
        let Some(at) = self.body.len().checked_sub(len) else {
            return Err(Error::Short {
                field: "sample_id",
                offset: self.offset,
                need: to_u64(len),
                have: to_u64(self.body.len()),
            });
        };
        let (body, tail) = self.body.split_at(at);
        let mut c = Cursor::new(
            tail,
            self.offset.saturating_add(8).saturating_add(to_u64(at)),
        );
        Ok((Some(SampleId::decode(attr.sample_type, &mut c)?), body))
    }

    /// The time in the sample id, if there is one. Cheaper than [`sample_id`](Self::sample_id).
    #[must_use]
    #[inline]
    pub fn time(&self, place: TimePlace) -> Option<u64> {
        if self.kind.is_user() || self.kind == RecordType::SAMPLE {
            return None;
        }
        let (len, before) = place.0?;
        let at = self.body.len().checked_sub(len)?;
        let word = self.body.get(at + before..)?.first_chunk()?;
        Some(u64::from_le_bytes(*word))
    }
}

/// The header of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub kind: RecordType,
    pub misc: u16,
    /// Length of the body, which follows the header.
    pub body: usize,
}

impl Head {
    pub const LEN: usize = 8;

    #[inline]
    pub fn decode([a, b, c, d, e, f, g, h]: [u8; Self::LEN], offset: u64) -> Result<Self> {
        let kind = RecordType(u32::from_le_bytes([a, b, c, d]));
        let size = u16::from_le_bytes([g, h]);
        let bad = |why| Error::Invalid {
            field: "record header.size",
            offset: offset.saturating_add(6),
            value: u64::from(size),
            why,
        };
        let Some(body) = usize::from(size).checked_sub(Self::LEN) else {
            return Err(bad("shorter than the header itself"));
        };
        if !kind.is_aligned(size) {
            return Err(bad("not a multiple of 8"));
        }
        Ok(Self {
            kind,
            misc: u16::from_le_bytes([e, f]),
            body,
        })
    }
}

/// Iterates over the records of a file, or of bytes that were copied out of a ring. An error is the last item.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    data: &'a [u8],
    pos: usize,
    base: u64,
    failed: bool,
}

impl<'a> Records<'a> {
    /// The records in `data`, whose first byte is at `base` in the file.
    #[must_use]
    pub fn new(data: &'a [u8], base: u64) -> Self {
        Self {
            data,
            pos: 0,
            base,
            failed: false,
        }
    }

    #[inline]
    fn step(&mut self) -> Result<Record<'a>> {
        let offset = self.base.saturating_add(to_u64(self.pos));
        let mut cursor = Cursor::new(&self.data[self.pos..], offset);
        // One bounds check for all fields: the recorder steps through every record that it writes.
        let Head { kind, misc, body } = Head::decode(cursor.array("record header")?, offset)?;
        let body = cursor.take(body, "record")?;
        let payload = if kind == RecordType::AUXTRACE {
            let aux = Auxtrace::decode(&mut Cursor::new(body, offset.saturating_add(8)))?;
            let size = usize::try_from(aux.size).unwrap_or(usize::MAX);
            cursor.take(size, "AUXTRACE payload")?
        } else {
            &[]
        };
        self.pos = self.data.len() - cursor.left();
        Ok(Record {
            offset,
            kind,
            misc,
            body,
            payload,
        })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.pos >= self.data.len() {
            return None;
        }
        let item = self.step();
        self.failed = item.is_err();
        Some(item)
    }
}
