// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rings drained by several threads into one file.
//!
//! Each thread has rings of its own, waits for them, copies what is in them and gives their place back; one more writes the
//! file. Between them is a queue with a bound: when the file is too slow, the drains wait, the areas fill, and what is lost is
//! counted where it always is.
//!
//! A batch holds whole records and whole pieces of trace, so that batches of different rings may follow each other in any
//! order. `FINISHED_ROUND` promises readers that what comes after it is not older than what came before the one before: so
//! one is written when every thread has begun a pass after the last.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};

use perfdata::Auxtrace;
use rustix::event::{epoll, Timespec};

use crate::drain::{Again, Drain, Sink, Tape, Times};
use crate::error::{Error, Result};
use crate::session::{Mode, Rings};

/// So many batches wait for the file at most.
const QUEUE: usize = 64;
/// How often a thread looks after its rings though nothing wakes it, and the writer after the header.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// Length of a piece of trace, unless its decoder has to have it whole: it stands in one batch.
pub(crate) const PIECE: usize = 256 * 1024;

enum Op {
    Records(Vec<u8>, Option<Times>),
    Piece(Auxtrace, Vec<u8>),
    /// Go on in another file.
    Rotate,
}

/// What a thread hands over at once.
pub(crate) struct Batch {
    thread: usize,
    /// The round in which the pass began.
    round: u64,
    op: Option<Op>,
}

/// A sink that hands everything to the writer.
struct Queue {
    thread: usize,
    round: u64,
    to: SyncSender<Batch>,
    piece: Option<Auxtrace>,
    buffer: Vec<u8>,
    /// Buffers that the writer has emptied.
    empty: Receiver<Vec<u8>>,
}

impl Queue {
    fn send(&self, op: Option<Op>) -> Result<()> {
        let batch = Batch {
            thread: self.thread,
            round: self.round,
            op,
        };
        self.to.send(batch).map_err(|_| gone())
    }

    fn buffer(&self) -> Vec<u8> {
        let mut buffer = self.empty.try_recv().unwrap_or_default();
        buffer.clear();
        buffer
    }
}

/// The writer has ended; why, it says itself.
fn gone() -> Error {
    Error::failed("the file cannot be written")
}

impl Sink for Queue {
    fn records(&mut self, bytes: &[u8], times: Option<Times>) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut buffer = self.buffer();
        buffer.extend_from_slice(bytes);
        self.send(Some(Op::Records(buffer, times)))
    }

    fn piece_limit(&self) -> usize {
        PIECE
    }

    fn piece(&mut self, aux: &Auxtrace) -> Result<()> {
        self.buffer = self.buffer();
        self.piece = Some(*aux);
        Ok(())
    }

    fn payload(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        let whole = |aux: &Auxtrace| u64::try_from(self.buffer.len()) == Ok(aux.size);
        if let Some(aux) = self.piece.take_if(|aux| whole(aux)) {
            let buffer = std::mem::take(&mut self.buffer);
            self.send(Some(Op::Piece(aux, buffer)))?;
        }
        Ok(())
    }
}

/// Has the writer go on in another file.
pub(crate) struct Rotate(SyncSender<Batch>);

impl Rotate {
    pub fn rotate(&self) -> Result<()> {
        let batch = Batch {
            thread: usize::MAX,
            round: 0,
            op: Some(Op::Rotate),
        };
        self.0.send(batch).map_err(|_| gone())
    }
}

