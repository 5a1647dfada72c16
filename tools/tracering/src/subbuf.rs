// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A sub-buffer: its header and the events behind it. Nothing is copied, and every value is checked.

use std::sync::atomic::fence;

use crate::error::{Error, Result};
use crate::header::PageHeader;
use crate::order::load_first;
use crate::sys::Bytes;

const WHAT: &str = "sub-buffer";

/// Bit of `commit`: the kernel lost events before those of this sub-buffer.
pub const RB_MISSED_EVENTS: u32 = 1 << 31;
/// Bit of `commit`: the number of lost events is stored behind the data.
pub const RB_MISSED_STORED: u32 = 1 << 30;

/// Maximum `type_len` that is a length, in words of 4 bytes.
pub const RINGBUF_TYPE_DATA_TYPE_LEN_MAX: u32 = 28;
/// `type_len` of padding: the rest of a sub-buffer, or a discarded event.
pub const RINGBUF_TYPE_PADDING: u32 = 29;
/// `type_len` of a time extend: a time difference that does not fit into `time_delta`.
pub const RINGBUF_TYPE_TIME_EXTEND: u32 = 30;
/// `type_len` of an absolute time stamp, without its highest bits.
pub const RINGBUF_TYPE_TIME_STAMP: u32 = 31;

/// Number of bits of `time_delta`. The second word of a time extend or time stamp is shifted by it.
const TS_SHIFT: u32 = 27;
/// The highest bits of a time, which a time stamp lacks.
const TS_MSB: u64 = 0xf8 << 56;

/// Events that the kernel lost before those of a sub-buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// No events were lost.
    No,
    /// This number of events was lost.
    Events(u64),
    /// Events were lost, but the sub-buffer had no space for their number. `overrun` of the meta-page, and of `stats`, counts them.
    Unknown,
}

/// An event.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// Time, on the clock of the instance (`trace_clock`).
    pub time: u64,
    /// The fields that the event's format describes. Padding may follow them.
    pub data: Bytes<'a>,
}

/// A position in the events of a sub-buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Offset in the data, in bytes.
    pub at: usize,
    /// The time at the offset.
    pub time: u64,
}

/// A sub-buffer whose header was checked.
#[derive(Debug, Clone, Copy)]
pub struct SubBuffer<'a> {
    time_stamp: u64,
    missed: Missed,
    /// The events.
    data: Bytes<'a>,
}

impl<'a> SubBuffer<'a> {
    /// Reads the header of the sub-buffer at the beginning of `page`.
    ///
    /// The commit is loaded once, and before all data. While this is the writer's current sub-buffer, the writer stores events and then,
    /// after a write barrier, a commit that includes them (`rb_set_commit_to_write()`). The time stamp is loaded before both. If it is
    /// unchanged later, all three belong to the same use of the sub-buffer.
    ///
    /// # Errors
    /// If the header has values that no kernel writes.
    pub fn parse(header: &PageHeader, page: Bytes<'a>) -> Result<Self> {
        let short = |at| move || Error::malformed(WHAT, at, format!("it has {} bytes", page.len()));
        let time_stamp = load_first(|| page.u64(header.time_stamp), fence)
            .ok_or_else(short(header.time_stamp))?;
        let commit =
            load_first(|| commit(header, page), fence).ok_or_else(short(header.commit))??;
        let bad = |why| Error::malformed(WHAT, header.commit, why);
        let flags = commit & (RB_MISSED_EVENTS | RB_MISSED_STORED);
        let len = usize::try_from(commit & !flags).unwrap_or(usize::MAX);
        let capacity = page.len().saturating_sub(header.data).min(header.capacity);
        if len > capacity {
            let why = format!("{len} bytes are committed, and it holds {capacity}");
            return Err(bad(why));
        }
        if len % 4 != 0 {
            return Err(bad(format!(
                "{len} bytes are committed, not a multiple of 4"
            )));
        }
        let rest = page.get(header.data..header.data + capacity);
        let rest = rest.ok_or_else(short(header.data))?;
        let missed = match (flags & RB_MISSED_EVENTS != 0, flags & RB_MISSED_STORED != 0) {
            (false, false) => Missed::No,
            (true, false) => Missed::Unknown,
            (true, true) => {
                let stored = long(rest, len, header.commit_len);
                Missed::Events(stored.ok_or_else(|| {
                    bad(format!(
                        "a number of lost events is stored behind {len} bytes of {capacity}"
                    ))
                })?)
            }
            (false, true) => return Err(bad("lost events are counted, and none were lost".into())),
        };
        let data = rest.get(0..len).ok_or_else(short(header.data))?;
        Ok(Self {
            time_stamp,
            missed,
            data,
        })
    }

