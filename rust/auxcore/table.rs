// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A table of regions, as Intel's ToPA: it directs a unit that writes to memory by itself.
//!
//! The table holds the address and the length of each region of the ring, and where the unit raises
//! an interrupt (`INT`) or stops (`STOP`). The parts:
//!
//! - [`regions`] cuts the ring's memory, a list of [`Chunk`]s, into regions. The length of a region
//!   is a power of two, and its address is a multiple of its length.
//! - [`Table::new`] writes an [`Entry`] for each region into storage that the caller provides, as
//!   one table or as a chain of tables. The `END` entry of the last table leads to the first one,
//!   so the unit wraps to the first region.
//! - [`Table::mark`] places `INT` and `STOP` for a transaction. [`Table::clear`] removes them.
//! - [`Table::seek`] returns the values for the unit's registers. [`Table::position`] converts them
//!   back to a position of the ring.
//! - A [`Walker`] is a unit in software that follows a table.
//!
//! # Where the marks go
//!
//! A unit raises an interrupt, or stops, only where a region is *full*. So positions that perf
//! gives in bytes are rounded to ends of regions. Let b1, b2, … bk be the ends of regions behind
//! the head and within the space of the transaction.
//!
//! 1. `STOP` is on the region that ends at bk: rounded **down**, since the bytes behind the space
//!    belong to the reader. The space is `handle->size`, which is at least one byte less than the
//!    ring.
//!    - That byte stays free even if it is the last one of a region. So a tail at the end of a
//!      region costs the last region before it.
//!    - With one region, the unit never starts. With two, it starts again only after the reader has
//!      read everything. With three or more, it writes while the reader reads.
//!    - `pt.c` differs: `pt_buffer_reset_markers()` fills up one page more there, and commits one
//!      byte more than `handle->size`.
//! 2. `INT` is on the region that ends at the first b at or behind the wakeup point: rounded
//!    **up**. So the commit after the interrupt reaches the wakeup point, and perf wakes the
//!    reader. For a wakeup point in the past, `INT` is at b1. `pt.c` rounds down, and then takes
//!    two interrupts for a wakeup point inside a page.
//! 3. `INT` is at b(k-1) at the latest, if there is such an end. So the driver can check for new
//!    space before the unit stops. As in `pt.c`.
//! 4. The region with `STOP` has `INT` too: the unit reports that it stopped. As in `pt.c`.
//! 5. If no region ends within the space, the unit cannot be stopped in time and must not be
//!    started ([`NoEnd`]). This happens if the space is smaller than the rest of the region, so
//!    regions should be small compared to the ring: see [`Layout::largest`]. `pt.c` ends such a
//!    transaction as truncated.
//!
//! In overwrite mode there is neither a space nor a wakeup point: see [`Table::clear`].
//!
//! C counterpart: `struct topa_entry` and `pt_buffer_*()` in `arch/x86/events/intel/pt.c`.

mod entry;
mod layout;
mod marks;
mod place;
mod regions;
mod walker;

pub use self::{
    entry::Entry,
    layout::{Layout, Needed},
    marks::{Marks, NoEnd},
    regions::{regions, Chunk, Error},
    walker::{Cursor, Fault, Outcome, Walker},
};

use self::entry::ENTRY_LEN;
use crate::ring::{Pos, Size};
use core::ops::{Deref, DerefMut};

/// The page size of the unit, in bytes: the smallest region, and the alignment of regions and
/// tables. It does not depend on the page size of the CPU.
pub const PAGE: u64 = 4096;

/// A closed chain of tables for a ring; see the [module](self).
///
/// No call walks the regions, so the time that a call takes does not depend on where user space has
/// moved the tail. If all regions have the same length, the region of a position is computed;
/// otherwise a binary search finds it.
///
/// # Storage
///
/// - `S` holds the entries: `&mut [Entry]`, a vector, or the memory that a device reads.
/// - `I` holds the offset of each region in the ring, for the search. The device never reads it. It
///   may be empty if all regions have the same length.
///
/// [`Layout::needed`] returns the length of both.
///
/// # Invariants
///
/// As long as the storage returns what was stored:
///
/// - The entries are laid out as `layout` says: each table is full of regions up to its last entry,
///   except for the last table, and an end follows the last region of each table.
/// - The regions follow each other as the ring's memory does, from offset 0, and add up to `size`.
///   There are `count` of them, which is not 0.
/// - If `uniform` is [`Some`], each region has 2^`uniform` bytes. Otherwise `starts` has an element
///   for each region, in ascending order.
/// - Only the entries in `marked` have marks, and they are entries of regions.
pub struct Table<S, I> {
    entries: S,
    starts: I,
    layout: Layout,
    size: Size,
    count: usize,
    /// The length of each region, as a power of two, if all have the same.
    uniform: Option<u32>,
    /// The regions with the marks, if there are any.
    marked: Option<Marked>,
}

