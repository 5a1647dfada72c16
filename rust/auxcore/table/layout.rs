// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How the entries lie in memory.

use super::{entry::ENTRY_LEN, regions, Chunk, Entry, Error, PAGE};
use core::num::{NonZeroU64, NonZeroUsize};

/// The place of each table, in the storage and in the address space of the unit.
///
/// Table `n` begins at entry `n * capacity` of the storage, and at address `at + n * stride`, where
/// `stride` is the length of a table rounded up to a multiple of [`PAGE`]. If a device reads the
/// storage itself, `capacity` must be a multiple of 512, so that no padding separates the tables.
///
/// # Invariants
///
/// - `at` is a multiple of [`PAGE`].
/// - `stride` is the length of `capacity` entries, rounded up to a multiple of [`PAGE`].
/// - `each`, the number of regions in a full table, is `capacity` - 1, since the last entry is the
///   end. It is at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub(super) at: u64,
    pub(super) capacity: NonZeroUsize,
    each: NonZeroUsize,
    stride: NonZeroU64,
    pub(super) largest: u64,
}

impl Layout {
    /// Tables of `capacity` entries each, including the end. The first one is at address `at`.
    /// [`None`] if `at` is not a multiple of [`PAGE`], or if `capacity` is less than 2.
    pub fn new(at: u64, capacity: usize) -> Option<Self> {
        let stride = u64::try_from(capacity)
            .ok()?
            .checked_mul(ENTRY_LEN)?
            .checked_next_multiple_of(PAGE)?;

        if at & PAGE.wrapping_sub(1) != 0 {
            return None;
        }
        // INVARIANT: Just checked.
        Some(Self {
            at,
            capacity: NonZeroUsize::new(capacity)?,
            each: NonZeroUsize::new(capacity.checked_sub(1)?)?,
            stride: NonZeroU64::new(stride)?,
            largest: Entry::LARGEST,
        })
    }

    /// Limits regions to `len` bytes, or to a [`PAGE`] if that is more.
    ///
    /// `INT` and `STOP` can only be at the end of a region, and the unit does not use a region
    /// until the reader has read all of it. So a region should be a fraction of perf's watermark,
    /// if the unit can hold that many entries.
    ///
    /// In non-overwrite mode a region should have at most a quarter of the ring. With two regions
    /// the unit stops at the end of each, until the reader has read it. A driver that asks perf for
    /// large chunks and keeps the default watermark gets two regions.
    #[must_use]
    pub fn largest(self, len: u64) -> Self {
        // INVARIANT: The invariants do not depend on `largest`, the only field that changes.
        Self {
            largest: len.clamp(PAGE, Entry::LARGEST),
            ..self
        }
    }

    /// The length of the storage that a table for these chunks needs.
    pub fn needed(&self, chunks: impl IntoIterator<Item = Chunk>) -> Result<Needed, Error> {
        let (mut count, mut first, mut uniform) = (0usize, None, true);

        for region in regions(chunks, self.largest) {
            let len = region?.len();

            uniform &= *first.get_or_insert(len) == len;
            count = count.saturating_add(1);
        }
        Ok(Needed {
            entries: self.entries(count).ok_or(Error::Size)?,
            starts: if uniform { 0 } else { count },
        })
    }

    /// The number of entries in the storage for `count` regions.
    pub(super) fn entries(&self, count: usize) -> Option<usize> {
        let full = count / self.each;
        let rest = count % self.each;

        let entries = full.checked_mul(self.capacity.get())?;
        if rest == 0 {
            Some(entries)
        } else {
            entries.checked_add(rest)?.checked_add(1)
        }
    }

    /// The number in the storage of entry `entry` of table `table`; [`None`] if a table has no such
    /// entry.
    pub(super) fn storage_index(&self, table: usize, entry: u64) -> Option<usize> {
        let entry = usize::try_from(entry).ok()?;

        if entry >= self.capacity.get() {
            return None;
        }
        table.checked_mul(self.capacity.get())?.checked_add(entry)
    }

    /// The address of table `n`.
    pub(super) fn table(&self, n: usize) -> Option<u64> {
        u64::try_from(n)
            .ok()?
            .checked_mul(self.stride.get())?
            .checked_add(self.at)
    }

    /// The number of the table at `address`, and the offset of `address` in it.
    pub(super) fn locate(&self, address: u64) -> Option<(usize, u64)> {
        let offset = address.checked_sub(self.at)?;

        Some((
            usize::try_from(offset / self.stride).ok()?,
            offset % self.stride,
        ))
    }

    /// Whether entry `index` of the storage is the last entry of its table.
    pub(super) fn is_last(&self, index: usize) -> bool {
        index % self.capacity == self.each.get()
    }

    /// The number in the storage of the entry of region `n`. Saturates.
    #[inline]
    pub(super) fn index(&self, n: usize) -> usize {
        // Mostly there is one table.
        if n < self.each.get() {
            n
        } else {
            self.index_in_chain(n)
        }
    }

    #[inline(never)]
    fn index_in_chain(&self, n: usize) -> usize {
        n.saturating_add(n / self.each)
    }

    /// The address of the table that has the entry of region `n`, and the number of the entry in
    /// it.
    #[inline]
    pub(super) fn place(&self, n: usize) -> (u64, usize) {
        // Mostly there is one table.
        if n < self.each.get() {
            (self.at, n)
        } else {
            self.place_in_chain(n)
        }
    }

    #[inline(never)]
    fn place_in_chain(&self, n: usize) -> (u64, usize) {
        // [`Table::new()`](super::Table::new) has computed the same address.
        let table = self.table(n / self.each).unwrap_or(self.at);

        (table, n % self.each)
    }

    /// The number of the region whose entry is number `index` of the storage. [`None`] if that is
    /// the last entry of a table.
    pub(super) fn region(&self, index: usize) -> Option<usize> {
        // Cannot overflow: not above `index`.
        let before = (index / self.capacity).wrapping_mul(self.each.get());
        let within = index % self.capacity;

        (within < self.each.get()).then(|| before.wrapping_add(within))
    }
}

/// The length of a table's storage; see [`Layout::needed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needed {
    /// The number of entries.
    pub entries: usize,
    /// The number of offsets of regions; 0 if all regions have the same length.
    pub starts: usize,
}
