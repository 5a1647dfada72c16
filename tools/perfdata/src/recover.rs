// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finishing a file whose recorder could not.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::bytes::to_u64;
use crate::feature::{Feature, Features, IndexEntry};
use crate::record::{Event, RecordType};
use crate::stream::{Front, Stream};
use crate::write::{patch_at, Index, OpenSpillFile, DATA_SIZE_AT, FEATURES_AT};
use crate::{Error, Result};

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

/// Finishes a file: finds its whole records, cuts off what is behind them, and writes index, features and sizes. A record
/// counts by its header: its type need not be known, so files of other recorders can be finished, too. A piece of trace of
/// which only the front is there keeps that. The features are those that the recorder left in the file at its
/// beginning ([`Writer::with_spare`](crate::Writer::with_spare)), as `edit` changes them; `truncate` cuts the file.
/// A long index goes to `spill_file`: see [`Writer::spill_index_to`](crate::Writer::spill_index_to).
///
/// After a power cut a file can be longer than what was written to it, and end with zeros, as a file system may write its
/// length before its last blocks. So zeros at the end, from a multiple of 512 on, are cut off too.
///
/// May be run again if it was itself interrupted.
///
/// # Errors
/// If this is no perf.data file, or what stands before the records is not whole, or the file cannot be read or written.
pub fn recover<F: Read + Write + Seek>(
    file: &mut F,
    edit: impl FnOnce(&mut Features, &Recovered),
    truncate: impl FnOnce(&mut F, u64) -> io::Result<()>,
    spill_file: Option<OpenSpillFile>,
) -> Result<Recovered> {
    let mut front = Front::found(file)?;
    let (len, data) = (front.len, front.data);
    if front.ended.is_some() {
        return Ok(Recovered {
            was_finished: true,
            ..Recovered::default()
        });
    }
    front.end = written(file, data, len)?;
    let parsed = front.parse()?;
    let mut features = Features::new();
    for section in parsed.spare() {
        // The index is made of what is found, and of nothing else.
        if section.feature == Feature::AUXTRACE {
            continue;
        }
        features.raw(section.feature, section.bytes.to_vec());
    }

    let mut out = Recovered::default();
    let mut index = Index::default();
    if let Some(make) = spill_file {
        index.spill_to(make);
    }
    let good = scan(file, &front, &mut index, &mut out)?;
    let failed = |offset| move |reason| Error::Output { offset, reason };
    if let (Some(IndexEntry { offset, size }), true) = (index.last(), good.shortened) {
        let payload = good.end - (offset + size);
        patch_at(file, offset + 8, &payload.to_le_bytes(), 0).map_err(failed(offset))?;
    }
    out.dropped = len - good.end;
    truncate(file, good.end).map_err(failed(good.end))?;
    if let Some((first, last)) = out.times {
        features.sample_time(first, last);
    }
    edit(&mut features, &out);
    let (head, bits) = features.encode(good.end, index.len());
    file.seek(SeekFrom::Start(good.end))
        .and_then(|_| file.write_all(&head))
        .and_then(|()| index.section(|e| e, |bytes| file.write_all(bytes)))
        .map_err(failed(good.end))?;
    let size = (good.end - data).to_le_bytes();
    patch_at(file, DATA_SIZE_AT, &size, 0).map_err(failed(DATA_SIZE_AT))?;
    patch_at(file, FEATURES_AT, &bits, 0).map_err(failed(FEATURES_AT))?;
    Ok(out)
}

/// No file system has smaller blocks.
const BLOCK: u64 = 512;

/// Where the zeros begin that end a file, at a multiple of [`BLOCK`] behind `data`; `len` if there are none.
fn written<F: Read + Seek>(file: &mut F, data: u64, len: u64) -> Result<u64> {
    let mut end = len;
    let mut block = [0; 4096];
    while end > data {
        let start = (end - 1) / to_u64(block.len()) * to_u64(block.len());
        let some = usize::try_from(end - start).unwrap_or(0);
        let Some(part) = block.get_mut(..some) else {
            break;
        };
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.read_exact(part))
            .map_err(|reason| Error::Input {
                offset: start,
                reason,
            })?;
        end = start;
        if let Some(last) = part.iter().rposition(|byte| *byte != 0) {
            end = start + to_u64(last) + 1;
            break;
        }
    }
    Ok(end.max(data).next_multiple_of(BLOCK).min(len))
}

/// Where the whole records end.
struct Good {
    end: u64,
    /// Whether the last one is an AUXTRACE record whose payload is not all there.
    shortened: bool,
}

fn scan<F: Read + Seek>(
    file: &mut F,
    front: &Front,
    index: &mut Index,
    out: &mut Recovered,
) -> Result<Good> {
    let mut end = front.data;
    let mut shortened = false;
    let mut stream = Stream::of(file, front.clone())?;
    while !shortened {
        match stream.step() {
            Ok(true) => {}
            Err(error @ Error::Input { .. }) => return Err(error),
            _ => break,
        }
        let record = stream.last();
        if record.kind == RecordType::AUXTRACE {
            let offset = record.offset;
            let size = 8 + to_u64(record.body.len());
            let said = stream.owed();
            let payload = said.min(stream.left() & !7);
            if payload != said && payload == 0 {
                break;
            }
            shortened = payload != said;
            index.push(IndexEntry { offset, size });
            out.pieces += 1;
            out.trace += payload;
            end = offset + size + payload;
        } else {
            let time = match stream.decode() {
                Ok((Event::AuxtraceZstd(part), _)) => {
                    out.trace += u64::from(part.len);
                    None
                }
                Ok((Event::Read(_), _)) => None,
                Ok((_, id)) => id.and_then(|id| id.time),
                // Its readers would refuse the file for it.
                Err(_) if record.kind == RecordType::AUXTRACE_ZSTD => break,
                // Other recorders write records that this crate cannot decode. Their length is enough to step over them.
                Err(_) => None,
            };
            // Records that a recorder has made up have no time.
            if let Some(time) = time.filter(|time| *time != 0) {
                let (first, last) = out.times.unwrap_or((time, time));
                out.times = Some((first.min(time), last.max(time)));
            }
            end = stream.position();
        }
        out.records += 1;
    }
    Ok(Good { end, shortened })
}
