// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The meta-page, `struct trace_buffer_meta` of `linux/trace_mmap.h`.

use crate::error::{Error, Result};
use crate::header::MAX_SUBBUF;
use crate::sys::Bytes;

const WHAT: &str = "meta-page";

/// Minimum length of `struct trace_buffer_meta`, with all of the fields below. Later kernels may have a longer one.
pub const META_STRUCT_LEN: u32 = 80;

/// Maximum number of sub-buffers that a kernel maps: an id has 30 bits.
const MAX_SUBBUFS: u32 = 1 << 30;

/// A snapshot of the fields of a meta-page, with the kernel's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// Length of the meta-page, in bytes. The first sub-buffer follows it.
    pub meta_page_size: u32,
    /// Length of the structure, in bytes.
    pub meta_struct_len: u32,
    /// Length of a sub-buffer, in bytes.
    pub subbuf_size: u32,
    /// Number of sub-buffers, including the reader sub-buffer.
    pub nr_subbufs: u32,
    /// The sub-buffer that a consumer may read.
    pub reader: Reader,
    /// Reserved.
    pub flags: u64,
    /// Events that were written.
    pub entries: u64,
    /// Events that were overwritten before they were read.
    pub overrun: u64,
    /// Events that were read.
    pub read: u64,
    /// Sub-buffers that the writer overwrote.
    pub pages_lost: u64,
    /// Sub-buffers that the writer wrote.
    pub pages_touched: u64,
}

/// The reader sub-buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reader {
    /// Events lost before this sub-buffer was swapped in. Kernels store that number behind the events of the sub-buffer
    /// ([`Missed`](crate::Missed)), and keep 0 here.
    pub lost_events: u64,
    /// Id of the sub-buffer.
    pub id: u32,
    /// Number of its bytes that the kernel has accounted for as read.
    pub read: u32,
}

impl Meta {
    /// Reads and checks a meta-page.
    ///
    /// # Errors
    /// If a field has a value that no kernel writes. The error names the field.
    pub fn parse(bytes: Bytes<'_>) -> Result<Self> {
        let short = |at: usize| move || Error::malformed(WHAT, at, "it ends here");
        let word = |at: usize| bytes.u32(at).ok_or_else(short(at));
        let long = |at: usize| bytes.u64(at).ok_or_else(short(at));
        let meta = Self {
            meta_page_size: word(0)?,
            meta_struct_len: word(4)?,
            subbuf_size: word(8)?,
            nr_subbufs: word(12)?,
            reader: Reader {
                lost_events: long(16)?,
                id: word(24)?,
                read: word(28)?,
            },
            flags: long(32)?,
            entries: long(40)?,
            overrun: long(48)?,
            read: long(56)?,
            pages_lost: long(64)?,
            pages_touched: long(72)?,
        };
        meta.check()?;
        Ok(meta)
    }

    fn check(&self) -> Result<()> {
        let sized = |size: u32| {
            size.is_power_of_two()
                && usize::try_from(size).is_ok_and(|n| (4096..=MAX_SUBBUF).contains(&n))
        };
        let bad = |at, why| Err(Error::malformed(WHAT, at, why));
        if self.meta_struct_len < META_STRUCT_LEN {
            let why = format!(
                "meta_struct_len is {}, less than {META_STRUCT_LEN}",
                self.meta_struct_len
            );
            return bad(4, why);
        }
        if !sized(self.subbuf_size) {
            return bad(8, format!("subbuf_size is {}", self.subbuf_size));
        }
        // It is a multiple of a page, so that the sub-buffers behind it begin at page boundaries.
        if self.meta_page_size == 0 || self.meta_page_size % 4096 != 0 {
            return bad(0, format!("meta_page_size is {}", self.meta_page_size));
        }
        if self.meta_struct_len > self.meta_page_size {
            let why = format!(
                "meta_struct_len is {}, and the page has {}",
                self.meta_struct_len, self.meta_page_size
            );
            return bad(4, why);
        }
        if self.nr_subbufs < 2 || self.nr_subbufs > MAX_SUBBUFS {
            return bad(12, format!("nr_subbufs is {}", self.nr_subbufs));
        }
        if self.reader.id >= self.nr_subbufs {
            let why = format!("reader.id is {} of {}", self.reader.id, self.nr_subbufs);
            return bad(24, why);
        }
        if self.reader.read >= self.subbuf_size {
            let why = format!(
                "reader.read is {} of {}",
                self.reader.read, self.subbuf_size
            );
            return bad(28, why);
        }
        // The counters are not compared with each other: the kernel reads them one by one while the writer continues.
        if self.map_len().is_none() {
            return bad(
                12,
                format!("{} sub-buffers do not fit memory", self.nr_subbufs),
            );
        }
        Ok(())
    }

