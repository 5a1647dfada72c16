// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The reader's side of the two rings of an event.
//!
//! The kernel or a device writes data and advances the head. The reader reads up to the head and advances the tail. Neither takes a lock.
//! Four barriers make that sound; their names are those of the kernel's `Documentation/userspace-api/perf_ring_buffer.rst`:
//!
//! ```text
//!   kernel or driver                        reader
//!   if (LOAD tail) {                        LOAD head       (C) load-acquire, pairs with (B)
//!       (A) control dependency              LOAD data
//!       STORE data                          (D) store-release, pairs with (A)
//!       (B) smp_wmb, or the device's drain  STORE tail
//!       STORE head
//!   }
//! ```
//!
//! Both counters only grow. The offset of a byte in memory is its position modulo the size. (If the reader reduced the tail modulo the
//! size, the ring would look full to the kernel after the first wrap.)

use std::ops::Range;
use std::sync::atomic::{fence, Ordering};

use auxcore::ring::{Pos, Size};

use crate::error::{Error, Result};
use crate::sys::{Field, Mapping};

/// How a head is loaded: (C). The model of the protocol, `tests/ring_model.rs`, fails with any weaker one.
pub const HEAD: Ordering = Ordering::Acquire;
/// How a tail is stored: (D).
pub const TAIL: Ordering = Ordering::Release;

/// The memory of a ring. The real one is a mapping; tests have others.
pub trait Area {
    /// Loads the head: how far the writer has written. Barrier (C).
    fn head(&self) -> u64;
    /// Stores the tail: how far the reader has read. Barrier (D).
    fn set_tail(&self, tail: u64);
    /// Copies the bytes at this offset. All of them must be within the ring.
    fn copy(&self, offset: usize, out: &mut [u8]);
}

/// The data ring of a mapping, behind its control page.
#[derive(Debug)]
pub struct DataArea<'a> {
    /// Control page and data.
    pub base: &'a Mapping,
    /// Length of the control page.
    pub page: usize,
}

impl Area for DataArea<'_> {
    fn head(&self) -> u64 {
        // (C): pairs with (B), the `smp_wmb()` in `perf_output_put_handle()`: records up to the head are complete.
        self.base.load(Field::DataHead, HEAD)
    }

    fn set_tail(&self, tail: u64) {
        // (D): pairs with (A), the dependency of `__perf_output_begin()` on its load of `data_tail`: the kernel overwrites
        // nothing that is still being read.
        self.base.store(Field::DataTail, tail, TAIL);
    }

    fn copy(&self, offset: usize, out: &mut [u8]) {
        let copied = self.base.copy_out(self.page + offset, out);
        debug_assert!(copied.is_some());
    }
}

/// The AUX area of a mapping. Its head and tail are in the control page of another mapping.
#[derive(Debug)]
pub struct AuxArea<'a> {
    /// Control page.
    pub base: &'a Mapping,
    /// The area, if the event has one.
    pub aux: Option<&'a Mapping>,
}

impl Area for AuxArea<'_> {
    fn head(&self) -> u64 {
        // (C): pairs with (B), which here is the driver's, before `perf_aux_output_end()` stores `aux_head`: the trace up to
        // the head is in memory.
        self.base.load(Field::AuxHead, HEAD)
    }

    fn set_tail(&self, tail: u64) {
        // (D): pairs with (A), the dependency of `perf_aux_output_begin()` on its load of `aux_tail`: the driver overwrites
        // nothing that is still being read.
        self.base.store(Field::AuxTail, tail, TAIL);
    }

    fn copy(&self, offset: usize, out: &mut [u8]) {
        let copied = self.aux.and_then(|aux| aux.copy_out(offset, out));
        debug_assert!(copied.is_some());
    }
}

/// A ring that is read from its tail to its head.
#[derive(Debug, Clone, Copy)]
pub struct Reader {
    size: Size,
    tail: Pos,
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

impl Reader {
    /// Creates the reader of a ring of this many bytes. Nothing was read yet.
    ///
    /// # Errors
    /// If the number is not a power of two.
    pub fn new(bytes: usize) -> Result<Self> {
        let size = Size::new(bytes)
            .ok_or_else(|| Error::failed(format!("a ring of {bytes} bytes cannot be")))?;
        Ok(Self {
            size,
            tail: Pos::new(0),
        })
    }

    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size.len()
    }