/// The marks of a transaction.
#[derive(Clone, Copy)]
struct Marked {
    /// The number in the storage of the entry with the first `INT`.
    int: usize,
    /// The number in the storage of the entry with `STOP`.
    stop: usize,
    asked: Asked,
    marks: Marks,
}

/// The arguments of [`Table::mark`] for which the marks were placed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Asked {
    head: Pos,
    space: u64,
    wakeup: Pos,
}

impl Asked {
    /// The distance from the head to the wakeup point; 1 if the wakeup point is in the past.
    #[inline]
    fn due(&self) -> u64 {
        if self.head.reached(self.wakeup) {
            1
        } else {
            self.wakeup.distance_from(self.head)
        }
    }
}

impl<S: DerefMut<Target = [Entry]>, I: DerefMut<Target = [u64]>> Table<S, I> {
    /// Builds the tables for the ring whose memory is `chunks`, in the order of the ring.
    pub fn new(
        mut entries: S,
        mut starts: I,
        layout: Layout,
        chunks: impl IntoIterator<Item = Chunk>,
    ) -> Result<Self, Error> {
        let mut index = 0usize;
        let mut tables = 0usize;
        let mut count = 0usize;
        let mut bytes = 0u64;
        let mut uniform = None;
        let mut put = |index: usize, entry| -> Result<usize, Error> {
            *entries.get_mut(index).ok_or(Error::Storage)? = entry;
            index.checked_add(1).ok_or(Error::Storage)
        };

        for region in regions(chunks, layout.largest) {
            let region = region?;

            if layout.is_last(index) {
                tables = tables.saturating_add(1);
                index = put(index, end(&layout, tables)?)?;
            }
            index = put(index, region)?;
            // Only after the last region it is known whether all have the same length, so the
            // offsets are stored meanwhile.
            if let Some(start) = starts.get_mut(count) {
                *start = bytes;
            }
            let shift = region.len().trailing_zeros();
            uniform = match count {
                0 => Some(shift),
                _ => uniform.filter(|same| *same == shift),
            };
            count = count.saturating_add(1);
            bytes = bytes.checked_add(region.len()).ok_or(Error::Size)?;
        }
        // The end of the last table leads to the first one.
        put(index, end(&layout, 0)?)?;

        if uniform.is_none() && starts.len() < count {
            return Err(Error::Storage);
        }
        let size = usize::try_from(bytes).map_err(|_| Error::Size)?;
        // INVARIANT: The loop has built it so, and nothing is marked. No size is 0, so there is a
        // region.
        Ok(Self {
            entries,
            starts,
            layout,
            size: Size::new(size).ok_or(Error::Size)?,
            count,
            uniform,
            marked: None,
        })
    }
}

impl<S: Deref<Target = [Entry]>, I: Deref<Target = [u64]>> Table<S, I> {
    /// The size of the ring.
    pub fn size(&self) -> Size {
        self.size
    }

    /// The number of regions.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The cursor of a unit that writes to position `head` next.
    #[inline]
    pub fn seek(&self, head: Pos) -> Cursor {
        let place = self.find(head);
        let (table, entry) = self.layout.place(place.region);

        Cursor {
            table,
            entry: u64::try_from(entry).unwrap_or(0),
            offset: self.within(place, head),
        }
    }

    /// The bits that a unit reads at `address`; [`None`] if no entry of a table is there.
    pub fn fetch(&self, address: u64) -> Option<u64> {
        let (table, offset) = self.layout.locate(address)?;

        if offset % ENTRY_LEN != 0 {
            return None;
        }
        let index = self.layout.storage_index(table, offset / ENTRY_LEN)?;

        self.entries.get(index).copied().map(Entry::bits)
    }

    /// The position that a unit at `cursor` writes to next, if it began at `from` and has written
    /// less than the ring's size; [`None`] if no unit that follows this table can be at `cursor`.
    ///
    /// In non-overwrite mode a unit never writes as much as the ring's size. In overwrite mode the
    /// driver must count how often the unit wraps: by an interrupt, for which no mark is placed
    /// here, or by reading the cursor often enough.
    pub fn position(&self, from: Pos, cursor: Cursor) -> Option<Pos> {
        let (table, offset) = self.layout.locate(cursor.table)?;

        if offset != 0 {
            return None;
        }
        let index = self.layout.storage_index(table, cursor.entry)?;
        let place = match self.place(index) {
            // The cursor of a unit that has filled the last region of a table may be at the `END`.
            None if cursor.offset == 0 => self.place_behind(index)?,
            place => place?,
        };

        if cursor.offset > self.entry(place.region).len() {
            return None;
        }
        let offset = Pos::new(place.start.checked_add(cursor.offset)?);
        let written = self.size.offset(offset.retreat(from.get()));

        Some(from.advance(u64::try_from(written).ok()?))
    }
}

/// The end of a table that leads to table `n`.
fn end(layout: &Layout, n: usize) -> Result<Entry, Error> {
    layout.table(n).and_then(Entry::end).ok_or(Error::Address)
}

#[cfg(test)]
#[allow(clippy::as_conversions)] // Small numbers.
mod tests;
