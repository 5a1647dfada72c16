// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads a file of any length. Memory is needed only for the part before the records, and for one record.

use std::io::{self, BufReader, Read, Seek, SeekFrom};

use crate::attr::Attr;
use crate::bytes::{to_u64, Cursor};
use crate::feature::{notes_follow, Feature, Features, IndexEntry, Section, NOTES_ENTRY};
use crate::read::{numbers, Events};
use crate::record::{Auxtrace, Event, Head, Record, RecordType, SampleId};
use crate::{Error, File, Result, HEADER_LEN};

/// Maximum length of the part before the records: enough for ids and attributes of thousands of events. Also the maximum length of a
/// feature section that is read as a whole.
const FRONT: u64 = 64 << 20;
/// Offsets in the header: of the length of an attribute, and of the places of attributes and data section.
const ATTR_SIZE_AT: usize = 16;
const ATTRS_AT: usize = 24;
const DATA_AT: usize = 40;
/// Size of the read buffer in bytes.
const BUFFER: usize = 1 << 20;
/// Number of index entries that are read at once.
const ENTRIES: u64 = 4096;

pub(crate) fn read_error(offset: u64, reason: io::Error) -> Error {
    Error::Input { offset, reason }
}

/// The part of a file before its records, and the places of its records and features.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    bytes: Vec<u8>,
    /// Length of the file.
    pub len: u64,
    /// Where the data section begins.
    pub data: u64,
    /// Where the data section ends.
    pub end: u64,
    /// The features of a finished file. [`None`] if the file is not finished.
    pub ended: Option<Vec<Place>>,
}

/// Number, file offset and length of a feature section.
type Place = (u8, u64, u64);

impl Front {
    /// Reads the front of a file. The header gives the end of the records and the features.
    fn read(file: &mut (impl Read + Seek)) -> Result<Self> {
        let (mut front, size, numbers) = Self::begin(file)?;
        front.parse()?;
        let finished = !numbers.is_empty();
        let size = if finished || size != 0 {
            size
        } else {
            // The recorder was stopped before it wrote the size: the data section extends to the end of the file.
            front.len.saturating_sub(front.data)
        };
        front.end = inside(front.data, size, front.len).ok_or(Error::Invalid {
            field: "header.data",
            offset: to_u64(DATA_AT),
            value: front.data,
            why: "the section is not within the file",
        })?;
        if finished {
            front.ended = Some(places(file, front.end, &numbers, front.len)?);
        }
        Ok(front)
    }

    /// Reads the front of a file that may be cut off. If its features are missing, the file is not finished, and its records extend to the
    /// end of the file.
    pub fn found(file: &mut (impl Read + Seek)) -> Result<Self> {
        let (mut front, size, numbers) = Self::begin(file)?;
        if (HEADER_LEN..=FRONT).contains(&front.data) && front.data > front.len {
            return Err(Error::Short {
                field: "what stands before the records",
                offset: 0,
                need: front.data,
                have: front.len,
            });
        }
        // Recovery writes into the data section, which must begin after the header and the attributes.
        let before = usize::try_from(front.data.max(HEADER_LEN)).unwrap_or(usize::MAX);
        front.bytes.truncate(before);
        let end = front.data.saturating_add(size);
        match places(file, end, &numbers, front.len) {
            Ok(places) if !places.is_empty() && places.iter().all(|(_, at, _)| *at >= end) => {
                (front.end, front.ended) = (end, Some(places));
            }
            Err(error @ Error::Input { .. }) => return Err(error),
            _ => {}
        }
        front.parse()?;
        Ok(front)
    }

    /// Reads the part before the records. Also returns the size of the data section and the numbers of the features, as the header has
    /// them.
    fn begin(file: &mut (impl Read + Seek)) -> Result<(Self, u64, Vec<u8>)> {
        let len = file
            .seek(SeekFrom::End(0))
            .map_err(|reason| read_error(0, reason))?;
        let header = read_at(file, 0, HEADER_LEN.min(len))?;
        if len < HEADER_LEN {
            // The parser gives the right error: no perf.data file, or too short to be one.
            File::parse(&header)?;
            return Err(Error::Short {
                field: "header",
                offset: 0,
                need: HEADER_LEN,
                have: len,
            });
        }
        let data = word(&header, DATA_AT);
        let size = word(&header, DATA_AT + 8);
        let numbers = numbers(header.get(72..).unwrap_or_default()).collect();
        let attrs = word(&header, ATTRS_AT).saturating_add(word(&header, ATTRS_AT + 8));
        let mut bytes = header;
        let mut front = data.max(attrs).max(HEADER_LEN).min(len);
        // A part that is too long is not read, so the parser refuses it as missing.
        while front <= FRONT && front > to_u64(bytes.len()) {
            bytes = read_at(file, 0, front)?;
            front = front.max(ids_end(&bytes)).min(len);
        }
        let front = Self {
            bytes,
            len,
            data,
            end: len,
            ended: None,
        };
        Ok((front, size, numbers))
    }

