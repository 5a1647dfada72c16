// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Positions in a ring, and the arithmetic on them.
//!
//! perf's `aux_head` and `aux_tail` count bytes since the ring was made, and never decrease. The
//! offset of a byte in the ring is its position modulo the size. AUX code often mixes up the two,
//! so they are different types here: only [`Size::offset`] converts a [`Pos`] to an offset, and the
//! difference of two positions is a length.
//!
//! C counterpart: `CIRC_SPACE()` in `include/linux/circ_buf.h` and its use in
//! `perf_aux_output_begin()`, `kernel/events/ring_buffer.c`.

use core::ops::Range;

/// A position in the stream of all bytes that were ever written to a ring, in bytes.
///
/// Counts modulo 2^64, as `aux_head` does. So positions have distances, but no order.
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
    /// The position for a value of `aux_head` or `aux_tail`.
    #[inline]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The value for `aux_head` or `aux_tail`.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position `len` bytes behind this one in the stream.
    #[inline]
    #[must_use]
    pub const fn advance(self, len: u64) -> Self {
        Self(self.0.wrapping_add(len))
    }

    /// The position `len` bytes before this one.
    #[inline]
    #[must_use]
    pub const fn retreat(self, len: u64) -> Self {
        Self(self.0.wrapping_sub(len))
    }

    /// The number of bytes from `earlier` to `self`, modulo 2^64.
    #[inline]
    pub const fn distance_from(self, earlier: Self) -> u64 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether `self` is at `other`, or less than 2^63 bytes behind it in the stream.
    #[inline]
    pub const fn reached(self, other: Self) -> bool {
        self.distance_from(other) <= u64::MAX / 2
    }
}

/// The two ranges of offsets that make up a range of positions. The second is empty unless the
/// range wraps at the end of the ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// Offsets up to the end of the ring.
    pub first: Range<usize>,
    /// Offsets from the beginning of the ring.
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
    /// A ring of `bytes` bytes. [`None`] if that is not a power of two.
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

    /// The size in bytes, as a length of positions.
    #[inline]
    #[allow(clippy::as_conversions, clippy::len_without_is_empty)]
    pub const fn len(self) -> u64 {
        // CAST: `usize` has at most 64 bits on every architecture Rust supports in the kernel.
        self.0 as u64
    }

    /// The bits of a position that are its offset.
    #[inline]
    const fn mask(self) -> u64 {
        // Cannot overflow: a power of two is not 0.
        self.len().wrapping_sub(1)
    }

    /// The offset of `pos` in the ring: less than [`Self::get`].
    #[inline]
    #[allow(clippy::as_conversions)]
    pub const fn offset(self, pos: Pos) -> usize {
        // CAST: By the type invariant the mask is below 2^BITS of `usize`, and so is the result.
        (pos.get() & self.mask()) as usize
    }

    /// The position of the first byte ever written at the offset of `pos`: `pos` without the wraps.
    #[inline]
    #[must_use]
    pub const fn first(self, pos: Pos) -> Pos {
        Pos(pos.get() & self.mask())
    }

    /// The space in bytes for a writer at `head`, with the reader at `tail`: perf's `CIRC_SPACE()`.
    ///
    /// One byte always stays free, so that a full ring and an empty one differ. User space owns
    /// `tail`, which can have any value. The space is 0 if `tail` is ahead of `head`, or if it is
    /// the ring's size or more behind `head`.
    #[inline]
    pub const fn space(self, head: Pos, tail: Pos) -> u64 {
        let used = head.distance_from(tail);

        if used < self.len() {
            self.mask() - used
        } else {
            0
        }
    }

    /// The number of bytes between `tail` and `head`. [`None`] if that is more than the size of the
    /// ring, which no correct peer produces.
    #[inline]
    pub const fn used(self, head: Pos, tail: Pos) -> Option<u64> {
        let used = head.distance_from(tail);

        if used <= self.len() {
            Some(used)
        } else {
            None
        }
    }

    /// The offsets of the `len` bytes from `pos`. [`None`] if `len` is more than the size of the
    /// ring.
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

    /// How often a writer that moves from `from` to `to` wraps at the end of the ring.
    #[inline]
    pub const fn wraps(self, from: Pos, to: Pos) -> u64 {
        let distance = to.distance_from(from);
        let start = from.get() & self.mask();

        // The sum of two offsets cannot overflow. The sum of an offset and `distance` can.
        distance / self.len() + (start + distance % self.len()) / self.len()
    }
}

#[cfg(test)]
#[allow(clippy::as_conversions)] // Small numbers.
mod tests;
