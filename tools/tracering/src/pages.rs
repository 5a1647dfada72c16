// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events as whole sub-buffers again, as a file has them.

use std::io::{self, Write};

use crate::header::PageHeader;
use crate::ring::Raw;
use crate::subbuf::{Missed, RB_MISSED_EVENTS, RB_MISSED_STORED};

/// How much is written at once.
const BATCH: usize = 256 << 10;

/// Makes sub-buffers of the parts in which events are read, and writes them.
///
/// Parts of one sub-buffer become one again. So what is written is what the writer wrote, however often it was read meanwhile.
#[derive(Debug)]
pub struct Pages<W> {
    out: W,
    header: PageHeader,
    /// Whole sub-buffers, and the one to which events are added.
    bytes: Vec<u8>,
    /// Where that begins, if there is one.
    open: Option<Open>,
    written: u64,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    at: usize,
    missed: Missed,
    /// How many bytes of events it has.
    filled: usize,
    /// How far the events are read in the sub-buffer that they come from.
    read: usize,
}

impl<W: Write> Pages<W> {
    /// Writes sub-buffers with this header.
    pub fn new(out: W, header: PageHeader) -> Self {
        Self {
            out,
            header,
            bytes: Vec::new(),
            open: None,
            written: 0,
        }
    }

    /// Adds the events of a [`Reader`](crate::Reader).
    ///
    /// # Errors
    /// If they cannot be written, or no sub-buffer holds so many.
    pub fn push(&mut self, part: &Raw<'_>) -> io::Result<()> {
        let len = part.data.len();
        let mut open = match self.open {
            Some(open)
                if part.at != 0
                    && part.at == open.read
                    && open.filled + len <= self.header.capacity =>
            {
                open
            }
            _ => {
                self.close()?;
                self.begin(part)?
            }
        };
        let at = open.at + self.header.data + open.filled;
        let place = self.bytes.get_mut(at..at + len);
        let copied = place.is_some_and(|place| part.data.copy_to(place));
        if !copied {
            return Err(io::Error::other(format!(
                "{len} bytes of events are more than a sub-buffer holds"
            )));
        }
        open.filled += len;
        open.read = part.at + len;
        self.open = Some(open);
        Ok(())
    }

