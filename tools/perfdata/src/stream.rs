// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reading a file from its beginning to its end, with no more memory than what stands around its records, and one record, take.

use std::io::{self, BufReader, Read, Seek, SeekFrom};

use crate::bytes::{to_u64, Cursor};
use crate::feature::{Feature, Features};
use crate::record::{Auxtrace, Record, RecordType};
use crate::{Error, File, Result, HEADER_LEN};

/// What stands before the data section is at most this long: ids and attributes of thousands of events.
const FRONT: u64 = 64 << 20;
/// Where the header says where the data section begins.
const DATA_AT: usize = 40;
/// So much is read at once.
const BUFFER: usize = 1 << 20;

pub(crate) fn read_error(offset: u64, reason: io::Error) -> Error {
    Error::Input { offset, reason }
}

/// What stands before the records of a file, and what its header says of the rest.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    /// As if there were no records and no features.
    bytes: Vec<u8>,
    /// Length of the file.
    pub len: u64,
    /// Where the data section begins.
    pub data: u64,
    /// If the file was ended: where its records end, and number, place and length of each feature.
    pub ended: Option<(u64, Vec<Place>)>,
}

/// Number, place and length of a feature section.
type Place = (u8, u64, u64);

impl Front {
    /// Reads it.
    pub fn read(file: &mut (impl Read + Seek)) -> Result<Self> {
        let len = file
            .seek(SeekFrom::End(0))
            .map_err(|reason| read_error(0, reason))?;
        let header = read_at(file, 0, HEADER_LEN.min(len))?;
        if len < HEADER_LEN {
            // The sentence of the reader: no perf.data file, or too short to be one.
            File::parse(&header)?;
            return Err(Error::Short {
                field: "header",
                offset: 0,
                need: HEADER_LEN,
                have: len,
            });
        }
        let data = word(&header, DATA_AT);
        let mut bytes = header;
        if (HEADER_LEN..=FRONT).contains(&data) {
            if data > len {
                return Err(Error::Short {
                    field: "what stands before the records",
                    offset: 0,
                    need: data,
                    have: len,
                });
            }
            bytes = read_at(file, 0, data)?;
        }
        let ended = places(&bytes, file, len)?;
        bytes[48..56].fill(0);
        bytes[72..104].fill(0);
        let front = Self {
            bytes,
            len,
            data,
            ended,
        };
        front.parse()?;
        Ok(front)
    }

    /// The file without its records.
    pub fn parse(&self) -> Result<File<'_>> {
        File::parse(&self.bytes)
    }
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

/// If the file was ended, so that its features are within it and can be read: where they begin, and where each is.
fn places(
    front: &[u8],
    file: &mut (impl Read + Seek),
    len: u64,
) -> Result<Option<(u64, Vec<Place>)>> {
    let bits = &front[72..104];
    let numbers: Vec<u8> = (0..=u8::MAX)
        .filter(|number| bits[usize::from(number / 8)] & 1 << (number % 8) != 0)
        .collect();
    let table = word(front, DATA_AT).saturating_add(word(front, 48));
    let size = to_u64(numbers.len()) * 16;
    if numbers.is_empty() || table.saturating_add(size) > len {
        return Ok(None);
    }
    let entries = read_at(file, table, size)?;
    let places: Vec<Place> = numbers
        .into_iter()
        .zip(entries.chunks_exact(16))
        .map(|(number, entry)| (number, word(entry, 0), word(entry, 8)))
        .collect();
    let inside =
        |&(_, at, size): &Place| at >= table && at.checked_add(size).is_some_and(|end| end <= len);
    Ok(places.iter().all(inside).then_some((table, places)))
}

/// A file that is read from its beginning to its end.
#[derive(Debug)]
pub struct Stream<R: Read + Seek> {
    input: BufReader<R>,
    front: Front,
    /// The place of the record that comes next, or of what is left of a payload.
    at: u64,
    end: u64,
    record: Vec<u8>,
    owed: u64,
}

impl<R: Read + Seek> Stream<R> {
    /// Reads what stands before the records. Those of a file that was not ended go to the end of the file.
    ///
    /// # Errors
    /// If this is no perf.data file, or what stands before the records is not whole, or it cannot be read.
    pub fn open(mut file: R) -> Result<Self> {
        let front = Front::read(&mut file)?;
        Self::records_of(file, front)
    }

    pub(crate) fn records_of(file: R, front: Front) -> Result<Self> {
        let (at, end) = (
            front.data,
            front.ended.as_ref().map_or(front.len, |(end, _)| *end),
        );
        let mut input = BufReader::with_capacity(BUFFER, file);
        input
            .seek(SeekFrom::Start(at))
            .map_err(|reason| read_error(at, reason))?;
        Ok(Self {
            input,
            front,
            at,
            end,
            record: Vec::new(),
            owed: 0,
        })
    }

