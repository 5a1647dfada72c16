// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `dump` has a line for every record.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Cursor;
use std::process::Command;

use perfdata::{
    Attr, Aux, AuxFlags, Auxtrace, Comm, Features, Flags, SampleId, SampleType, Writer,
};

fn auxview(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_auxview"))
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_line_for_every_record() {
    let attr = Attr {
        kind: 42,
        flags: Flags::SAMPLE_ID_ALL,
        sample_type: SampleType::IDENTIFIER | SampleType::TID | SampleType::TIME | SampleType::CPU,
        ..Attr::default()
    };
    let who = SampleId {
        pid: Some(5),
        tid: Some(6),
        time: Some(1_000_000_002),
        id: Some(9),
        stream_id: None,
        cpu: Some(1),
    };
    let mut file = Writer::new(Cursor::new(Vec::new()), &[(attr.clone(), vec![9])]).unwrap();
    let comm = Comm {
        pid: 5,
        tid: 6,
        exec: true,
        comm: b"two\nlines",
    };
    file.record(&comm, Some((&who, &attr))).unwrap();
    let aux = Aux {
        offset: 4096,
        size: 64,
        flags: AuxFlags::TRUNCATED | AuxFlags::PARTIAL,
    };
    file.record(&aux, Some((&who, &attr))).unwrap();
    let piece = Auxtrace {
        size: 64,
        offset: 4096,
        reference: 77,
        idx: 0,
        tid: u32::MAX,
        cpu: 1,
    };
    file.auxtrace(&piece).unwrap();
    file.payload(&[0; 64]).unwrap();
    let bytes = file.finish(&Features::new()).unwrap().into_inner();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    fs::write(&path, bytes).unwrap();

    let (status, out, errors) = auxview(&["dump", path.to_str().unwrap()]);
    assert_eq!(status, Some(0), "{errors}");
    // The file offsets depend on the writer.
    let lines: Vec<&str> = out
        .lines()
        .map(|line| line.split_once(' ').unwrap().1)
        .collect();
    assert_eq!(
        lines,
        [
            "1.000000002 cpu 1 5/6 COMM exec 5/6 two\\nlines",
            "1.000000002 cpu 1 5/6 AUX offset 0x1000 size 0x40 flags TRUNCATED+PARTIAL",
            "- cpu - -/- AUXTRACE offset 0x1000 size 0x40 reference 77 ring 0 cpu 1 thread -",
        ]
    );
}
