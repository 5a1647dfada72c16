// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the queue to the writer: whole pieces, their order, rounds, and a disk that is full.

#![allow(clippy::unwrap_used)]

use std::io::{Cursor, Seek, SeekFrom};
use std::sync::{Arc, Mutex};

use perfdata::{Attr, Auxtrace, Event, File, FinishedRound, Writer};

use super::crew::Lane;
use super::queue::Queue;
use super::*;
use crate::drain::Sink;

/// An output with space for a number of bytes.
struct Disk {
    space: usize,
    file: Cursor<Vec<u8>>,
    /// While this is locked, nothing can be written.
    busy: Arc<Mutex<()>>,
}

impl Disk {
    fn new(space: usize) -> Self {
        Self {
            space,
            file: Cursor::new(Vec::new()),
            busy: Arc::default(),
        }
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _busy = self.busy.lock().unwrap();
        if bytes.len() > self.space {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.space -= bytes.len();
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

impl<W: Write + Seek> FileSink for Writer<W> {
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

/// The result of three threads that have sent pieces.
struct Sent {
    results: Vec<Result<()>>,
    written: Result<()>,
    bytes: Vec<u8>,
    /// The most memory of the batches.
    max: usize,
}

/// Three threads send pieces of these sizes, by thread and pass. If the file is `busy`, it can be written
/// only when each of them has sent all or waits for memory.
fn fill(
    disk: Disk,
    bound: usize,
    (passes, direct): (u64, bool),
    size: fn(u32, u64) -> u64,
    busy: bool,
) -> Sent {
    let lock = disk.busy.clone();
    let mut file = Writer::new(disk, &[(Attr::default(), vec![1])]).unwrap();
    let busy = busy.then(|| lock.lock().unwrap());
    let shared = Shared::new(&mut file, 3, bound);
    let (over, _finished) = UnixStream::pair().unwrap();
    let (to, from) = channel();
    let (results, written) = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for thread in 0..3_u32 {
            let (shared, over, to) = (&shared, &over, to.clone());
            workers.push(scope.spawn(move || {
                let thread_number = usize::try_from(thread).unwrap();
                let mut queue = Queue::new(shared, thread_number, direct, to, over);
                let mut offset = 0;
                for pass in 0..passes {
                    queue.begin()?;
                    let size = size(thread, pass);
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
        let (shared, over) = (&shared, &over);
        let writer = scope.spawn(move || write(shared, &from, over));
        let stopped = || {
            let ended = workers.iter().filter(|worker| worker.is_finished());
            ended.count() + usize::try_from(shared.stock.waiting()).unwrap() == 3
        };
        while busy.is_some() && !stopped() {
            std::thread::yield_now();
        }
        drop(busy);
        let results = workers.into_iter().map(|w| w.join().unwrap()).collect();
        (results, writer.join().unwrap())
    });
    let max = shared.stock.max();
    let _ = file.checkpoint();
    Sent {
        results,
        written,
        bytes: file.get_ref().file.get_ref().clone(),
        max,
    }
}

/// Pieces of 8 to 800 bytes.
fn send(space: usize, passes: u64, direct: bool) -> Sent {
    let size = |_, pass| (pass * 37 % 100 + 1) * 8;
    fill(Disk::new(space), 8192, (passes, direct), size, false)
}

/// Each thread's pieces are in the file, whole and in their order. Returns the bytes of each.
fn pieces(bytes: &[u8]) -> ([u64; 3], u64) {
    let file = File::parse(bytes).unwrap();
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
    (next, rounds)
}

/// A direct write never overtakes a batch that was sent before.
#[test]
fn what_waits_goes_first() {
    let mut file = Writer::new(Disk::new(usize::MAX), &[(Attr::default(), vec![1])]).unwrap();
    let shared = Shared::new(&mut file, 1, 1 << 20);
    let (over, _finished) = UnixStream::pair().unwrap();
    let (to, from) = channel();
    let mut queue = Queue::new(&shared, 0, true, to, &over);
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
    write(&shared, &from, &over).unwrap();
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
    let mut file = Writer::new(Disk::new(usize::MAX), &[(Attr::default(), vec![1])]).unwrap();
    let shared = Shared::new(&mut file, 1, 1 << 20);
    let (over, _finished) = UnixStream::pair().unwrap();
    let (to, _from) = channel();
    let mut queue = Queue::new(&shared, 0, true, to, &over);
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
    let sent = send(usize::MAX, 200, direct);
    sent.written.unwrap();
    assert!(sent.results.iter().all(Result::is_ok));
    let (bytes, rounds) = pieces(&sent.bytes);
    let all: u64 = (0..200).map(|pass| (pass * 37 % 100 + 1) * 8).sum();
    assert_eq!(bytes, [all; 3]);
    assert!(rounds > 0, "no round was ever finished");
}

/// A file that cannot be written for a while: the threads wait before they have more memory than they may,
/// and all is written in the end. One thread has pieces as large as the bound.
#[test]
fn a_slow_disk_takes_no_more_memory() {
    const BOUND: usize = 1 << 18;
    const PASSES: u64 = 30;
    let size = |thread, pass: u64| match thread {
        0 => 1 << 18,
        1 => 4096 + pass % 2 * 8,
        _ => (pass % 100 + 1) * 1000,
    };
    let disk = Disk::new(usize::MAX);
    let sent = fill(disk, BOUND, (PASSES, false), size, true);
    sent.written.unwrap();
    assert!(sent.results.iter().all(Result::is_ok));
    assert!(sent.max <= BOUND, "{} bytes", sent.max);
    let all = [0, 1, 2].map(|thread| (0..PASSES).map(|pass| size(thread, pass)).sum::<u64>());
    assert_eq!(pieces(&sent.bytes).0, all);
}

/// A batch has space for the content of a ring, and of an area in one piece.
#[test]
fn the_bound_follows_the_rings() {
    for (largest, want) in [
        (0, 16 << 20),
        (4 << 20, 16 << 20),
        (16 << 20, 16 << 20),
        (64 << 20, 64 << 20),
        ((64 << 20) + 8, (64 << 20) + 4096),
    ] {
        assert_eq!(bound(largest), want, "{largest}");
    }
}

/// The drains do not wait for a writer that has ended, and the error is the writer's.
#[test]
fn a_full_disk_ends_all() {
    let sent = send(20_000, 2000, false);
    assert!(sent.written.unwrap_err().is_full());
    assert!(sent.results.iter().all(Result::is_err));
    // Whichever thread finds the disk full, the others end too.
    let sent = send(20_000, 2000, true);
    assert!(sent.results.iter().all(Result::is_err));
    let mut all = sent.results.into_iter().chain([sent.written]);
    assert!(all.any(|result| result.is_err_and(|e| e.is_full())));
}
