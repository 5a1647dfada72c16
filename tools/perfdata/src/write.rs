// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writing a file.

use std::io::{self, BufReader, IoSlice, Read, Seek, SeekFrom, Write};

use crate::attr::Attr;
use crate::bytes::{to_u64, Cursor};
use crate::feature::{Features, IndexEntry};
use crate::record::{Auxtrace, Encode, RecordType, Records, SampleId};
use crate::spare;
use crate::stream::read_error;
use crate::{Error, Result, HEADER_LEN, MAGIC};

mod index;

pub(crate) use index::Index;
use index::Parts;
pub use index::{OpenSpillFile, SpillFile};

/// File offset of the size of the data section, in the header.
pub(crate) const DATA_SIZE_AT: u64 = 48;
/// File offset of the feature bits, in the header.
pub(crate) const FEATURES_AT: u64 = 72;
/// Records are collected up to this many bytes before they are written.
const STAGE: usize = 64 * 1024;

/// Writes a perf.data file: header and attributes first, then the data section, which only grows, then the features.
///
/// The writer collects records and writes them in large blocks. It does not collect the payload of an AUXTRACE record: one call writes the
/// collected records and the first part of the payload. After a failed write, [`salvage`](Self::salvage) goes back to the end of the last
/// whole record.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// Offset of the file in the output.
    base: u64,
    data: u64,
    stage: Vec<u8>,
    /// File offset of the end of the written bytes. The bytes in `stage` come next.
    written: u64,
    /// End of the last record that is whole in the output.
    good: u64,
    /// Number of payload bytes that the last AUXTRACE record still lacks.
    owed: u64,
    index: Index,
    parts: Parts,
    /// File offset of the features that [`try_finish`](Self::try_finish) has written.
    features: Option<u64>,
    failed: bool,
}

/// Appends the bytes of a record to `out`. A record of a kernel type needs the sample id that its event asks for.
///
/// # Errors
/// If the length of the record is invalid. Then nothing is appended.
pub fn append<R: Encode>(
    record: &R,
    id: Option<(&SampleId, &Attr)>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let start = out.len();
    out.extend(R::KIND.0.to_le_bytes());
    out.extend(record.misc().to_le_bytes());
    out.extend([0; 2]);
    record.encode(out);
    if let Some((id, attr)) = id {
        if !R::KIND.is_user() {
            id.encode(attr.sample_type, out);
        }
    }
    match u16::try_from(out.len() - start) {
        Ok(size) if size % 8 == 0 => {
            out[start + 6..start + 8].copy_from_slice(&size.to_le_bytes());
            Ok(())
        }
        _ => {
            out.truncate(start);
            Err(Error::Unwritable {
                what: "a record",
                why: "its length is no multiple of 8 below 64 KiB",
            })
        }
    }
}

impl<W: Write + Seek> Writer<W> {
    /// Begins a file of these events, each with the ids of its file descriptors.
    ///
    /// # Errors
    /// If the output fails.
    pub fn new(out: W, events: &[(Attr, Vec<u64>)]) -> Result<Self> {
        Self::with_spare(out, events, &Features::new())
    }

