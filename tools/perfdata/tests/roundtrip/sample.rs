// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Parts of files for the tests: events, sample ids, features, and a whole file.

use std::io::Cursor;

use perfdata::{
    Attr, Aux, AuxFlags, Auxtrace, ClockData, Comm, EventDesc, Feature, Features, FileId,
    FinishedInit, FinishedRound, Flags, IdIndex, IdIndexEntry, ItraceStart, Lost, Mmap2, Read,
    RecordType, SampleId, SampleType, Writer,
};

const SAMPLE: SampleType = SampleType::IDENTIFIER
    .union(SampleType::IP)
    .union(SampleType::TID)
    .union(SampleType::TIME)
    .union(SampleType::CPU);

pub(super) fn aux_attr() -> Attr {
    Attr {
        kind: 42,
        config: 7,
        sample_period: 1,
        sample_type: SAMPLE,
        read_format: Read::FORMAT,
        flags: Flags::DISABLED | Flags::SAMPLE_ID_ALL | Flags::USE_CLOCKID,
        clockid: 1,
        aux_watermark: 16384,
        ..Attr::default()
    }
}

pub(super) fn dummy_attr() -> Attr {
    Attr {
        kind: 1,
        config: 9,
        sample_period: 1,
        flags: Flags::SAMPLE_ID_ALL
            | Flags::USE_CLOCKID
            | Flags::COMM
            | Flags::TASK
            | Flags::MMAP
            | Flags::MMAP2,
        aux_watermark: 0,
        ..aux_attr()
    }
}

pub(super) fn who(time: u64, id: u64) -> SampleId {
    SampleId {
        pid: Some(1234),
        tid: Some(1235),
        time: Some(time),
        id: Some(id),
        stream_id: None,
        cpu: Some(1),
    }
}

/// A file as the recorder writes it, with these pieces of trace.
pub(super) fn sample_file(chunks: &[Vec<u8>]) -> Vec<u8> {
    let events = [(aux_attr(), vec![100]), (dummy_attr(), vec![101])];
    let mut w = Writer::with_spare(Cursor::new(Vec::new()), &events, &features()).unwrap();
    let entry = |id| IdIndexEntry {
        id,
        idx: 0,
        cpu: 1,
        tid: -1,
    };
    w.record(&IdIndex(&[entry(100), entry(101)]), None).unwrap();
    let comm = Comm {
        pid: 1234,
        tid: 1234,
        exec: true,
        comm: b"program",
    };
    w.record(&comm, Some((&who(10, 101), &dummy_attr())))
        .unwrap();
    let mmap = Mmap2 {
        pid: 1234,
        tid: 1234,
        addr: 0x40_0000,
        len: 0x1000,
        pgoff: 0,
        file: FileId::Inode {
            dev: (8, 1),
            ino: 99,
            generation: 0,
        },
        prot: 5,
        flags: 2,
        filename: b"/bin/program",
    };
    w.record(&mmap, Some((&who(11, 101), &dummy_attr())))
        .unwrap();
    w.record(&FinishedInit, None).unwrap();
    w.record(
        &ItraceStart {
            pid: 1234,
            tid: 1234,
        },
        Some((&who(12, 100), &aux_attr())),
    )
    .unwrap();
    let mut offset = 0;
    for (time, chunk) in (20..).step_by(10).zip(chunks) {
        let size = u64::try_from(chunk.len()).unwrap();
        let flags = if time == 20 {
            AuxFlags::TRUNCATED
        } else {
            AuxFlags::empty()
        };
        w.record(
            &Aux {
                offset,
                size,
                flags,
            },
            Some((&who(time, 100), &aux_attr())),
        )
        .unwrap();
        w.auxtrace(&Auxtrace {
            size,
            offset,
            reference: time + 5,
            idx: 0,
            tid: u32::MAX,
            cpu: 1,
        })
        .unwrap();
        // In two parts, as where a ring wraps.
        let (a, b) = chunk.split_at(chunk.len() / 2);
        w.payload(a).unwrap();
        w.payload(b).unwrap();
        w.record(&FinishedRound, None).unwrap();
        offset += size;
    }
    w.record(
        &Lost { id: 100, lost: 3 },
        Some((&who(900, 100), &aux_attr())),
    )
    .unwrap();
    let read = Read {
        pid: 1234,
        tid: 1234,
        value: offset + 64,
        enabled: 1000,
        running: 999,
        id: 100,
    };
    w.record(&read, Some((&who(1000, 100), &aux_attr())))
        .unwrap();
    w.finish(&features()).unwrap().into_inner()
}

pub(super) fn features() -> Features {
    let desc = |attr, id, name: &str| EventDesc {
        attr,
        ids: vec![id],
        name: name.to_owned(),
    };
    let mut f = Features::new();
    f.string(Feature::HOSTNAME, "here")
        .string(Feature::OSRELEASE, "7.3.4")
        .string(Feature::VERSION, "auxrec 0.1.0")
        .string(Feature::ARCH, "x86_64")
        .nrcpus(2, 2)
        .string(Feature::CPUDESC, "A CPU")
        .string(Feature::CPUID, "GenuineIntel,6,1,1")
        .cmdline(&["auxrec", "record", "-e", "pattern//"])
        .events(&[
            desc(aux_attr(), 100, "pattern//"),
            desc(dummy_attr(), 101, "dummy:u"),
        ])
        .pmu_mappings(&[(1, "software"), (42, "pattern")])
        .sample_time(10, 1000)
        .clock(
            1,
            ClockData {
                clockid: 1,
                wall: 1_700_000_000_000_000_000,
                clock: 10,
            },
        )
        .notes(&[("aux_size", "65536")]);
    f
}

pub(super) fn chunks() -> Vec<Vec<u8>> {
    vec![vec![0x11; 64], (0..=255).collect(), vec![7; 128]]
}

/// A record as the kernel writes it into a ring.
pub(super) fn raw_record(kind: RecordType, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut out = kind.0.to_le_bytes().to_vec();
    out.extend(misc.to_le_bytes());
    out.extend(u16::try_from(body.len() + 8).unwrap().to_le_bytes());
    out.extend(body);
    out
}
