// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is written is read again: by this crate, by `linux-perf-data` and by stock perf; and no file makes the reader panic.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::Cell;
use std::io::{Cursor, IoSlice, Seek, SeekFrom, Write};
use std::rc::Rc;

use perfdata::{
    Attr, Aux, AuxFlags, Auxtrace, AuxtraceZstd, ClockData, Comm, Encode, Event, EventDesc,
    Feature, Features, File, FileId, FinishedInit, FinishedRound, Flags, IdIndex, IdIndexEntry,
    ItraceStart, KernelMmap, Lost, Mmap2, Read, RecordType, Records, SampleId, SampleType,
    TimePlace, Writer, MISC_SWITCH_OUT,
};
use proptest::prelude::*;

const SAMPLE: SampleType = SampleType::IDENTIFIER
    .union(SampleType::IP)
    .union(SampleType::TID)
    .union(SampleType::TIME)
    .union(SampleType::CPU);

fn aux_attr() -> Attr {
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

fn dummy_attr() -> Attr {
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

fn who(time: u64, id: u64) -> SampleId {
    SampleId {
        pid: Some(1234),
        tid: Some(1235),
        time: Some(time),
        id: Some(id),
        stream_id: None,
        cpu: Some(1),
    }
}

/// The ids that the kernel gives to events that are opened again are none of the file's.
#[test]
fn records_of_renamed_events_keep_all_but_their_ids() {
    // The words of each body; those of 7 are ids of the event.
    let table = [
        (RecordType::COMM, &[1, 7_000, 3, 7][..]),
        (RecordType::LOST, &[7, 5, 2, 7]),
        (RecordType::SAMPLE, &[7, 1, 2, 3]),
        (RecordType::THROTTLE, &[1, 7, 7, 2, 7]),
        (RecordType::AUX, &[4096, 64, 0, 2, 8]),
        (RecordType::FINISHED_ROUND, &[]),
        (RecordType::ID_INDEX, &[7, 7]),
    ];
    let encode = |new: u64| {
        let mut out = Vec::new();
        for (kind, words) in table {
            out.extend(kind.0.to_le_bytes());
            out.extend(0_u16.to_le_bytes());
            out.extend(u16::try_from(8 + words.len() * 8).unwrap().to_le_bytes());
            let user = kind.0 >= 64;
            let word = |word: &u64| if *word == 7 && !user { new } else { *word };
            out.extend(words.iter().flat_map(|w| word(w).to_le_bytes()));
        }
        out
    };
    let mut bytes = encode(7);
    perfdata::rename(&mut bytes, &|id| (id == 7).then_some(70)).unwrap();
    assert_eq!(bytes, encode(70));
    // A record that has no room for an id, and what is no record.
    for bad in [&[1, 0, 0, 0, 0, 0, 8, 0][..], &[1, 0, 0, 0, 0, 0, 7, 0]] {
        assert!(perfdata::rename(&mut bad.to_vec(), &|_| None).is_err());
    }
}

/// A file such as the recorder writes, with these pieces of trace.
fn sample_file(chunks: &[Vec<u8>]) -> Vec<u8> {
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
        // In two pieces, as at the end of a ring.
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

fn features() -> Features {
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

fn chunks() -> Vec<Vec<u8>> {
    vec![vec![0x11; 64], (0..=255).collect(), vec![7; 128]]
}

#[test]
fn reads_what_it_wrote() {
    let bytes = sample_file(&chunks());
    let file = File::parse(&bytes).unwrap();
    assert!(file.is_finished());
    assert_eq!(file.events()[0], (aux_attr(), vec![100]));
    // 112 carries aux_watermark and nothing longer is used; the entry adds the ids' section.
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
        "pattern//"
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
    // The last record is cut: an error that says where, and then the end.
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

/// A disk with so much room.
struct Disk {
    inner: Cursor<Vec<u8>>,
    room: usize,
    /// After so many more it refuses one write, wherever that is to.
    refuses: Rc<Cell<Option<usize>>>,
}

impl Disk {
    fn new(room: usize) -> Self {
        Self {
            inner: Cursor::new(Vec::new()),
            room,
            refuses: Rc::default(),
        }
    }

    fn cut(&mut self, len: u64) -> std::io::Result<()> {
        self.inner.get_mut().truncate(usize::try_from(len).unwrap());
        Ok(())
    }
}

impl std::io::Read for Disk {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        std::io::Read::read(&mut self.inner, bytes)
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let at = usize::try_from(self.inner.position()).unwrap();
        let n = bytes.len().min(self.room.saturating_sub(at));
        let refuses = self.refuses.get();
        self.refuses.set(refuses.and_then(|n| n.checked_sub(1)));
        if n == 0 || refuses == Some(0) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.inner.write(&bytes[..n])
    }
    /// As a file does: all that there is room for, of all of them.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> std::io::Result<usize> {
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.write(&all)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.inner.seek(to)
    }
}

fn recovered(bytes: &[u8]) -> perfdata::Result<(perfdata::Recovered, Vec<u8>)> {
    let mut file = Cursor::new(bytes.to_vec());
    let found = perfdata::recover(
        &mut file,
        |features, _| {
            features.notes(&[("ended", "recovered")]);
        },
        |file, len| {
            file.get_mut().truncate(usize::try_from(len).unwrap());
            Ok(())
        },
    )?;
    Ok((found, file.into_inner()))
}

/// A cut anywhere: what recover makes of the front is a whole file with the records that are there, and every byte of trace.
#[test]
fn every_prefix_recovers_or_is_refused() {
    let whole = sample_file(&chunks());
    let file = File::parse(&whole).unwrap();
    let (data, size) = file.data_section();
    let payloads: Vec<(u64, u64)> = file
        .records()
        .map(|record| record.unwrap())
        .filter(|record| record.kind == RecordType::AUXTRACE)
        .map(|record| {
            (
                record.offset + 48,
                u64::try_from(record.payload.len()).unwrap(),
            )
        })
        .collect();
    let mut refused = 0;
    for len in 0..whole.len() {
        let cut = &whole[..len];
        let end = u64::try_from(len).unwrap();
        let (found, again) = match recovered(cut) {
            Ok(ok) => ok,
            Err(e) => {
                assert!(end < data, "{len}: {e}");
                assert!(e.to_string().len() > 30, "{e}");
                refused += 1;
                continue;
            }
        };
        assert!(end >= data && !found.was_finished, "{len}");
        let file = File::parse(&again).unwrap_or_else(|e| panic!("{len}: {e}"));
        assert!(file.is_finished(), "{len}");
        let records: Vec<_> = file.records().map(|record| record.unwrap()).collect();
        assert_eq!(
            u64::try_from(records.len()).unwrap(),
            found.records,
            "{len}"
        );
        let trace: usize = records.iter().map(|record| record.payload.len()).sum();
        let there: u64 = payloads
            .iter()
            .map(|(at, size)| end.saturating_sub(*at).min(*size) & !7)
            .sum();
        assert_eq!(u64::try_from(trace).unwrap(), there, "{len}");
        let index = file
            .feature(Feature::AUXTRACE)
            .map_or(Vec::new(), |s| s.index().unwrap());
        assert_eq!(u64::try_from(index.len()).unwrap(), found.pieces, "{len}");
        for entry in index {
            let record = file.record_at(entry).unwrap();
            assert_eq!(record.kind, RecordType::AUXTRACE);
        }
        assert_eq!(
            file.feature(Feature::EVENT_DESC).unwrap().events().unwrap()[0].ids,
            [100]
        );
        assert!(
            found.dropped < 64 * 1024 && found.dropped <= end - data,
            "{len}"
        );
        // Once more, it is a finished file; and a recovery that was itself cut is recovered.
        assert!(recovered(&again).unwrap().0.was_finished);
        let (twice, _) = recovered(&again[..again.len() - 1]).unwrap();
        assert_eq!(
            (twice.records, twice.trace),
            (found.records, found.trace),
            "{len}"
        );
        read_all(&again);
    }
    assert_eq!(refused, data);
    assert!(size > 0);
    assert!(recovered(&whole).unwrap().0.was_finished);
}

/// After a power cut the end of a file may be zeros: they are no records.
#[test]
fn zeros_are_cut_off() {
    let whole = sample_file(&chunks());
    let (data, size) = File::parse(&whole).unwrap().data_section();
    let end = usize::try_from(data + size).unwrap();
    let mut bytes = whole[..end].to_vec();
    bytes.resize(end + 10_000, 0);
    let (found, again) = recovered(&bytes).unwrap();
    assert_eq!(found.dropped, 10_000);
    assert_eq!(
        File::parse(&again).unwrap().records().count(),
        File::parse(&whole).unwrap().records().count()
    );
}

#[test]
fn a_full_disk_leaves_what_fits() {
    /// A piece of trace and the record behind it.
    const UNIT: u64 = 48 + 256 + 8;
    for room in (400..9000).step_by(40) {
        let disk = Disk::new(room);
        let mut w = Writer::new(disk, &[(aux_attr(), vec![100])]).unwrap();
        let begin = w.position();
        let mut done = 0;
        let error = loop {
            let aux = Auxtrace {
                size: 256,
                offset: done * 256,
                ..Auxtrace::default()
            };
            let result = w
                .auxtrace(&aux)
                .and_then(|()| w.payload(&[9; 100]))
                .and_then(|()| w.payload(&[9; 156]))
                .and_then(|()| w.record(&FinishedRound, None));
            match result {
                Ok(()) => done += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(error, perfdata::Error::Output { .. }), "{error}");
        let good = w.salvage(u64::MAX, Disk::cut).unwrap();
        // Nothing is given up that is whole, also where the piece behind it is not.
        let room = u64::try_from(room).unwrap();
        let ends = (0..).flat_map(|n| [begin + n * UNIT, begin + (n + 1) * UNIT - 8]);
        let last = ends.take_while(|&end| end <= room).last();
        assert_eq!(good, last.unwrap_or(begin), "{room}");
        let mut finished = w.try_finish(&Features::new());
        if finished.is_err() && done > 2 {
            // Of pieces given up two make the room that the index needs.
            finished = w
                .finish_over(good, &[], &Features::new(), Disk::cut)
                .map(|_| ());
            assert!(finished.is_ok(), "{room}");
            done -= 2;
        }
        let bytes = w.get_ref().inner.get_ref();
        let file = File::parse(bytes).unwrap();
        let whole = file
            .records()
            .map(Result::unwrap)
            .filter(|r| !r.payload.is_empty())
            .count();
        assert!(
            whole >= usize::try_from(done).unwrap(),
            "{room}: {whole} of {done}"
        );
        if finished.is_ok() && done > 0 {
            assert_eq!(
                file.feature(Feature::AUXTRACE)
                    .unwrap()
                    .index()
                    .unwrap()
                    .len(),
                whole
            );
        }
    }
}

/// What is written until the disk is full: so many records of 8 bytes between pieces of trace of so many, in one record each or compressed.
#[derive(Debug, Clone, Copy)]
struct Shape {
    records: usize,
    piece: Option<(usize, bool)>,
}

impl Shape {
    fn write(self, w: &mut Writer<Disk>) -> perfdata::Result<()> {
        loop {
            for _ in 0..self.records {
                w.record(&FinishedRound, None)?;
            }
            w.flush()?;
            let Some((size, packed)) = self.piece else {
                continue;
            };
            let aux = Auxtrace {
                size: u64::try_from(size).unwrap(),
                ..Auxtrace::default()
            };
            // A record could be made of it.
            let payload = [FinishedRound::KIND.0.to_le_bytes(), [0, 0, 8, 0]].concat();
            let payload = payload.repeat(size / 8);
            if packed {
                let part = AuxtraceZstd {
                    aux,
                    at: 0,
                    len: u32::try_from(size).unwrap(),
                    frame: &payload,
                };
                w.record(&part, None)?;
            } else {
                w.auxtrace(&aux)?;
                w.payload(&payload)?;
            }
        }
    }
}

/// Where the records end that are in a file, and whether each is of trace.
fn ends(bytes: &[u8]) -> Vec<(u64, bool)> {
    let file = File::parse(bytes).unwrap();
    let records: Vec<_> = file.records().map(Result::unwrap).collect();
    let end = |r: &perfdata::Record<'_>| {
        r.offset + 8 + u64::try_from(r.body.len() + r.payload.len()).unwrap()
    };
    let trace = [RecordType::AUXTRACE, RecordType::AUXTRACE_ZSTD];
    records
        .iter()
        .map(|r| (end(r), trace.contains(&r.kind)))
        .collect()
}

/// The file is finished, and its index has every piece of trace.
fn index_is_right(bytes: &[u8]) {
    let file = File::parse(bytes).unwrap();
    assert!(file.is_finished());
    let pieces = file.records().map(Result::unwrap);
    let pieces = pieces.filter(|r| r.kind == RecordType::AUXTRACE);
    let index = file.feature(Feature::AUXTRACE);
    let index = index.map_or(Vec::new(), |section| section.index().unwrap());
    let places: Vec<_> = index.iter().map(|entry| entry.offset).collect();
    assert_eq!(places, pieces.map(|r| r.offset).collect::<Vec<_>>());
}

/// Not even the features have room: no record goes that need not, and none if that does not finish the file.
#[test]
fn a_full_disk_loses_nothing_for_nothing() {
    let shapes = [
        (1, None),
        (500, Some((16, false))),
        (100, Some((1600, false))),
        (100, Some((1600, true))),
        (3, Some((4000, false))),
        (100, Some((4000, true))),
        (0, Some((64, false))),
    ];
    let mut features = Features::new();
    features.notes(&[("ended", "x".repeat(300))]);
    let events = [(aux_attr(), vec![100])];
    let mut empty = Writer::new(Disk::new(usize::MAX), &events).unwrap();
    let data = empty.position();
    empty.try_finish(&features).unwrap();
    let tail = empty.position() - data;
    let last = raw_record(RecordType::FINISHED_ROUND, 7, &[]).repeat(5);

    let (mut over, mut not, mut refused) = (0, 0, 0);
    for ((records, piece), room) in shapes
        .into_iter()
        .flat_map(|shape| (1000..6000).step_by(88).map(move |room| (shape, room)))
    {
        for refuses in (0..12).map(Some).chain([None]) {
            let said = format!("{records}, {piece:?}, {room}, {refuses:?}");
            let disk = Disk::new(room);
            let fault = disk.refuses.clone();
            let mut w = Writer::new(disk, &events).unwrap();
            Shape { records, piece }.write(&mut w).unwrap_err();
            let good = w.salvage(u64::MAX, Disk::cut).unwrap();
            let whole = ends(w.get_ref().inner.get_ref());
            if w.raw(&last).and_then(|()| w.try_finish(&features)).is_ok() {
                continue;
            }

            let pieces = u64::try_from(whole.iter().filter(|(_, trace)| *trace).count()).unwrap();
            let indexed = pieces != 0 && piece.is_some_and(|(_, packed)| !packed);
            let index = if indexed { 24 + 16 * pieces } else { 0 };
            let room = u64::try_from(room - last.len()).unwrap() - tail - index;
            let kept: Vec<_> = whole.iter().filter(|(end, _)| *end <= room).collect();
            let traced = pieces == 0 || kept.iter().any(|(_, trace)| *trace);

            fault.set(refuses);
            let result = w.finish_over(good, &last, &features, Disk::cut);
            let hit = refuses.is_some() && fault.take().is_none();
            assert_eq!(
                result.is_ok(),
                !kept.is_empty() && traced && !hit,
                "{said}: {result:?}"
            );
            if result.is_err() {
                assert_eq!(w.salvage(good, Disk::cut).unwrap(), good, "{said}");
                let (_, bytes) = recovered(w.get_ref().inner.get_ref()).unwrap();
                assert_eq!(ends(&bytes), whole, "{said}");
                // It can be gone on with.
                if w.finish_over(good, &[], &features, Disk::cut).is_ok() {
                    index_is_right(w.get_ref().inner.get_ref());
                }
                refused += usize::from(hit);
                not += usize::from(!hit);
                continue;
            }
            let bytes = w.get_ref().inner.get_ref();
            let there = ends(bytes);
            assert_eq!(there.len(), kept.len() + 5, "{said}");
            assert!(there.iter().zip(kept).all(|(a, b)| a == b), "{said}");
            index_is_right(bytes);
            over += 1;
        }
    }
    assert!(over > 0 && not > 0 && refused > 0);
}

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

/// Reads everything that there is to read.
fn read_all(bytes: &[u8]) {
    let Ok(file) = File::parse(bytes) else { return };
    for record in file.records().map_while(Result::ok) {
        let _ = file.decode(&record);
        for (attr, _) in file.events() {
            let id = record.sample_id(attr).ok().and_then(|(id, _)| id);
            assert_eq!(record.time(TimePlace::of(attr)), id.and_then(|id| id.time));
        }
    }
    for section in file.features() {
        let _ = section.string();
        let _ = section.cmdline();
        let _ = section.pmu_mappings();
        let _ = section.events();
        let _ = section
            .index()
            .map(|index| index.iter().filter(|&&e| file.record_at(e).is_ok()).count());
        let _ = section.sample_time();
        let _ = section.clock_data();
        let _ = section.notes();
    }
}

#[test]
fn a_cut_file_never_panics() {
    let bytes = sample_file(&chunks());
    for len in 0..bytes.len() {
        read_all(&bytes[..len]);
    }
}

#[test]
fn errors_name_field_and_place() {
    let good = sample_file(&chunks());
    let broken = |at: usize, value: u64| {
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        match File::parse(&bytes) {
            Err(e) => e.to_string(),
            Ok(_) => "accepted".to_owned(),
        }
    };
    for (at, value, says) in [
        (0, 1, "magic at file offset 0x0"),
        (
            0,
            u64::from_be_bytes(*b"PERFILE2").swap_bytes().swap_bytes(),
            "other byte order",
        ),
        (8, 16, "a stream for a pipe"),
        (8, 17, "header.size at file offset 0x8 is 0x11"),
        (16, 17, "header.attr_size at file offset 0x10"),
        (24, u64::MAX, "header.attrs at file offset 0x18"),
        (40, 1 << 40, "header.data at file offset 0x28"),
        (48, 1 << 40, "header.data at file offset 0x28"),
    ] {
        let text = broken(at, value);
        assert!(text.contains(says), "{at}: {text}");
    }
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

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        read_all(&bytes);
        let mut file = b"PERFILE2".to_vec();
        file.extend(104_u64.to_le_bytes());
        file.extend(&bytes);
        read_all(&file);
    }

    #[test]
    fn mutated_files_never_panic(at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), word: Option<(prop::sample::Index, u64)>) {
        let mut bytes = sample_file(&chunks());
        for (at, value) in at {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some((at, value)) = word {
            let at = at.index(bytes.len() / 8) * 8;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        read_all(&bytes);
        let _ = recovered(&bytes);
    }
}

/// A record of the kernel, as it stands in a ring.
fn raw_record(kind: RecordType, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut out = kind.0.to_le_bytes().to_vec();
    out.extend(misc.to_le_bytes());
    out.extend(u16::try_from(body.len() + 8).unwrap().to_le_bytes());
    out.extend(body);
    out
}

#[test]
fn what_only_the_kernel_writes_is_read() {
    let attr = Attr::default();
    let le = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let symbol = [
        le(&[0x1000, 0, 64, 1 << 16]),
        b"bpf_prog\0\0\0\0\0\0\0\0".to_vec(),
    ]
    .concat();
    let poke = [
        le(&[0x2000, 0, 5 | 2 << 16]),
        vec![1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0],
    ]
    .concat();
    let cases = [
        (
            RecordType::SWITCH,
            MISC_SWITCH_OUT,
            vec![],
            Event::Switch(true, None),
        ),
        (
            RecordType::SWITCH_CPU_WIDE,
            0,
            le(&[7, 8]),
            Event::Switch(false, Some((7, 8))),
        ),
        (
            RecordType::KSYMBOL,
            0,
            symbol,
            Event::Ksymbol(true, 0x1000, 64, b"bpf_prog"),
        ),
        (
            RecordType::TEXT_POKE,
            0,
            poke,
            Event::TextPoke(0x2000, &[1, 2, 3, 4, 5], &[6, 7]),
        ),
        (
            RecordType::AUX_OUTPUT_HW_ID,
            0,
            le(&[9, 0]),
            Event::AuxOutputHwId(9),
        ),
    ];
    for (kind, misc, body, event) in cases {
        let bytes = raw_record(kind, misc, &body);
        let record = Records::new(&bytes, 0).next().unwrap().unwrap();
        assert_eq!(record.event(&attr).unwrap(), event, "{kind:?}");
        // Cut anywhere it is an error, or a shorter string; never a panic.
        for len in (0..body.len()).step_by(8) {
            let bytes = raw_record(kind, misc, &body[..len]);
            let _ = Records::new(&bytes, 0)
                .next()
                .unwrap()
                .unwrap()
                .event(&attr);
        }
    }
}

#[test]
fn mappings_have_build_ids_or_are_the_kernels() {
    let mut id = [0; 20];
    id[..4].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    let user = Mmap2 {
        pid: 1,
        tid: 1,
        addr: 0x1000,
        len: 0x1000,
        pgoff: 0,
        file: FileId::BuildId(20, id),
        prot: 5,
        flags: 2,
        filename: b"/bin/x",
    };
    let kernel = KernelMmap {
        addr: 0xffff_ffff_8100_0000,
        len: 0x100_0000,
        pgoff: 0xffff_ffff_8100_0000,
        filename: b"[kernel.kallsyms]_text",
    };
    let attr = Attr::default();
    let mut w = Writer::new(Cursor::new(Vec::new()), &[(attr.clone(), vec![1])]).unwrap();
    w.record(&user, Some((&who(1, 1), &attr))).unwrap();
    w.record(&kernel, Some((&who(1, 1), &attr))).unwrap();
    let bytes = w.finish(&features()).unwrap().into_inner();
    let file = File::parse(&bytes).unwrap();
    let events: Vec<_> = file
        .records()
        .map(|record| file.decode(&record.unwrap()).unwrap().0)
        .collect();
    assert_eq!(events, [Event::Mmap2(user), Event::Mmap(kernel)]);
    assert_eq!(user.file.build_id().unwrap()[..4], [0xde, 0xad, 0xbe, 0xef]);
}

/// A payload that somebody else writes to the output, a few bytes at a time, is as one that was handed over.
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