    /// As [`new`](Self::new), with spare features, which [`recover`](crate::recover) uses if the file is never finished. They are between
    /// the attributes and the data section, where other readers skip them.
    ///
    /// # Errors
    /// If the output fails.
    pub fn with_spare(mut out: W, events: &[(Attr, Vec<u64>)], spare: &Features) -> Result<Self> {
        let base = out
            .stream_position()
            .map_err(|reason| Error::Output { offset: 0, reason })?;
        let attr_len = events
            .iter()
            .map(|(attr, _)| attr.encode().len())
            .max()
            .unwrap_or(64);
        let mut ids = Vec::new();
        let mut attrs = Vec::new();
        for (attr, event_ids) in events {
            attrs.extend(attr.encode_at_least(attr_len));
            attrs.extend((HEADER_LEN + to_u64(ids.len())).to_le_bytes());
            attrs.extend((to_u64(event_ids.len()) * 8).to_le_bytes());
            ids.extend(event_ids.iter().flat_map(|id| id.to_le_bytes()));
        }
        let spare = if spare.iter().next().is_some() {
            spare::to_bytes(spare)
        } else {
            Vec::new()
        };
        let attrs_at = HEADER_LEN + to_u64(ids.len());
        let data = attrs_at + to_u64(attrs.len()) + to_u64(spare.len());
        let mut stage = Vec::with_capacity(2 * STAGE);
        stage.extend(MAGIC);
        let header = [
            HEADER_LEN,
            to_u64(attr_len) + 16,
            attrs_at,
            to_u64(attrs.len()),
            data,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        stage.extend(header.iter().flat_map(|word| word.to_le_bytes()));
        stage.extend(ids);
        stage.extend(attrs);
        stage.extend(spare);
        let mut writer = Self::behind(out, base, data, 0, stage);
        writer.flush()?;
        Ok(writer)
    }

    /// Continues a file that already has everything before the data section, and records without trace. The data section begins at file
    /// offset `data`, and the last record ends at `at`.
    ///
    /// # Errors
    /// If the output fails.
    pub fn resume(mut out: W, data: u64, at: u64) -> Result<Self> {
        out.seek(SeekFrom::Start(at))
            .map_err(|reason| Error::Output { offset: at, reason })?;
        Ok(Self::behind(
            out,
            0,
            data,
            at,
            Vec::with_capacity(2 * STAGE),
        ))
    }

    fn behind(out: W, base: u64, data: u64, at: u64, stage: Vec<u8>) -> Self {
        Self {
            out,
            base,
            data,
            stage,
            written: at,
            good: at,
            owed: 0,
            index: Index::default(),
            parts: Parts::default(),
            features: None,
            failed: false,
        }
    }

    /// Moves the older entries of the index, 16 bytes for each AUXTRACE record, to the file that `make` opens. If that file cannot
    /// be opened or written, the entries stay in memory.
    pub fn spill_index_to(&mut self, make: OpenSpillFile) {
        self.index.spill_to(make);
    }

    /// File offset of the next record.
    pub fn position(&self) -> u64 {
        self.written + to_u64(self.stage.len())
    }

    /// The output.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    fn ready(&self, what: &'static str) -> Result<()> {
        if self.owed != 0 {
            return Err(Error::Unwritable {
                what,
                why: "the payload of the AUXTRACE record before it is not complete",
            });
        }
        if self.failed {
            return Err(Error::Unwritable {
                what,
                why: "the output failed before; only salvage() can go on",
            });
        }
        Ok(())
    }

    /// Appends a record. A record of a kernel type needs the sample id that its event asks for.
    ///
    /// # Errors
    /// If the output fails, or the length of the record is invalid.
    pub fn record<R: Encode>(&mut self, record: &R, id: Option<(&SampleId, &Attr)>) -> Result<()> {
        self.ready("a record")?;
        self.stage(record, id)?;
        self.spill()
    }

    /// Appends a record to the collected bytes.
    fn stage<R: Encode>(&mut self, record: &R, id: Option<(&SampleId, &Attr)>) -> Result<()> {
        let start = self.stage.len();
        append(record, id, &mut self.stage)?;
        if R::KIND == RecordType::AUXTRACE_ZSTD {
            self.parts.push(self.written + to_u64(start));
        }
        Ok(())
    }