/// The threads that drain and the one that writes, while `wait` runs; when it returns they end, and the last error, or the
/// number of wakeups, is what they give.
///
/// # Errors
/// The writer's error before a drain's, and that before `wait`'s.
pub(crate) fn run(
    rings: &mut [Rings],
    drains: &mut [Drain],
    threads: usize,
    mode: Mode,
    file: &mut (impl Tape + Send),
    wait: impl FnOnce(BorrowedFd<'_>, Rotate) -> Result<()>,
) -> Result<u64> {
    let each = rings.len().div_ceil(threads.max(1)).max(1);
    let cannot = |e: std::io::Error| Error::failed(format!("cannot start a thread: {e}"));
    // A byte in `over`, or its end, stops the waiting; the end of a stream of `stops` stops a thread.
    let (over, finished) = UnixStream::pair().map_err(cannot)?;
    let round = AtomicU64::new(1);
    let wakeups = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (to, from) = sync_channel(QUEUE);
        let mut back = Vec::new();
        let mut stops = Vec::new();
        let mut workers = Vec::new();
        for (thread, (rings, drains)) in rings
            .chunks_mut(each)
            .zip(drains.chunks_mut(each))
            .enumerate()
        {
            let (stop, stopped) = UnixStream::pair().map_err(cannot)?;
            let over = over.try_clone().map_err(cannot)?;
            let (give, empty) = std::sync::mpsc::channel();
            let queue = Queue {
                thread,
                round: 0,
                to: to.clone(),
                piece: None,
                buffer: Vec::new(),
                empty,
            };
            back.push(give);
            stops.push(stop);
            let (round, wakeups) = (&round, &wakeups);
            workers.push(scope.spawn(move || {
                let result = drain(rings, drains, mode, queue, &stopped, &over, round, wakeups);
                if result.is_err() {
                    let _ = (&over).write(&[1]);
                }
                result
            }));
        }
        let rotate = Rotate(to);
        let writer = {
            let over = over.try_clone().map_err(cannot)?;
            let round = &round;
            scope.spawn(move || {
                let result = write(file, &from, &back, round, &over);
                if result.is_err() {
                    let _ = (&over).write(&[1]);
                }
                result
            })
        };
        let waited = wait(finished.as_fd(), rotate);
        drop(stops);
        let died = || Error::failed("a thread of the recorder died");
        // All are waited for, whatever the first says.
        let mut drained = Ok(());
        for worker in workers {
            let result = worker.join().unwrap_or_else(|_| Err(died()));
            drained = drained.and(result);
        }
        let written = writer.join().unwrap_or_else(|_| Err(died()));
        written.and(drained).and(waited)
    })?;
    Ok(wakeups.load(Ordering::Relaxed))
}

#[expect(clippy::too_many_arguments, reason = "all that a thread shares")]
/// A thread: drains its rings whenever one of them has enough, until its stream ends.
fn drain(
    rings: &mut [Rings],
    drains: &mut [Drain],
    mode: Mode,
    mut queue: Queue,
    stop: &UnixStream,
    over: &UnixStream,
    round: &AtomicU64,
    wakeups: &AtomicU64,
) -> Result<()> {
    const STOP: u64 = u64::MAX;
    let cannot = |e: rustix::io::Errno| Error::failed(format!("cannot wait for the rings: {e}"));
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cannot)?;
    let add = |fd: BorrowedFd<'_>, token: u64| {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&poll, fd, data, epoll::EventFlags::IN).map_err(cannot)
    };
    add(stop.as_fd(), STOP)?;
    for (token, opened) in (0..).zip(rings.iter().flat_map(Rings::events)) {
        add(opened.event.as_fd(), token)?;
    }
    let mut ready = Vec::with_capacity(16);
    let mut beat = Instant::now();
    let mut stopped = false;
    while !stopped {
        let wait = HEARTBEAT.saturating_sub(beat.elapsed());
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: wait.subsec_nanos().into(),
        };
        ready.clear();
        let spare = rustix::buffer::spare_capacity(&mut ready);
        match epoll::wait(&poll, spare, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(cannot(e)),
        }
        wakeups.fetch_add(1, Ordering::Relaxed);
        for event in &ready {
            let token = { event.data }.u64();
            let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            if token == STOP {
                stopped = true;
            } else if { event.flags }.intersects(gone) {
                // A thread that has ended hangs up for good; its rings are read with the others all the same.
                let mut all = rings.iter().flat_map(Rings::events);
                if let Some(opened) = usize::try_from(token).ok().and_then(|n| all.nth(n)) {
                    let _ = epoll::delete(&poll, &opened.event);
                }
            }
        }
        let due = beat.elapsed() >= HEARTBEAT;
        let again = match (stopped, due) {
            (true, _) => Again::Never,
            (false, true) => Again::All,
            (false, false) => Again::Drained,
        };
        // Before the pass: what comes from now on is not older than what was written before this round began.
        let now = round.load(Ordering::Acquire);
        let news = now != queue.round;
        queue.round = now;
        let mut sent = false;
        for (rings, drain) in rings.iter_mut().zip(drains.iter_mut()) {
            let pass = drain.pass(rings, mode, again, &mut queue)?;
            sent |= pass.any();
            if pass.over {
                let _ = { over }.write(&[1]);
            }
        }
        if news && !sent {
            queue.send(None)?;
        }
        if due {
            beat = Instant::now();
        }
    }
    Ok(())
}

