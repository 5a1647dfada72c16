// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bounds-checked little-endian reads. Every error names the field and its file offset.

use crate::{Error, Result};

/// Reads fields, and knows the file offset of its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    data: &'a [u8],
    pos: usize,
    base: u64,
}

impl<'a> Cursor<'a> {
    /// Reads `data`, whose first byte is at `base` in the file.
    #[inline]
    pub(crate) fn new(data: &'a [u8], base: u64) -> Self {
        Self { data, pos: 0, base }
    }

    /// File offset of the next byte.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.base.saturating_add(to_u64(self.pos))
    }

    /// How many bytes are left.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.data.len() - self.pos
    }

    /// The next `n` bytes.
    #[inline]
    pub(crate) fn take(&mut self, n: usize, field: &'static str) -> Result<&'a [u8]> {
        let bytes = self
            .data
            .get(self.pos..)
            .and_then(|rest| rest.get(..n))
            .ok_or_else(|| Error::Short {
                field,
                offset: self.offset(),
                need: to_u64(n),
                have: to_u64(self.left()),
            })?;
        self.pos += n;
        Ok(bytes)
    }

    /// Returns whether these bytes come next, and skips them if so.
    pub(crate) fn mark(&mut self, bytes: &[u8]) -> bool {
        let rest = self.data.get(self.pos..).unwrap_or_default();
        let is_next = rest.starts_with(bytes);
        if is_next {
            self.pos += bytes.len();
        }
        is_next
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, field)?);
        Ok(out)
    }

    #[inline]
    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16> {
        self.array(field).map(u16::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    #[inline]
    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32> {
        self.array(field).map(i32::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// The bytes up to the first NUL or the end. Skips all remaining bytes.
    pub(crate) fn string(&mut self) -> &'a [u8] {
        let rest = &self.data[self.pos..];
        self.pos = self.data.len();
        until_nul(rest)
    }
}

/// The bytes before the first NUL; all bytes if there is none.
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&b| b == 0).next().unwrap_or(&[])
}

/// `usize` is at most 64 bits wide on every Linux target.
pub(crate) fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Number of bytes that pad `len` to a multiple of 8.
pub(crate) fn padding(len: usize) -> usize {
    len.wrapping_neg() & 7
}
