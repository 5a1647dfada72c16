// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the queue to the writer: whole pieces, their order, rounds, and a disk that is full.

#![allow(clippy::unwrap_used)]

use std::io::{Cursor, Seek, SeekFrom};

use perfdata::{Attr, Auxtrace, Event, File, FinishedRound, Writer};

use super::crew::Lane;
use super::queue::Queue;
use super::*;
use crate::drain::Sink;

/// An output with room for a number of bytes.
struct Disk {
    room: usize,
    file: Cursor<Vec<u8>>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.room {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.room -= bytes.len();
        self.file.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.file.seek(to)
    }
}

impl<W: Write + Seek> Tape for Writer<W> {
    fn round(&mut self) -> Result<()> {
        self.record(&FinishedRound, None)?;
        Ok(Self::flush(self)?)
    }
    fn describe(&mut self) -> Result<()> {
        Ok(())
    }
    fn flush(&mut self) -> Result<()> {
        Ok(Self::flush(self)?)
    }
    fn checkpoint(&mut self) -> Result<()> {
        Ok(Self::checkpoint(self)?)
    }
    fn is_over(&self) -> bool {
        false
    }
    fn turn(&mut self) -> Result<()> {
        Ok(())
    }
    fn rotate(&mut self) -> Result<()> {
        Ok(())
    }
    fn takes_all(&self) -> bool {
        true
    }
}

/// Three threads send pieces of 8 to 800 bytes. Returns their results, that of the writer, and the file.
fn send(room: usize, passes: u64, direct: bool) -> (Vec<Result<()>>, Result<()>, Vec<u8>) {
    let file = Cursor::new(Vec::new());
    let mut file = Writer::new(Disk { room, file }, &[(Attr::default(), vec![1])]).unwrap();
    let shared = Shared::new(&mut file, 3);
    let (over, _finished) = UnixStream::pair().unwrap();
    let (to, from) = sync_channel(2);
    let (results, written) = std::thread::scope(|scope| {
        let mut back = Vec::new();
        let mut workers = Vec::new();
        for thread in 0..3_u32 {
            let (give, empty) = std::sync::mpsc::channel();
            back.push(give);
            let (shared, over, to) = (&shared, &over, to.clone());
            workers.push(scope.spawn(move || {
                let thread_number = usize::try_from(thread).unwrap();
                let mut queue = Queue::new(shared, thread_number, direct, to, empty, over);
                let mut offset = 0;
                for pass in 0..passes {
                    queue.begin()?;
                    let size = (pass * 37 % 100 + 1) * 8;
                    queue.piece(&Auxtrace {
                        size,
                        offset,
                        idx: thread,
                        ..Auxtrace::default()
                    })?;
                    for word in offset / 8..(offset + size) / 8 {
                        queue.payload(&(word ^ u64::from(thread)).to_le_bytes())?;
                    }
                    offset += size;
                    queue.end(true, false)?;
                }
                Ok(())
            }));
        }
        drop(to);
        let written = write(&shared, &from, &back, &over);
        drop(from);
        let results = workers.into_iter().map(|w| w.join().unwrap()).collect();
        (results, written)
    });
    let _ = file.checkpoint();
    (results, written, file.get_ref().file.get_ref().clone())
}