    /// The file without its records and features: its events, and the features that its recorder left at the beginning.
    ///
    /// # Errors
    /// If that cannot be read, which [`open`](Self::open) has seen before.
    pub fn front(&self) -> Result<File<'_>> {
        self.front.parse()
    }

    /// Where the data section begins.
    #[must_use]
    pub fn data(&self) -> u64 {
        self.front.data
    }

    /// The place in the file of what is read next.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Whether the file was ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.front.ended.is_some()
    }

    /// The features, but for the index of trace, of a file that was ended; the records may be gone on with after it.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn features(&mut self) -> Result<Features> {
        let mut out = Features::new();
        // Sections that overlap would make of a short file any number of bytes.
        let mut room = self.front.len;
        let places = self.front.ended.iter().flat_map(|(_, places)| places);
        for &(number, at, size) in places {
            if Feature(number) == Feature::AUXTRACE {
                continue;
            }
            room = room.checked_sub(size).ok_or(Error::Invalid {
                field: "feature section.size",
                offset: at,
                value: size,
                why: "all sections together are longer than the file",
            })?;
            out.raw(Feature(number), read_at(&mut self.input, at, size)?);
        }
        let at = self.at;
        self.input
            .seek(SeekFrom::Start(at))
            .map_err(|reason| read_error(at, reason))?;
        Ok(out)
    }

    /// The next record; [`None`] at the end. What is left of the payload of the one before is left out, and a payload is to be
    /// read by [`payload`](Self::payload): it is not in the record.
    ///
    /// # Errors
    /// If this is no record, or it is not whole, or the file cannot be read.
    pub fn record(&mut self) -> Result<Option<Record<'_>>> {
        let owed = i64::try_from(self.owed).unwrap_or(i64::MAX);
        self.input
            .seek_relative(owed)
            .map_err(|reason| read_error(self.at, reason))?;
        self.at += std::mem::take(&mut self.owed);
        let offset = self.at;
        let left = self.end.saturating_sub(offset);
        if left == 0 {
            return Ok(None);
        }
        let short = |field, need| Error::Short {
            field,
            offset,
            need,
            have: left,
        };
        if left < 8 {
            return Err(short("record header", 8));
        }
        let mut header = [0; 8];
        self.input
            .read_exact(&mut header)
            .map_err(|reason| read_error(offset, reason))?;
        let [a, b, c, d, e, f, g, h] = header;
        let kind = RecordType(u32::from_le_bytes([a, b, c, d]));
        let size = u16::from_le_bytes([g, h]);
        if size < 8 || !kind.is_aligned(size) {
            return Err(Error::Invalid {
                field: "record header.size",
                offset: offset + 6,
                value: size.into(),
                why: "no length of a record",
            });
        }
        if u64::from(size) > left {
            return Err(short("record", size.into()));
        }
        self.record.clear();
        self.record.extend(header);
        self.record.resize(size.into(), 0);
        let body = &mut self.record[8..];
        self.input
            .read_exact(body)
            .map_err(|reason| read_error(offset, reason))?;
        self.at += u64::from(size);
        if kind == RecordType::AUXTRACE {
            self.owed = Auxtrace::decode(&mut Cursor::new(body, offset + 8))?.size;
        }
        Ok(Some(Record {
            offset,
            kind,
            misc: u16::from_le_bytes([e, f]),
            body: &self.record[8..],
            payload: &[],
        }))
    }

    /// The bytes of the record that was read last.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.record
    }

    /// How long what was not read of the last record's payload should be.
    pub(crate) fn owed(&self) -> u64 {
        self.owed
    }

    /// How much there is before the records end.
    pub(crate) fn left(&self) -> u64 {
        self.end.saturating_sub(self.at)
    }

    /// Some more of the payload, as much as `out` has room for; nothing when that was all.
    ///
    /// # Errors
    /// If it ends before it should, or the file cannot be read.
    pub fn payload(&mut self, out: &mut [u8]) -> Result<usize> {
        let len = out
            .len()
            .min(usize::try_from(self.owed).unwrap_or(usize::MAX));
        if self.owed > self.left() {
            return Err(Error::Short {
                field: "AUXTRACE payload",
                offset: self.at,
                need: self.owed,
                have: self.left(),
            });
        }
        self.input
            .read_exact(&mut out[..len])
            .map_err(|reason| read_error(self.at, reason))?;
        self.at += to_u64(len);
        self.owed -= to_u64(len);
        Ok(len)
    }
}