    /// Appends whole records as the kernel wrote them into its ring.
    ///
    /// # Errors
    /// If the output fails, or `bytes` are not whole records.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.ready("records")?;
        for record in Records::new(bytes, self.position()) {
            if record?.kind == RecordType::AUXTRACE {
                return Err(Error::Unwritable {
                    what: "an AUXTRACE record",
                    why: "it must come through auxtrace(), which keeps the index",
                });
            }
        }
        self.stage.extend(bytes);
        self.spill()
    }

    /// Appends an AUXTRACE record. Its whole payload must follow through [`payload`](Self::payload) before anything else.
    ///
    /// # Errors
    /// If the output fails, or the size is no multiple of 8.
    pub fn auxtrace(&mut self, aux: &Auxtrace) -> Result<()> {
        if aux.size % 8 != 0 {
            return Err(Error::Unwritable {
                what: "an AUXTRACE record",
                why: "the size of its payload is not a multiple of 8",
            });
        }
        self.ready("an AUXTRACE record")?;
        let offset = self.position();
        self.stage(aux, None)?;
        self.index.push(IndexEntry {
            offset,
            size: self.position() - offset,
        });
        // The record is incomplete until all of its payload is written.
        self.owed = aux.size;
        Ok(())
    }

    /// Appends the next bytes of the payload.
    ///
    /// # Errors
    /// If the output fails, or the payload becomes longer than its record says.
    pub fn payload(&mut self, bytes: &[u8]) -> Result<()> {
        self.payload_by(bytes.len(), |out, front, done| {
            let bytes = bytes.get(done..).unwrap_or(&[]);
            out.write_vectored(&[IoSlice::new(front), IoSlice::new(bytes)])
        })
    }

    /// Lets `write` write the next `len` bytes of the payload to the output. Its arguments are the output, the bytes to write before the
    /// payload, and the number of payload bytes that are already written. It returns how many bytes of both it has written, as
    /// [`Write::write_vectored`] does.
    ///
    /// # Errors
    /// As [`payload`](Self::payload).
    pub fn payload_by(
        &mut self,
        len: usize,
        write: impl FnMut(&mut W, &[u8], usize) -> io::Result<usize>,
    ) -> Result<()> {
        let Some(owed) = self.owed.checked_sub(to_u64(len)) else {
            return Err(Error::Unwritable {
                what: "an AUXTRACE payload",
                why: "it is longer than its record said",
            });
        };
        self.write_stage(len, write)?;
        self.owed = owed;
        self.settle();
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        if self.stage.len() >= STAGE {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes all collected records to the output.
    ///
    /// # Errors
    /// If the output fails.
    pub fn flush(&mut self) -> Result<()> {
        if let Some(at) = self.features {
            self.go_back(at)?;
            self.patch(FEATURES_AT, &[0; 32])?;
        }
        self.write_stage(0, |out, front, _| out.write(front))?;
        self.settle();
        Ok(())
    }

    /// Updates `good` after the collected bytes are written: everything is whole, except an AUXTRACE record that lacks payload.
    fn settle(&mut self) {
        let piece = self.index.last().filter(|_| self.owed != 0);
        self.good = piece.map_or(self.written, |piece| piece.offset);
    }

    /// Writes the collected bytes and then `len` bytes that `write` provides.
    fn write_stage(
        &mut self,
        len: usize,
        mut write: impl FnMut(&mut W, &[u8], usize) -> io::Result<usize>,
    ) -> Result<()> {
        let stage = std::mem::take(&mut self.stage);
        let start = self.written;
        let result = self.write_by(stage.len() + len, &mut |out, done| {
            let front = stage.get(done..).unwrap_or(&[]);
            write(out, front, done.saturating_sub(stage.len()))
        });
        if result.is_err() && start >= self.data {
            // The first records of the stage may be whole in the output.
            let there = usize::try_from(self.written - start).unwrap_or(usize::MAX);
            let there = stage.get(..there).unwrap_or(&stage);
            for record in Records::new(there, start).map_while(Result::ok) {
                if record.kind == RecordType::AUXTRACE {
                    break;
                }
                self.good = record.offset + 8 + to_u64(record.body.len());
            }
        }
        self.stage = stage;
        self.stage.clear();
        result
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_by(bytes.len(), &mut |out, done| {
            out.write(bytes.get(done..).unwrap_or(&[]))
        })
    }

    fn write_by(
        &mut self,
        len: usize,
        write: &mut dyn FnMut(&mut W, usize) -> io::Result<usize>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let result = match write(&mut self.out, done) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                other => other,
            };
            match result {
                Ok(n) => {
                    self.written += to_u64(n);
                    done += n;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(reason) => {
                    self.failed = true;
                    return Err(Error::Output {
                        offset: self.written,
                        reason,
                    });
                }
            }
        }
        Ok(())
    }

    fn patch(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let result = patch_at(
            &mut self.out,
            self.base + at,
            bytes,
            self.base + self.written,
        );
        result
            .and_then(|()| self.out.flush())
            .map_err(|reason| Error::Output { offset: at, reason })
    }

    /// Makes the file readable as it is: writes all records to the output, and the size of the data section into the header.
    ///
    /// # Errors
    /// If the output fails.
    pub fn checkpoint(&mut self) -> Result<()> {
        self.ready("a checkpoint")?;
        self.flush()?;
        self.patch(DATA_SIZE_AT, &(self.good - self.data).to_le_bytes())
    }

    /// Continues after the output has failed. Goes back to the end of the last whole record, or to `max` if that comes first: a record
    /// must end at `max`. Calls `truncate` with the output and the length to which to cut it, and updates the header. Returns the file
    /// offset of the next record. The freed space may be enough for [`finish`](Self::finish).
    ///
    /// # Errors
    /// If not even the header can be written.
    pub fn salvage(
        &mut self,
        max: u64,
        truncate: impl FnOnce(&mut W, u64) -> io::Result<()>,
    ) -> Result<u64> {
        let good = self.good.min(max).max(self.data);
        self.go_back(good)?;
        self.patch(FEATURES_AT, &[0; 32])?;
        truncate(&mut self.out, self.base + good).map_err(|reason| Error::Output {
            offset: good,
            reason,
        })?;
        self.patch(DATA_SIZE_AT, &(good - self.data).to_le_bytes())?;
        self.failed = false;
        Ok(good)
    }

    /// Continues at file offset `good`. Returns the index entries of the records after it.
    fn go_back(&mut self, good: u64) -> Result<Vec<IndexEntry>> {
        let behind = self.index.cut(good).map_err(|e| read_error(good, e))?;
        self.stage.clear();
        self.owed = 0;
        self.written = good;
        self.good = good;
        self.features = None;
        self.parts.cut(good);
        Ok(behind)
    }

    /// The offset of a record with trace that begins at or before `at`: the last one, or an older one.
    fn trace_before(&mut self, at: u64) -> Result<Option<u64>> {
        let piece = self.index.before(at).map_err(|e| read_error(at, e))?;
        Ok(piece.max(self.parts.before(at)))
    }

    /// Ends the data section and writes the features, including the index of the AUXTRACE records. Returns the output.
    ///
    /// # Errors
    /// If the output fails. The header then has no feature bits, and the size of the data section at the last successful checkpoint.
    pub fn finish(mut self, features: &Features) -> Result<W> {
        self.try_finish(features)?;
        Ok(self.out)
    }

    /// Returns the output as it is. Collected records that were not flushed are lost.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// As [`finish`](Self::finish), but keeps the writer: it can finish the file again, with other features.
    ///
    /// # Errors
    /// If the output fails.
    pub fn try_finish(&mut self, features: &Features) -> Result<()> {
        self.checkpoint()?;
        let (head, bits) = features.encode(self.written, self.index.len());
        self.write_all(&head)?;
        let mut index = std::mem::take(&mut self.index);
        let at = self.written;
        let written = index.section(|e| read_error(at, e), |bytes| self.write_all(bytes));
        self.index = index;
        written?;
        self.features = Some(self.good);
        self.patch(FEATURES_AT, &bits)
    }
}

