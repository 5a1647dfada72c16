// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A table of regions, in the manner of Intel's ToPA: how a unit that writes to memory by itself is
//! told where, and where to raise an interrupt and to stop.
//!
//! The ring's memory is a list of [`Chunk`]s. [`regions`] cuts it into regions: powers of two, each
//! aligned to its own size. [`Table::new`] writes an [`Entry`] for each into storage of the
//! caller's, as one table or as a chain of them; the `END` entry of the last leads to the first, so
//! that the unit goes round the ring. Before each session [`Table::mark`] places `INT` and `STOP`,
//! and [`Table::seek`] says what to put in the unit's registers. A [`Walker`] does in software what
//! the unit does, and [`Table::position`] tells how far either of them has got.
//!
//! # Where the marks go
//!
//! A unit raises an interrupt or stops when a region is *full*: nowhere but at the end of a region.
//! So what perf says in bytes is rounded to the ends of regions, of which the session has b1, b2, …
//! bk, all after the head and within its room:
//!
//! 1. `STOP` is on the region that ends at bk, the last end within the room: rounded **down**, for
//!    what lies behind is the reader's. `room` is `handle->size`, at most one byte less than the
//!    ring; that byte stays free even where it is the last one of a region. `pt.c` takes it
//!    (`pt_buffer_reset_markers()`: "if it's on a page boundary, fill up one more page") and so
//!    commits one byte more than `handle->size`. Here the size that perf gave holds. It costs the
//!    last region before a tail that is at the end of one. So with one region the unit is never
//!    started; with two it is not started again before the reader has read all; from three on it
//!    writes while the reader reads.
//! 2. `INT` is on the region that ends at the first b at or after the wakeup point: rounded **up**,
//!    so that the commit which follows reaches it, and perf wakes the reader. `pt.c` rounds down,
//!    where a wakeup point inside a page takes two interrupts. A point that is past is due at b1.
//! 3. `INT` is never later than b(k-1), if there is one: so that the unit is not stopped before
//!    somebody looked whether the reader has made room. As in `pt.c`.
//! 4. The region with `STOP` has `INT` too: a unit that stops says so. As in `pt.c`.
//! 5. No end of a region within the room: the unit cannot be told where to stop, and must not be
//!    started ([`NoEnd`]). `pt.c` ends such a session as truncated. It happens when the room is
//!    smaller than the rest of the region; so regions should be small beside the ring:
//!    [`Layout::largest`].
//!
//! In overwrite mode there is neither room nor wakeup point: [`Table::clear`].
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
    layout::Layout,
    marks::{Marks, NoEnd},
    regions::{regions, Chunk, Error},
    walker::{Cursor, Fault, Outcome, Walker},
};

use self::{entry::ENTRY_LEN, place::Place};
use crate::ring::{Pos, Size};
use core::{
    num::NonZeroU64,
    ops::{Deref, DerefMut},
};

/// The least length of a region, and the alignment of regions and of tables: a page of the unit's,
/// whatever the pages of the CPU are.
pub const PAGE: u64 = 4096;

/// A chain of tables that go round a ring; see the [module](self).
///
/// If all regions have one length, [`mark`](Self::mark), [`seek`](Self::seek) and
/// [`position`](Self::position) take the same time however many there are. Else they go from region
/// to region, as far as the position has moved on since.
///
/// The storage is what the caller has: `&mut [Entry]`, a vector of the kernel's, or the memory
/// that a device reads.
///
/// # Invariants
///
/// As long as the storage gives back what was put into it:
///
/// - The entries are laid out as `layout` says: each table full of regions up to its last entry,
///   but for the last table, and an end behind the last region of each. `last` is that of all.
/// - The regions follow each other as the ring's memory does, from offset 0 on, and together are
///   `size`; there are `count`, each of `uniform` bytes if that is given.
/// - Only the regions at `int` and `stop` have marks, and only if `marked`.
/// - All places are those of regions.
pub struct Table<S> {
    entries: S,
    layout: Layout,
    size: Size,
    last: Place,
    count: usize,
    /// With it a place is arithmetic. Without, it is looked for region by region.
    uniform: Option<NonZeroU64>,
    /// Where the last search for each of them ended: positions only move on, so the next search,
    /// which begins there, need not go all round the ring.
    head: Place,
    int: Place,
    stop: Place,
    marked: bool,
}