/// The thread that writes: everything that comes, until nobody is left to send.
fn write(
    file: &mut impl Tape,
    from: &Receiver<Batch>,
    back: &[Sender<Vec<u8>>],
    round: &AtomicU64,
    over: &UnixStream,
) -> Result<()> {
    let mut seen = vec![0; back.len()];
    let mut current = 1;
    let mut dirty = false;
    let mut beat = Instant::now();
    loop {
        match from.recv_timeout(HEARTBEAT.saturating_sub(beat.elapsed())) {
            Ok(batch) => {
                let buffer = match batch.op {
                    Some(Op::Records(bytes, times)) => {
                        file.records(&bytes, times)?;
                        Some(bytes)
                    }
                    Some(Op::Piece(aux, bytes)) => {
                        file.piece(&aux)?;
                        file.payload(&bytes)?;
                        Some(bytes)
                    }
                    Some(Op::Rotate) => {
                        file.rotate()?;
                        None
                    }
                    None => None,
                };
                if let (Some(bytes), Some(back)) = (buffer, back.get(batch.thread)) {
                    dirty = true;
                    let _ = back.send(bytes);
                }
                if let Some(seen) = seen.get_mut(batch.thread) {
                    *seen = batch.round;
                }
                if dirty && seen.iter().all(|seen| *seen == current) {
                    file.round()?;
                    dirty = false;
                    current += 1;
                    round.store(current, Ordering::Release);
                }
                file.turn()?;
                if file.is_over() {
                    let _ = { over }.write(&[1]);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return file.flush(),
        }
        if beat.elapsed() >= HEARTBEAT {
            file.checkpoint()?;
            beat = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{Cursor, Seek, SeekFrom};

    use perfdata::{Attr, Event, File, FinishedRound, Writer};

    use super::*;

    /// An output with room for so many bytes.
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

    impl Tape for Writer<Disk> {
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
    }

    /// Three threads that send pieces of 8 to 800 bytes; what came of it, and the file.
    fn send(room: usize, passes: u64) -> (Vec<Result<()>>, Result<()>, Vec<u8>) {
        let file = Cursor::new(Vec::new());
        let mut file = Writer::new(Disk { room, file }, &[(Attr::default(), vec![1])]).unwrap();
        let round = AtomicU64::new(1);
        let (over, _finished) = UnixStream::pair().unwrap();
        let (to, from) = sync_channel(2);
        let (results, written) = std::thread::scope(|scope| {
            let mut back = Vec::new();
            let mut workers = Vec::new();
            for thread in 0..3_u32 {
                let (give, empty) = std::sync::mpsc::channel();
                back.push(give);
                let mut queue = Queue {
                    thread: usize::try_from(thread).unwrap(),
                    round: 0,
                    to: to.clone(),
                    piece: None,
                    buffer: Vec::new(),
                    empty,
                };
                let round = &round;
                workers.push(scope.spawn(move || {
                    let mut offset = 0;
                    for pass in 0..passes {
                        queue.round = round.load(Ordering::Acquire);
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
                    }
                    Ok(())
                }));
            }
            drop(to);
            let written = write(&mut file, &from, &back, &round, &over);
            drop(from);
            let results = workers.into_iter().map(|w| w.join().unwrap()).collect();
            (results, written)
        });
        let _ = file.checkpoint();
        (results, written, file.get_ref().file.get_ref().clone())
    }

    #[test]
    fn every_piece_arrives_whole_and_in_the_order_of_its_ring() {
        let (results, written, bytes) = send(usize::MAX, 200);
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

    /// The drains do not wait for a writer that is no more, and the error is the writer's.
    #[test]
    fn a_full_disk_ends_all() {
        let (results, written, _) = send(20_000, 2000);
        assert!(written.unwrap_err().is_full());
        assert!(results.iter().all(Result::is_err));
    }
}
