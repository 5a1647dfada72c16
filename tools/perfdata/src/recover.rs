// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finishes a file whose recorder did not.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::bytes::to_u64;
use crate::feature::{Feature, Features, IndexEntry};
use crate::record::{Event, RecordType};
use crate::stream::{Front, Stream};
use crate::write::{patch_at, Index, OpenSpillFile, DATA_SIZE_AT, FEATURES_AT};
use crate::{Error, Result};

/// What [`recover`] has found in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// The file was finished already, so it was not changed.
    pub was_finished: bool,
    /// Number of whole records.
    pub records: u64,
    /// Number of AUXTRACE records among these.
    pub pieces: u64,
    /// Bytes of trace, before compression.
    pub trace: u64,
    /// Bytes that were cut off at the end: an incomplete record, or bytes that are no record.
    pub dropped: u64,
    /// Earliest and latest time of a record.
    pub times: Option<(u64, u64)>,
}

/// Finishes a file: finds its whole records, cuts off the bytes after them, and writes index, features and sizes. The types of the records
/// need not be known: their headers are enough, so files of other recorders can be finished, too. If only the front of an AUXTRACE payload
/// is there, it is kept. The features are the spare features of the file ([`Writer::with_spare`](crate::Writer::with_spare)), which `edit`
/// can change. `truncate` cuts the file. A long index goes to `spill_file`: see [`Writer::spill_index_to`](crate::Writer::spill_index_to).
///
/// After a power cut a file can end with zeros that were never written to it: a file system may store the new length before the last
/// blocks. So zeros at the end, from a multiple of 512 on, are cut off too.
///
/// If recovery is interrupted, it can be run again.
///
/// # Errors
/// If this is no perf.data file, if the part before the records is incomplete, or if the file cannot be read or written.
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
        // The index is built only from the records that are found.
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

/// Where the zeros at the end of a file begin: at a multiple of [`BLOCK`] after `data`. `len` if there are none.
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
    /// Whether the last one is an AUXTRACE record whose payload is incomplete.
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
                // Readers would refuse a file with such a record.
                Err(_) if record.kind == RecordType::AUXTRACE_ZSTD => break,
                // Other recorders write records that this crate cannot decode. Their length is enough to step over them.
                Err(_) => None,
            };
            // Synthesised records have time 0, which is no time.
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
