// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads what this crate has written: with this crate, with `linux-perf-data` and with stock perf.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod damaged;
mod full_disk;
mod readers;
mod records;
mod recover;
mod sample;

use std::io::{Cursor, Write};

use perfdata::{
    Attr, AuxFlags, Auxtrace, Event, Feature, Features, File, FileId, FinishedRound, Flags,
    SampleType, Writer,
};
use proptest::prelude::*;

use sample::{aux_attr, chunks, sample_file};

#[test]
fn reads_what_it_wrote() {
    let bytes = sample_file(&chunks());
    let file = File::parse(&bytes).unwrap();
    assert!(file.is_finished());
    assert_eq!(file.events()[0], (aux_attr(), vec![100]));
    // 112 is the shortest attribute with aux_watermark. The entry adds the section of the ids.
    assert_eq!(
        u64::from_le_bytes(bytes[16..24].try_into().unwrap()),
        112 + 16
    );
    let mut seen = Vec::new();
    let mut at = Vec::new();
    for record in file.records() {
        let record = record.unwrap();
        let (event, id) = file.decode(&record).unwrap();
        match event {
            Event::Aux(aux) => assert_eq!(
                (aux.offset == 0, id.unwrap().cpu),
                (aux.flags == AuxFlags::TRUNCATED, Some(1))
            ),
            Event::Auxtrace(_, payload) => {
                seen.push(payload.to_vec());
                at.push(record.offset);
            }
            Event::Comm(comm) => assert_eq!(
                (comm.comm, comm.exec, id.unwrap().time),
                (&b"program"[..], true, Some(10))
            ),
            Event::Mmap2(map) => assert_eq!(
                (map.filename, map.file, map.prot),
                (
                    &b"/bin/program"[..],
                    FileId::Inode {
                        dev: (8, 1),
                        ino: 99,
                        generation: 0
                    },
                    5
                )
            ),
            Event::Read(read) => assert_eq!(
                (read.value, read.running, read.id),
                (64 + 256 + 128 + 64, 999, 100)
            ),
            Event::Lost(lost) => assert_eq!(lost.lost, 3),
            _ => {}
        }
    }
    assert_eq!(seen, chunks());
    let index = file.feature(Feature::AUXTRACE).unwrap().index().unwrap();
    assert_eq!(index.iter().map(|e| e.offset).collect::<Vec<_>>(), at);
    assert!(index
        .iter()
        .all(|&e| e.size == 48 && file.record_at(e).unwrap().payload.len() >= 64));
    let text = |f| file.feature(f).unwrap().string().unwrap();
    assert_eq!(
        (text(Feature::HOSTNAME), text(Feature::ARCH)),
        ("here".into(), "x86_64".into())
    );
    assert_eq!(
        file.feature(Feature::CMDLINE).unwrap().cmdline().unwrap()[3],
        b"pattern//"
    );
    assert_eq!(
        file.feature(Feature::PMU_MAPPINGS)
            .unwrap()
            .pmu_mappings()
            .unwrap()[1],
        (42, "pattern".into())
    );
    assert_eq!(
        file.feature(Feature::EVENT_DESC).unwrap().events().unwrap()[0].attr,
        aux_attr()
    );
    assert_eq!(
        file.feature(Feature::SAMPLE_TIME)
            .unwrap()
            .sample_time()
            .unwrap(),
        (10, 1000)
    );
    assert_eq!(
        file.feature(Feature::CLOCK_DATA)
            .unwrap()
            .clock_data()
            .unwrap()
            .clock,
        10
    );
    assert_eq!(
        file.feature(Feature::NOTES).unwrap().notes().unwrap(),
        [("aux_size".into(), "65536".into())]
    );
}

#[test]
fn a_killed_recorder_leaves_its_records() {
    let events = [(aux_attr(), vec![100])];
    let mut w = Writer::new(Cursor::new(Vec::new()), &events).unwrap();
    w.auxtrace(&Auxtrace {
        size: 8,
        ..Auxtrace::default()
    })
    .unwrap();
    w.payload(&[1; 8]).unwrap();
    w.record(&FinishedRound, None).unwrap();
    w.flush().unwrap();
    let bytes = w.get_ref().get_ref().clone();
    let file = File::parse(&bytes).unwrap();
    assert!(!file.is_finished());
    assert_eq!(file.records().map(Result::unwrap).count(), 2);
    // The last record is cut: the reader gives an error with its place, and then ends.
    let file = File::parse(&bytes[..bytes.len() - 3]).unwrap();
    let mut records = file.records();
    assert!(records.next().unwrap().is_ok());
    assert!(records
        .next()
        .unwrap()
        .unwrap_err()
        .to_string()
        .contains("file offset"));
    assert!(records.next().is_none());
}

/// A payload that the caller writes to the output, a few bytes at a time, gives the same file as one
/// that the caller passes.
#[test]
fn payload_is_written_by_the_caller() {
    let write = |by: bool| {
        let mut w = Writer::new(Cursor::new(Vec::new()), &[]).unwrap();
        let bytes: Vec<u8> = (0..64).collect();
        w.auxtrace(&Auxtrace {
            size: 64,
            ..Auxtrace::default()
        })
        .unwrap();
        if by {
            w.payload_by(64, |out, front, done| {
                let part = [front, &bytes[done..]].concat();
                out.write(&part[..part.len().min(7)])
            })
            .unwrap();
        } else {
            w.payload(&bytes).unwrap();
        }
        assert!(w.payload_by(1, |_, _, _| Ok(1)).is_err());
        w.finish(&Features::new()).unwrap().into_inner()
    };
    assert_eq!(write(true), write(false));
}

proptest! {
    #[test]
    fn any_trace_round_trips(words in prop::collection::vec(prop::collection::vec(any::<u64>(), 1..40), 0..12)) {
        let chunks: Vec<Vec<u8>> = words.iter().map(|c| c.iter().flat_map(|w| w.to_le_bytes()).collect()).collect();
        let bytes = sample_file(&chunks);
        let file = File::parse(&bytes).unwrap();
        let read: Vec<Vec<u8>> = file.records().map(Result::unwrap).filter(|r| !r.payload.is_empty()).map(|r| r.payload.to_vec()).collect();
        prop_assert_eq!(read, chunks);
    }

    #[test]
    fn any_attr_round_trips(kind: u32, config: u64, bits: u64, sample: u64, clockid: i32, aux_watermark: u32, config3 in prop_oneof![Just(0), any::<u64>()]) {
        let attr = Attr {
            kind, config, flags: Flags::from_bits_retain(bits), sample_type: SampleType::from_bits_retain(sample), clockid, aux_watermark, config3,
            ..Attr::default()
        };
        prop_assert_eq!(Attr::decode(&attr.encode(), 0).unwrap(), attr);
    }
}
