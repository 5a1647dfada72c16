// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rings drained by several threads into one file.
//!
//! Each thread has rings of its own, waits for them, and writes what is in them into the file, if nobody else writes just then.
//! Else it does not wait, but copies it, gives its place back, and hands it over in a batch; one more thread writes these.
//! Between them is a queue with a bound: when the file is too slow, the drains wait, the areas fill, and what is lost is
//! counted where it always is. While a batch waits, everything goes the same way, so the order of a ring is kept.
//!
//! (Two threads that write into one file at the same time would gain nothing: the kernel holds the lock of the inode for the
//! whole of a write.)
//!
//! A batch holds whole records and whole pieces of trace, so that batches of different rings may follow each other in any
//! order. `FINISHED_ROUND` promises readers that what comes after it is not older than what came before the one before: so
//! one is written when every thread has ended a pass that it began after the last.

use std::io::Write;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use perfdata::Auxtrace;
use rustix::event::epoll;

use crate::drain::{Again, Drain, Sink, Tape, Times};
use crate::error::{Error, Result};
use crate::session::{Mode, Rings};
use crate::sys::Mapping;
use crate::watch::Beat;

/// So many batches wait for the file at most.
const QUEUE: usize = 64;
/// How often a thread looks after its rings though nothing wakes it, and the writer after the header.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// Length of a piece of trace, unless its decoder has to have it whole: it stands in one batch.
pub(crate) const PIECE: usize = 256 * 1024;

/// Where a thread drains its rings to.
pub(crate) trait Lane {
    /// What takes what is in them.
    type To: Sink;
    /// A pass over all of them begins.
    fn begin(&mut self) -> Result<&mut Self::To>;
    /// It has ended; whether there was anything, and whether a heartbeat was due.
    fn end(&mut self, any: bool, due: bool) -> Result<()>;
}

enum Op {
    Records(Vec<u8>, Option<Times>),
    Piece(Auxtrace, Vec<u8>),
    /// Go on in another file.
    Rotate,
}

/// What a thread hands over at once.
pub(crate) struct Batch {
    thread: usize,
    /// The round that the thread has passed.
    round: u64,
    op: Option<Op>,
}

/// The file, with what is known of the rounds in it.
struct Shared<'a, T> {
    desk: Mutex<Desk<'a, T>>,
    /// Batches that were sent and are not in the file.
    waiting: AtomicUsize,
    /// The round that has begun.
    round: AtomicU64,
}

/// What is only done by one at a time.
struct Desk<'a, T> {
    file: &'a mut T,
    /// The newest round in which each thread has begun a pass that is in the file.
    seen: Vec<u64>,
    current: u64,
    dirty: bool,
}

