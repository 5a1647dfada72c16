// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Blocks and cache lines, recorded between two markers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The CPUs of a guest.
pub const CPUS: usize = 2;

/// Bytes of a cache line.
pub const LINE: u64 = 64;

/// An instruction that does nothing, by which the guest opens and closes a window: a `nopl` with a
/// displacement that compilers do not emit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// Opens a window.
    Begin,
    /// Closes it.
    End,
}

impl Marker {
    /// Bytes of the instruction.
    pub const LEN: usize = 8;

    /// Decodes a marker.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x0f, 0x1f, 0x84, 0x00, 1, b'x', b'u', b'a'] => Some(Self::Begin),
            [0x0f, 0x1f, 0x84, 0x00, 0, b'x', b'u', b'a'] => Some(Self::End),
            _ => None,
        }
    }
}

/// A block of code, as QEMU has translated it.
#[derive(Debug)]
pub struct Block {
    at: u64,
    instructions: u64,
    executed: [AtomicU64; CPUS],
}

/// Everything that is recorded.
#[derive(Debug)]
pub struct Recorder {
    open: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    blocks: Vec<Arc<Block>>,
    /// How often each instruction on a CPU has written a line: by line, CPU and instruction.
    writes: BTreeMap<(u64, usize, u64), u64>,
    windows: u32,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// Creates a recorder, with no window open.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            open: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                blocks: Vec::new(),
                writes: BTreeMap::new(),
                windows: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a block that QEMU has translated.
    #[must_use]
    pub fn block(&self, at: u64, instructions: u64) -> Arc<Block> {
        let block = Arc::new(Block {
            at,
            instructions,
            executed: Default::default(),
        });
        self.lock().blocks.push(block.clone());
        block
    }

    /// Records that a CPU executes a block.
    pub fn executed(&self, block: &Block, cpu: usize) {
        if !self.open.load(Ordering::Relaxed) {
            return;
        }
        if let Some(count) = block.executed.get(cpu) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether writes are recorded now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Records that the instruction at `at` on a CPU writes `len` bytes at a physical address.
    pub fn wrote(&self, cpu: usize, at: u64, address: u64, len: u64) {
        let last = address.saturating_add(len.saturating_sub(1)) / LINE;
        let mut inner = self.lock();
        for line in address / LINE..=last {
            *inner.writes.entry((line * LINE, cpu, at)).or_default() += 1;
        }
    }

    /// Records that the guest executes a marker. Returns the report at the end of a window.
    pub fn mark(&self, marker: Marker) -> Option<String> {
        let mut inner = self.lock();
        let was_open = self.open.swap(marker == Marker::Begin, Ordering::Relaxed);
        match marker {
            Marker::Begin => {
                inner.writes.clear();
                for block in &inner.blocks {
                    for count in &block.executed {
                        count.store(0, Ordering::Relaxed);
                    }
                }
                inner.windows += 1;
                None
            }
            Marker::End => was_open.then(|| inner.report()),
        }
    }
}

impl Inner {
    /// The report, as lines of words:
    ///
    /// ```text
    /// window NUMBER
    /// block ADDRESS INSTRUCTIONS CPU TIMES
    /// write LINE CPU ADDRESS TIMES
    /// end NUMBER
    /// ```
    ///
    /// Addresses are hexadecimal. A block has a line for each time that QEMU has translated it.
    fn report(&self) -> String {
        let mut text = format!("window {}\n", self.windows);
        for block in &self.blocks {
            for (cpu, count) in block.executed.iter().enumerate() {
                let times = count.load(Ordering::Relaxed);
                if times != 0 {
                    let (at, instructions) = (block.at, block.instructions);
                    let _ = writeln!(text, "block {at:x} {instructions} {cpu} {times}");
                }
            }
        }
        for ((line, cpu, at), times) in &self.writes {
            let _ = writeln!(text, "write {line:x} {cpu} {at:x} {times}");
        }
        let _ = writeln!(text, "end {}", self.windows);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: [u8; 8] = [0x0f, 0x1f, 0x84, 0x00, 1, b'x', b'u', b'a'];

    #[test]
    fn markers_are_exact() {
        assert_eq!(Marker::decode(&BEGIN), Some(Marker::Begin));
        for place in 0..BEGIN.len() {
            let mut other = BEGIN;
            other[place] ^= 0x10;
            assert_eq!(Marker::decode(&other), None, "{place}");
        }
        let mut end = BEGIN;
        end[4] = 0;
        assert_eq!(Marker::decode(&end), Some(Marker::End));
        assert_eq!(Marker::decode(&BEGIN[..7]), None);
    }

    #[test]
    fn only_what_is_in_the_window_counts() {
        let recorder = Recorder::new();
        let block = recorder.block(0xf00, 3);
        recorder.executed(&block, 0);
        assert_eq!(recorder.mark(Marker::End), None);

        recorder.mark(Marker::Begin);
        recorder.executed(&block, 1);
        recorder.executed(&block, 1);
        recorder.executed(&block, 7);
        recorder.wrote(0, 0xf02, 0x103f, 2);
        recorder.wrote(1, 0xf03, 0x1040, 8);
        let report = recorder.mark(Marker::End).unwrap();
        assert_eq!(
            report,
            "window 1\nblock f00 3 1 2\nwrite 1000 0 f02 1\nwrite 1040 0 f02 1\nwrite 1040 1 f03 1\nend 1\n"
        );

        recorder.executed(&block, 0);
        recorder.mark(Marker::Begin);
        assert_eq!(recorder.mark(Marker::End).unwrap(), "window 2\nend 2\n");
    }
}
