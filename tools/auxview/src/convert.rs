// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `convert`: decompresses the trace of a file.

use std::fs;
use std::io::{Seek, Write};
use std::path::Path;

use perfdata::{OpenSpillFile, Writer};

use crate::error::{Error, Result};
use crate::file::{create_new, spill_file};
use crate::source::{self, Source};
use crate::unpack::{begin, plain, Next, Plain};

/// Reads a file and writes another in which nothing is compressed.
///
/// # Errors
/// As [`convert`]; or if `from` cannot be read, or `to` exists already or cannot be written.
pub fn convert_file(from: &Path, to: &Path) -> Result<()> {
    let file = source::open(from)?;
    let out = create_new(to)
        .map_err(|e| Error::failed(format!("cannot create {}: {e}", to.display())))?;
    let converted = convert(&file, out, Some(spill_file(to)));
    if converted.is_err() {
        // An incomplete output is no recording.
        let _ = fs::remove_file(to);
    }
    converted.map(|_| ())
}

/// Writes a file to `out` as if its trace had not been compressed. The front, the other records and the features stay the same, except
/// that the note of the compression is removed. AUXTRACE records with their payload, and an index of these, replace the compressed parts.
/// A file that is not compressed is copied as it is. An unfinished file stays unfinished.
///
/// Needs only the memory of one part, for a file of any length, if a long index can go to `spill_file`.
///
/// # Errors
/// If this is no perf.data file, or a part is damaged, or it cannot be read, or the output fails.
pub fn convert<S: Source + ?Sized, W: Write + Seek>(
    file: &S,
    out: W,
    spill_file: Option<OpenSpillFile>,
) -> Result<W> {
    let mut file = Plain::open(file)?;
    let mut out: Writer<W> = begin(&file.stream, out)?;
    if let Some(make) = spill_file {
        out.spill_index_to(make);
    }
    let finished = file.stream.is_finished();
    loop {
        match file.next() {
            Ok(None) => break,
            Ok(Some(Next::Record)) => {
                file.stream.decode()?;
                out.raw(file.stream.bytes())?;
            }
            Ok(Some(Next::Piece(aux, place))) => {
                out.auxtrace(&aux)?;
                file.bytes(place, |bytes| Ok(out.payload(bytes)?))?;
            }
            // The file was cut off inside the last record.
            Err(Error::File(e)) if !finished && !matches!(e, perfdata::Error::Input { .. }) => {
                break
            }
            Err(e) => return Err(e),
        }
    }
    if finished {
        Ok(out.finish(&plain(file.stream.features()?))?)
    } else {
        out.checkpoint()?;
        Ok(out.into_inner())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Cursor;

    use perfdata::{
        recover, Attr, Auxtrace, Comm, Feature, Features, File, Flags, Record, RecordType,
        SampleId, SampleType,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::pack::Pack;
    use crate::pieces::Pieces;
    use crate::trace::Trace;
    use crate::unpack::NOTE;

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
            // Noise, or zeros, which compress very well.
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
                    // The bytes may come in any portions.
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
        convert(bytes, Cursor::new(Vec::new()), None).map(Cursor::into_inner)
    }

    /// The output of the commands for a file, and the bytes of its pieces.
    fn shown(bytes: &[u8]) -> (String, Vec<u8>) {
        let mut text = Vec::new();
        crate::dump::dump(bytes, &mut text).unwrap();
        crate::report::report(bytes, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let found = crate::check::check(bytes).unwrap();
        (format!("{text}{found}"), trace(bytes))
    }

    fn trace(bytes: &[u8]) -> Vec<u8> {
        let trace = Trace::read(bytes).unwrap();
        let mut read = Pieces::of(std::slice::from_ref(&bytes));
        let pieces = trace.rings.values().flat_map(|ring| &ring.pieces);
        pieces
            .flat_map(|piece| read.bytes(piece).unwrap())
            .collect()
    }

    #[test]
    fn what_is_not_compressed_stays_as_it_is() {
        let plain = recording(&[64, 200_000], None, true);
        assert_eq!(back(&plain).unwrap(), plain);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn compressed_and_back_is_what_it_was(words in prop::collection::vec(1_u64..20_000, 0..6), level in 1..4, finish: bool) {
            let pieces: Vec<u64> = words.iter().map(|words| words * 8).collect();
            let plain = recording(&pieces, None, finish);
            let packed = recording(&pieces, Some(level), finish);
            prop_assert!(back(&packed).unwrap() == plain);
            prop_assert_eq!(shown(&packed), shown(&plain));
        }
    }

    /// The length of a file limits the length of its trace, however well it is compressed.
    #[test]
    fn a_file_says_how_much_memory_it_takes() {
        let packed = recording(&[64, 1 << 20], Some(19), true);
        let plain = recording(&[64, 1 << 20], None, true);
        assert!(packed.len() * 12 < plain.len(), "{}", packed.len());
        assert!(packed.len() * 16 > plain.len(), "{}", packed.len());
    }

    /// A file that is cut anywhere and recovered has all trace before the part that was cut.
    #[test]
    fn of_a_file_that_was_cut_all_but_the_last_part_is_there() {
        let packed = recording(&[61_440 * 2 + 8, 4096, 70_000], Some(1), false);
        let begin = File::parse(&packed).unwrap().data_section().0;
        let plain = back(&packed).unwrap();
        let all = trace(&plain);
        let mut max = 0;
        for len in (usize::try_from(begin).unwrap()..packed.len()).step_by(997) {
            let mut cut = Cursor::new(packed[..len].to_vec());
            let cut_to = |file: &mut Cursor<Vec<u8>>, len: u64| {
                file.get_mut().truncate(usize::try_from(len).unwrap());
                Ok(())
            };
            if recover(&mut cut, |_, _| {}, cut_to, None).is_err() {
                continue;
            }
            let got = trace(&back(cut.get_ref()).unwrap());
            assert!(trace(cut.get_ref()) == got, "cut at {len}");
            assert!(all.starts_with(&got), "cut at {len}");
            assert!(got.len() >= max);
            max = got.len();
        }
        assert!(all.len() - max <= 61_440, "{max} of {}", all.len());
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
            // The magic number of a frame, and its content.
            (0, 64, 0, "cannot be decompressed"),
            (1, 64 + 40, 0xff, "is damaged"),
            // The offset of a part in the piece, so that it does not follow the one before it.
            (1, 49, 0xe0, "does not follow the one before it"),
            // The length of a part.
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