impl<W: Read + Write + Seek> Writer<W> {
    /// Finishes the file after [`try_finish`](Self::try_finish) has found no space. Overwrites the last records before `max`, where a
    /// record ends, with the records `last`, the features and the index. Overwrites as few records as possible. Then calls `truncate`, as
    /// [`salvage`](Self::salvage) does. Returns the file offset of `last`.
    ///
    /// # Errors
    /// If no record would remain, if no trace would remain of a file that has some, or if the output fails. Then the overwritten bytes are
    /// restored, and [`salvage`](Self::salvage) keeps all records that were whole.
    pub fn finish_over(
        &mut self,
        max: u64,
        last: &[u8],
        features: &Features,
        truncate: impl FnOnce(&mut W, u64) -> io::Result<()>,
    ) -> Result<u64> {
        // The index can only become shorter, so its present length is the maximum.
        let (head, _) = features.encode(self.written, self.index.len());
        let space = to_u64(last.len() + head.len()) + self.index.len().unwrap_or(0);
        let at = self.record_end(max.min(self.written.saturating_sub(space)))?;
        let traced = self.index.len().is_some() || !self.parts.is_empty();
        if at == self.data || traced && self.trace_before(at - 1)?.is_none() {
            return Err(Error::Unwritable {
                what: "the end of a file",
                why: "what makes space for it is all there is",
            });
        }

        // After a failure the old bytes are restored. Their space on the disk still belongs to the file.
        let good = self.good;
        let mut old = vec![0; usize::try_from(space.min(good - at)).unwrap_or(usize::MAX)];
        self.out
            .seek(SeekFrom::Start(self.base + at))
            .and_then(|_| self.out.read_exact(&mut old))
            .and_then(|_| self.out.seek(SeekFrom::Start(self.base + at)))
            .map_err(|reason| read_error(at, reason))?;
        let parts = self.parts.clone();
        let index = self.go_back(at)?;
        self.failed = false;
        let result = self.raw(last).and_then(|()| self.try_finish(features));
        if let Err(error) = result {
            self.failed = true;
            if patch_at(&mut self.out, self.base + at, &old, self.base + good).is_ok() {
                self.good = good;
                self.index.extend(index);
                self.parts = parts;
            }
            self.features = None;
            return Err(error);
        }
        // Readers ignore the bytes after the features, so a failure does no harm.
        let _ = truncate(&mut self.out, self.base + self.written);
        Ok(at)
    }

