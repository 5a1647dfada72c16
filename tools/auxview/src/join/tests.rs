// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of joining: whole, interrupted, damaged and foreign files, and a disk that is full.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use perfdata::{Auxtrace, FinishedInit};

use super::*;
use crate::recover;

const ID: &str = "1-2";

/// Writes a file of a recording whose threads have files. Its pieces of trace have these lengths, with
/// a round after each.
fn write(path: &Path, id: &str, thread: Option<usize>, pieces: &[u64], ended: Option<&str>) {
    let file = File::create(path).unwrap();
    let split = SplitFiles {
        id: id.to_owned(),
        threads: 2,
        thread,
    };
    let mut notes = split.notes();
    let mut features = Features::new();
    features.string(Feature::HOSTNAME, "here").notes(&notes);
    let mut file = Writer::with_spare(file, &[(Attr::default(), vec![1])], &features).unwrap();
    file.record(&FinishedInit, None).unwrap();
    let mut offset = 0;
    for &size in pieces {
        let idx = u32::try_from(thread.unwrap()).unwrap();
        let aux = Auxtrace {
            size,
            offset,
            idx,
            ..Auxtrace::default()
        };
        file.auxtrace(&aux).unwrap();
        for at in (offset..offset + size).step_by(8) {
            file.payload(&(at ^ u64::from(idx)).to_le_bytes()).unwrap();
        }
        offset += size;
        file.record(&FinishedRound, None).unwrap();
    }
    let Some(ended) = ended else {
        return file.checkpoint().unwrap();
    };
    notes.push(("ended", ended.to_owned()));
    let first = 10 + u64::try_from(thread.unwrap()).unwrap();
    features.notes(&notes).sample_time(first, first + 10);
    file.finish(&features).unwrap();
}

/// FILE and the files of two threads. The directory is removed when it is dropped.
fn recording(ends: [Option<&str>; 2]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    write(&path, ID, None, &[], None);
    write(&part_of(&path, 0), ID, Some(0), &[64, 4096], ends[0]);
    let long = u64::try_from(COPY).unwrap() + 8;
    write(&part_of(&path, 1), ID, Some(1), &[long, 8, 16], ends[1]);
    (directory, path)
}

/// Whether the files of the two threads exist.
fn there(path: &Path) -> [bool; 2] {
    [0, 1].map(|thread| part_of(path, thread).exists())
}

/// Offsets and lengths of the pieces of each ring. Checks every byte, and every offset in the index.
fn pieces(path: &Path) -> Vec<Vec<(u64, u64)>> {
    let bytes = fs::read(path).unwrap();
    let file = perfdata::File::parse(&bytes).unwrap();
    let mut out = vec![Vec::new(); 2];
    let mut places = Vec::new();
    for record in file.records() {
        let record = record.unwrap();
        if let Event::Auxtrace(aux, payload) = file.decode(&record).unwrap().0 {
            places.push(record.offset);
            for (at, word) in (aux.offset..).step_by(8).zip(payload.chunks(8)) {
                assert_eq!(word, (at ^ u64::from(aux.idx)).to_le_bytes());
            }
            out[usize::try_from(aux.idx).unwrap()].push((aux.offset, aux.size));
        }
    }
    let index = file.feature(Feature::AUXTRACE).unwrap().index().unwrap();
    let index: Vec<_> = index.iter().map(|entry| entry.offset).collect();
    assert_eq!(index, places);
    out
}

fn note(path: &Path, key: &str) -> Option<String> {
    let bytes = fs::read(path).unwrap();
    let file = perfdata::File::parse(&bytes).unwrap();
    find(&notes_of(file.feature(Feature::NOTES)).unwrap(), key)
}