/// A direct write never overtakes a batch that was sent before.
#[test]
fn what_waits_goes_first() {
    let disk = Disk {
        room: usize::MAX,
        file: Cursor::new(Vec::new()),
    };
    let mut file = Writer::new(disk, &[(Attr::default(), vec![1])]).unwrap();
    let shared = Shared::new(&mut file, 1);
    let (over, _finished) = UnixStream::pair().unwrap();
    let (to, from) = sync_channel(8);
    let (give, empty) = std::sync::mpsc::channel();
    let mut queue = Queue::new(&shared, 0, true, to, empty, &over);
    let mut next = 0_u64;
    let mut send = |queue: &mut Queue<'_, '_, _>| {
        // A record of a type that means nothing here, with a number.
        let mut record = [14_u32.to_le_bytes(), [0, 0, 16, 0]].concat();
        record.extend(next.to_le_bytes());
        next += 1;
        queue.records(&record, None).unwrap();
    };
    send(&mut queue);
    assert!(from.try_recv().is_err(), "the file was free");
    let somebody = shared.lock();
    send(&mut queue);
    drop(somebody);
    send(&mut queue);
    drop(queue);
    write(&shared, &from, &[give], &over).unwrap();
    assert!(shared.free().is_some(), "nothing waits any more");
    file.checkpoint().unwrap();
    let bytes = file.get_ref().file.get_ref();
    let file = File::parse(bytes).unwrap();
    let records = file.records().map(std::result::Result::unwrap);
    let numbers: Vec<_> = records
        .filter(|record| record.kind.0 == 14)
        .map(|record| u64::from_le_bytes(record.body.try_into().unwrap()))
        .collect();
    assert_eq!(numbers, [0, 1, 2]);
}

/// A round ends when all rings of a thread were read, not when the first was.
#[test]
fn a_round_has_whole_passes() {
    let file = Disk {
        room: usize::MAX,
        file: Cursor::new(Vec::new()),
    };
    let mut file = Writer::new(file, &[(Attr::default(), vec![1])]).unwrap();
    let shared = Shared::new(&mut file, 1);
    let (over, _finished) = UnixStream::pair().unwrap();
    let (to, _from) = sync_channel(8);
    let (_give, empty) = std::sync::mpsc::channel();
    let mut queue = Queue::new(&shared, 0, true, to, empty, &over);
    // Each pass reads two rings.
    for _ in 0..2 {
        queue.begin().unwrap();
        let round = shared.round.load(Ordering::Relaxed);
        for _ in 0..2 {
            let record = [14_u32.to_le_bytes(), [0, 0, 8, 0]].concat();
            queue.records(&record, None).unwrap();
            assert_eq!(shared.round.load(Ordering::Relaxed), round);
        }
        queue.end(true, false).unwrap();
        assert_eq!(shared.round.load(Ordering::Relaxed), round + 1);
    }
}

#[test]
fn every_piece_arrives_whole_and_in_the_order_of_its_ring() {
    [true, false].into_iter().for_each(every_piece_arrives);
}

fn every_piece_arrives(direct: bool) {
    let (results, written, bytes) = send(usize::MAX, 200, direct);
    written.unwrap();
    assert!(results.iter().all(Result::is_ok));
    let file = File::parse(&bytes).unwrap();
    let mut next = [0; 3];
    let mut rounds = 0;
    for record in file.records() {
        let record = record.unwrap();
        match file.decode(&record).unwrap().0 {
            Event::Auxtrace(aux, payload) => {
                let next = &mut next[usize::try_from(aux.idx).unwrap()];
                assert_eq!(aux.offset, *next);
                for word in payload.chunks(8) {
                    let want = (*next / 8) ^ u64::from(aux.idx);
                    assert_eq!(word, want.to_le_bytes());
                    *next += 8;
                }
            }
            _ => rounds += 1,
        }
    }
    assert_eq!(
        next[0],
        (0..200).map(|pass| (pass * 37 % 100 + 1) * 8).sum::<u64>()
    );
    assert_eq!((next[1], next[2]), (next[0], next[0]));
    assert!(rounds > 0, "no round was ever finished");
}

/// The drains do not wait for a writer that has ended, and the error is the writer's.
#[test]
fn a_full_disk_ends_all() {
    let (results, written, _) = send(20_000, 2000, false);
    assert!(written.unwrap_err().is_full());
    assert!(results.iter().all(Result::is_err));
    // Whichever thread finds the disk full, the others end too.
    let (results, written, _) = send(20_000, 2000, true);
    assert!(results.iter().all(Result::is_err));
    let mut all = results.into_iter().chain([written]);
    assert!(all.any(|result| result.is_err_and(|e| e.is_full())));
}
