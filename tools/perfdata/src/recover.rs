// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finishing a file whose recorder could not.

use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use crate::bytes::{to_u64, Cursor};
use crate::feature::{Feature, Features, IndexEntry};
use crate::record::{Auxtrace, Event, RecordType, Records};
use crate::write::{patch_at, write_features, DATA_SIZE_AT, FEATURES_AT};
use crate::{Error, File, Result, HEADER_LEN};

/// What stands before the data section is at most this long: ids and attributes of thousands of events.
const FRONT: u64 = 64 << 20;
/// Where the header says where the data section begins.
const DATA_AT: usize = 40;

/// What was found in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// The file was finished already; nothing was done.
    pub was_finished: bool,
    /// Whole records.
    pub records: u64,
    /// AUXTRACE records among them.
    pub pieces: u64,
    /// Bytes of trace in these.
    pub trace: u64,
    /// Bytes that were cut off: the beginning of a record, or what is none.
    pub dropped: u64,
    /// First and last time of a record.
    pub times: Option<(u64, u64)>,
}

fn read_error(offset: u64, reason: io::Error) -> Error {
    Error::Input { offset, reason }
}

/// Whether the file was ended: its features are within it and can be read.
fn finished(front: &[u8], file: &mut (impl Read + Seek), len: u64) -> Result<bool> {
    let bits = &front[72..104];
    let count = bits.iter().map(|b| u64::from(b.count_ones())).sum::<u64>();
    if count == 0 {
        return Ok(false);
    }
    let word = |at: usize| {
        front[at..]
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word))
    };
    let table = word(DATA_AT).saturating_add(word(48));
    if table.saturating_add(count * 16) > len {
        return Ok(false);
    }
    let mut entries = vec![0; usize::try_from(count * 16).unwrap_or(0)];
    file.seek(SeekFrom::Start(table))
        .and_then(|_| file.read_exact(&mut entries))
        .map_err(|reason| read_error(table, reason))?;
    let words: Vec<u64> = entries
        .chunks_exact(8)
        .map(|word| word.try_into().map_or(0, u64::from_le_bytes))
        .collect();
    let inside = |pair: &[u64]| match pair {
        [at, size] => *at >= table && at.checked_add(*size).is_some_and(|end| end <= len),
        _ => false,
    };
    Ok(words.chunks_exact(2).all(inside))
}

/// Finishes a file: finds its whole records, cuts off what is behind them, and writes index, features and sizes. A piece of
/// trace of which only the front is there keeps that. The features are those that the recorder left in the file at its
/// beginning ([`Writer::with_spare`](crate::Writer::with_spare)), as `edit` changes them; `truncate` cuts the file.
///
/// May be run again if it was itself interrupted.
///
/// # Errors
/// If this is no perf.data file, or what stands before the records is not whole, or the file cannot be read or written.
pub fn recover<F: Read + Write + Seek>(
    file: &mut F,
    edit: impl FnOnce(&mut Features, &Recovered),
    truncate: impl FnOnce(&mut F, u64) -> io::Result<()>,
) -> Result<Recovered> {
    let len = file
        .seek(SeekFrom::End(0))
        .map_err(|reason| read_error(0, reason))?;
    let mut header = Vec::new();
    let mut read_front = |n: u64, out: &mut Vec<u8>| {
        out.clear();
        file.seek(SeekFrom::Start(0))
            .and_then(|_| Read::by_ref(file).take(n).read_to_end(out))
            .map_err(|reason| read_error(0, reason))
    };
    read_front(HEADER_LEN, &mut header)?;
    if to_u64(header.len()) < HEADER_LEN {
        // The sentence of the reader: no perf.data file, or too short to be one.
        File::parse(&header)?;
        return Err(Error::Short {
            field: "header",
            offset: 0,
            need: HEADER_LEN,
            have: to_u64(header.len()),
        });
    }
    let data = header[DATA_AT..]
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word));
    let mut front = header;
    if (HEADER_LEN..=FRONT).contains(&data) {
        if data > len {
            return Err(Error::Short {
                field: "what stands before the records",
                offset: 0,
                need: data,
                have: len,
            });
        }
        read_front(data, &mut front)?;
    }
    let ended = finished(&front, file, len)?;
    // Parsed as if no data were there.
    front[48..56].fill(0);
    front[72..104].fill(0);
    let parsed = File::parse(&front)?;
    if ended {
        return Ok(Recovered {
            was_finished: true,
            ..Recovered::default()
        });
    }
    let mut features = Features::new();
    for section in parsed.spare() {
        // The index is made of what is found, and of nothing else.
        if section.feature == Feature::AUXTRACE {
            continue;
        }
        features.raw(section.feature, section.bytes.to_vec());
    }

    let mut out = Recovered::default();
    let mut index = Vec::new();
    let good = scan(file, &parsed, len, &mut index, &mut out)?;
    let failed = |offset| move |reason| Error::Output { offset, reason };
    if let (Some(&IndexEntry { offset, size }), true) = (index.last(), good.shortened) {
        let payload = good.end - (offset + size);
        patch_at(file, offset + 8, &payload.to_le_bytes(), 0).map_err(failed(offset))?;
    }
    out.dropped = len - good.end;
    truncate(file, good.end).map_err(failed(good.end))?;
    if let Some((first, last)) = out.times {
        features.sample_time(first, last);
    }
    if !index.is_empty() {
        features.index(&index);
    }
    edit(&mut features, &out);
    let (tail, bits) = write_features(&features, good.end);
    file.seek(SeekFrom::Start(good.end))
        .and_then(|_| file.write_all(&tail))
        .map_err(failed(good.end))?;
    let size = (good.end - data).to_le_bytes();
    patch_at(file, DATA_SIZE_AT, &size, 0).map_err(failed(DATA_SIZE_AT))?;
    patch_at(file, FEATURES_AT, &bits, 0).map_err(failed(FEATURES_AT))?;
    Ok(out)
}