    /// The end of the last record that ends at or before `max`.
    fn record_end(&mut self, max: u64) -> Result<u64> {
        let max = max.min(self.good);
        let mut at = self.trace_before(max)?.unwrap_or(self.data);
        let mut input = BufReader::with_capacity(STAGE, &mut self.out);
        input
            .seek(SeekFrom::Start(self.base + at))
            .map_err(|reason| read_error(at, reason))?;
        while at < max {
            let failed = |reason| read_error(at, reason);
            let mut header = [0; 8];
            input.read_exact(&mut header).map_err(failed)?;
            let [a, b, c, d, _, _, size @ ..] = header;
            let size = u16::from_le_bytes(size);
            let mut body = vec![0; usize::from(size).saturating_sub(8)];
            input.read_exact(&mut body).map_err(failed)?;
            let mut payload = 0;
            if RecordType(u32::from_le_bytes([a, b, c, d])) == RecordType::AUXTRACE {
                payload = Auxtrace::decode(&mut Cursor::new(&body, at + 8))?.size;
            }
            let end = at + u64::from(size) + payload;
            if size < 8 || end > max {
                break;
            }
            let skip = i64::try_from(payload).unwrap_or(i64::MAX);
            input.seek_relative(skip).map_err(failed)?;
            at = end;
        }
        Ok(at)
    }
}

/// Writes `bytes` at offset `at` of the output, then seeks to `back`.
pub(crate) fn patch_at(
    out: &mut (impl Write + Seek),
    at: u64,
    bytes: &[u8],
    back: u64,
) -> io::Result<()> {
    out.seek(SeekFrom::Start(at))?;
    out.write_all(bytes)?;
    out.seek(SeekFrom::Start(back)).map(|_| ())
}