    /// Writes all, and gives back how many bytes were written.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.close()?;
        self.write()?;
        self.out.flush()?;
        Ok((self.out, self.written))
    }

    fn begin(&mut self, part: &Raw<'_>) -> io::Result<Open> {
        if self.bytes.len() >= BATCH {
            self.write()?;
        }
        let at = self.bytes.len();
        self.bytes.resize(at + self.header.subbuf_size(), 0);
        self.put(at + self.header.time_stamp, &part.time.to_ne_bytes());
        Ok(Open {
            at,
            missed: part.missed,
            filled: 0,
            read: part.at,
        })
    }

    /// Ends the sub-buffer to which events are added.
    fn close(&mut self) -> io::Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let filled = u32::try_from(open.filled).map_err(io::Error::other)?;
        let room = self.header.capacity - open.filled.min(self.header.capacity);
        let flags = match open.missed {
            Missed::No => 0,
            Missed::Events(n) if room >= self.header.commit_len => {
                self.put_long(open.at + self.header.data + open.filled, n);
                RB_MISSED_EVENTS | RB_MISSED_STORED
            }
            Missed::Events(_) | Missed::Unknown => RB_MISSED_EVENTS,
        };
        self.put_long(open.at + self.header.commit, u64::from(filled | flags));
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        self.out.write_all(&self.bytes)?;
        self.written += u64::try_from(self.bytes.len()).map_err(io::Error::other)?;
        self.bytes.clear();
        Ok(())
    }

    /// A `long` of the kernel.
    fn put_long(&mut self, at: usize, value: u64) {
        if self.header.commit_len == 4 {
            // A number of lost events that does not fit is as large as can be said.
            let value = u32::try_from(value).unwrap_or(u32::MAX);
            self.put(at, &value.to_ne_bytes());
        } else {
            self.put(at, &value.to_ne_bytes());
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::subbuf::SubBuffer;
    use crate::sys::Bytes;

    /// An event with a word of data, `delta` after the one before.
    fn event(delta: u32, word: u32) -> [u8; 8] {
        let header = if cfg!(target_endian = "little") {
            1 | delta << 5
        } else {
            1 << 27 | delta
        };
        let mut out = [0; 8];
        out[..4].copy_from_slice(&header.to_ne_bytes());
        out[4..].copy_from_slice(&word.to_ne_bytes());
        out
    }

    /// Time and data of all events, and what was missed before each sub-buffer.
    fn read(header: &PageHeader, bytes: &[u8]) -> (Vec<(u64, u32)>, Vec<Missed>) {
        let (mut events, mut missed) = (Vec::new(), Vec::new());
        for page in bytes.chunks(header.subbuf_size()) {
            let sub = SubBuffer::parse(header, Bytes::from(page)).unwrap();
            missed.push(sub.missed());
            for event in sub.events() {
                let event = event.unwrap();
                events.push((event.time, event.data.u32(0).unwrap()));
            }
        }
        (events, missed)
    }

    #[test]
    fn parts_become_whole_again() {
        for long in [4, 8] {
            let header = PageHeader::new(long, 64);
            let all: Vec<u8> = (0..5).flat_map(|n| event(n, n)).collect();
            let mut pages = Pages::new(Vec::new(), header);
            let mut push = |at: usize, end: usize, time: u64, missed: Missed| {
                let data = Bytes::from(all.get(at..end).unwrap());
                pages
                    .push(&Raw {
                        at,
                        time,
                        missed,
                        data,
                    })
                    .unwrap();
            };
            // One sub-buffer, in three parts.
            push(0, 8, 100, Missed::Events(7));
            push(8, 24, 100, Missed::No);
            push(24, 32, 103, Missed::No);
            // Another, of which a consumer before this one has read the first two.
            push(16, 40, 201, Missed::No);
            // One that begins anew, at the same time, and one without room for a number.
            push(0, 40, 300, Missed::Unknown);
            push(0, 40, 300, Missed::No);
            let (bytes, len) = pages.finish().unwrap();
            assert_eq!(bytes.len(), 4 * 64);
            assert_eq!(len, 4 * 64);
            let (events, missed) = read(&header, &bytes);
            let times = [100, 101, 103, 106, 203, 206, 210];
            let words = [0, 1, 2, 3, 2, 3, 4];
            let expected: Vec<_> = times.into_iter().zip(words).collect();
            assert_eq!(events.get(..7).unwrap(), expected);
            let again = [300, 301, 303, 306, 310].into_iter().zip(0..5);
            let again: Vec<_> = again.collect();
            assert_eq!(events.get(7..).unwrap(), again.repeat(2));
            let expected = [Missed::Events(7), Missed::No, Missed::Unknown, Missed::No];
            assert_eq!(missed, expected);
        }
    }

    #[test]
    fn no_room_for_a_number() {
        let header = PageHeader::new(8, 56);
        let all: Vec<u8> = (0..5).flat_map(|n| event(n, n)).collect();
        let mut pages = Pages::new(Vec::new(), header);
        let part = Raw {
            at: 0,
            time: 1,
            missed: Missed::Events(9),
            data: Bytes::from(&*all),
        };
        pages.push(&part).unwrap();
        let longer = all.repeat(2);
        let data = Bytes::from(&*longer);
        assert!(pages.push(&Raw { data, ..part }).is_err());
        let mut pages = Pages::new(Vec::new(), header);
        pages.push(&part).unwrap();
        let (bytes, _) = pages.finish().unwrap();
        assert_eq!(read(&header, &bytes).1, [Missed::Unknown]);
    }
}
