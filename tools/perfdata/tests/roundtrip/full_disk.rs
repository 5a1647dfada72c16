// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A disk that becomes full: the writer keeps what fits, and can finish the file.

use std::cell::Cell;
use std::io::{Cursor, IoSlice, Seek, SeekFrom, Write};
use std::rc::Rc;

use perfdata::{
    Auxtrace, AuxtraceZstd, Encode, Feature, Features, File, FinishedRound, RecordType, Writer,
};

use crate::recover::recovered;
use crate::sample::{aux_attr, raw_record};

/// A disk that refuses writes.
struct Disk {
    inner: Cursor<Vec<u8>>,
    /// Number of bytes that it holds.
    space: usize,
    /// Number of writes until it refuses one, whether it has space or not.
    refuses: Rc<Cell<Option<usize>>>,
}

impl Disk {
    fn new(space: usize) -> Self {
        Self {
            inner: Cursor::new(Vec::new()),
            space,
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
        let n = bytes.len().min(self.space.saturating_sub(at));
        let refuses = self.refuses.get();
        self.refuses.set(refuses.and_then(|n| n.checked_sub(1)));
        if n == 0 || refuses == Some(0) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.inner.write(&bytes[..n])
    }
    /// Writes as much of all parts as fits, as a file does.
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

#[test]
fn a_full_disk_leaves_what_fits() {
    /// Length of a piece of trace and of the record after it.
    const UNIT: u64 = 48 + 256 + 8;
    for space in (400..9000).step_by(40) {
        let disk = Disk::new(space);
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
        // Every whole record is kept, also one before an incomplete piece.
        let space = u64::try_from(space).unwrap();
        let ends = (0..).flat_map(|n| [begin + n * UNIT, begin + (n + 1) * UNIT - 8]);
        let last = ends.take_while(|&end| end <= space).last();
        assert_eq!(good, last.unwrap_or(begin), "{space}");
        let mut finished = w.try_finish(&Features::new());
        if finished.is_err() && done > 2 {
            // The space of two pieces is enough for the index.
            finished = w
                .finish_over(good, &[], &Features::new(), Disk::cut)
                .map(|_| ());
            assert!(finished.is_ok(), "{space}");
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
            "{space}: {whole} of {done}"
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

/// The data that is written until the disk is full: records of 8 bytes, and pieces of trace between them.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Number of records before each piece.
    records: usize,
    /// Length of each piece, and whether it is compressed.
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
            // The payload looks like records: the writer must not count it as records.
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

/// Where each record of a file ends, and whether it is a record of trace.
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

/// Checks that the file is finished, and that its index has every piece of trace.
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

/// The disk is too full for the features. `finish_over` removes no more records than necessary, and
/// none if that does not finish the file.
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
    features.string(Feature::HOSTNAME, &"x".repeat(300));
    let events = [(aux_attr(), vec![100])];
    let mut empty = Writer::new(Disk::new(usize::MAX), &events).unwrap();
    let data = empty.position();
    empty.try_finish(&features).unwrap();
    let tail = empty.position() - data;
    let last = raw_record(RecordType::FINISHED_ROUND, 7, &[]).repeat(5);

    let (mut over, mut not, mut refused) = (0, 0, 0);
    for ((records, piece), space) in shapes
        .into_iter()
        .flat_map(|shape| (1000..6000).step_by(88).map(move |space| (shape, space)))
    {
        for refuses in (0..12).map(Some).chain([None]) {
            let said = format!("{records}, {piece:?}, {space}, {refuses:?}");
            let disk = Disk::new(space);
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
            let space = u64::try_from(space - last.len()).unwrap() - tail - index;
            let kept: Vec<_> = whole.iter().filter(|(end, _)| *end <= space).collect();
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
                // Another call can still finish the file.
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

/// A file can be finished twice: the second features replace the first, which do not become records.
#[test]
fn a_file_is_finished_twice() {
    let events = [(aux_attr(), vec![100])];
    let write = |ends: &[&str]| {
        let mut w = Writer::new(Cursor::new(Vec::new()), &events).unwrap();
        let aux = Auxtrace {
            size: 8,
            ..Auxtrace::default()
        };
        w.auxtrace(&aux).unwrap();
        w.payload(&[7; 8]).unwrap();
        for end in ends {
            let mut features = Features::new();
            features.string(Feature::HOSTNAME, end);
            w.try_finish(&features).unwrap();
        }
        let len = usize::try_from(w.position()).unwrap();
        w.into_inner().into_inner()[..len].to_vec()
    };
    let long = "h".repeat(1000);
    assert!(write(&[&long, "here"]) == write(&["here"]));
    assert!(write(&["here", &long]) == write(&[&long]));
}