#[test]
fn joined_round_by_round() {
    let (_directory, path) = recording([Some("whole"); 2]);
    let joined = Whole::open(&path)
        .unwrap()
        .unwrap()
        .join(false, true)
        .unwrap();
    assert_eq!((joined.parts, joined.found.pieces), (2, 5));
    assert!(joined.remarks.is_empty());
    assert_eq!(joined.len, fs::metadata(&path).unwrap().len());
    assert_eq!(there(&path), [false; 2]);
    let bytes = fs::read(&path).unwrap();
    let file = perfdata::File::parse(&bytes).unwrap();
    let kinds = file.records().map(|record| record.unwrap().kind);
    let init = RecordType::FINISHED_INIT;
    let (trace, round) = (RecordType::AUXTRACE, RecordType::FINISHED_ROUND);
    // The file of the second thread has three rounds, that of the first two.
    let want = [init, trace, trace, round, trace, trace, round, trace, round];
    assert_eq!(kinds.collect::<Vec<_>>(), want);
    let times = file.feature(Feature::SAMPLE_TIME).unwrap();
    assert_eq!(times.sample_time().unwrap(), (10, 21));
    assert_eq!(note(&path, "ended").as_deref(), Some("whole"));
    assert_eq!(note(&path, SplitFiles::THREAD), None);
    let long = u64::try_from(COPY).unwrap() + 8;
    let rings = pieces(&path);
    assert_eq!(rings[0], [(0, 64), (64, 4096)]);
    assert_eq!(rings[1], [(0, long), (long, 8), (long + 8, 16)]);
}

#[test]
fn the_worst_end_is_that_of_all() {
    for (ends, ended) in [
        ([Some("whole"), Some("cut")], "cut"),
        ([Some("recovered"), Some("cut")], "recovered"),
        ([Some("whole"), None], "recovered"),
    ] {
        let (_directory, path) = recording(ends);
        recover::in_place(&path).unwrap();
        assert_eq!(note(&path, "ended").as_deref(), Some(ended), "{ends:?}");
    }
}