    /// Length of a mapping of the whole buffer; [`None`] if no mapping can be that long.
    #[must_use]
    pub fn map_len(&self) -> Option<usize> {
        let subbufs = u64::from(self.subbuf_size).checked_mul(u64::from(self.nr_subbufs))?;
        let len = subbufs.checked_add(u64::from(self.meta_page_size))?;
        usize::try_from(len)
            .ok()
            .filter(|len| isize::try_from(*len).is_ok())
    }

    /// The range of the sub-buffer with this id in the mapping.
    #[must_use]
    pub fn subbuf(&self, id: u32) -> Option<std::ops::Range<usize>> {
        if id >= self.nr_subbufs {
            return None;
        }
        let at = u64::from(id) * u64::from(self.subbuf_size) + u64::from(self.meta_page_size);
        let at = usize::try_from(at).ok()?;
        Some(at..at.checked_add(usize::try_from(self.subbuf_size).ok()?)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A meta-page with these fields, followed by zeroes.
    fn page(words: [u32; 8], counters: [u64; 6]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        out.extend(counters.iter().flat_map(|counter| counter.to_ne_bytes()));
        out.resize(4096, 0);
        out
    }

    const WORDS: [u32; 8] = [4096, 80, 4096, 9, 0, 0, 8, 4000];
    const COUNTERS: [u64; 6] = [0, 10, 2, 3, 1, 7];

    #[test]
    fn fields() {
        let meta = Meta::parse(Bytes::from(&*page(WORDS, COUNTERS))).unwrap();
        let expected = Meta {
            meta_page_size: 4096,
            meta_struct_len: 80,
            subbuf_size: 4096,
            nr_subbufs: 9,
            reader: Reader {
                lost_events: 0,
                id: 8,
                read: 4000,
            },
            flags: 0,
            entries: 10,
            overrun: 2,
            read: 3,
            pages_lost: 1,
            pages_touched: 7,
        };
        assert_eq!(meta, expected);
        assert_eq!(meta.map_len(), Some(10 * 4096));
        assert_eq!(meta.subbuf(0), Some(4096..8192));
        assert_eq!(meta.subbuf(8), Some(9 * 4096..10 * 4096));
        assert_eq!(meta.subbuf(9), None);
    }

    #[test]
    fn numbers_that_cannot_be() {
        for (at, value, says) in [
            (0, 0, "byte 0: meta_page_size is 0"),
            (0, 4097, "byte 0: meta_page_size is 4097"),
            (1, 79, "byte 4: meta_struct_len is 79, less than 80"),
            (
                1,
                4097,
                "byte 4: meta_struct_len is 4097, and the page has 4096",
            ),
            (2, 0, "byte 8: subbuf_size is 0"),
            (2, 2048, "byte 8: subbuf_size is 2048"),
            (2, 12288, "byte 8: subbuf_size is 12288"),
            (2, 1 << 21, "byte 8: subbuf_size is 2097152"),
            (3, 0, "byte 12: nr_subbufs is 0"),
            (3, 1, "byte 12: nr_subbufs is 1"),
            (3, u32::MAX, "byte 12: nr_subbufs is 4294967295"),
            (6, 9, "byte 24: reader.id is 9 of 9"),
            (7, 4096, "byte 28: reader.read is 4096 of 4096"),
        ] {
            let mut words = WORDS;
            words[at] = value;
            let error = Meta::parse(Bytes::from(&*page(words, COUNTERS))).unwrap_err();
            assert_eq!(error.to_string(), format!("meta-page, {says}"));
        }
        // A later kernel may have a longer structure.
        let mut words = WORDS;
        words[1] = 96;
        assert!(Meta::parse(Bytes::from(&*page(words, COUNTERS))).is_ok());
    }

    #[test]
    fn pages_that_are_cut() {
        let whole = page(WORDS, COUNTERS);
        for len in 0..80 {
            assert!(Meta::parse(Bytes::from(&whole[..len])).is_err(), "{len}");
        }
        assert!(Meta::parse(Bytes::from(&whole[..80])).is_ok());
    }
}
