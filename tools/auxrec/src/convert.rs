// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `convert`: from a file whose trace is compressed to the one that would have been written otherwise.

use std::fs;
use std::io::{Cursor, Seek, Write};
use std::path::Path;

use perfdata::{
    Auxtrace, AuxtraceZstd, Event, Feature, Features, File, Record, RecordType, Section, Writer,
};
use zstd::bulk::Decompressor;

use crate::error::{Error, Result};
use crate::output::create_new;

/// The note of a file whose trace is compressed.
pub(crate) const NOTE: &str = "compressed";

/// What was read, with the trace in it as the driver wrote it. A file that is none, or is not compressed, stays as it is.
///
/// # Errors
/// As [`convert`].
pub(crate) fn plain(bytes: Vec<u8>) -> Result<Vec<u8>> {
    let Ok(file) = File::parse(&bytes) else {
        return Ok(bytes);
    };
    let mut records = file.records().map_while(std::result::Result::ok);
    if !records.any(|record| record.kind == RecordType::AUXTRACE_ZSTD) {
        return Ok(bytes);
    }
    Ok(convert(&bytes, Cursor::new(Vec::new()))?.into_inner())
}

/// Reads a file and writes another in which nothing is compressed.
///
/// # Errors
/// As [`convert`]; or if one cannot be read or the other is there already, or cannot be written.
pub fn convert_file(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from)
        .map_err(|e| Error::failed(format!("cannot read {}: {e}", from.display())))?;
    let out = create_new(to)
        .map_err(|e| Error::failed(format!("cannot create {}: {e}", to.display())))?;
    let converted = convert(&bytes, out);
    if converted.is_err() {
        // What is there of it is no recording.
        let _ = fs::remove_file(to);
    }
    converted.map(|_| ())
}