/// A join that is killed anywhere and recovered gives the same file to the byte.
#[test]
fn a_join_that_was_interrupted_is_done_again() {
    let (_directory, path) = recording([Some("whole"); 2]);
    let parts = [0, 1].map(|thread| fs::read(part_of(&path, thread)).unwrap());
    let front = fs::read(&path).unwrap();
    recover::in_place(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let middle = front.len() + (whole.len() - front.len()) / 2;
    let ends = (front.len()..front.len() + 300).step_by(7);
    for len in ends.chain([middle, middle + 4, whole.len()]) {
        for (thread, part) in parts.iter().enumerate() {
            fs::write(part_of(&path, thread), part).unwrap();
        }
        // The header is not written yet. A power cut may leave zeros.
        let mut torn = [&front[..], &whole[front.len()..len]].concat();
        if len == middle {
            torn.resize(2 * whole.len(), 0);
        }
        fs::write(&path, torn).unwrap();
        let joined = recover::in_place(&path).unwrap();
        assert_eq!(joined.parts, 2);
        assert!(fs::read(&path).unwrap() == whole, "cut at {len}");
        assert_eq!(there(&path), [false; 2]);
    }
    // The join was killed before it had removed all files.
    fs::write(part_of(&path, 1), &parts[1]).unwrap();
    let again = recover::in_place(&path).unwrap();
    assert!(again.found.was_finished && again.remarks.len() == 1);
    assert!(fs::read(&path).unwrap() == whole);
    assert_eq!(there(&path), [false; 2]);
}

/// The recorder was killed: the joined file has all that each file has.
#[test]
fn parts_are_recovered_before() {
    let (_directory, path) = recording([None; 2]);
    let part = part_of(&path, 1);
    let all = fs::read(&part).unwrap();
    let front = fs::read(&path).unwrap();
    let first = fs::read(part_of(&path, 0)).unwrap();
    for len in (front.len()..all.len()).step_by(100_003).chain([0]) {
        fs::write(&path, &front).unwrap();
        fs::write(part_of(&path, 0), &first).unwrap();
        fs::write(&part, &all[..len]).unwrap();
        let joined = recover::in_place(&path).unwrap();
        assert_eq!(note(&path, "ended").as_deref(), Some("recovered"));
        let rings = pieces(&path);
        assert_eq!(rings[0], [(0, 64), (64, 4096)]);
        let bytes: u64 = rings[1].iter().map(|(_, size)| size).sum();
        // All but headers and incomplete words.
        let least = (len - len.min(front.len())).saturating_sub(200);
        assert!(bytes >= u64::try_from(least).unwrap(), "{bytes} of {len}");
        // A file without a front has no trace, and is not removed.
        assert_eq!(
            (joined.parts, there(&path)),
            if len == 0 {
                (1, [false, true])
            } else {
                (2, [false; 2])
            }
        );
    }
}

#[test]
fn what_is_of_another_recording_stays() {
    let (_directory, path) = recording([Some("whole"); 2]);
    let stale = part_of(&path, 1);
    write(&stale, "3-4", Some(1), &[8], Some("whole"));
    let before = fs::read(&stale).unwrap();
    let joined = recover::in_place(&path).unwrap();
    assert!(
        joined.remarks[0].contains("is of another recording"),
        "{joined:?}"
    );
    assert!(fs::read(&stale).unwrap() == before);
    assert_eq!(pieces(&path)[1], []);
    // The content of the missing file is unknown.
    assert_eq!(note(&path, "ended").as_deref(), Some("recovered"));
    // A second join does not remove it either, nor a file that comes back later.
    assert!(recover::in_place(&path).unwrap().found.was_finished);
    write(&stale, ID, Some(1), &[8], Some("whole"));
    assert!(recover::in_place(&path).unwrap().remarks.is_empty());
    assert_eq!(there(&path), [false, true]);
}

/// An error names the damaged file. All files stay as they were, and nothing loops.
#[test]
fn a_damaged_part_ends_the_join() {
    let (_directory, path) = recording([Some("whole"); 2]);
    let front = fs::read(&path).unwrap();
    let part = part_of(&path, 0);
    let mut bytes = fs::read(&part).unwrap();
    // Breaks the length of the record after FINISHED_INIT.
    bytes[front.len() + 6] = 3;
    fs::write(&part, &bytes).unwrap();
    let says = recover::in_place(&path).unwrap_err().to_string();
    assert!(says.contains("perf.data.t0: record header.size"), "{says}");
    assert!(fs::read(&path).unwrap() == front);
    assert_eq!(there(&path), [true; 2]);
    // This damage is found when FILE already has trace, which is cut off again.
    let (_directory, path) = recording([Some("whole"); 2]);
    let part = part_of(&path, 1);
    let mut bytes = fs::read(&part).unwrap();
    let file = perfdata::File::parse(&bytes).unwrap();
    let last = file.records().last().unwrap().unwrap().offset;
    bytes[usize::try_from(last).unwrap() + 6] = 3;
    fs::write(&part, &bytes).unwrap();
    let says = recover::in_place(&path).unwrap_err().to_string();
    assert!(says.contains("perf.data.t1: record header.size"), "{says}");
    assert!(fs::read(&path).unwrap() == front);
    assert_eq!(there(&path), [true; 2]);
}

/// All files of a directory.
fn content(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

/// By default, `recover` changes no file, and creates only the copy.
#[test]
fn a_copy_is_joined_and_all_else_stays() {
    let (directory, path) = recording([None, Some("whole")]);
    let out = recover::beside(&path);
    let before = content(directory.path());
    let joined = recover::recover(&path, &out).unwrap();
    let mut after = content(directory.path());
    let copy = after.remove(&out).unwrap();
    assert!(after == before);
    // An output that exists already is not overwritten.
    let says = recover::recover(&path, &out).unwrap_err().to_string();
    assert!(says.contains("recovered is there already"), "{says}");
    assert!(fs::read(&out).unwrap() == copy);
    let found = recover::in_place(&path).unwrap();
    assert!(fs::read(&path).unwrap() == copy);
    assert_eq!(found, joined);
    // A finished file needs no copy.
    fs::remove_file(&out).unwrap();
    let again = recover::recover(&path, &out).unwrap();
    assert!(again.found.was_finished && !out.exists());

    // A copy that cannot be finished is removed.
    let (directory, path) = recording([None, Some("whole")]);
    let part = part_of(&path, 1);
    let mut bytes = fs::read(&part).unwrap();
    let front = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
    bytes[front + 6] = 3;
    fs::write(&part, &bytes).unwrap();
    let before = content(directory.path());
    let says = recover::recover(&path, &out).unwrap_err().to_string();
    assert!(says.contains("perf.data.t1: record header.size"), "{says}");
    assert!(content(directory.path()) == before);
}

/// A full disk is an error of the output.
#[test]
fn no_space_is_an_error_of_the_output() {
    let (_directory, path) = recording([Some("whole"); 2]);
    let open = |thread| Stream::open(File::open(part_of(&path, thread)).unwrap()).unwrap();
    let mut space = [0; 5000];
    let out = io::Cursor::new(&mut space[..]);
    let mut out = Writer::new(out, &[(Attr::default(), vec![1])]).unwrap();
    let error = append_all([0, 1].map(open).into_iter(), &mut out).unwrap_err();
    assert!(
        matches!(error, Error::File(perfdata::Error::Output { .. })),
        "{error}"
    );
}
