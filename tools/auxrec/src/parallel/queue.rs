// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The shared file, and the queue of batches to its writer.

use std::io::Write;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use perfdata::Auxtrace;

use super::crew::Lane;
use super::stock::Stock;
use crate::drain::{FileSink, Sink, Times};
use crate::error::{Error, Result};
use crate::sys::Mapping;

/// Length of a piece of trace, unless its decoder needs it whole. A batch holds one piece.
const PIECE: usize = 256 * 1024;
/// Number of such pieces that can wait for the file, or be copied for it.
const PIECES: usize = 64;

/// The bound of the memory that holds batches, in bytes. `largest` is the length of the largest ring or area:
/// a batch can hold all records of a ring, and a piece that is not divided all of an area.
pub(super) fn bound(largest: u64) -> usize {
    let largest = usize::try_from(largest).unwrap_or(usize::MAX);
    (PIECES * PIECE).max(Stock::rounded(largest))
}

/// What the writer does for a batch.
pub(super) enum Op {
    Records(Vec<u8>, Option<Times>),
    Piece(Auxtrace, Vec<u8>),
    /// Begin another file.
    Rotate,
}

/// A unit of work that a thread sends to the writer.
pub(super) struct Batch {
    pub(super) thread: usize,
    /// The round in which the last complete pass of the thread began.
    pub(super) round: u64,
    pub(super) op: Option<Op>,
}

/// The file, with the rounds in it.
pub(super) struct Shared<'a, T> {
    desk: Mutex<Desk<'a, T>>,
    /// Number of batches that were sent and are not in the file.
    pub(super) waiting: AtomicUsize,
    /// The current round, for threads that do not hold the lock.
    pub(super) round: AtomicU64,
    /// The buffers of all batches.
    pub(super) stock: Stock,
}

/// The state behind the lock.
pub(super) struct Desk<'a, T> {
    pub(super) file: &'a mut T,
    /// For each thread, the newest round in which a pass began that is in the file.
    seen: Vec<u64>,
    current: u64,
    dirty: bool,
}

impl<'a, T: FileSink> Shared<'a, T> {
    pub(super) fn new(file: &'a mut T, threads: usize, bound: usize) -> Self {
        Self {
            desk: Mutex::new(Desk {
                file,
                seen: vec![0; threads],
                current: 1,
                dirty: false,
            }),
            waiting: AtomicUsize::new(0),
            round: AtomicU64::new(1),
            stock: Stock::new(bound),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Desk<'a, T>> {
        // A thread that panics is reported when it is joined.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, if no thread has it and no batch waits: a batch must go first.
    pub(super) fn free(&self) -> Option<MutexGuard<'_, Desk<'a, T>>> {
        // A batch of this thread that is not counted any more is in the file. Pairs with the release
        // of the writer.
        if self.waiting.load(Ordering::Acquire) != 0 {
            return None;
        }
        self.desk.try_lock().ok()
    }

    /// Records that something of a thread is in the file, or (without `any`) all of a pass that began
    /// in this round. Ends the round if every thread has got so far.
    pub(super) fn wrote(
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

/// A sink that writes if the file is free, and otherwise hands batches to the writer.
pub(super) struct Queue<'s, 'f, T> {
    thread: usize,
    /// The round in which the last complete pass began.
    round: u64,
    /// The round in which the current pass began.
    now: u64,
    shared: &'s Shared<'f, T>,
    over: &'s UnixStream,
    /// Whether this thread may write into the file itself.
    direct: bool,
    to: Sender<Batch>,
    piece: Option<Auxtrace>,
    /// The file, while this thread writes a piece of trace.
    desk: Option<MutexGuard<'s, Desk<'f, T>>>,
    /// How much of that piece is still to be written.
    owed: u64,
    buffer: Vec<u8>,
}

impl<'s, 'f, T: FileSink> Queue<'s, 'f, T> {
    pub(super) fn new(
        shared: &'s Shared<'f, T>,
        thread: usize,
        direct: bool,
        to: Sender<Batch>,
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

    /// A buffer for a batch. Waits while the batches of all threads have as much memory as they may: what
    /// is not drained meanwhile stays in the ring.
    fn buffer(&self, len: u64) -> Result<Vec<u8>> {
        let len = usize::try_from(len).ok();
        len.and_then(|len| self.shared.stock.take(len))
            .ok_or_else(gone)
    }

    fn free(&self) -> Option<MutexGuard<'s, Desk<'f, T>>> {
        self.direct.then(|| self.shared.free()).flatten()
    }

    /// Counts `len` bytes of a piece as written. Releases the file at the end of the piece.
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

impl<T> Drop for Queue<'_, '_, T> {
    fn drop(&mut self) {
        // The buffer of an incomplete piece: other threads may wait for its memory.
        self.shared.stock.give(std::mem::take(&mut self.buffer));
    }
}

/// The error of a thread whose writer has ended. The writer returns the reason.
fn gone() -> Error {
    Error::failed("the file cannot be written")
}

impl<T: FileSink> Lane for Queue<'_, '_, T> {
    type To = Self;

    fn begin(&mut self) -> Result<&mut Self> {
        // Before the pass: what it reads is not older than what was written before this round began.
        self.now = self.shared.round.load(Ordering::Acquire);
        Ok(self)
    }

    fn end(&mut self, _any: bool, _due: bool) -> Result<()> {
        if self.now == self.round {
            return Ok(());
        }
        // At the end of the pass: until then it may still write records of another ring that are older
        // than this round.
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

impl<T: FileSink> Sink for Queue<'_, '_, T> {
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
        let mut buffer = self.buffer(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
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
        self.buffer = self.buffer(aux.size)?;
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

/// Makes the writer begin another file.
pub(crate) struct Rotate<'a>(pub(super) Sender<Batch>, pub(super) &'a AtomicUsize);

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
