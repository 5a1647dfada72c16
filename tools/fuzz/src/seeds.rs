// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Seeds for fuzzing: small valid inputs.

use std::io::Cursor;

use crate::{device, flamegraph, program, tracering};

use perfdata::{
    Attr, Aux, AuxFlags, Auxtrace, AuxtraceZstd, ClockData, Comm, EventDesc, Feature, Features,
    FileId, FinishedInit, FinishedRound, Flags, IdIndex, IdIndexEntry, ItraceStart, Lost, Mmap2,
    Read, SampleId, SampleType, Writer,
};
use testdata::pattern::packet;

/// The seeds of a target.
///
/// # Errors
/// If one cannot be made.
pub fn seeds(target: &str) -> perfdata::Result<Vec<Vec<u8>>> {
    if target == "text" {
        let texts = [
            "s64K",
            "r16,2",
            "r,4M",
            "c0-3,5",
            "tconfig1:0-3,60-63",
            "tconfig",
            "epattern/rate=0x10,split=17/u",
            "epattern/slow,config2=3/kh",
            "epattern//",
            "i12,34",
            "d10-20,30-40",
            "d-1",
            "o64M",
            "ofifo",
            "o10s",
            "hfifo:/tmp/a,/tmp/b",
            "hfd:3,4",
            "lenable pattern//\ndisable\nsnapshot\nevlist -v\nping\nstop\n",
        ];
        return Ok(texts.iter().map(|text| text.as_bytes().to_vec()).collect());
    }
    if target == "device" {
        return Ok(vec![device::seed()]);
    }
    if target == "program" {
        return Ok(vec![program::seed()]);
    }
    if target == "flamegraph" {
        return flamegraph::seeds();
    }
    if target == "tracering" {
        return Ok(tracering::seeds());
    }
    let mut out = vec![
        recording(false, true, false)?,
        recording(true, true, false)?,
        recording(false, false, false)?,
        recording(false, target != "recover", true)?,
    ];
    if target == "recover" {
        // A file that was cut in the last piece of trace.
        let mut cut = recording(false, false, false)?;
        cut.truncate(cut.len() - 72);
        out.push(cut);
        // Records of perf, of which COMPRESSED is not aligned, and one of an unknown type.
        let mut foreign = recording(false, false, false)?;
        for (kind, len) in [(78_u32, 24_u16), (81, 13), (4711, 16), (83, 24)] {
            let end = foreign.len() + usize::from(len);
            foreign.extend(kind.to_le_bytes());
            foreign.extend([0; 2]);
            foreign.extend(len.to_le_bytes());
            foreign.resize(end, 1);
        }
        out.push(foreign);
    }
    Ok(out)
}

/// A recording of the PMU `pattern` on one CPU: two pieces, the second after a gap. If compressed, each has two parts.
fn recording(overwrite: bool, finished: bool, compressed: bool) -> perfdata::Result<Vec<u8>> {
    let attr = Attr {
        kind: 42,
        flags: Flags::SAMPLE_ID_ALL,
        sample_type: SampleType::IDENTIFIER | SampleType::TID | SampleType::TIME | SampleType::CPU,
        read_format: Read::FORMAT,
        ..Attr::default()
    };
    let mode = if overwrite { "overwrite" } else { "linear" };
    let note = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let mut features = Features::new();
    features
        .string(Feature::HOSTNAME, "here")
        .pmu_mappings(&[(42, "pattern")])
        .cmdline(&["auxrec", "record"])
        .events(&[EventDesc {
            attr: attr.clone(),
            ids: vec![9],
            name: "pattern//".to_owned(),
        }])
        .clock(
            1,
            ClockData {
                clockid: 1,
                wall: 2,
                clock: 3,
            },
        )
        .notes(&[
            note("aux_size", "8192"),
            note("mode", mode),
            note("offline", "1:5000,7:9"),
        ]);
    let mut file = Writer::with_spare(
        Cursor::new(Vec::new()),
        &[(attr.clone(), vec![9])],
        &features,
    )?;
    let who = SampleId {
        pid: Some(5),
        tid: Some(6),
        time: Some(1000),
        id: Some(9),
        stream_id: None,
        cpu: Some(1),
    };
    let id = Some((&who, &attr));
    file.record(
        &IdIndex(&[IdIndexEntry {
            id: 9,
            idx: 0,
            cpu: 1,
            tid: -1,
        }]),
        None,
    )?;
    file.record(
        &Comm {
            pid: 5,
            tid: 6,
            exec: true,
            comm: b"program",
        },
        id,
    )?;
    let mapping = Mmap2 {
        pid: 5,
        tid: 6,
        addr: 4096,
        len: 4096,
        pgoff: 0,
        file: FileId::Inode {
            dev: (8, 1),
            ino: 3,
            generation: 0,
        },
        prot: 5,
        flags: 2,
        filename: b"/bin/program",
    };
    file.record(&mapping, id)?;
    file.record(&FinishedInit, None)?;
    file.record(&ItraceStart { pid: 5, tid: 6 }, id)?;
    for (offset, positions, flags) in [
        (0, [0, 64], AuxFlags::TRUNCATED),
        (128, [256, 320], AuxFlags::empty()),
    ] {
        file.record(
            &Aux {
                offset,
                size: 128,
                flags,
            },
            id,
        )?;
        let aux = Auxtrace {
            size: 128,
            offset,
            reference: 2000 + offset,
            idx: 0,
            tid: u32::MAX,
            cpu: 1,
        };
        if !compressed {
            file.auxtrace(&aux)?;
        }
        for (at, pos) in [(0, positions[0]), (64, positions[1])] {
            if compressed {
                let frame = zstd::bulk::compress(&packet(1, pos, 64), 1).unwrap_or_default();
                let part = AuxtraceZstd {
                    aux,
                    at,
                    len: 64,
                    frame: &frame,
                };
                file.record(&part, None)?;
            } else {
                file.payload(&packet(1, pos, 64))?;
            }
        }
        file.record(&FinishedRound, None)?;
    }
    file.record(&Lost { id: 9, lost: 0 }, id)?;
    let read = Read {
        pid: 5,
        tid: 6,
        value: 384,
        enabled: 100,
        running: 100,
        id: 9,
    };
    file.record(&read, id)?;
    if finished {
        Ok(file.finish(&features)?.into_inner())
    } else {
        file.flush()?;
        Ok(file.get_ref().get_ref().clone())
    }
}
