// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The reader's side of the two rings of an event.
//!
//! The kernel (or a device) writes up to a head, the reader reads up to it and moves a tail, and neither takes a lock. Four
//! barriers make that sound; the names are those of the kernel's `Documentation/userspace-api/perf_ring_buffer.rst`:
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
//! Both counters only ever grow; the place of a byte in memory is its position modulo the size. (A tail that was reduced
//! modulo the size would look to the kernel as if the ring were full, from the first wrap on.)

use std::ops::Range;
use std::sync::atomic::{fence, Ordering};

use auxcore::ring::{Pos, Size};

use crate::error::{Error, Result};
use crate::sys::{Field, Mapping};

/// How a head is loaded: (C). The model of the protocol, `tests/ring_model.rs`, fails with any weaker one.
pub const HEAD: Ordering = Ordering::Acquire;
/// How a tail is stored: (D).
pub const TAIL: Ordering = Ordering::Release;

/// What a ring is made of. The real one is a mapping; tests have others.
pub trait Area {
    /// How far the writer is: (C).
    fn head(&self) -> u64;
    /// Tells the writer how far the reader is: (D).
    fn set_tail(&self, tail: u64);
    /// Copies the bytes at this offset, which are all in the ring.
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

/// The AUX area of a mapping, which has its words in the control page of another.
#[derive(Debug)]
pub struct AuxArea<'a> {
    /// Control page.
    pub base: &'a Mapping,
    /// The area, if there is one.
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
    /// A ring of this many bytes of which nothing was read yet.
    ///
    /// # Errors
    /// If that is no power of two.
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

    /// How far it was read.
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.tail.get()
    }

    /// What can be read: positions from the tail to the head.
    ///
    /// # Errors
    /// If the head is further from the tail than the ring is long, which only a broken driver does.
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

    /// What an area that is written over and over holds: positions of its last bytes, at most `limit`: all that were ever
    /// written, or a whole number of words. Its head only grows, so how often it went round is known, and nothing of what it
    /// holds is looked at. It is not read by a tail, so this may only be called while nothing is written.
    #[must_use]
    pub fn snapshot(&self, area: &impl Area, limit: u64) -> Range<u64> {
        let head = area.head();
        let most = limit.min(self.size.len());
        // Where nothing is left out, a decoder begins with the first byte.
        let start = if head > most { head - most / 8 * 8 } else { 0 };
        start..head
    }

    /// Copies the bytes from position `from` on, over the end of the ring if need be.
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

    /// Where `len` bytes from position `from` on lie, of which the second run begins the ring again, and may be empty.
    #[must_use]
    pub fn runs(&self, from: u64, len: usize) -> [Range<usize>; 2] {
        let split = self.size.split(Pos::new(from), len);
        debug_assert!(split.is_some(), "a ring holds no more than its size");
        split.map_or([0..0, 0..0], |split| [split.first, split.second])
    }

    /// Gives everything up to `tail` back to the writer.
    pub fn release(&mut self, area: &impl Area, tail: u64) {
        self.tail = Pos::new(tail);
        area.set_tail(tail);
    }

    /// Copies all there is into `out`, and gives it back.
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

    /// Whether the writer found the ring full: then `perf_aux_output_begin()` has failed, and says so nowhere.
    #[must_use]
    pub fn is_full(&self, range: &Range<u64>) -> bool {
        self.size.space(Pos::new(range.end), Pos::new(range.start)) == 0
    }

    /// How often the way between two positions passes the end of the ring.
    #[must_use]
    pub fn wraps(&self, range: &Range<u64>) -> u64 {
        self.size.wraps(Pos::new(range.start), Pos::new(range.end))
    }
}

/// So many bytes of the oldest records of a ring that is overwritten are left alone: what was being written when the ring was
/// paused goes on being written, and is not seen in the head before it is done. On a CPU that is one record for each level of
/// interrupts, and only that of a task can be long: a name of `PATH_MAX` bytes.
pub const IN_FLIGHT: usize = 8192;

/// A data ring that is written from its end to its beginning, over and over (`write_backward`), and mapped read-only: the newest
/// records take the place of the oldest. The newest begins at the head, which falls from 0 on, and the next older one behind it.
///
/// There is no tail, and so neither (A) nor (D): what keeps the kernel from the records while they are copied is that the ring is
/// paused (`PERF_EVENT_IOC_PAUSE_OUTPUT`), and [`IN_FLIGHT`].
#[derive(Debug, Clone, Copy)]
pub struct Backward {
    size: Size,
    in_flight: usize,
    /// The head when it was read last.
    seen: u64,
}

/// What a ring that is overwritten has given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Newest {
    /// Whole records, the oldest first.
    pub records: Vec<u8>,
    /// Bytes of older ones, since the last time, that are not there any more.
    pub overwritten: u64,
}

impl Backward {
    /// A ring of this many bytes that was never read.
    ///
    /// # Errors
    /// If that is no power of two, or not more than [`IN_FLIGHT`].
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

    /// The records that came since the last time and are still there. To be called while the ring is paused.
    ///
    /// # Errors
    /// If what is there are no records.
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
        // (C) once more, the other way round: what was copied was loaded before the head is loaded again. Pairs with (B), of a
        // record that was begun before the pause, and the one before it: if its bytes were copied in the place of old ones, the
        // head says so now, or it is one of those that `in_flight` leaves room for.
        fence(Ordering::Acquire);
        let moved = head.wrapping_sub(area.head());
        let room = self.size.len().saturating_sub(moved);
        let sure = to_usize(room).saturating_sub(self.in_flight);
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

        /// Writes as many of the bytes as there is room for, as perf does: one stays free.
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

    /// A byte that differs from its neighbours and from the one a ring's length away.
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
            // The writer stops when the reader drops this: a reader that panicked makes no more space.
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

    /// Writes records as `__perf_output_begin()` does with `backward`: below the head, whether or not a reader has read what was there.
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

    /// A record of so many words, with a number of its own.
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
                // What was being written when the ring was paused, and nothing tells of yet.
                write_backward(&fake, size, &vec![0xff; usize::from(unfinished) * 8], false);
                let sum: usize = all.iter().map(Vec::len).sum();
                let room = if sum > 256 - 32 { 256 - 32 } else { sum };
                let (mut want, mut used) = (Vec::new(), 0);
                for record in all.iter().rev() {
                    used += record.len();
                    if used > room {
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
                // Steps, unlike pieces, do not go over the end.
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
