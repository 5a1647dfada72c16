// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The buffers of the queue to the writer. All of them together have a bound in bytes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Buffers are multiples of this, so that they can be used again.
const UNIT: usize = 4096;

/// Buffers in use, and those that wait to be used again. Each counts with its capacity.
pub(super) struct Stock {
    /// Most bytes in all buffers. A single buffer may be larger, when there is no other.
    limit: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Vec<u8>>,
    /// Bytes in all buffers, and the most there were.
    bytes: usize,
    max: usize,
    /// Threads get buffers in the order in which they ask, so that none waits for ever for a large one: the
    /// number of the next thread to ask, and of the next to get one.
    asked: u64,
    turn: u64,
    closed: bool,
}

impl State {
    /// A buffer with space for `len` bytes, if the bound allows one.
    fn take(&mut self, len: usize, limit: usize) -> Option<Vec<u8>> {
        let fits = self.idle.iter().enumerate();
        let fits = fits.filter(|(_, buffer)| buffer.capacity() >= len);
        if let Some((n, _)) = fits.min_by_key(|(_, buffer)| buffer.capacity()) {
            return Some(self.idle.swap_remove(n));
        }
        let len = Stock::rounded(len);
        while self.bytes.saturating_add(len) > limit {
            match self.idle.pop() {
                Some(buffer) => self.bytes = self.bytes.saturating_sub(buffer.capacity()),
                None if self.bytes == 0 => break,
                None => return None,
            }
        }
        let buffer = Vec::with_capacity(len);
        self.bytes = self.bytes.saturating_add(buffer.capacity());
        self.max = self.max.max(self.bytes);
        Some(buffer)
    }
}

impl Stock {
    /// The length of a buffer with space for `len` bytes.
    pub(super) fn rounded(len: usize) -> usize {
        len.checked_next_multiple_of(UNIT).unwrap_or(usize::MAX)
    }

    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty buffer with space for `len` bytes. Waits until the bound allows it. [`None`]: the writer has
    /// ended.
    pub(super) fn take(&self, len: usize) -> Option<Vec<u8>> {
        let mut state = self.lock();
        let ticket = state.asked;
        state.asked += 1;
        loop {
            if state.closed {
                return None;
            }
            if state.turn == ticket {
                if let Some(buffer) = state.take(len, self.limit) {
                    state.turn += 1;
                    self.changed.notify_all();
                    return Some(buffer);
                }
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a buffer back.
    pub(super) fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut state = self.lock();
        if state.bytes > self.limit {
            state.bytes = state.bytes.saturating_sub(buffer.capacity());
        } else {
            state.idle.push(buffer);
        }
        self.changed.notify_all();
    }

    /// To be dropped when the writer ends: no thread waits for a buffer from then on.
    pub(super) fn closing(&self) -> Closing<'_> {
        Closing(self)
    }

    /// The most bytes that all buffers had together.
    pub(super) fn max(&self) -> usize {
        self.lock().max
    }

    /// Number of threads that wait for a buffer.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> u64 {
        let state = self.lock();
        state.asked - state.turn
    }
}

/// See [`Stock::closing`].
pub(super) struct Closing<'a>(&'a Stock);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Each row takes a buffer or gives back the oldest one, then checks the number of bytes in all buffers.
    #[test]
    fn buffers_count_with_their_capacity() {
        let stock = Stock::new(3 * UNIT);
        let mut out = std::collections::VecDeque::new();
        let take = |len| stock.lock().take(len, stock.limit);
        for (len, taken, bytes) in [
            (Some(1), true, UNIT),
            (Some(UNIT + 1), true, 3 * UNIT),
            (Some(1), false, 3 * UNIT),
            // The first comes back. It is too small for two units, so it is freed for them.
            (None, true, 3 * UNIT),
            (Some(2 * UNIT), false, 2 * UNIT),
            (Some(UNIT), true, 3 * UNIT),
            (None, true, 3 * UNIT),
            (None, true, 3 * UNIT),
            // The smaller of two is enough.
            (Some(3), true, 3 * UNIT),
            (Some(UNIT + 3), true, 3 * UNIT),
            (None, true, 3 * UNIT),
            (None, true, 3 * UNIT),
            // More than the bound, alone.
            (Some(5 * UNIT), true, 5 * UNIT),
            (Some(1), false, 5 * UNIT),
            (None, true, 0),
            (Some(1), true, UNIT),
        ] {
            let done = match len {
                Some(len) => take(len).map(|buffer: Vec<u8>| {
                    assert!(buffer.is_empty() && buffer.capacity() >= len);
                    out.push_back(buffer);
                }),
                None => out.pop_front().map(|buffer| stock.give(buffer)),
            };
            assert_eq!(done.is_some(), taken, "{len:?}");
            assert_eq!(stock.lock().bytes, bytes, "{len:?}");
        }
        assert_eq!(stock.max(), 5 * UNIT);
        drop(stock.closing());
        assert!(stock.take(1).is_none());
    }
}