    /// The time at the beginning of the sub-buffer.
    #[must_use]
    pub fn time_stamp(&self) -> u64 {
        self.time_stamp
    }

    /// The events lost before this sub-buffer.
    #[must_use]
    pub fn missed(&self) -> Missed {
        self.missed
    }

    /// Number of committed bytes of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether no events are committed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The cursor at the beginning.
    #[must_use]
    pub fn start(&self) -> Cursor {
        Cursor {
            at: 0,
            time: self.time_stamp,
        }
    }

    /// All events of the sub-buffer.
    pub fn events(&self) -> Events<'a> {
        Events {
            data: self.data,
            cursor: self.start(),
        }
    }

    /// The events from `cursor` to byte `end`.
    pub(crate) fn part(&self, cursor: Cursor, end: usize) -> Result<Events<'a>> {
        let why = || {
            let len = self.len();
            let why = format!("{end} bytes were read, and {len} are committed");
            Error::malformed(WHAT, cursor.at, why)
        };
        let data = self.data.get(0..end).ok_or_else(why)?;
        Ok(Events { data, cursor })
    }
}

/// The `commit` of a sub-buffer; [`None`] if `page` ends before it.
fn commit(header: &PageHeader, page: Bytes<'_>) -> Option<Result<u32>> {
    let whole = long(page, header.commit, header.commit_len)?;
    let (high, low) = halves(whole);
    // The kernel adds the highest bit as a negative `int`, so a `long` is sign-extended.
    let extended = low & RB_MISSED_EVENTS != 0 && high == u32::MAX;
    Some(if high == 0 || extended {
        Ok(low)
    } else {
        let why = format!("{whole:#x} is no commit");
        Err(Error::malformed(WHAT, header.commit, why))
    })
}

fn halves(whole: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = whole.to_be_bytes();
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}

/// Reads a `long` of the kernel, which has `len` bytes.
fn long(bytes: Bytes<'_>, at: usize, len: usize) -> Option<u64> {
    if len == 4 {
        bytes.u32(at).map(u64::from)
    } else {
        bytes.u64(at)
    }
}

/// The events of a sub-buffer. At the first event that is not valid, the iterator returns an error and ends.
#[derive(Debug, Clone)]
pub struct Events<'a> {
    data: Bytes<'a>,
    cursor: Cursor,
}

/// An entry of a sub-buffer.
enum Entry<'a> {
    /// An entry without data: time, or a discarded event.
    Internal,
    /// There are no entries in the rest of the sub-buffer.
    End,
    Data(Bytes<'a>),
}