/// Writes the file `bytes` to `out` as it would be had its trace not been compressed: the same front, the same records, AUXTRACE
/// records with their payload in the place of the parts, an index of these, and the same features. A file that is not compressed
/// comes out as it is, and one that was not ended, not ended.
///
/// No more memory is taken than a part of [`AuxtraceZstd::MAX`] bytes, whatever the file says.
///
/// # Errors
/// If `bytes` are no perf.data file, or a part is damaged, or the output fails.
pub fn convert<W: Write + Seek>(bytes: &[u8], out: W) -> Result<W> {
    let file = File::parse(bytes)?;
    let mut out = Writer::with_spare(out, file.events(), &features(file.spare()))?;
    let mut unpack = Unpack::new()?;
    let mut piece: Vec<(u64, AuxtraceZstd<'_>)> = Vec::new();
    for record in file.records() {
        let record = match record {
            Ok(record) => record,
            // The last one was cut off with the file.
            Err(_) if !file.is_finished() => break,
            Err(e) => return Err(e.into()),
        };
        let (event, _) = file.decode(&record)?;
        if let Event::AuxtraceZstd(part) = event {
            let follows = |(_, last): &(u64, AuxtraceZstd<'_>)| {
                last.aux == part.aux && last.at + u64::from(last.len) == part.at
            };
            if part.at == 0 {
                unpack.write(&mut piece, &mut out)?;
            } else if !piece.last().is_some_and(follows) {
                return Err(damaged(record.offset, "does not follow the one before it"));
            }
            piece.push((record.offset, part));
            continue;
        }
        unpack.write(&mut piece, &mut out)?;
        if let Event::Auxtrace(aux, payload) = event {
            out.auxtrace(&aux)?;
            out.payload(payload)?;
        } else {
            out.raw(whole(bytes, &record))?;
        }
    }
    unpack.write(&mut piece, &mut out)?;
    if file.is_finished() {
        Ok(out.finish(&features(file.features()))?)
    } else {
        out.checkpoint()?;
        Ok(out.into_inner())
    }
}

fn damaged(offset: u64, why: &str) -> Error {
    Error::failed(format!(
        "the compressed trace at file offset {offset:#x} is damaged: it {why}"
    ))
}

/// A record with its header, as it stands in the file.
fn whole<'a>(bytes: &'a [u8], record: &Record<'_>) -> &'a [u8] {
    let start = usize::try_from(record.offset).unwrap_or(usize::MAX);
    let rest = bytes.get(start..).unwrap_or_default();
    rest.get(..8 + record.body.len()).unwrap_or_default()
}

/// The same sections, without what says that the trace is compressed; the index is made anew.
fn features(sections: &[Section<'_>]) -> Features {
    let mut out = Features::new();
    for section in sections {
        let notes = match section.feature {
            Feature::AUXTRACE => continue,
            Feature::NOTES => section.notes().ok(),
            _ => None,
        };
        match notes {
            Some(mut notes) => {
                notes.retain(|(key, _)| key != NOTE);
                out.notes(&notes);
            }
            None => {
                out.raw(section.feature, section.bytes.to_vec());
            }
        }
    }
    out
}

/// Undoes what [`Pack`](crate::pack::Pack) does.
struct Unpack {
    zstd: Decompressor<'static>,
    plain: Vec<u8>,
}

impl Unpack {
    fn new() -> Result<Self> {
        let zstd = Decompressor::new();
        Ok(Self {
            zstd: zstd.map_err(|e| Error::failed(format!("cannot decompress: {e}")))?,
            plain: Vec::new(),
        })
    }

    /// Writes the piece of which these are the parts, as far as they are there: a recorder that was killed may not have come to its end.
    fn write<W: Write + Seek>(
        &mut self,
        parts: &mut Vec<(u64, AuxtraceZstd<'_>)>,
        out: &mut Writer<W>,
    ) -> Result<()> {
        let Some((_, last)) = parts.last() else {
            return Ok(());
        };
        out.auxtrace(&Auxtrace {
            size: last.at + u64::from(last.len),
            ..last.aux
        })?;
        for (offset, part) in parts.drain(..) {
            // What the part may have, and one byte by which a longer one shows.
            let len = usize::try_from(part.len).unwrap_or(0);
            self.plain.resize(len + 1, 0);
            match self
                .zstd
                .decompress_to_buffer(part.frame, &mut self.plain[..])
            {
                Ok(n) if n == len => out.payload(&self.plain[..len])?,
                Ok(n) => {
                    let why = format!("says that it has {len} bytes, and has {n}");
                    return Err(damaged(offset, &why));
                }
                Err(e) => return Err(damaged(offset, &format!("cannot be decompressed ({e})"))),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use perfdata::{recover, Attr, Comm, Flags, SampleId, SampleType};
    use proptest::prelude::*;

    use super::*;
    use crate::pack::Pack;
    use crate::trace::Trace;

    /// A recording of pieces of these lengths, compressed or not.
    fn recording(pieces: &[u64], level: Option<i32>, finish: bool) -> Vec<u8> {
        let attr = Attr {
            flags: Flags::SAMPLE_ID_ALL,
            sample_type: SampleType::IDENTIFIER,
            ..Attr::default()
        };
        let who = SampleId {
            id: Some(9),
            ..SampleId::default()
        };
        let mut features = Features::new();
        let mut notes = vec![("mode".to_owned(), "linear".to_owned())];
        if level.is_some() {
            notes.push((NOTE.to_owned(), "zstd".to_owned()));
        }
        features.string(Feature::HOSTNAME, "here").notes(&notes);
        let events = [(attr.clone(), vec![9])];
        let mut file = Writer::with_spare(Cursor::new(Vec::new()), &events, &features).unwrap();
        let mut pack = level.map(|level| Pack::new(level).unwrap());
        let mut offset = 0;
        for (n, &size) in pieces.iter().enumerate() {
            let comm = Comm {
                pid: 1,
                tid: u32::try_from(n).unwrap(),
                exec: false,
                comm: b"x",
            };
            file.record(&comm, Some((&who, &attr))).unwrap();
            let aux = Auxtrace {
                size,
                offset,
                reference: offset,
                idx: 0,
                tid: 1,
                cpu: 2,
            };
            // Noise, and what compresses a thousandfold.
            let noisy = n % 2 == 0;
            let bytes: Vec<u8> = (offset..offset + size)
                .map(|at| {
                    if noisy {
                        at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7]
                    } else {
                        0
                    }
                })
                .collect();
            match &mut pack {
                Some(pack) => {
                    pack.piece(&aux);
                    // In whatever portions they come.
                    for bytes in bytes.chunks(100_003) {
                        pack.payload(bytes, &mut file).unwrap();
                    }
                }
                None => {
                    file.auxtrace(&aux).unwrap();
                    file.payload(&bytes).unwrap();
                }
            }
            offset += size;
        }
        if finish {
            return file.finish(&features).unwrap().into_inner();
        }
        file.checkpoint().unwrap();
        file.into_inner().into_inner()
    }

    fn back(bytes: &[u8]) -> Result<Vec<u8>> {
        convert(bytes, Cursor::new(Vec::new())).map(Cursor::into_inner)
    }

    #[test]
    fn what_is_not_compressed_stays_as_it_is() {
        let plain = recording(&[64, 200_000], None, true);
        assert_eq!(back(&plain).unwrap(), plain);
        assert_eq!(super::plain(plain.clone()).unwrap(), plain);
        assert_eq!(
            super::plain(b"something else".to_vec()).unwrap(),
            b"something else"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn compressed_and_back_is_what_it_was(words in prop::collection::vec(1_u64..20_000, 0..6), level in 1..4, finish: bool) {
            let pieces: Vec<u64> = words.iter().map(|words| words * 8).collect();
            let plain = recording(&pieces, None, finish);
            let packed = recording(&pieces, Some(level), finish);
            prop_assert!(back(&packed).unwrap() == plain);
            if !pieces.is_empty() {
                prop_assert!(super::plain(packed).unwrap() == plain);
            }
        }
    }

    /// A part has as much as its record says it has room for, however well it was compressed.
    #[test]
    fn a_file_says_how_much_memory_it_takes() {
        let packed = recording(&[64, 1 << 20], Some(19), true);
        let plain = recording(&[64, 1 << 20], None, true);
        assert!(packed.len() * 12 < plain.len(), "{}", packed.len());
        assert!(packed.len() * 16 > plain.len(), "{}", packed.len());
    }

    /// Cut anywhere and recovered it holds what came before, but for the part that was cut.
    #[test]
    fn of_a_file_that_was_cut_all_but_the_last_part_is_there() {
        let packed = recording(&[61_440 * 2 + 8, 4096, 70_000], Some(1), false);
        let begin = File::parse(&packed).unwrap().data_section().0;
        let plain = back(&packed).unwrap();
        let trace = |bytes: &[u8]| {
            let trace = Trace::read(bytes).unwrap();
            let ring = trace.rings.get(&0);
            let pieces = ring.map_or(&[][..], |ring| &ring.pieces).iter();
            pieces
                .flat_map(|piece| piece.bytes)
                .copied()
                .collect::<Vec<u8>>()
        };
        let all = trace(&plain);
        let mut most = 0;
        for len in (usize::try_from(begin).unwrap()..packed.len()).step_by(997) {
            let mut cut = Cursor::new(packed[..len].to_vec());
            let cut_to = |file: &mut Cursor<Vec<u8>>, len: u64| {
                file.get_mut().truncate(usize::try_from(len).unwrap());
                Ok(())
            };
            if recover(&mut cut, |_, _| {}, cut_to).is_err() {
                continue;
            }
            let got = trace(&back(cut.get_ref()).unwrap());
            assert!(all.starts_with(&got), "cut at {len}");
            assert!(got.len() >= most);
            most = got.len();
        }
        assert!(all.len() - most <= 61_440, "{most} of {}", all.len());
    }

    #[test]
    fn what_is_damaged_is_named() {
        let good = recording(&[70_000], Some(1), true);
        let at = |bytes: &[u8], number: usize| -> usize {
            let file = File::parse(bytes).unwrap();
            let records = file.records().map(std::result::Result::unwrap);
            let part = |record: &Record<'_>| record.kind == RecordType::AUXTRACE_ZSTD;
            let offset = records.filter(part).nth(number).unwrap().offset;
            usize::try_from(offset).unwrap()
        };
        for (part, place, with, says) in [
            // The number of a frame, and its content.
            (0, 64, 0, "cannot be decompressed"),
            (1, 64 + 40, 0xff, "is damaged"),
            // Its place in the piece: then it follows nothing.
            (1, 49, 0xe0, "does not follow the one before it"),
            // Its length.
            (1, 57, 8, "cannot be decompressed"),
            (0, 59, 1, "AUXTRACE_ZSTD.len"),
            (1, 55, 0x7f, "AUXTRACE_ZSTD.at"),
            (1, 63, 1, "AUXTRACE_ZSTD frame"),
        ] {
            let mut bad = good.clone();
            let place = at(&good, part) + place;
            bad[place] = with;
            let text = back(&bad).map_or_else(|e| e.to_string(), |_| "no error".to_owned());
            assert!(text.contains(says), "{says}: {text}");
        }
    }
}