/// Where the whole records end.
struct Good {
    end: u64,
    /// Whether the last one is an AUXTRACE record whose payload is not all there.
    shortened: bool,
}

fn scan<F: Read + Seek>(
    file: &mut F,
    parsed: &File<'_>,
    len: u64,
    index: &mut Vec<IndexEntry>,
    out: &mut Recovered,
) -> Result<Good> {
    let (mut at, _) = parsed.data_section();
    let mut input = BufReader::with_capacity(1 << 20, file);
    input
        .seek(SeekFrom::Start(at))
        .map_err(|reason| read_error(at, reason))?;
    let mut record = Vec::new();
    let mut shortened = false;
    while !shortened && len - at >= 8 {
        record.resize(8, 0);
        input
            .read_exact(&mut record)
            .map_err(|reason| read_error(at, reason))?;
        let [a, b, c, d, _, _, e, f] = record[..] else {
            break;
        };
        let kind = RecordType(u32::from_le_bytes([a, b, c, d]));
        let size = u16::from_le_bytes([e, f]);
        let next = at + u64::from(size);
        if size < 8 || size % 8 != 0 || next > len || kind.name().is_none() {
            break;
        }
        record.resize(size.into(), 0);
        input
            .read_exact(&mut record[8..])
            .map_err(|reason| read_error(at, reason))?;
        let mut payload = 0;
        if kind == RecordType::AUXTRACE {
            let Ok(aux) = Auxtrace::decode(&mut Cursor::new(&record[8..], at + 8)) else {
                break;
            };
            payload = aux.size.min((len - next) & !7);
            if payload != aux.size && payload == 0 {
                break;
            }
            shortened = payload != aux.size;
            index.push(IndexEntry {
                offset: at,
                size: size.into(),
            });
            out.pieces += 1;
            out.trace += payload;
            input
                .seek_relative(i64::try_from(payload).unwrap_or(i64::MAX))
                .map_err(|reason| read_error(next, reason))?;
        } else {
            let decoded = Records::new(&record, at).next().and_then(|r| {
                let decoded = parsed.decode(&r.ok()?).ok()?;
                Some(decoded)
            });
            let Some((event, id)) = decoded else { break };
            if let Event::AuxtraceZstd(part) = event {
                out.trace += u64::from(part.len);
            }
            // Records that a recorder has made up have no time.
            let time = id.and_then(|id| id.time).filter(|time| *time != 0);
            if let (Some(time), false) = (time, matches!(event, Event::Read(_))) {
                let (first, last) = out.times.unwrap_or((time, time));
                out.times = Some((first.min(time), last.max(time)));
            }
        }
        out.records += 1;
        at = next + payload;
    }
    Ok(Good { end: at, shortened })
}

/// What the spare features begin with.
const SPARE_MAGIC: [u8; 8] = *b"AUXSPARE";

/// The features that are in the file from the beginning: as bytes that stand between the attributes and the data section,
/// where nobody else looks.
pub(crate) fn spare_bytes(features: &Features) -> Vec<u8> {
    let mut out = SPARE_MAGIC.to_vec();
    out.extend(to_u64(features.iter().count()).to_le_bytes());
    for (number, bytes) in features.iter() {
        out.extend(u64::from(number).to_le_bytes());
        out.extend(to_u64(bytes.len()).to_le_bytes());
        out.extend(bytes);
    }
    out
}

/// Reads what [`spare_bytes`] wrote; nothing if it is anything else.
pub(crate) fn parse_spare(bytes: &[u8], base: u64) -> Vec<crate::Section<'_>> {
    let mut c = Cursor::new(bytes, base);
    let mut out = Vec::new();
    let mut step = || -> Result<()> {
        if c.take(8, "spare.magic")? != SPARE_MAGIC {
            return Ok(());
        }
        let count = c.u64("spare.nr")?;
        for _ in 0..count.min(256) {
            let number = c.u64("spare.feature")?;
            let size = usize::try_from(c.u64("spare.size")?).unwrap_or(usize::MAX);
            let offset = c.offset();
            let bytes = c.take(size, "spare section")?;
            if let Ok(number) = u8::try_from(number) {
                out.push(crate::Section {
                    feature: Feature(number),
                    offset,
                    bytes,
                });
            }
        }
        Ok(())
    };
    // What is not whole is not used.
    let _ = step();
    out
}
