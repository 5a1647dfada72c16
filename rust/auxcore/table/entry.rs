// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An entry of a table, as it lies in memory.

use super::PAGE;
use core::fmt;

/// Bytes of an [`Entry`] in memory.
pub(super) const ENTRY_LEN: u64 = 8;

/// An entry of a table, as it lies in memory.
///
/// ```text
///  63       52 51                     12 11 10 9    6  5    4   3    2   1    0
/// ┌───────────┬─────────────────────────┬─────┬──────┬───┬──────┬───┬─────┬───┬─────┐
/// │     0     │ base / 4096             │  0  │ size │ 0 │ STOP │ 0 │ INT │ 0 │ END │
/// └───────────┴─────────────────────────┴─────┴──────┴───┴──────┴───┴─────┴───┴─────┘
/// ```
///
/// A region has 4096 << `size` bytes, and its base is a multiple of that. An entry with `END` has
/// no other bit set, and its base is the address of the next table. This is the layout of Intel's
/// ToPA.
///
/// The default is the region of one page at address 0, for storage that is not filled yet.
///
/// # Invariants
///
/// Only the bits above are set. The base of a region is a multiple of its length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Entry(u64);

impl Entry {
    const END: u64 = 1 << 0;
    const INT: u64 = 1 << 2;
    const STOP: u64 = 1 << 4;
    const SIZE_SHIFT: u32 = 6;
    const SIZE: u64 = 0xf << Self::SIZE_SHIFT;
    const BASE: u64 = (1 << 52) - PAGE;

    /// The length of the longest region, in bytes: 128 MiB.
    pub const LARGEST: u64 = PAGE << (Self::SIZE >> Self::SIZE_SHIFT);

    /// The region of `len` bytes at `base`. [`None`] if the length is not a power of two from
    /// [`PAGE`] to [`LARGEST`](Self::LARGEST), if the base is not a multiple of it, or if the base
    /// is 2^52 or more.
    pub const fn region(base: u64, len: u64) -> Option<Self> {
        if !len.is_power_of_two() || len < PAGE || len > Self::LARGEST {
            return None;
        }

        // Cannot overflow: at most 15.
        let size = len.trailing_zeros().wrapping_sub(PAGE.trailing_zeros());
        if base & !Self::BASE != 0 || base & len.wrapping_sub(1) != 0 {
            return None;
        }
        // INVARIANT: Just checked.
        #[allow(clippy::as_conversions)]
        // CAST: Widens.
        Some(Self(base | (size as u64) << Self::SIZE_SHIFT))
    }

    /// The end of a table, which leads to the table at address `next`. [`None`] if `next` is not a
    /// multiple of [`PAGE`], or is 2^52 or more.
    pub const fn end(next: u64) -> Option<Self> {
        if next & !Self::BASE != 0 {
            return None;
        }

        // INVARIANT: Just checked.
        Some(Self(next | Self::END))
    }

    /// The entry with these bits. [`None`] if they violate the layout.
    ///
    /// # Examples
    ///
    /// ```
    /// use auxcore::table::Entry;
    ///
    /// let entry = Entry::from_bits(0x1234_0000 | 4 << 6 | 1 << 2).ok_or("not an entry")?;
    /// assert_eq!((entry.base(), entry.len()), (0x1234_0000, 65536));
    /// assert!(entry.has_int() && !entry.has_stop());
    /// # Ok::<(), &str>(())
    /// ```
    pub const fn from_bits(bits: u64) -> Option<Self> {
        let entry = Self(bits);
        let marks = bits & (Self::INT | Self::STOP);
        let plain = if entry.is_end() {
            Self::end(entry.base())
        } else {
            Self::region(entry.base(), entry.len())
        };

        match plain {
            Some(Self(plain)) if !entry.is_end() && plain | marks == bits => Some(entry),
            Some(Self(plain)) if plain == bits => Some(entry),
            _ => None,
        }
    }

    /// The bits of the entry. A device reads them in little endian.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The address of the region, or of the next table.
    #[inline]
    pub const fn base(self) -> u64 {
        self.0 & Self::BASE
    }

    /// The length of the region, in bytes. It has no meaning for the end of a table.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(self) -> u64 {
        PAGE << ((self.0 & Self::SIZE) >> Self::SIZE_SHIFT)
    }

    /// Whether it is the end of a table.
    #[inline]
    pub const fn is_end(self) -> bool {
        self.0 & Self::END != 0
    }

    /// Whether the unit raises an interrupt when the region is full.
    #[inline]
    pub const fn has_int(self) -> bool {
        self.0 & Self::INT != 0
    }

    /// Whether the unit stops when the region is full.
    #[inline]
    pub const fn has_stop(self) -> bool {
        self.0 & Self::STOP != 0
    }

    /// The same region, with `INT` and `STOP` as given.
    pub(super) const fn marked(self, int: bool, stop: bool) -> Self {
        let plain = self.0 & !(Self::INT | Self::STOP);
        let int = if int { Self::INT } else { 0 };
        let stop = if stop { Self::STOP } else { 0 };

        Self(plain | int | stop)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_end() {
            return write!(f, "END -> {:#x}", self.base());
        }

        write!(f, "{:#x}+{:#x}", self.base(), self.len())?;
        if self.has_int() {
            f.write_str(" INT")?;
        }
        if self.has_stop() {
            f.write_str(" STOP")?;
        }
        Ok(())
    }
}