impl<'a, T: Tape> Shared<'a, T> {
    fn new(file: &'a mut T, threads: usize) -> Self {
        Self {
            desk: Mutex::new(Desk {
                file,
                seen: vec![0; threads],
                current: 1,
                dirty: false,
            }),
            waiting: AtomicUsize::new(0),
            round: AtomicU64::new(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Desk<'a, T>> {
        // A writer says by itself that it has failed.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, if nobody has it, and nothing waits that would have to go before.
    fn free(&self) -> Option<MutexGuard<'_, Desk<'a, T>>> {
        // What this thread has sent before is in the file when it is not counted any more: pairs with the writer's release.
        if self.waiting.load(Ordering::Acquire) != 0 {
            return None;
        }
        self.desk.try_lock().ok()
    }

    /// Something of a thread is in the file, or (not `any`) all of a pass is that it began in this round.
    fn wrote(
        &self,
        desk: &mut Desk<'a, T>,
        thread: usize,
        round: u64,
        any: bool,
        mut over: &UnixStream,
    ) -> Result<()> {
        desk.dirty |= any;
        if let Some(seen) = desk.seen.get_mut(thread) {
            *seen = round;
        }
        if desk.dirty && desk.seen.iter().all(|seen| *seen == desk.current) {
            desk.file.round()?;
            desk.dirty = false;
            desk.current += 1;
            self.round.store(desk.current, Ordering::Release);
        }
        desk.file.turn()?;
        if desk.file.is_over() {
            let _ = over.write(&[1]);
        }
        Ok(())
    }
}

/// A sink that writes what it can, and hands the rest to the writer.
struct Queue<'s, 'f, T> {
    thread: usize,
    /// The round in which the last pass that is over began.
    round: u64,
    /// That in which the one began that is not.
    now: u64,
    shared: &'s Shared<'f, T>,
    over: &'s UnixStream,
    /// Whether anything may go into the file without the writer.
    direct: bool,
    to: SyncSender<Batch>,
    piece: Option<Auxtrace>,
    /// The file, while a piece of trace goes into it.
    desk: Option<MutexGuard<'s, Desk<'f, T>>>,
    /// How much of that piece is to come.
    owed: u64,
    buffer: Vec<u8>,
    /// Buffers that the writer has emptied.
    empty: Receiver<Vec<u8>>,
}

impl<'s, 'f, T: Tape> Queue<'s, 'f, T> {
    fn new(
        shared: &'s Shared<'f, T>,
        thread: usize,
        direct: bool,
        to: SyncSender<Batch>,
        empty: Receiver<Vec<u8>>,
        over: &'s UnixStream,
    ) -> Self {
        Self {
            thread,
            round: 0,
            now: 0,
            shared,
            over,
            direct,
            to,
            piece: None,
            desk: None,
            owed: 0,
            buffer: Vec::new(),
            empty,
        }
    }

    fn send(&self, op: Option<Op>) -> Result<()> {
        let batch = Batch {
            thread: self.thread,
            round: self.round,
            op,
        };
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.to.send(batch).map_err(|_| gone())
    }

    fn buffer(&self) -> Vec<u8> {
        let mut buffer = self.empty.try_recv().unwrap_or_default();
        buffer.clear();
        buffer
    }

    fn free(&self) -> Option<MutexGuard<'s, Desk<'f, T>>> {
        self.direct.then(|| self.shared.free()).flatten()
    }

    /// So much of a piece has gone into the file.
    fn paid(&mut self, len: usize) -> Result<()> {
        self.owed = self
            .owed
            .saturating_sub(u64::try_from(len).unwrap_or(u64::MAX));
        if self.owed == 0 {
            if let Some(mut desk) = self.desk.take() {
                self.shared
                    .wrote(&mut desk, self.thread, self.round, true, self.over)?;
            }
        }
        Ok(())
    }
}

/// The writer has ended; why, it says itself.
fn gone() -> Error {
    Error::failed("the file cannot be written")
}

impl<T: Tape> Lane for Queue<'_, '_, T> {
    type To = Self;

    fn begin(&mut self) -> Result<&mut Self> {
        // Before the pass: what comes from now on is not older than what was written before this round began.
        self.now = self.shared.round.load(Ordering::Acquire);
        Ok(self)
    }

    fn end(&mut self, _any: bool, _due: bool) -> Result<()> {
        if self.now == self.round {
            return Ok(());
        }
        // Not before: of a ring that comes later in the pass what is older than this round may be written only then.
        self.round = self.now;
        match self.free() {
            Some(mut desk) => {
                self.shared
                    .wrote(&mut desk, self.thread, self.round, false, self.over)
            }
            None => self.send(None),
        }
    }
}

impl<T: Tape> Sink for Queue<'_, '_, T> {
    fn records(&mut self, bytes: &[u8], times: Option<Times>) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if let Some(mut desk) = self.free() {
            desk.file.records(bytes, times)?;
            return self
                .shared
                .wrote(&mut desk, self.thread, self.round, true, self.over);
        }
        let mut buffer = self.buffer();
        buffer.extend_from_slice(bytes);
        self.send(Some(Op::Records(buffer, times)))
    }

    fn piece_limit(&self) -> usize {
        PIECE
    }

    fn piece(&mut self, aux: &Auxtrace) -> Result<()> {
        if let Some(mut desk) = self.free() {
            desk.file.piece(aux)?;
            self.owed = aux.size;
            self.desk = Some(desk);
            return self.paid(0);
        }
        self.buffer = self.buffer();
        self.piece = Some(*aux);
        Ok(())
    }

    fn payload(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(desk) = &mut self.desk {
            desk.file.payload(bytes)?;
            return self.paid(bytes.len());
        }
        self.buffer.extend_from_slice(bytes);
        let whole = |aux: &Auxtrace| u64::try_from(self.buffer.len()) == Ok(aux.size);
        if let Some(aux) = self.piece.take_if(|aux| whole(aux)) {
            let buffer = std::mem::take(&mut self.buffer);
            self.send(Some(Op::Piece(aux, buffer)))?;
        }
        Ok(())
    }

    fn payload_from(&mut self, aux: &Mapping, run: Range<usize>) -> Result<bool> {
        let Some(desk) = &mut self.desk else {
            return Ok(false);
        };
        let len = run.len();
        if !desk.file.payload_from(aux, run)? {
            return Ok(false);
        }
        self.paid(len)?;
        Ok(true)
    }
}

/// Has the writer go on in another file.
pub(crate) struct Rotate<'a>(SyncSender<Batch>, &'a AtomicUsize);

impl Rotate<'_> {
    pub fn rotate(&self) -> Result<()> {
        let batch = Batch {
            thread: usize::MAX,
            round: 0,
            op: Some(Op::Rotate),
        };
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.send(batch).map_err(|_| gone())
    }
}

