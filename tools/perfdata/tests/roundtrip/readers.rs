// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Other programs read the file: the crate `linux-perf-data`, and stock perf.

use std::io::Cursor;

use crate::sample::{chunks, sample_file};

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
