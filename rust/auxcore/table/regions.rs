// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The regions that the ring's memory is cut into.

use super::{Entry, PAGE};

/// A contiguous piece of the ring's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its address as the unit sees it: a multiple of [`PAGE`].
    pub address: u64,
    /// Its length in bytes: a multiple of [`PAGE`], not 0.
    pub len: u64,
}

/// Why a table was not built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// A chunk is empty, or its address or its length is not a multiple of [`PAGE`].
    Unaligned,
    /// An address does not fit into an entry: it is 2^52 or more.
    Address,
    /// The length of all chunks together is not a power of two.
    Size,
    /// The storage is too short: see [`Layout::needed`](super::Layout::needed).
    Storage,
}

/// Cuts chunks, given in the order of the ring, into regions without marks.
///
/// Chunks that are adjacent in memory are joined first. Each region is the longest that its address
/// and the joined chunks allow, and has at most `largest` bytes.
///
/// The iterator yields an error for a chunk that no table can hold.
pub fn regions(
    chunks: impl IntoIterator<Item = Chunk>,
    largest: u64,
) -> impl Iterator<Item = Result<Entry, Error>> {
    Regions {
        chunks: chunks.into_iter().fuse(),
        run: 0,
        left: 0,
        ahead: None,
        largest: largest.clamp(PAGE, Entry::LARGEST),
    }
}

struct Regions<I> {
    chunks: core::iter::Fuse<I>,
    /// The address of the rest of the joined chunks.
    run: u64,
    /// The length of that rest, in bytes.
    left: u64,
    /// The next chunk, if it is already taken from `chunks`. It is not adjacent to the joined ones.
    ahead: Option<Chunk>,
    largest: u64,
}

impl<I: Iterator<Item = Chunk>> Regions<I> {
    fn chunk(&mut self) -> Option<Result<Chunk, Error>> {
        let chunk = self.chunks.next()?;
        let unaligned = (chunk.address | chunk.len) & PAGE.wrapping_sub(1) != 0;

        Some(if unaligned || chunk.len == 0 {
            Err(Error::Unaligned)
        } else if chunk.address.checked_add(chunk.len).is_none() {
            Err(Error::Address)
        } else {
            Ok(chunk)
        })
    }

    /// Joins chunks until the length of the next region is known. Returns false at the end.
    fn gather(&mut self) -> Result<bool, Error> {
        if self.left == 0 {
            let next = match self.ahead.take() {
                Some(chunk) => chunk,
                None => match self.chunk() {
                    Some(chunk) => chunk?,
                    None => return Ok(false),
                },
            };
            self.run = next.address;
            self.left = next.len;
        }

        while self.left < self.largest && self.ahead.is_none() {
            match self.chunk().transpose()? {
                Some(next) if self.run.checked_add(self.left) == Some(next.address) => {
                    self.left = self.left.checked_add(next.len).ok_or(Error::Address)?;
                }
                Some(next) => self.ahead = Some(next),
                None => break,
            }
        }
        Ok(true)
    }

    fn region(&mut self) -> Result<Option<Entry>, Error> {
        if !self.gather()? {
            return Ok(None);
        }

        let aligned = 1u64
            .checked_shl(self.run.trailing_zeros())
            .unwrap_or(u64::MAX);
        let fits = self.left.checked_ilog2().map_or(0, |shift| 1 << shift);
        let limit = self.largest.checked_ilog2().map_or(0, |shift| 1 << shift);
        let len = aligned.min(fits).min(limit);
        let entry = Entry::region(self.run, len).ok_or(Error::Address)?;

        self.run = self.run.saturating_add(len);
        self.left = self.left.saturating_sub(len);
        Ok(Some(entry))
    }
}

impl<I: Iterator<Item = Chunk>> Iterator for Regions<I> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.region().transpose()
    }
}