impl<S: DerefMut<Target = [Entry]>> Table<S> {
    /// A table for the ring that `chunks` are, one after the other.
    pub fn new(
        mut entries: S,
        layout: Layout,
        chunks: impl IntoIterator<Item = Chunk>,
    ) -> Result<Self, Error> {
        let mut index = 0usize;
        let mut tables = 0usize;
        let mut count = 0usize;
        let mut bytes = 0u64;
        let mut last = Place::FIRST;
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
            last = Place {
                index,
                start: bytes,
            };
            index = put(index, region)?;
            uniform = match count {
                0 => NonZeroU64::new(region.len()),
                _ => uniform.filter(|len| len.get() == region.len()),
            };
            count = count.saturating_add(1);
            bytes = bytes.checked_add(region.len()).ok_or(Error::Size)?;
        }
        // Round to the first table.
        put(index, end(&layout, 0)?)?;

        let size = usize::try_from(bytes).map_err(|_| Error::Size)?;
        // INVARIANT: So it was built; nothing is marked.
        Ok(Self {
            entries,
            layout,
            size: Size::new(size).ok_or(Error::Size)?,
            last,
            count,
            uniform,
            head: Place::FIRST,
            int: Place::FIRST,
            stop: Place::FIRST,
            marked: false,
        })
    }

    /// Where a unit begins that is to write to position `head` next.
    pub fn seek(&mut self, head: Pos) -> Cursor {
        self.head = self.find(self.head, head);

        let table = self.head.index / self.layout.capacity;
        let entry = self.head.index % self.layout.capacity;
        Cursor {
            // Was in an entry, or is the first.
            table: self.layout.table(table).unwrap_or(self.layout.at),
            entry: u64::try_from(entry).unwrap_or(0),
            offset: self.within(self.head, head),
        }
    }
}

impl<S: Deref<Target = [Entry]>> Table<S> {
    /// The size of the ring.
    pub fn size(&self) -> Size {
        self.size
    }

    /// How many regions it has.
    pub fn count(&self) -> usize {
        self.count
    }

    /// What a unit reads at `address`; [`None`] if there is no entry of a table.
    pub fn fetch(&self, address: u64) -> Option<u64> {
        let (table, way) = self.layout.locate(address)?;
        let entry = usize::try_from(way / ENTRY_LEN).ok()?;

        if way % ENTRY_LEN != 0 || entry >= self.layout.capacity.get() {
            return None;
        }
        let index = table
            .checked_mul(self.layout.capacity.get())?
            .checked_add(entry)?;

        self.entries.get(index).copied().map(Entry::bits)
    }

    /// The position that a unit at `cursor` writes to next, if it began at `from` and has written
    /// less than the ring; [`None`] if no unit that follows this table can be there.
    ///
    /// That is for sure in linear mode. In overwrite mode whoever drives the unit has to count how
    /// often it went round: by an interrupt, for which no mark here is placed, or by asking often
    /// enough.
    pub fn position(&self, from: Pos, cursor: Cursor) -> Option<Pos> {
        let (table, way) = self.layout.locate(cursor.table)?;
        let entry = usize::try_from(cursor.entry).ok()?;

        if way != 0 || entry >= self.layout.capacity.get() {
            return None;
        }
        let mut index = table
            .checked_mul(self.layout.capacity.get())?
            .checked_add(entry)?;
        // A unit that has filled the last region of a table may stand at the end of it.
        if cursor.offset == 0 {
            if index == self.last.index.checked_add(1)? {
                index = 0;
            } else if self.layout.is_last(index) {
                index = index.checked_add(1)?;
            }
        }

        let place = self.at(index)?;
        if cursor.offset > self.entry(place).len() {
            return None;
        }
        let offset = Pos::new(place.start.checked_add(cursor.offset)?);
        let way = self.size.offset(offset.retreat(from.get()));

        Some(from.advance(u64::try_from(way).ok()?))
    }
}

/// The end of a table that leads to table `n`.
fn end(layout: &Layout, n: usize) -> Result<Entry, Error> {
    layout.table(n).and_then(Entry::end).ok_or(Error::Address)
}

#[cfg(test)]
#[allow(clippy::as_conversions)] // Small numbers.
mod tests;
