// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Several threads drain the rings into one file.
//!
//! Each thread waits for its own rings. It writes their content into the file if no other thread is
//! writing. Otherwise it does not wait: it copies the content, frees the space in the rings, and hands
//! the copy to the writer in a batch. The writer is one more thread. While a batch waits, all content
//! goes through the queue, so the order of each ring is kept.
//!
//! The batches have a bound in bytes, see [`stock`]. If the file is too slow, the drains wait before they
//! copy, the areas fill up, and the loss is counted as always.
//!
//! (Two threads that write into one file at the same time gain nothing: the kernel holds the lock of
//! the inode during a write.)
//!
//! A batch holds whole records and whole pieces of trace, so batches of different rings may follow each
//! other in any order. `FINISHED_ROUND` promises readers that the records behind it are not older than
//! the records before the previous one. So it is written when every thread has ended a pass that began
//! after the previous one.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::Instant;

use crate::drain::{Drain, FileSink};
use crate::error::Result;
use crate::session::{Mode, Rings};

mod crew;
mod queue;
mod stock;
#[cfg(test)]
mod tests;

pub(crate) use crew::{bell, share, Crew, Lane};
pub(crate) use queue::Rotate;

use crew::{joined, HEARTBEAT};
use queue::{bound, Batch, Op, Queue, Shared};

/// Statistics of a recording by several threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drained {
    /// Number of wakeups.
    pub wakeups: u64,
    /// The memory that held copies of trace and records for the file.
    pub queue: Queued,
}

/// The memory that held copies of trace and records for the file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// The largest amount that was in use.
    pub max: u64,
    /// Its limit.
    pub bound: u64,
}

/// Runs the threads that drain and the one that writes until `wait` returns.
///
/// # Errors
/// The error of writing the file, if there is one. Otherwise the writer's, a drain's, or `wait`'s, in
/// this order.
pub(crate) fn run(
    rings: &mut [Rings],
    drains: &mut [Drain],
    threads: usize,
    mode: Mode,
    file: &mut (impl FileSink + Send),
    wait: impl FnOnce(BorrowedFd<'_>, Option<Rotate<'_>>) -> Result<()>,
) -> Result<Drained> {
    let direct = file.takes_all();
    let each = share(rings.len(), threads);
    let threads = rings.len().div_ceil(each);
    let (over, finished) = bell()?;
    let over = &over;
    let largest = rings
        .iter()
        .map(|ring| ring.data.size().max(ring.aux.size()));
    let bound = bound(largest.max().unwrap_or(0));
    let shared = &Shared::new(file, threads, bound);
    let wakeups = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // The channel needs no bound: the stock limits the number of batches, and the user's requests to begin another file are few.
        let (to, from) = channel();
        let mut lanes = Vec::new();
        for thread in 0..threads {
            let to = to.clone();
            lanes.push(move || Queue::new(shared, thread, direct, to, over));
        }
        let rings = rings.chunks_mut(each).zip(drains.chunks_mut(each));
        let crew = Crew::start(scope, rings, mode, lanes, over, &wakeups)?;
        let rotate = Rotate(to, &shared.waiting);
        let writer = scope.spawn(move || {
            let result = write(shared, &from, over);
            if result.is_err() {
                let _ = { over }.write(&[1]);
            }
            result
        });
        let waited = wait(finished.as_fd(), Some(rotate));
        crew.end(|| Some(joined(writer)), waited)
    })?;
    let bytes = |n| u64::try_from(n).unwrap_or(u64::MAX);
    Ok(Drained {
        wakeups: wakeups.load(Ordering::Relaxed),
        queue: Queued {
            max: bytes(shared.stock.max()),
            bound: bytes(bound),
        },
    })
}

/// The writer: writes all batches, until all senders are gone. When it has ended, no thread waits for memory any more.
fn write(
    shared: &Shared<'_, impl FileSink>,
    from: &Receiver<Batch>,
    over: &UnixStream,
) -> Result<()> {
    let _closing = shared.stock.closing();
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
                if let Some(buffer) = buffer {
                    shared.stock.give(buffer);
                }
                shared.wrote(&mut desk, batch.thread, batch.round, any, over)?;
                // Pairs with the acquire in Shared::free(): a thread that finds no batch waiting writes
                // behind this one.
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
