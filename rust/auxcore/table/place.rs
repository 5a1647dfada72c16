// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The region that holds a position of the ring.

use super::{Entry, Table};
use crate::ring::Pos;
use core::ops::Deref;

/// A region of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// The number of the region.
    pub(super) region: usize,
    /// Its offset in the ring.
    pub(super) start: u64,
}

impl<S: Deref<Target = [Entry]>, I: Deref<Target = [u64]>> Table<S, I> {
    /// The region that holds `pos`.
    #[inline]
    pub(super) fn find(&self, pos: Pos) -> Place {
        let offset = self.offset(pos);

        if let Some(shift) = self.uniform {
            let region = offset.wrapping_shr(shift);

            return Place {
                // The size of the ring is a `usize`, and this is less.
                region: usize::try_from(region).unwrap_or(usize::MAX),
                start: region.wrapping_shl(shift),
            };
        }
        self.search(offset)
    }

    /// The region that holds the byte at `offset`, if regions have different lengths.
    #[inline(never)]
    fn search(&self, offset: u64) -> Place {
        // Region `low` begins at or before the offset. Region `high` begins behind the offset, or
        // does not exist. The first region begins at 0.
        let (mut low, mut high) = (0usize, self.count);
        while high.saturating_sub(low) > 1 {
            let middle = low.midpoint(high);

            if self.start(middle) <= offset {
                low = middle;
            } else {
                high = middle;
            }
        }
        Place {
            region: low,
            start: self.start(low),
        }
    }

    /// The region whose entry is number `index` of the storage.
    pub(super) fn place(&self, index: usize) -> Option<Place> {
        let region = self.layout.region(index).filter(|n| *n < self.count)?;

        Some(Place {
            region,
            start: self.start(region),
        })
    }

    /// The region that follows the `END` at entry `index` of the storage. [`None`] if that entry is
    /// not an `END`.
    pub(super) fn place_behind(&self, index: usize) -> Option<Place> {
        let last = self.layout.index(self.count.checked_sub(1)?);

        if index == last.checked_add(1)? {
            self.place(0)
        } else {
            self.place(
                index
                    .checked_add(1)
                    .filter(|_| self.layout.is_last(index))?,
            )
        }
    }

    /// The offset in the ring at which a region begins.
    fn start(&self, region: usize) -> u64 {
        match (self.uniform, u64::try_from(region)) {
            // Less than the size of the ring.
            (Some(shift), Ok(region)) => region.wrapping_shl(shift),
            // By the type invariants `starts` has an element for each region.
            _ => self.starts.get(region).copied().unwrap_or(0),
        }
    }

    /// The entry of a region.
    #[inline]
    pub(super) fn entry(&self, region: usize) -> Entry {
        // By the type invariants each region has an entry.
        let index = self.layout.index(region);

        self.entries.get(index).copied().unwrap_or_default()
    }

    /// The region before this one; the last region if this is the first.
    #[inline]
    pub(super) fn previous(&self, region: usize) -> usize {
        // By the type invariants there is at least one region.
        match region {
            0 => self.count.saturating_sub(1),
            region => region.saturating_sub(1),
        }
    }

    /// The distance of `pos` from the beginning of the region at `place`, which holds it.
    #[inline]
    pub(super) fn within(&self, place: Place, pos: Pos) -> u64 {
        self.offset(pos).saturating_sub(place.start)
    }

    #[inline]
    fn offset(&self, pos: Pos) -> u64 {
        pos.get() & self.size.len().wrapping_sub(1)
    }
}