impl<'a> Events<'a> {
    /// The position of the next entry.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Reads an event whose length is in its header, as in most events, and moves behind it. [`None`] if the next entry is not such an
    /// event.
    #[inline(always)]
    fn short(&mut self) -> Option<Event<'a>> {
        let Cursor { at, time } = self.cursor;
        let (words, delta) = split(self.data.u32(at)?);
        if !(1..=RINGBUF_TYPE_DATA_TYPE_LEN_MAX).contains(&words) {
            return None;
        }
        let start = at.checked_add(4)?;
        let end = start.checked_add(usize::try_from(4 * words).ok()?)?;
        let data = self.data.get(start..end)?;
        let time = time.wrapping_add(delta);
        self.cursor = Cursor { at: end, time };
        Some(Event { time, data })
    }

    /// Reads an event of more than 28 words, whose length is in the word behind its header, and moves behind it. [`None`] if the next entry
    /// is not such an event, or is not valid. Inlining this would slow down short events.
    #[inline(never)]
    fn long(&mut self) -> Option<Event<'a>> {
        let Cursor { at, time } = self.cursor;
        let (type_len, delta) = split(self.data.u32(at)?);
        if type_len != 0 {
            return None;
        }
        let word = at.checked_add(4)?;
        let len = usize::try_from(self.data.u32(word)?).ok()?;
        // The length includes its own word.
        if len < 4 || len % 4 != 0 {
            return None;
        }
        let data = self
            .data
            .get(word.checked_add(4)?..word.checked_add(len)?)?;
        let time = time.wrapping_add(delta);
        self.cursor = Cursor {
            at: word + len,
            time,
        };
        Some(Event { time, data })
    }

    /// Reads one entry of any kind and moves behind it. Fails if the entry is not valid.
    #[inline(never)]
    fn entry(&mut self) -> Result<Entry<'a>> {
        let at = self.cursor.at;
        let bad = |why: String| Error::malformed(WHAT, at, why);
        let left = self.data.len() - at.min(self.data.len());
        let word = |n: usize| {
            let word = self.data.u32(at + 4 * n);
            word.ok_or_else(|| bad(format!("an event is cut off after {left} bytes")))
        };
        let (type_len, delta) = split(word(0)?);
        // Length of the entry, offset of its data, and its time.
        let (len, skip, time) = match type_len {
            RINGBUF_TYPE_PADDING if delta == 0 => {
                self.cursor.at = self.data.len();
                return Ok(Entry::End);
            }
            RINGBUF_TYPE_PADDING | 0 => {
                let len = usize::try_from(word(1)?).unwrap_or(usize::MAX);
                if len < 4 || len % 4 != 0 {
                    return Err(bad(format!("an event of {len} bytes")));
                }
                // The time of a discarded event counts: later deltas are relative to it.
                (
                    len.saturating_add(4),
                    8,
                    self.cursor.time.wrapping_add(delta),
                )
            }
            RINGBUF_TYPE_TIME_EXTEND => {
                let extended = (u64::from(word(1)?) << TS_SHIFT) + delta;
                (8, 8, self.cursor.time.wrapping_add(extended))
            }
            RINGBUF_TYPE_TIME_STAMP => {
                let stamp = (u64::from(word(1)?) << TS_SHIFT) + delta;
                (8, 8, fix_abs_ts(stamp, self.cursor.time))
            }
            words => {
                let len = usize::try_from(4 * words).unwrap_or(usize::MAX);
                (len + 4, 4, self.cursor.time.wrapping_add(delta))
            }
        };
        if len > left {
            return Err(bad(format!("an event of {len} bytes, and {left} are left")));
        }
        let data = self.data.get(at + skip..at + len);
        let data = data.ok_or_else(|| bad(format!("an event of {len} bytes")))?;
        self.cursor = Cursor { at: at + len, time };
        Ok(if type_len <= RINGBUF_TYPE_DATA_TYPE_LEN_MAX {
            Entry::Data(data)
        } else {
            Entry::Internal
        })
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Result<Event<'a>>;

    // Always inlined, so that the cost per event does not depend on the rest of the caller's crate.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        while self.cursor.at < self.data.len() {
            if let Some(event) = self.short().or_else(|| self.long()) {
                return Some(Ok(event));
            }
            match self.entry() {
                Ok(Entry::Internal) => {}
                Ok(Entry::End) => return None,
                Ok(Entry::Data(data)) => {
                    let time = self.cursor.time;
                    return Some(Ok(Event { time, data }));
                }
                Err(e) => {
                    self.cursor.at = self.data.len();
                    return Some(Err(e));
                }
            }
        }
        None
    }
}

impl std::iter::FusedIterator for Events<'_> {}

/// Splits a header into the type, or the length in words, and the time since the previous entry.
#[inline]
fn split(header: u32) -> (u32, u64) {
    let (type_len, delta) = if cfg!(target_endian = "little") {
        (header & 0x1f, header >> 5)
    } else {
        (header >> TS_SHIFT, header & ((1 << TS_SHIFT) - 1))
    };
    (type_len, delta.into())
}

/// Adds the highest bits of the previous time to a time stamp, like the kernel's `rb_fix_abs_ts()`.
fn fix_abs_ts(stamp: u64, before: u64) -> u64 {
    if before & TS_MSB == 0 {
        return stamp;
    }
    let stamp = stamp | (before & TS_MSB);
    if stamp < before {
        stamp.wrapping_add(1 << 59)
    } else {
        stamp
    }
}

#[cfg(test)]
mod tests;