    /// The file without its records.
    pub fn parse(&self) -> Result<File<'_>> {
        File::front(&self.bytes)
    }
}

/// Where the last section of ids ends. The attributes can place these sections anywhere in the file.
fn ids_end(bytes: &[u8]) -> u64 {
    let [entry, at, size] = [ATTR_SIZE_AT, ATTRS_AT, ATTRS_AT + 8]
        .map(|at| usize::try_from(word(bytes, at)).unwrap_or(usize::MAX));
    let entry = entry.max(16);
    let table = bytes.get(at..at.saturating_add(size)).unwrap_or_default();
    let ends = table
        .chunks_exact(entry)
        .map(|attr| word(attr, entry - 16).saturating_add(word(attr, entry - 8)));
    ends.max().unwrap_or(0)
}

/// Where a section ends. [`None`] if it is not within the first `len` bytes.
fn inside(at: u64, size: u64, len: u64) -> Option<u64> {
    at.checked_add(size).filter(|end| *end <= len)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

fn read_at(file: &mut (impl Read + Seek), at: u64, len: u64) -> Result<Vec<u8>> {
    let mut out = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    file.seek(SeekFrom::Start(at))
        .and_then(|_| file.read_exact(&mut out))
        .map_err(|reason| read_error(at, reason))?;
    Ok(out)
}

/// Reads the places of the features `numbers` from the table at file offset `table`. `len` is the length of the file.
fn places(
    file: &mut (impl Read + Seek),
    table: u64,
    numbers: &[u8],
    len: u64,
) -> Result<Vec<Place>> {
    let max = to_u64(numbers.len() * 16 + NOTES_ENTRY);
    let entries = read_at(file, table, len.saturating_sub(table).min(max))?;
    let mut c = Cursor::new(&entries, table);
    let mut places: Vec<Place> = Vec::new();
    for &number in numbers {
        places.push(place(number, &mut c, len)?);
    }
    let has_bit = numbers.contains(&Feature::NOTES.0);
    let others = places.iter().map(|&(_, at, size)| (at, size));
    if !numbers.is_empty() && !has_bit && notes_follow(&mut c, others) {
        places.push(place(Feature::NOTES.0, &mut c, len)?);
    }
    Ok(places)
}

fn place(number: u8, c: &mut Cursor<'_>, len: u64) -> Result<Place> {
    let entry = c.offset();
    let at = c.u64("feature section.offset")?;
    let size = c.u64("feature section.size")?;
    inside(at, size, len).ok_or(Error::Invalid {
        field: "feature section",
        offset: entry,
        value: at,
        why: "the section is not within the file",
    })?;
    Ok((number, at, size))
}

/// Reads a file from its beginning to its end.
#[derive(Debug)]
pub struct Stream<R: Read + Seek> {
    input: BufReader<R>,
    front: Front,
    events: Events,
    /// File offset of the next record, or of the unread rest of a payload.
    at: u64,
    /// The last record with its header; then the decoded header, and the file offset.
    record: Vec<u8>,
    head: Head,
    offset: u64,
    owed: u64,
    /// The last feature section that was read.
    section: Vec<u8>,
}

impl<R: Read + Seek> Stream<R> {
    /// Reads the part before the records. The records end where the header says, or at the end of the file if the header does not have
    /// their size.
    ///
    /// # Errors
    /// As [`File::parse`], or if the file cannot be read.
    pub fn open(mut file: R) -> Result<Self> {
        let front = Front::read(&mut file)?;
        Self::of(file, front)
    }

    /// As [`open`](Self::open), for a file that may be cut off, or whose recorder was killed. If its features are missing, its records
    /// extend to the end of the file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn found(mut file: R) -> Result<Self> {
        let front = Front::found(&mut file)?;
        Self::of(file, front)
    }

    pub(crate) fn of(file: R, front: Front) -> Result<Self> {
        let at = front.data;
        let events = front.parse()?.into_events();
        let mut input = BufReader::with_capacity(BUFFER, file);
        input
            .seek(SeekFrom::Start(at))
            .map_err(|reason| read_error(at, reason))?;
        Ok(Self {
            input,
            front,
            events,
            at,
            record: vec![0; Head::LEN],
            head: Head {
                kind: RecordType(0),
                misc: 0,
                body: 0,
            },
            offset: at,
            owed: 0,
            section: Vec::new(),
        })
    }

    /// The file without its records and features: it has the events and the spare features.
    ///
    /// # Errors
    /// If the part before the records is invalid, which [`open`](Self::open) has already checked.
    pub fn front(&self) -> Result<File<'_>> {
        self.front.parse()
    }

    /// See [`File::events`].
    #[must_use]
    pub fn events(&self) -> &[(Attr, Vec<u64>)] {
        &self.events.list
    }

    /// See [`File::event_with`].
    #[must_use]
    pub fn event_with(&self, id: u64) -> Option<usize> {
        self.events.with(id)
    }

    /// Where the data section begins.
    #[must_use]
    pub fn data(&self) -> u64 {
        self.front.data
    }

    /// File offset of the next read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Whether the recorder has finished the file.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.front.ended.is_some()
    }

    /// The features of a finished file, without the index of the AUXTRACE records. Does not change the position.
    ///
    /// # Errors
    /// If they cannot be read, or are too long.
    pub fn features(&mut self) -> Result<Features> {
        let mut out = Features::new();
        // Overlapping sections could give a short file any number of bytes: limit the sum.
        let mut left = self.front.len.min(FRONT);
        for (number, at, size) in self.front.ended.clone().unwrap_or_default() {
            if Feature(number) == Feature::AUXTRACE {
                continue;
            }
            left = left.checked_sub(size).ok_or(Error::Invalid {
                field: "feature section.size",
                offset: at,
                value: size,
                why: "all sections together are longer than the file, or than 64 MiB",
            })?;
            out.raw(Feature(number), self.read_at(at, size)?);
        }
        Ok(out)
    }

    /// One feature of a finished file. Does not change the position.
    ///
    /// # Errors
    /// If it cannot be read, or is too long.
    pub fn feature(&mut self, feature: Feature) -> Result<Option<Section<'_>>> {
        let Some((offset, size)) = self.place(feature) else {
            return Ok(None);
        };
        if size > FRONT {
            return Err(Error::Invalid {
                field: "feature section.size",
                offset,
                value: size,
                why: "it is longer than 64 MiB",
            });
        }
        self.section = self.read_at(offset, size)?;
        Ok(Some(Section {
            feature,
            offset,
            bytes: &self.section,
        }))
    }

    /// Calls `each` with the entries of the index of the AUXTRACE records, in order: see [`Section::index`]. Does not change the position.
    ///
    /// # Errors
    /// If it cannot be read, or its count is too large.
    pub fn index(&mut self, mut each: impl FnMut(IndexEntry)) -> Result<()> {
        let Some((offset, size)) = self.place(Feature::AUXTRACE) else {
            return Ok(());
        };
        let count = self.read_at(offset, size.min(8))?;
        let count = Cursor::new(&count, offset).u64("AUXTRACE index.nr")?;
        if count > (size - 8) / 16 {
            return Err(Error::Invalid {
                field: "AUXTRACE index.nr",
                offset,
                value: count,
                why: "more than the section has space for",
            });
        }
        for first in (0..count).step_by(usize::try_from(ENTRIES).unwrap_or(1)) {
            let some = ENTRIES.min(count - first);
            let entries = self.read_at(offset + 8 + first * 16, some * 16)?;
            for entry in entries.chunks_exact(16) {
                each(IndexEntry {
                    offset: word(entry, 0),
                    size: word(entry, 8),
                });
            }
        }
        Ok(())
    }

    /// File offset and length of a feature section.
    fn place(&self, feature: Feature) -> Option<(u64, u64)> {
        let mut places = self.front.ended.iter().flatten();
        places.find_map(|&(number, at, size)| (number == feature.0).then_some((at, size)))
    }

    /// Reads bytes from anywhere in the file, then seeks back.
    fn read_at(&mut self, at: u64, len: u64) -> Result<Vec<u8>> {
        let bytes = read_at(&mut self.input, at, len)?;
        self.input
            .seek(SeekFrom::Start(self.at))
            .map_err(|reason| read_error(self.at, reason))?;
        Ok(bytes)
    }

    /// Reads the next record; [`None`] at the end. Skips the unread rest of the payload before it. The record does not include its payload,
    /// which [`payload`](Self::payload) reads.
    ///
    /// # Errors
    /// If there is no valid record, if the record or its payload is incomplete, or if the file cannot be read.
    pub fn record(&mut self) -> Result<Option<Record<'_>>> {
        if !self.step()? {
            return Ok(None);
        }
        self.is_whole()?;
        Ok(Some(self.last()))
    }

    /// Reads the next record, if there is one. Its payload may be incomplete. After an error the position is that of the record.
    pub(crate) fn step(&mut self) -> Result<bool> {
        self.go_to(self.at.saturating_add(self.owed))?;
        let offset = self.at;
        let read = self.next_record(offset);
        if read.is_err() {
            self.at = offset;
            self.input
                .seek(SeekFrom::Start(offset))
                .map_err(|reason| read_error(offset, reason))?;
        }
        read
    }

    fn next_record(&mut self, offset: u64) -> Result<bool> {
        let left = self.left();
        if left == 0 {
            return Ok(false);
        }
        let short = |field, offset, need, have| Error::Short {
            field,
            offset,
            need,
            have,
        };
        let header = to_u64(Head::LEN);
        if left < header {
            return Err(short("record header", offset, header, left));
        }
        let mut bytes = [0; Head::LEN];
        self.input
            .read_exact(&mut bytes)
            .map_err(|reason| read_error(offset, reason))?;
        let head = Head::decode(bytes, offset)?;
        let (need, have) = (to_u64(head.body), left - header);
        if need > have {
            return Err(short("record", offset + header, need, have));
        }
        self.record.clear();
        self.record.extend(bytes);
        self.record.resize(Head::LEN + head.body, 0);
        let body = &mut self.record[Head::LEN..];
        self.input
            .read_exact(body)
            .map_err(|reason| read_error(offset, reason))?;
        self.at += header + need;
        (self.head, self.offset) = (head, offset);
        if head.kind == RecordType::AUXTRACE {
            self.owed = Auxtrace::decode(&mut Cursor::new(body, offset + header))?.size;
        }
        Ok(true)
    }

    /// The record that was read last.
    #[must_use]
    pub fn last(&self) -> Record<'_> {
        Record {
            offset: self.offset,
            kind: self.head.kind,
            misc: self.head.misc,
            body: &self.record[Head::LEN..],
            payload: &[],
        }
    }

    /// Decodes the record that was read last: see [`File::decode`].
    ///
    /// # Errors
    /// If the record is too short for its type.
    pub fn decode(&self) -> Result<(Event<'_>, Option<SampleId>)> {
        self.events.decode(&self.last())
    }

    /// The bytes of the record that was read last.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.record
    }

    /// Continues with the record at this place in the file.
    ///
    /// # Errors
    /// If there is no such place.
    pub fn go_to(&mut self, offset: u64) -> Result<()> {
        // A relative seek keeps the buffer if the place is within it.
        let way = i128::from(offset) - i128::from(self.at);
        self.input
            .seek_relative(i64::try_from(way).unwrap_or(i64::MAX))
            .map_err(|reason| read_error(self.at, reason))?;
        self.at = offset;
        self.owed = 0;
        Ok(())
    }

    /// Length of the unread rest of the last record's payload, as the record has it. The file may be shorter.
    pub(crate) fn owed(&self) -> u64 {
        self.owed
    }

    /// Number of bytes from the position to the end of the records.
    pub(crate) fn left(&self) -> u64 {
        self.front.end.saturating_sub(self.at)
    }

    fn is_whole(&self) -> Result<()> {
        if self.owed <= self.left() {
            return Ok(());
        }
        Err(Error::Short {
            field: "AUXTRACE payload",
            offset: self.at,
            need: self.owed,
            have: self.left(),
        })
    }

    /// Skips `len` bytes of the payload, or its rest if that is shorter.
    ///
    /// # Errors
    /// As [`payload`](Self::payload).
    pub fn skip(&mut self, len: u64) -> Result<()> {
        self.is_whole()?;
        let owed = self.owed;
        let len = len.min(owed);
        self.go_to(self.at + len)?;
        self.owed = owed - len;
        Ok(())
    }

    /// Reads the next part of the payload, at most as much as fits into `out`. Returns its length: 0 at the end of the payload.
    ///
    /// # Errors
    /// If the payload is incomplete, or the file cannot be read.
    pub fn payload(&mut self, out: &mut [u8]) -> Result<usize> {
        self.is_whole()?;
        let len = out
            .len()
            .min(usize::try_from(self.owed).unwrap_or(usize::MAX));
        self.input
            .read_exact(&mut out[..len])
            .map_err(|reason| read_error(self.at, reason))?;
        self.at += to_u64(len);
        self.owed -= to_u64(len);
        Ok(len)
    }
}
