// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the file: payload straight from an area, and a disk that is full.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Duration;

use perfdata::{Attr, Auxtrace, EventDesc, Feature, FinishedRound, RecordType};

use super::sink::payload_at;
use super::sync::tests::Bad;
use super::*;
use crate::drain::{FileSink, Sink};
use crate::session::Plan;
use crate::sys::{self, Mapping};
use auxview::join::SplitFiles;

const PAGES: usize = 4;

/// A record of 16 bytes.
const RECORD: [u8; 16] = [14, 0, 0, 0, 0, 0, 16, 0, 1, 2, 3, 4, 5, 6, 7, 8];

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap()
}

/// Writes records of `sideband` bytes, and behind them an area from its byte 8 on. Returns how often the
/// area had to be copied.
///
/// A call takes `max` bytes, or as much as this file system takes. With `all` it takes all or
/// nothing, as 9p does. Until a call has failed, the pages of the area from `missing` on cannot be
/// read.
fn copied(sideband: usize, missing: usize, max: usize, all: bool) -> usize {
    let len = PAGES * sys::page_size();
    let missing = missing * sys::page_size();
    let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
    let source = tempfile::tempfile().unwrap();
    source.write_all_at(&bytes, 0).unwrap();
    let area = Mapping::new(&source, 0, len, false).unwrap();
    source.set_len(to_u64(missing)).unwrap();

    let output = tempfile::NamedTempFile::new().unwrap();
    let events = [(Attr::default(), vec![1])];
    let mut file = Writer::new(output.reopen().unwrap(), &events).unwrap();
    let begin = usize::try_from(file.position()).unwrap();
    let sideband = RECORD.repeat(sideband / RECORD.len());
    file.raw(&sideband).unwrap();
    file.auxtrace(&Auxtrace {
        size: to_u64(len - 8),
        ..Auxtrace::default()
    })
    .unwrap();
    let payload = usize::try_from(file.position()).unwrap();
    let mut copied = 0;
    let straight = |file: &mut File, front: &[u8], at: usize, len: usize| {
        let front = front.get(..max).unwrap_or(front);
        let len = len.min(max - front.len());
        let result = if all && copied == 0 && at + len > missing {
            Err(io::Error::from_raw_os_error(libc::EFAULT))
        } else {
            area.write_out(front, at, len, &*file)
        };
        if result.is_err() {
            source
                .write_all_at(&bytes[missing..], to_u64(missing))
                .unwrap();
            copied += 1;
        }
        result
    };
    payload_at(&mut file, 8..len, straight, |at, copy| {
        area.copy_out(at, copy)
    })
    .unwrap();

    let there = fs::read(output.path()).unwrap();
    assert!(there[begin..].starts_with(&sideband));
    assert!(there[payload..] == bytes[8..]);
    copied
}

/// A call may end anywhere, and may fail after others have written a part. Each byte is in the file
/// once.
#[test]
fn straight_from_an_area_in_parts() {
    for sideband in [0, 16, 4096, 16384] {
        for max in [1000, 4096, 5001, usize::MAX] {
            for all in [false, true] {
                for missing in 0..PAGES {
                    assert_eq!(copied(sideband, missing, max, all), 1);
                }
                assert_eq!(copied(sideband, PAGES, max, all), 0);
            }
        }
    }
}

fn description() -> Description {
    Description {
        plan: Plan::default(),
        events: vec![EventDesc {
            attr: Attr::default(),
            ids: vec![1],
            name: "pattern//".to_owned(),
        }],
        index: Vec::new(),
        cmdline: Vec::new(),
        online: 1,
        target: Target::Command,
        workload: None,
        clock: None,
        info: None,
        split_files: Some(SplitFiles {
            id: "1-2".to_owned(),
            threads: 2,
            thread: None,
        }),
        tracepoints: None,
    }
}

/// As perf's files: `S_IRUSR | S_IWUSR`.
#[test]
fn others_cannot_read_files_of_trace() {
    let directory = tempfile::tempdir().unwrap();
    let in_it = |name| directory.path().join(name);
    let whole = Output::create(&in_it("whole"), description(), Limits::default()).unwrap();
    let part = whole.part(0, &(0..1)).unwrap();
    let limits = Limits {
        parts: true,
        ..Limits::default()
    };
    let what = Description {
        split_files: None,
        tracepoints: None,
        ..description()
    };
    let mut series = Output::create(&in_it("series"), what, limits).unwrap();
    series.next().unwrap();
    drop((whole, part, series));
    auxview::recover::recover(&in_it("series.0002"), &in_it("copy")).unwrap();
    auxview::convert::convert_file(&in_it("copy"), &in_it("plain")).unwrap();
    let entries = fs::read_dir(directory.path()).unwrap();
    let modes = entries.map(|entry| entry.unwrap().metadata().unwrap().permissions().mode());
    assert_eq!(modes.collect::<Vec<_>>(), [0o100_600; 6]);
}

/// A series of files. Their command line identifies the series.
fn series(base: &Path, parts: u32, id: &str) -> Output {
    let limits = Limits {
        parts: true,
        ..Limits::default()
    };
    let what = Description {
        split_files: None,
        cmdline: vec![id.into()],
        ..description()
    };
    let mut file = Output::create(base, what, limits).unwrap();
    for _ in 1..parts {
        file.next().unwrap();
    }
    let features = file.features("whole");
    file.file.try_finish(&features).unwrap();
    file
}