/// How many rings a thread has, of so many that so many threads drain.
pub(crate) fn share(rings: usize, threads: usize) -> usize {
    rings.div_ceil(threads.max(1)).max(1)
}

fn cannot(e: &std::io::Error) -> Error {
    Error::failed(format!("cannot start a thread: {e}"))
}

/// A byte in the first, or its end, is what the second waits for: that the recording is over.
pub(crate) fn bell() -> Result<(UnixStream, UnixStream)> {
    let (over, finished) = UnixStream::pair().map_err(|e| cannot(&e))?;
    // It is said again and again, and nobody may be left who reads it.
    over.set_nonblocking(true).map_err(|e| cannot(&e))?;
    Ok((over, finished))
}

/// The threads that drain.
pub(crate) struct Crew<'scope> {
    /// The end of one stops a thread.
    stops: Vec<UnixStream>,
    workers: Vec<ScopedJoinHandle<'scope, Result<()>>>,
}

impl<'scope> Crew<'scope> {
    /// Starts a thread for each lane, which drains these rings into it.
    pub fn start<'env, L: Lane>(
        scope: &'scope Scope<'scope, 'env>,
        rings: impl Iterator<Item = (&'scope mut [Rings], &'scope mut [Drain])>,
        mode: Mode,
        lanes: Vec<impl FnOnce() -> L + Send + 'scope>,
        over: &'scope UnixStream,
        wakeups: &'scope AtomicU64,
    ) -> Result<Self> {
        let mut crew = Self {
            stops: Vec::new(),
            workers: Vec::new(),
        };
        for ((rings, drains), lane) in rings.zip(lanes) {
            let (stop, stopped) = UnixStream::pair().map_err(|e| cannot(&e))?;
            crew.stops.push(stop);
            crew.workers.push(scope.spawn(move || {
                let result = drain(rings, drains, mode, lane(), over, &stopped, wakeups);
                if result.is_err() {
                    let _ = { over }.write(&[1]);
                }
                result
            }));
        }
        Ok(crew)
    }

    /// Ends them; the one result of all, with those of others before and after.
    pub fn end(
        self,
        before: impl FnOnce() -> Option<Result<()>>,
        waited: Result<()>,
    ) -> Result<()> {
        drop(self.stops);
        // All are waited for, whatever the first says.
        let workers: Vec<_> = self.workers.into_iter().map(joined).collect();
        let mut results: Vec<_> = before().into_iter().chain(workers).collect();
        results.push(waited);
        // One that could not write says why; the others, that they cannot go on.
        let why = |result: &Result<()>| {
            matches!(result, Err(Error::File(perfdata::Error::Output { .. })))
        };
        let why = results.iter().position(why).unwrap_or(0);
        results.swap(0, why);
        results.into_iter().collect()
    }
}

fn joined(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    let died = |_| Err(Error::failed("a thread of the recorder died"));
    thread.join().unwrap_or_else(died)
}

/// The threads that drain and the one that writes, while `wait` runs; when it returns they end, and the last error, or the
/// number of wakeups, is what they give.
///
/// # Errors
/// What the file said before anything else; then the writer's error before a drain's, and that before `wait`'s.
pub(crate) fn run(
    rings: &mut [Rings],
    drains: &mut [Drain],
    threads: usize,
    mode: Mode,
    file: &mut (impl Tape + Send),
    wait: impl FnOnce(BorrowedFd<'_>, Option<Rotate<'_>>) -> Result<()>,
) -> Result<u64> {
    let direct = file.takes_all();
    let each = share(rings.len(), threads);
    let threads = rings.len().div_ceil(each);
    let (over, finished) = bell()?;
    let over = &over;
    let shared = &Shared::new(file, threads);
    let wakeups = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (to, from) = sync_channel(QUEUE);
        let mut back = Vec::new();
        let mut lanes = Vec::new();
        for thread in 0..threads {
            let (give, empty) = std::sync::mpsc::channel();
            back.push(give);
            let to = to.clone();
            lanes.push(move || Queue::new(shared, thread, direct, to, empty, over));
        }
        let rings = rings.chunks_mut(each).zip(drains.chunks_mut(each));
        let crew = Crew::start(scope, rings, mode, lanes, over, &wakeups)?;
        let rotate = Rotate(to, &shared.waiting);
        let writer = scope.spawn(move || {
            let result = write(shared, &from, &back, over);
            if result.is_err() {
                let _ = { over }.write(&[1]);
            }
            result
        });
        let waited = wait(finished.as_fd(), Some(rotate));
        crew.end(|| Some(joined(writer)), waited)
    })?;
    Ok(wakeups.load(Ordering::Relaxed))
}

