// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Other programs read the file: the crate `linux-perf-data`, and stock perf.

use std::io::Cursor;

use perfdata::{Feature, Features, File, Stream, Writer};

use crate::sample::{aux_attr, chunks, sample_file};

#[test]
fn linux_perf_data_reads_it() {
    use linux_perf_data::{PerfFileReader, PerfFileRecord};
    let bytes = sample_file(&chunks());
    let PerfFileReader {
        mut perf_file,
        mut record_iter,
    } = PerfFileReader::parse_file(Cursor::new(&bytes)).unwrap();
    let mut records = 0;
    let mut traces = Vec::new();
    while let Some(record) = record_iter.next_record(&mut perf_file).unwrap() {
        match record {
            PerfFileRecord::EventRecord { record, .. } => {
                record.parse().unwrap();
                records += 1;
            }
            PerfFileRecord::UserRecord(record) => {
                let record = record.parse().unwrap();
                if let linux_perf_data::UserRecord::Auxtrace(aux) = record {
                    traces.push(aux.aux_data.as_slice().to_vec());
                }
            }
        }
    }
    assert_eq!(records, 8);
    assert_eq!(traces, chunks());
    assert_eq!(perf_file.hostname().unwrap(), Some("here"));
    assert_eq!(perf_file.arch().unwrap(), Some("x86_64"));
    assert_eq!(perf_file.pmu_mappings().unwrap().unwrap().0[&42], "pattern");
    assert_eq!(perf_file.event_attributes()[0].name(), Some("pattern//"));
}

/// perf has functions for the features that it knows, and calls one for each bit of the header.
#[test]
fn the_header_has_only_features_of_perf() {
    const HEADER_BITS: usize = 72;
    const CLOCK_DATA: usize = 29;
    let mut bytes = sample_file(&chunks());
    let bits = bytes[HEADER_BITS..HEADER_BITS + 32].to_vec();
    let is_set = |number: usize| bits[number / 8] & 1 << (number % 8) != 0;
    assert!(is_set(CLOCK_DATA));
    assert!(!(CLOCK_DATA + 1..256).any(is_set));
    notes_are_found(&bytes);

    // If the header has the bit of the notes, their entry is in the table.
    let mark = b"AUXNOTES";
    let at = bytes.windows(8).position(|part| part == mark).unwrap();
    bytes.copy_within(at + 8..at + 24, at);
    bytes[HEADER_BITS + 31] |= 0x80;
    notes_are_found(&bytes);

    // Then a magic number after the table is not a second entry.
    bytes[at + 16..at + 24].copy_from_slice(mark);
    notes_are_found(&bytes);
}

/// What follows the table may be a section that begins like the entry of the notes.
#[test]
fn a_section_is_not_taken_for_notes() {
    let text = b"AUXNOTESNOTES, AUXNOTES.".to_vec();
    let mut features = Features::new();
    features.raw(Feature::HOSTNAME, text.clone());
    let file = Writer::new(Cursor::new(Vec::new()), &[(aux_attr(), vec![100])]).unwrap();
    let bytes = file.finish(&features).unwrap().into_inner();
    let file = File::parse(&bytes).unwrap();
    assert_eq!(file.feature(Feature::HOSTNAME).unwrap().bytes, text);
    assert!(file.feature(Feature::NOTES).is_none());
    let mut stream = Stream::open(Cursor::new(&bytes)).unwrap();
    let found = stream.feature(Feature::HOSTNAME).unwrap().unwrap();
    assert_eq!(found.bytes, text);
    assert!(stream.feature(Feature::NOTES).unwrap().is_none());
}

fn notes_are_found(bytes: &[u8]) {
    let expected = vec![("aux_size".to_owned(), "65536".to_owned())];
    let file = File::parse(bytes).unwrap();
    let notes = file.feature(Feature::NOTES).unwrap().notes().unwrap();
    assert_eq!(notes, expected);
    let mut stream = Stream::open(Cursor::new(bytes)).unwrap();
    let notes = stream.feature(Feature::NOTES).unwrap().unwrap();
    assert_eq!(notes.notes().unwrap(), expected);
}

#[test]
#[cfg_attr(not(has_perf), ignore = "no perf on PATH")]
fn stock_perf_reads_it() {
    use std::process::Command;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    std::fs::write(&path, sample_file(&chunks())).unwrap();
    for sub in ["script", "report"] {
        let out = Command::new("perf")
            .args([sub, "-D", "--no-itrace", "-i"])
            .arg(&path)
            .output()
            .unwrap();
        let (text, errors) = (
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr),
        );
        assert!(out.status.success(), "perf {sub}: {errors}");
        for wanted in [
            "PERF_RECORD_AUX offset: 0 size: 0x40 flags: 0x1 [T]",
            "PERF_RECORD_AUXTRACE size: 0x100  offset: 0x40",
            "PERF_RECORD_COMM exec: program",
        ] {
            assert!(
                text.contains(wanted),
                "perf {sub} does not say {wanted}:\n{text}\n{errors}"
            );
        }
    }
    let out = Command::new("perf")
        .args(["inject", "-o"])
        .arg(dir.path().join("injected.data"))
        .arg("-i")
        .arg(&path)
        .output()
        .unwrap();
    assert!(out.status.success(), "perf inject: {out:?}");
    let out = Command::new("perf")
        .args(["report", "--header-only", "-i"])
        .arg(&path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    for wanted in [
        "hostname : here",
        "nrcpus online : 2",
        "cpuid : GenuineIntel,6,1,1",
        "pattern = 42",
        "clockid: monotonic",
    ] {
        assert!(
            text.contains(wanted),
            "perf report --header-only does not say {wanted}:\n{text}"
        );
    }
}
