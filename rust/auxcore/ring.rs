// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Positions in a ring, and the arithmetic on them.
//!
//! perf's `aux_head` and `aux_tail` count bytes since the ring was made and never go back; the
//! place of a byte in memory is its position modulo the size. Mixing the two up is the commonest
//! defect of AUX code, on either side, so they are different types here: only [`Size::offset`]
//! turns a [`Pos`] into an offset, and a difference of two positions is a length.
//!
//! C counterpart: `CIRC_SPACE()` in `include/linux/circ_buf.h` and its use in
//! `perf_aux_output_begin()`, `kernel/events/ring_buffer.c`.

use core::ops::Range;

/// A position in the stream of all bytes that ever went into a ring, in bytes.
///
/// Counts modulo 2^64, as `aux_head` does; so positions have no order, only distances.
///
/// # Examples
///
/// ```
/// use auxcore::ring::Pos;
///
/// let head = Pos::new(u64::MAX).advance(3);
/// assert_eq!(head.get(), 2);
/// assert_eq!(head.distance_from(Pos::new(u64::MAX)), 3);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pos(u64);

impl Pos {
    /// The position that `aux_head` or `aux_tail` holds.
    #[inline]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number that `aux_head` or `aux_tail` takes.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position `len` bytes further on.
    #[inline]
    #[must_use]
    pub const fn advance(self, len: u64) -> Self {
        Self(self.0.wrapping_add(len))
    }

    /// The position `len` bytes before.
    #[inline]
    #[must_use]
    pub const fn retreat(self, len: u64) -> Self {
        Self(self.0.wrapping_sub(len))
    }

    /// Bytes from `earlier` to `self`, modulo 2^64.
    #[inline]
    pub const fn distance_from(self, earlier: Self) -> u64 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether `self` is `other` or lies at most 2^63 bytes after it.
    #[inline]
    pub const fn reached(self, other: Self) -> bool {
        self.distance_from(other) <= u64::MAX / 2
    }
}

/// Two ranges of offsets that together hold a range of positions: up to the end of the ring, and
/// on from its beginning. The second is empty unless the range wraps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// Offsets before the end of the ring.
    pub first: Range<usize>,
    /// Offsets from the beginning of the ring on.
    pub second: Range<usize>,
}

/// The size of a ring, in bytes.
///
/// # Invariants
///
/// A power of two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Size(usize);

impl Size {
    /// A ring of `bytes` bytes; [`None`] if that is no power of two.
    #[inline]
    pub const fn new(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() {
            // INVARIANT: Just checked.
            Some(Self(bytes))
        } else {
            None
        }
    }

    /// The size in bytes.
    #[inline]
    pub const fn get(self) -> usize {
        self.0
    }

    /// The size in bytes, as positions count.
    #[inline]
    #[allow(clippy::as_conversions, clippy::len_without_is_empty)]
    pub const fn len(self) -> u64 {
        // CAST: `usize` has at most 64 bits on every architecture Rust supports in the kernel.
        self.0 as u64
    }

    /// What is left of a position when whole rings are taken off.
    #[inline]
    const fn mask(self) -> u64 {
        // Cannot overflow: a power of two is not 0.
        self.len().wrapping_sub(1)
    }

    /// The place of `pos` in the ring: below [`Self::get`].
    #[inline]
    #[allow(clippy::as_conversions)]
    pub const fn offset(self, pos: Pos) -> usize {
        // CAST: By the type invariant the mask is below 2^BITS of `usize`, and so is the result.
        (pos.get() & self.mask()) as usize
    }

    /// How many bytes a writer at `head` may write when the reader is at `tail`.
    ///
    /// One byte always stays free, so that a full ring and an empty one differ: perf's
    /// `CIRC_SPACE()`. User space owns `tail` and may put anything there: a tail that is ahead of
    /// the head, or more than the ring behind it, gives 0.
    #[inline]
    pub const fn space(self, head: Pos, tail: Pos) -> u64 {
        let used = head.distance_from(tail);

        if used < self.len() {
            self.mask() - used
        } else {
            0
        }
    }

    /// Bytes between `tail` and `head`; [`None`] if they are further apart than the ring is long,
    /// which no correct peer produces.
    #[inline]
    pub const fn used(self, head: Pos, tail: Pos) -> Option<u64> {
        let used = head.distance_from(tail);

        if used <= self.len() {
            Some(used)
        } else {
            None
        }
    }

    /// Where the `len` bytes from `pos` on lie; [`None`] if the ring is shorter than `len`.
    ///
    /// # Examples
    ///
    /// ```
    /// use auxcore::ring::{Pos, Size};
    ///
    /// let ring = Size::new(8192).ok_or("no power of two")?;
    /// let split = ring.split(Pos::new(3 * 8192 - 2), 5).ok_or("too long")?;
    /// assert_eq!(split.first, 8190..8192);
    /// assert_eq!(split.second, 0..3);
    /// # Ok::<(), &str>(())
    /// ```
    #[inline]
    pub fn split(self, pos: Pos, len: usize) -> Option<Split> {
        if len > self.0 {
            return None;
        }

        let start = self.offset(pos);
        // `start` is below the size.
        let first = len.min(self.0.wrapping_sub(start));

        Some(Split {
            first: start..start.saturating_add(first),
            second: 0..len.saturating_sub(first),
        })
    }

    /// How often the way from `from` to `to` passes the end of the ring.
    #[inline]
    pub const fn wraps(self, from: Pos, to: Pos) -> u64 {
        let way = to.distance_from(from);
        let start = from.get() & self.mask();

        // The sum of two offsets cannot overflow, that of an offset and `way` can.
        way / self.len() + (start + way % self.len()) / self.len()
    }
}

#[cfg(test)]
#[allow(clippy::as_conversions)] // Small numbers.
mod tests;