/// A recording destroys nothing of an earlier one, and the files of both stay series of their own.
#[test]
fn a_series_does_not_replace_another() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().join("perf.data");
    let there = || {
        let mut names: Vec<(String, String)> = Vec::new();
        for entry in fs::read_dir(directory.path()).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let whose = match perfdata::File::parse(&bytes) {
                Ok(file) => file.feature(Feature::CMDLINE).unwrap().cmdline().unwrap()[0].clone(),
                Err(_) => bytes,
            };
            names.push((name, String::from_utf8(whose).unwrap()));
        }
        names.sort();
        names
    };
    let of = |name: &str, parts: u32, whose: &str| {
        let numbered = |part| (format!("perf.data{name}.{part:04}"), whose.to_owned());
        (1..=parts).map(numbered).collect::<Vec<_>>()
    };
    drop(series(&base, 3, "first"));
    drop(series(&base, 2, "second"));
    let mut want = [of("-old", 3, "first"), of("", 2, "second")].concat();
    assert_eq!(there(), want);
    drop(series(&base, 1, "third"));
    want = [
        of("-old", 3, "first"),
        of("-old2", 2, "second"),
        of("", 1, "third"),
    ]
    .concat();
    assert_eq!(there(), want);
    // Without anything recorded the names are as before.
    series(&base, 1, "fourth").discard();
    assert_eq!(there(), want);
    // A file that appears in the meantime is not replaced. The file before it can still be finished.
    let mut fifth = series(&base, 1, "fifth");
    let theirs = directory.path().join("perf.data.0002");
    fs::write(&theirs, "theirs").unwrap();
    let error = fifth.next().unwrap_err().to_string();
    assert!(error.contains("perf.data.0002: File exists"), "{error}");
    assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
    let features = fifth.features("whole");
    fifth.file.try_finish(&features).unwrap();
    let bytes = fs::read(fifth.path()).unwrap();
    let kinds = perfdata::File::parse(&bytes).unwrap();
    assert!(kinds.records().all(|record| record.is_ok()));
    assert_eq!(fifth.parts(), 1);
}

/// An error of the disk ends the recording, and is reported before the next file begins.
#[test]
fn a_bad_disk_ends_the_recording() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits {
        parts: true,
        ..Limits::default()
    };
    let what = Description {
        split_files: None,
        ..description()
    };
    let path = directory.path().join("perf.data");
    let mut file = Output::create(&path, what, limits).unwrap();
    let disk = Bad::at(1);
    let short = Duration::from_millis(1);
    file.sync = Some(Sync::start(disk.clone(), &path, short, None));
    let error = disk.reported(|| file.turn()).unwrap_err();
    assert!(matches!(error, Error::Disk(_)), "{error}");
    let hour = Duration::from_secs(3600);
    let bad = || Some(Sync::start(Bad::at(1), &path, hour, None));
    file.sync = bad();
    let error = file.rotate().unwrap_err();
    assert!(matches!(error, Error::Disk(_)), "{error}");
    assert_eq!(file.parts(), 1);
    file.sync = bad();
    let error = file.synced().unwrap_err();
    assert!(matches!(error, Error::Disk(_)), "{error}");
    file.synced().unwrap();
}

/// The disk is full for the file of one thread. The file of another thread can still be written: it
/// gets the records that were read from the ring and not written yet, before it is finished.
#[test]
fn what_was_collected_is_in_a_file_that_is_not_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    let what = description();
    let whole = Output::create(&path, what, Limits::default()).unwrap();
    let mut part = whole.part(0, &(0..1)).unwrap();
    part.begin().unwrap();
    let aux = Auxtrace {
        size: 8,
        ..Auxtrace::default()
    };
    Sink::piece(&mut part, &aux).unwrap();
    Sink::payload(&mut part, &[7; 8]).unwrap();
    Sink::records(&mut part, &RECORD.repeat(3), None).unwrap();
    // Some of the counters were written already: they must not be in the file twice.
    part.counters = Some(part.file.position());
    part.file.record(&FinishedRound, None).unwrap();
    let said = part.salvage(|file| Ok(file.record(&FinishedRound, None)?));
    assert!(
        said.starts_with("holds what was recorded until then"),
        "{said}"
    );

    let bytes = fs::read(part.path()).unwrap();
    let file = perfdata::File::parse(&bytes).unwrap();
    let kinds = file.records().map(|record| record.unwrap().kind);
    let (sideband, trace) = (RecordType::SWITCH, RecordType::AUXTRACE);
    let counter = RecordType::FINISHED_ROUND;
    let want = [
        RecordType::FINISHED_INIT,
        trace,
        sideband,
        sideband,
        sideband,
        counter,
    ];
    assert_eq!(kinds.collect::<Vec<_>>(), want);
    let notes = file.feature(Feature::NOTES).unwrap().notes().unwrap();
    assert!(notes.contains(&("ended".to_owned(), "cut".to_owned())));
}

/// The end of a file replaces its last records, also in the file of one thread. The writer reads the
/// file for that.
#[test]
fn the_end_of_a_file_in_the_place_of_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    let whole = Output::create(&path, description(), Limits::default()).unwrap();
    let part = whole.part(0, &(0..1)).unwrap();
    for mut file in [whole, part] {
        Sink::records(&mut file, &RECORD.repeat(4000), None).unwrap();
        file.flush().unwrap();
        let full = file.file.position();
        let features = file.features("cut");
        let at = file
            .file
            .finish_over(full, &RECORD, &features, |file, len| file.set_len(len))
            .unwrap();
        let bytes = fs::read(file.path()).unwrap();
        assert!(to_u64(bytes.len()) <= full && full < to_u64(bytes.len() + RECORD.len()));
        let there = perfdata::File::parse(&bytes).unwrap();
        assert!(there.is_finished());
        let last = there.records().last().unwrap().unwrap();
        assert_eq!(last.offset, at);
    }
}
