// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A sub-buffer: its header, and the events behind it. Nothing is copied, and nothing is believed.

use std::sync::atomic::fence;

use crate::error::{Error, Result};
use crate::header::PageHeader;
use crate::order::load_first;
use crate::sys::Bytes;

const WHAT: &str = "sub-buffer";

/// In `commit`: the kernel lost events before those of this sub-buffer.
pub const RB_MISSED_EVENTS: u32 = 1 << 31;
/// In `commit`: how many is behind the data.
pub const RB_MISSED_STORED: u32 = 1 << 30;

/// Longest `type_len` that is a length, in words.
pub const RINGBUF_TYPE_DATA_TYPE_LEN_MAX: u32 = 28;
/// The rest of a sub-buffer, or an event that was discarded.
pub const RINGBUF_TYPE_PADDING: u32 = 29;
/// Time that does not fit into `time_delta`.
pub const RINGBUF_TYPE_TIME_EXTEND: u32 = 30;
/// The time itself, but for its highest bits.
pub const RINGBUF_TYPE_TIME_STAMP: u32 = 31;

/// Bits of `time_delta`, and bits of a time that a time stamp has.
const TS_SHIFT: u32 = 27;
/// The bits of a time that a time stamp lacks.
const TS_MSB: u64 = 0xf8 << 56;

/// How many events the kernel lost before those of a sub-buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// None.
    No,
    /// So many.
    Events(u64),
    /// Some: the sub-buffer had no room for the number. `overrun` of the meta-page, and of `stats`, counts them.
    Unknown,
}

/// An event.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// When, on the clock of the instance (`trace_clock`).
    pub time: u64,
    /// What: the fields that the event's format describes. Padding may follow them.
    pub data: Bytes<'a>,
}

/// How far events were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Bytes of the data.
    pub at: usize,
    /// The time there.
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
    /// The commit is loaded once, and before all data: while the writer is on this sub-buffer it stores events and then,
    /// behind a write barrier, a commit that includes them (`rb_set_commit_to_write()`). The time stamp is loaded before both,
    /// so that a reader that finds it unchanged later knows that all three belong to the same round.
    ///
    /// # Errors
    /// If the header has numbers that no kernel writes.
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

    /// The time at its beginning.
    #[must_use]
    pub fn time_stamp(&self) -> u64 {
        self.time_stamp
    }

    /// What was lost before it.
    #[must_use]
    pub fn missed(&self) -> Missed {
        self.missed
    }

    /// How many bytes of events are committed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether none are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Its beginning.
    #[must_use]
    pub fn start(&self) -> Cursor {
        Cursor {
            at: 0,
            time: self.time_stamp,
        }
    }

    /// All events.
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

/// The `commit` of a sub-buffer: [`None`] if it ends before.
fn commit(header: &PageHeader, page: Bytes<'_>) -> Option<Result<u32>> {
    let whole = long(page, header.commit, header.commit_len)?;
    let (high, low) = halves(whole);
    // The kernel adds the highest bit as an `int`, so it is the sign of a `long`.
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

/// A `long` of the kernel.
fn long(bytes: Bytes<'_>, at: usize, len: usize) -> Option<u64> {
    if len == 4 {
        bytes.u32(at).map(u64::from)
    } else {
        bytes.u64(at)
    }
}

/// The events of a sub-buffer. It ends at the first that cannot be, after an error that says so.
#[derive(Debug, Clone)]
pub struct Events<'a> {
    data: Bytes<'a>,
    cursor: Cursor,
}

/// What an event is.
enum Entry<'a> {
    /// Something that the kernel has for itself.
    Internal,
    /// The rest has none.
    End,
    Data(Bytes<'a>),
}

impl<'a> Events<'a> {
    /// How far it is.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Reads an event whose length is in its header, as most have it, and moves behind it; [`None`] if the next entry is no
    /// such event.
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

    /// Reads an event whose length is in the word behind its header, as one of more than 28 words has it, and moves behind it;
    /// [`None`] if the next entry is no such event, or cannot be. It is not inlined: that makes short events dearer.
    #[inline(never)]
    fn long(&mut self) -> Option<Event<'a>> {
        let Cursor { at, time } = self.cursor;
        let (type_len, delta) = split(self.data.u32(at)?);
        if type_len != 0 {
            return None;
        }
        let word = at.checked_add(4)?;
        let len = usize::try_from(self.data.u32(word)?).ok()?;
        // The length counts the word that it is in.
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

    /// Reads one entry of any kind and moves behind it, or says why it cannot be.
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
        // How long the event is in all, where its data begins, and the time.
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
                // Later deltas count from a discarded event, too.
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

    // Always: what an event costs must not depend on what else the caller's crate has.
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

/// The type, or the length in words, and the time since the entry before.
#[inline]
fn split(header: u32) -> (u32, u64) {
    let (type_len, delta) = if cfg!(target_endian = "little") {
        (header & 0x1f, header >> 5)
    } else {
        (header >> TS_SHIFT, header & ((1 << TS_SHIFT) - 1))
    };
    (type_len, delta.into())
}

/// As the kernel's `rb_fix_abs_ts()`: a time stamp gets the highest bits of the time before it.
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