    /// The position up to which the ring was read.
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.tail.get()
    }

    /// The positions that can be read: from the tail to the head.
    ///
    /// # Errors
    /// If the distance from the tail to the head is larger than the ring, which only a broken driver causes.
    pub fn pending(&self, area: &impl Area) -> Result<Range<u64>> {
        let head = Pos::new(area.head());
        match self.size.used(head, self.tail) {
            Some(_) => Ok(self.tail.get()..head.get()),
            None => Err(Error::failed(format!(
                "the head of a ring of {} bytes is at {:#x} when its reader is at {:#x}: the driver has lost its place",
                self.size.len(),
                head.get(),
                self.tail.get(),
            ))),
        }
    }

    /// The positions of the newest bytes in an AUX area in overwrite mode, at most `limit`: all bytes that were ever written, or the newest
    /// ones in whole words. The head must count all bytes: then it shows how often the area has wrapped, and the content is not examined.
    /// In this mode there is no tail, so call this only while nothing is written.
    #[must_use]
    pub fn snapshot(&self, area: &impl Area, limit: u64) -> Range<u64> {
        let head = area.head();
        let max = limit.min(self.size.len());
        // If nothing is left out, a decoder begins with the first byte.
        let start = if head > max { head - max / 8 * 8 } else { 0 };
        start..head
    }

    /// Copies the bytes from position `from` on, across the end of the ring if necessary.
    pub fn copy(&self, area: &impl Area, from: u64, out: &mut [u8]) {
        let Some(split) = self.size.split(Pos::new(from), out.len()) else {
            debug_assert!(false, "a ring holds no more than its size");
            return;
        };
        let (first, second) = out.split_at_mut(split.first.len());
        area.copy(split.first.start, first);
        if !second.is_empty() {
            area.copy(split.second.start, second);
        }
    }

    /// The offsets of `len` bytes from position `from` on. The second range is at the beginning of the ring, and may be empty.
    #[must_use]
    pub fn runs(&self, from: u64, len: usize) -> [Range<usize>; 2] {
        let split = self.size.split(Pos::new(from), len);
        debug_assert!(split.is_some(), "a ring holds no more than its size");
        split.map_or([0..0, 0..0], |split| [split.first, split.second])
    }

    /// Returns the space up to `tail` to the writer.
    pub fn release(&mut self, area: &impl Area, tail: u64) {
        self.tail = Pos::new(tail);
        area.set_tail(tail);
    }

    /// Copies everything that can be read into `out`, and returns its space to the writer.
    ///
    /// # Errors
    /// As [`pending`](Self::pending).
    pub fn drain(&mut self, area: &impl Area, out: &mut Vec<u8>) -> Result<()> {
        let range = self.pending(area)?;
        out.clear();
        out.resize(to_usize(range.end.wrapping_sub(range.start)), 0);
        if !out.is_empty() {
            self.copy(area, range.start, out);
            self.release(area, range.end);
        }
        Ok(())
    }

    /// Whether the writer found the ring full. Then `perf_aux_output_begin()` has failed, and no record reports that.
    #[must_use]
    pub fn is_full(&self, range: &Range<u64>) -> bool {
        self.size.space(Pos::new(range.end), Pos::new(range.start)) == 0
    }

    /// How often the range between two positions crosses the end of the ring.
    #[must_use]
    pub fn wraps(&self, range: &Range<u64>) -> u64 {
        self.size.wraps(Pos::new(range.start), Pos::new(range.end))
    }
}

/// How many bytes of the oldest records the reader ignores in a ring in overwrite mode. The kernel completes a record that it was writing
/// when the ring was paused, and the head does not include that record before. On a CPU there is at most one such record for each level of
/// interrupts. Only that of a task can be long: it may have a name of `PATH_MAX` bytes.
pub const IN_FLIGHT: usize = 8192;

