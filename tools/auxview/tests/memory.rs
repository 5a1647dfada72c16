// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands on files with much more trace than the memory that they may have.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use perfdata::{
    Attr, Aux, AuxFlags, Auxtrace, AuxtraceInfo, AuxtraceZstd, EventDesc, Features, FinishedInit,
    Flags, IdIndex, IdIndexEntry, Read, SampleId, SampleType, Writer,
};

/// Limit of the private memory of a command, KiB.
const MEMORY: u64 = 64 << 10;
/// Lengths of trace, which takes no space on the disk: trace that no command reads, trace that some read, and compressed trace.
const SKIPPED: u64 = 8 << 30;
const PLAIN: u64 = 256 << 20;
const PACKED: u64 = 128 << 20;
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// A sparse file: zeros are not written.
struct Sparse {
    file: File,
    end: u64,
}

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let zeros = ZEROS.get(..bytes.len()) == Some(bytes);
        let len = if zeros {
            self.file
                .seek_relative(i64::try_from(bytes.len()).unwrap())?;
            bytes.len()
        } else {
            self.file.write(bytes)?
        };
        self.end = self.end.max(self.file.stream_position()?);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.set_len(self.end)
    }
}

impl Seek for Sparse {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// A recording of CPU 1 whose trace is nothing but zeros.
fn recording(
    path: &Path,
    pmu: &str,
    mode: &str,
    size: u64,
    trace: impl FnOnce(&mut Writer<Sparse>),
) {
    let attr = Attr {
        kind: 42,
        flags: Flags::SAMPLE_ID_ALL,
        sample_type: SampleType::IDENTIFIER | SampleType::TID | SampleType::TIME | SampleType::CPU,
        read_format: Read::FORMAT,
        ..Attr::default()
    };
    let id = SampleId {
        pid: Some(1),
        tid: Some(1),
        time: Some(1),
        id: Some(9),
        stream_id: None,
        cpu: Some(1),
    };
    let mut features = Features::new();
    let event = EventDesc {
        attr: attr.clone(),
        ids: vec![9],
        name: "pattern//".into(),
    };
    let packed = if size == PACKED {
        "compressed"
    } else {
        "plain"
    };
    features
        .events(&[event])
        .pmu_mappings(&[(42, pmu)])
        .notes(&[("mode", mode), ("ended", "whole"), (packed, "zstd")]);
    let file = Sparse {
        file: File::create(path).unwrap(),
        end: 0,
    };
    let events = [(attr.clone(), vec![9])];
    let mut out = Writer::with_spare(file, &events, &features).unwrap();
    let entry = IdIndexEntry {
        id: 9,
        idx: 0,
        cpu: 1,
        tid: -1,
    };
    out.record(&IdIndex(&[entry]), None).unwrap();
    // `report --folded` needs this record.
    let info = AuxtraceInfo {
        kind: 1,
        private: &[42, 0, 1, 0, 1],
    };
    out.record(&info, None).unwrap();
    out.record(&FinishedInit, None).unwrap();
    let flags = if mode == "overwrite" {
        AuxFlags::OVERWRITE
    } else {
        AuxFlags::empty()
    };
    let aux = Aux {
        offset: 0,
        size,
        flags,
    };
    out.record(&aux, Some((&id, &attr))).unwrap();
    trace(&mut out);
    let read = Read {
        pid: 1,
        tid: 1,
        value: size,
        enabled: 1,
        running: 1,
        id: 9,
    };
    out.record(&read, Some((&id, &attr))).unwrap();
    out.finish(&features).unwrap().flush().unwrap();
}

/// A piece of the only ring.
fn piece(offset: u64, size: u64) -> Auxtrace {
    Auxtrace {
        size,
        offset,
        reference: 2,
        idx: 0,
        tid: u32::MAX,
        cpu: 1,
    }
}

fn plain(out: &mut Writer<Sparse>, offset: u64, size: u64) {
    out.auxtrace(&piece(offset, size)).unwrap();
    for _ in 0..size >> 20 {
        out.payload(&ZEROS).unwrap();
    }
}

fn packed(out: &mut Writer<Sparse>) {
    let frame =
        |len: u32| zstd::bulk::compress(&vec![0; usize::try_from(len).unwrap()], 1).unwrap();
    let whole = frame(AuxtraceZstd::MAX);
    let mut at = 0;
    while at < PACKED {
        let left = u32::try_from(PACKED - at).unwrap();
        let len = left.min(AuxtraceZstd::MAX);
        let last = frame(len);
        let part = AuxtraceZstd {
            aux: piece(0, PACKED),
            at,
            len,
            frame: if len == left { &last } else { &whole },
        };
        out.record(&part, None).unwrap();
        at += u64::from(len);
    }
}

/// Runs a line of shell in which `auxview` has little memory. Returns the exit status and the output.
fn run(dir: &Path, line: &str) -> (Option<i32>, String) {
    let auxview = env!("CARGO_BIN_EXE_auxview");
    let script = format!("auxview() {{ ulimit -d {MEMORY} && exec {auxview} \"$@\"; }}; {line}");
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn no_file_is_too_large() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    recording(&path("skipped"), "other", "linear", SKIPPED, |out| {
        plain(out, 0, SKIPPED);
    });
    recording(&path("linear"), "pattern", "linear", PLAIN, |out| {
        plain(out, 0, PLAIN);
    });
    recording(&path("snapshots"), "pattern", "overwrite", PLAIN, |out| {
        // The second snapshot has the bytes of the first, and as many after them.
        plain(out, 0, PLAIN / 2);
        plain(out, 0, PLAIN);
    });
    recording(&path("compressed"), "pattern", "linear", PACKED, packed);

    for (name, size, read, pieces) in [
        ("skipped", SKIPPED, SKIPPED, 1),
        ("linear", PLAIN, PLAIN, 1),
        ("snapshots", PLAIN, PLAIN * 3 / 2, 2),
        ("compressed", PACKED, PACKED, 1),
    ] {
        let bytes = format!("1 AUX records, {read} bytes");
        let json = format!("\"bytes\": {read}");
        let calls = "# 0 instructions of 0 threads".to_owned();
        let dumped = format!("AUXTRACE offset 0x0 size {size:#x} ");
        let followed = name != "skipped";
        for (command, says) in [
            ("check", &[&bytes][..]),
            ("check --json", &[&json]),
            ("report --svg out.svg", &[&bytes]),
            ("report --json", &[&json]),
            ("report --folded out.txt", &[&bytes, &calls]),
            ("dump", &[&dumped]),
        ] {
            if command.contains("folded") && !followed {
                continue;
            }
            let (ended, text) = run(dir.path(), &format!("auxview {command} {name}"));
            let said = says.iter().all(|says| text.contains(says.as_str()));
            assert!(
                ended == Some(0) && said,
                "{command} {name}: {ended:?} {text}"
            );
            if command == "dump" {
                assert_eq!(text.matches(" AUXTRACE ").count(), pieces, "{text}");
            }
        }
    }
    // The decompressed file, and a pipe, which cannot be read at any offset, give the same output.
    let converted = run(dir.path(), "auxview convert compressed converted");
    assert_eq!(converted, (Some(0), String::new()));
    for command in ["check", "report", "dump"] {
        let said = [
            "auxview COMMAND compressed",
            "auxview COMMAND converted",
            "cat compressed | auxview COMMAND /dev/stdin",
        ]
        .map(|line| run(dir.path(), &line.replace("COMMAND", command)));
        assert!(
            said[0] == said[1] && said[0] == said[2],
            "{command}: {said:?}"
        );
    }
}