/// A thread: drains its rings whenever one of them has enough, until its stream ends.
fn drain(
    rings: &mut [Rings],
    drains: &mut [Drain],
    mode: Mode,
    mut lane: impl Lane,
    mut over: &UnixStream,
    stop: &UnixStream,
    wakeups: &AtomicU64,
) -> Result<()> {
    const STOP: u64 = u64::MAX;
    const BEAT: u64 = u64::MAX - 1;
    let cannot = |e: rustix::io::Errno| Error::failed(format!("cannot wait for the rings: {e}"));
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cannot)?;
    let add = |fd: BorrowedFd<'_>, token: u64| {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&poll, fd, data, epoll::EventFlags::IN).map_err(cannot)
    };
    add(stop.as_fd(), STOP)?;
    let mut beat = Beat::new(HEARTBEAT)?;
    add(beat.as_fd(), BEAT)?;
    for (token, opened) in (0..).zip(rings.iter().flat_map(Rings::events)) {
        add(opened.event.as_fd(), token)?;
    }
    let mut ready = Vec::with_capacity(16);
    let mut stopped = false;
    while !stopped {
        ready.clear();
        let spare = rustix::buffer::spare_capacity(&mut ready);
        match epoll::wait(&poll, spare, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(cannot(e)),
        }
        wakeups.fetch_add(1, Ordering::Relaxed);
        let due = beat.is_due()?;
        for event in &ready {
            let token = { event.data }.u64();
            let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            if token == STOP {
                stopped = true;
            } else if token != BEAT && { event.flags }.intersects(gone) {
                // A thread that has ended hangs up for good; its rings are read with the others all the same.
                let mut all = rings.iter().flat_map(Rings::events);
                if let Some(opened) = usize::try_from(token).ok().and_then(|n| all.nth(n)) {
                    let _ = epoll::delete(&poll, &opened.event);
                }
            }
        }
        let again = match (stopped, due) {
            (true, _) => Again::Never,
            (false, true) => Again::All,
            (false, false) => Again::Drained,
        };
        let to = lane.begin()?;
        let mut any = false;
        for (rings, drain) in rings.iter_mut().zip(drains.iter_mut()) {
            let pass = drain.pass(rings, mode, again, to)?;
            any |= pass.any();
            if pass.over {
                let _ = over.write(&[1]);
            }
        }
        lane.end(any, due)?;
    }
    Ok(())
}

/// The thread that writes: everything that comes, until nobody is left to send.
fn write(
    shared: &Shared<'_, impl Tape>,
    from: &Receiver<Batch>,
    back: &[Sender<Vec<u8>>],
    over: &UnixStream,
) -> Result<()> {
    let mut beat = Instant::now();
    loop {
        match from.recv_timeout(HEARTBEAT.saturating_sub(beat.elapsed())) {
            Ok(batch) => {
                let mut desk = shared.lock();
                let buffer = match batch.op {
                    Some(Op::Records(bytes, times)) => {
                        desk.file.records(&bytes, times)?;
                        Some(bytes)
                    }
                    Some(Op::Piece(aux, bytes)) => {
                        desk.file.piece(&aux)?;
                        desk.file.payload(&bytes)?;
                        Some(bytes)
                    }
                    Some(Op::Rotate) => {
                        desk.file.rotate()?;
                        None
                    }
                    None => None,
                };
                let any = buffer.is_some();
                if let (Some(bytes), Some(back)) = (buffer, back.get(batch.thread)) {
                    let _ = back.send(bytes);
                }
                shared.wrote(&mut desk, batch.thread, batch.round, any, over)?;
                // Pairs with the acquire of who looks whether anything waits: what it writes then comes behind this.
                shared.waiting.fetch_sub(1, Ordering::Release);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return shared.lock().file.flush(),
        }
        if beat.elapsed() >= HEARTBEAT {
            shared.lock().file.checkpoint()?;
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

    /// Three threads that send pieces of 8 to 800 bytes; what came of it, and the file.
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

    /// What is written into the file at once never overtakes what was handed over before.
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
            // A record of a type that says nothing here, with a number.
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

    /// A round is over when all rings of a thread were read, not when the first was.
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
        // Of two rings.
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

    /// The drains do not wait for a writer that is no more, and the error is the writer's.
    #[test]
    fn a_full_disk_ends_all() {
        let (results, written, _) = send(20_000, 2000, false);
        assert!(written.unwrap_err().is_full());
        assert!(results.iter().all(Result::is_err));
        // Whoever of them has found it full, the others end too.
        let (results, written, _) = send(20_000, 2000, true);
        assert!(results.iter().all(Result::is_err));
        let mut all = results.into_iter().chain([written]);
        assert!(all.any(|result| result.is_err_and(|e| e.is_full())));
    }
}