/// A data ring in overwrite mode (`write_backward`), mapped read-only. The kernel writes it from its end to its beginning, again and again:
/// the newest records replace the oldest. The newest record begins at the head, which decreases from 0. The next older one follows it.
///
/// There is no tail, and so neither (A) nor (D). Two things keep the kernel from the records while they are copied: the ring is paused
/// (`PERF_EVENT_IOC_PAUSE_OUTPUT`), and the reader ignores [`IN_FLIGHT`] bytes.
#[derive(Debug, Clone, Copy)]
pub struct Backward {
    size: Size,
    in_flight: usize,
    /// The head at the last read.
    seen: u64,
}

/// The records that were read from a ring in overwrite mode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Newest {
    /// Whole records, the oldest first.
    pub records: Vec<u8>,
    /// Bytes of older records since the last read that were overwritten.
    pub overwritten: u64,
}

impl Backward {
    /// Creates the reader of a ring of this many bytes. Nothing was read yet.
    ///
    /// # Errors
    /// If the number is not a power of two, or not larger than [`IN_FLIGHT`].
    pub fn new(bytes: usize) -> Result<Self> {
        Self::with(bytes, IN_FLIGHT)
    }

    fn with(bytes: usize, in_flight: usize) -> Result<Self> {
        let size = Size::new(bytes).filter(|_| bytes > in_flight);
        let size = size.ok_or_else(|| {
            Error::failed(format!("a ring of {bytes} bytes cannot be overwritten"))
        })?;
        Ok(Self {
            size,
            in_flight,
            seen: 0,
        })
    }

    /// Reads the records that were written since the last call and not overwritten. The ring must be paused.
    ///
    /// # Errors
    /// If the bytes are no records.
    pub fn newest(&mut self, area: &impl Area) -> Result<Newest> {
        let head = area.head();
        let new = self.seen.wrapping_sub(head);
        let mut bytes = vec![0; to_usize(new.min(self.size.len()))];
        let Some(split) = self.size.split(Pos::new(head), bytes.len()) else {
            debug_assert!(false, "a ring holds no more than its size");
            return Ok(Newest::default());
        };
        let (first, second) = bytes.split_at_mut(split.first.len());
        area.copy(split.first.start, first);
        if !second.is_empty() {
            area.copy(split.second.start, second);
        }
        // (C) once more, in the other direction: the bytes are loaded before the head is loaded again. Pairs with (B) of a record that was
        // begun before the pause, and of the one before it. If bytes of such a record were copied in the place of old ones, either the head
        // includes it now, or it is one of those for which `in_flight` leaves space.
        fence(Ordering::Acquire);
        let moved = head.wrapping_sub(area.head());
        let space = self.size.len().saturating_sub(moved);
        let sure = to_usize(space).saturating_sub(self.in_flight);
        bytes.truncate(if new > to_u64(sure) {
            sure
        } else {
            bytes.len()
        });

        let mut starts = Vec::new();
        let mut at = 0;
        while let Some(header) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
            let len = usize::from(u16::from_le_bytes([header[6], header[7]]));
            if len < 8 || len % 8 != 0 {
                return Err(Error::failed(format!(
                    "a record in a ring that is overwritten says that it has {len} bytes"
                )));
            }
            if bytes.len() - at < len {
                break;
            }
            starts.push(at..at + len);
            at += len;
        }
        let mut records = Vec::with_capacity(at);
        for place in starts.into_iter().rev() {
            records.extend_from_slice(bytes.get(place).unwrap_or(&[]));
        }
        self.seen = head;
        Ok(Newest {
            overwritten: new.saturating_sub(to_u64(records.len())),
            records,
        })
    }
}

/// Cuts a range of positions into pieces of at most `piece` bytes.
pub fn pieces(range: Range<u64>, piece: usize) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let left = range.end.wrapping_sub(at);
        let len = left.min(to_u64(piece));
        let start = at;
        at = at.wrapping_add(len);
        (len != 0).then_some(start..at)
    })
}

/// Cuts a range of positions at the multiples of `step`.
pub fn steps(range: Range<u64>, step: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let left = range.end.wrapping_sub(at);
        let len = left.min(step - at % step);
        let start = at;
        at = at.wrapping_add(len);
        (len != 0).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

    use proptest::prelude::*;

    use super::*;

    struct Fake {
        head: AtomicU64,
        tail: AtomicU64,
        bytes: Vec<AtomicU8>,
    }

    impl Fake {
        fn new(size: usize, at: u64) -> Self {
            Self {
                head: at.into(),
                tail: at.into(),
                bytes: (0..size).map(|_| AtomicU8::new(0)).collect(),
            }
        }

        /// Writes as many of the bytes as there is space for. One byte stays free, as in perf.
        fn write(&self, size: Size, len: u64) -> u64 {
            let head = self.head.load(Ordering::Relaxed);
            let len =
                len.min(size.space(Pos::new(head), Pos::new(self.tail.load(Ordering::Acquire))));
            for pos in (0..len).map(|n| head.wrapping_add(n)) {
                self.bytes[size.offset(Pos::new(pos))].store(byte(pos), Ordering::Relaxed);
            }
            self.head.store(head.wrapping_add(len), Ordering::Release);
            len
        }
    }

    /// A byte that differs from its neighbours, and from the byte one ring length away.
    fn byte(pos: u64) -> u8 {
        pos.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7]
    }

    impl Area for Fake {
        fn head(&self) -> u64 {
            self.head.load(Ordering::Acquire)
        }
        fn set_tail(&self, tail: u64) {
            self.tail.store(tail, Ordering::Release);
        }
        fn copy(&self, offset: usize, out: &mut [u8]) {
            for (out, byte) in out.iter_mut().zip(&self.bytes[offset..]) {
                *out = byte.load(Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn a_head_that_is_too_far_is_an_error() {
        let fake = Fake::new(64, 0);
        let ring = Reader::new(64).unwrap();
        fake.head.store(65, Ordering::Relaxed);
        assert!(ring
            .pending(&fake)
            .unwrap_err()
            .to_string()
            .contains("0x41"));
        assert_eq!(ring.snapshot(&fake, u64::MAX), 1..65);
        for (head, limit, holds) in [
            (0, 64, 0..0),
            (60, 64, 0..60),
            (64, 64, 0..64),
            (65, 64, 1..65),
            (60, 60, 0..60),
            (61, 60, 5..61),
            (1000, 64, 936..1000),
            (1000, 20, 984..1000),
        ] {
            fake.head.store(head, Ordering::Relaxed);
            assert_eq!(ring.snapshot(&fake, limit), holds);
        }
        assert!(Reader::new(65).is_err());
    }

    #[test]
    fn full_is_what_the_kernel_calls_full() {
        let ring = Reader::new(64).unwrap();
        assert!(ring.is_full(&(0..63)) && ring.is_full(&(5..69)) && !ring.is_full(&(0..62)));
    }

    #[test]
    fn a_reader_beside_a_writer_gets_every_byte_in_order() {
        const TOTAL: u64 = 200_000;
        let fake = &Fake::new(256, 0);
        let size = Size::new(256).unwrap();
        let mut ring = Reader::new(256).unwrap();
        std::thread::scope(|scope| {
            // The writer stops when the reader drops this, also by a panic: then the reader makes no more space.
            let reads = std::sync::Arc::new(());
            let read = std::sync::Arc::downgrade(&reads);
            scope.spawn(move || {
                let mut written = 0;
                while written < TOTAL && read.strong_count() != 0 {
                    let n = fake.write(size, (written % 97 + 1).min(TOTAL - written));
                    written += n;
                    if n == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            let mut out = Vec::new();
            let mut at = 0;
            while at < TOTAL {
                ring.drain(fake, &mut out).unwrap();
                for &got in &out {
                    assert_eq!(got, byte(at));
                    at += 1;
                }
            }
            drop(reads);
        });
    }

    /// Writes a record as `__perf_output_begin()` does with `backward`: below the head, whether or not a reader has read the old bytes.
    fn write_backward(fake: &Fake, size: Size, record: &[u8], finish: bool) {
        let head = fake.head.load(Ordering::Relaxed);
        let head = head.wrapping_sub(to_u64(record.len()));
        for (pos, byte) in (0..).map(|n| head.wrapping_add(n)).zip(record) {
            fake.bytes[size.offset(Pos::new(pos))].store(*byte, Ordering::Relaxed);
        }
        if finish {
            fake.head.store(head, Ordering::Release);
        }
    }

    /// A record of this many words, marked with this number.
    fn numbered(number: u16, words: u16) -> Vec<u8> {
        let mut record = vec![number.to_le_bytes()[0]; usize::from(words) * 8];
        record[4..6].copy_from_slice(&number.to_le_bytes());
        record[6..8].copy_from_slice(&(words * 8).to_le_bytes());
        record
    }

    #[test]
    fn a_backward_ring_refuses_what_is_no_record() {
        let fake = Fake::new(128, 0);
        let size = Size::new(128).unwrap();
        let mut ring = Backward::with(128, 32).unwrap();
        assert_eq!(ring.newest(&fake).unwrap(), Newest::default());
        for len in [0, 7, 12] {
            write_backward(&fake, size, &[0, 0, 0, 0, 0, 0, len, 0], true);
            assert!(ring.clone().newest(&fake).is_err(), "{len}");
        }
        assert!(Backward::with(100, 32).is_err() && Backward::with(128, 128).is_err());
        assert!(Backward::new(IN_FLIGHT).is_err() && Backward::new(2 * IN_FLIGHT).is_ok());
    }

    proptest! {
        #[test]
        fn the_newest_records_come_in_their_order(
            rounds in prop::collection::vec(prop::collection::vec(1_u16..8, 0..40), 1..8),
            unfinished in 0_u16..5,
        ) {
            let fake = Fake::new(256, 0);
            let size = Size::new(256).unwrap();
            let mut ring = Backward::with(256, 32).unwrap();
            let mut number = 0;
            for round in rounds {
                let mut all: Vec<Vec<u8>> = Vec::new();
                for words in round {
                    all.push(numbered(number, words));
                    number += 1;
                    write_backward(&fake, size, all.last().unwrap(), true);
                }
                // A record that was being written when the ring was paused. The head does not include it.
                write_backward(&fake, size, &vec![0xff; usize::from(unfinished) * 8], false);
                let sum: usize = all.iter().map(Vec::len).sum();
                let space = if sum > 256 - 32 { 256 - 32 } else { sum };
                let (mut want, mut used) = (Vec::new(), 0);
                for record in all.iter().rev() {
                    used += record.len();
                    if used > space {
                        break;
                    }
                    want.splice(0..0, record.iter().copied());
                }
                let newest = ring.newest(&fake).unwrap();
                prop_assert_eq!(newest.overwritten, to_u64(sum - want.len()));
                prop_assert_eq!(newest.records, want);
            }
        }

        #[test]
        fn what_goes_in_comes_out(start: u64, writes in prop::collection::vec((0_u64..200, 1_usize..50), 1..40)) {
            let fake = Fake::new(128, start);
            let size = Size::new(128).unwrap();
            let mut ring = Reader { size, tail: Pos::new(start) };
            let mut at = start;
            let mut wraps = 0;
            for (len, piece) in writes {
                fake.write(size, len);
                let range = ring.pending(&fake).unwrap();
                wraps += ring.wraps(&range);
                // Steps do not cross the end of the ring; pieces may.
                let parts: Vec<_> = if piece % 2 == 0 {
                    steps(range, 32).collect()
                } else {
                    pieces(range, piece).collect()
                };
                for part in parts {
                    let len = to_usize(part.end.wrapping_sub(part.start));
                    let [_, over] = ring.runs(part.start, len);
                    prop_assert!(over.is_empty() || piece % 2 == 1);
                    let mut out = vec![0; len];
                    ring.copy(&fake, part.start, &mut out);
                    ring.release(&fake, part.end);
                    for got in out {
                        prop_assert_eq!(got, byte(at));
                        at = at.wrapping_add(1);
                    }
                }
                prop_assert_eq!(fake.tail.load(Ordering::Relaxed), fake.head.load(Ordering::Relaxed));
            }
            let way = u128::from(start % 128) + u128::from(at.wrapping_sub(start));
            prop_assert_eq!(u128::from(wraps), way / 128);
        }
    }
}
