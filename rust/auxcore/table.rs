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

use crate::ring::{Pos, Size};
use core::{
    fmt,
    num::{NonZeroU64, NonZeroUsize},
    ops::{Deref, DerefMut},
};

/// The least length of a region, and the alignment of regions and of tables: a page of the unit's,
/// whatever the pages of the CPU are.
pub const PAGE: u64 = 4096;

/// Bytes of an [`Entry`] in memory.
const ENTRY_LEN: u64 = 8;

/// An entry of a table, as it lies in memory.
///
/// ```text
///  63       52 51                     12 11 10 9    6  5    4   3    2   1    0
/// ┌───────────┬─────────────────────────┬─────┬──────┬───┬──────┬───┬─────┬───┬─────┐
/// │     0     │ base / 4096             │  0  │ size │ 0 │ STOP │ 0 │ INT │ 0 │ END │
/// └───────────┴─────────────────────────┴─────┴──────┴───┴──────┴───┴─────┴───┴─────┘
/// ```
///
/// A region has 4096 << `size` bytes, and its base is a multiple of that. With `END` the base is
/// the address of the next table, and nothing else is set. That is the layout of Intel's ToPA.
///
/// The default is the region of one page at address 0, for storage that is not filled yet.
///
/// # Invariants
///
/// Only the bits above are set, and the base is aligned as it must be.
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

    /// The greatest length of a region: 128 MiB.
    pub const LARGEST: u64 = PAGE << (Self::SIZE >> Self::SIZE_SHIFT);

    /// The region of `len` bytes at `base`; [`None`] if the length is no power of two that an entry
    /// can hold, or the base is no multiple of it, or too high.
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

    /// The end of a table: go on in the table at `next`. [`None`] if no table can be there.
    pub const fn end(next: u64) -> Option<Self> {
        if next & !Self::BASE != 0 {
            return None;
        }

        // INVARIANT: Just checked.
        Some(Self(next | Self::END))
    }

    /// The entry that these bits are; [`None`] if they are none.
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

    /// The bits, as the unit reads them: little endian on a device.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The address of the region, or of the next table.
    #[inline]
    pub const fn base(self) -> u64 {
        self.0 & Self::BASE
    }

    /// The length of the region, in bytes; of no meaning for the end of a table.
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
    const fn marked(self, int: bool, stop: bool) -> Self {
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

/// A piece of the ring's memory, at an address that the unit understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Where it begins: a multiple of [`PAGE`].
    pub address: u64,
    /// How many bytes it has: a multiple of [`PAGE`], not 0.
    pub len: u64,
}

/// Why no table was built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// A chunk is empty, or its address or its length is no multiple of [`PAGE`].
    Unaligned,
    /// An address is higher than an entry can hold: 2^52 or more.
    Address,
    /// The chunks together are no power of two.
    Size,
    /// There is less storage than entries.
    Storage,
}

/// The regions of chunks that follow each other in the ring.
///
/// Chunks that follow each other in memory too are taken together, and then cut: each region is the
/// longest there can be at its place, but not longer than `largest`. To be had twice: to count, and
/// to build.
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
    /// What is left of the chunks that were taken together.
    run: u64,
    left: u64,
    /// The chunk after that, if it was looked at.
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

    /// Takes chunks together until it is clear how long the next region is; false at the end.
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

/// How the entries lie in the storage, and where the unit finds them.
///
/// Table `n` begins at entry `n * capacity` of the storage, and at address `at + n * stride`, where
/// `stride` is the length of a table, rounded up to a [`PAGE`]. The two agree if `capacity` is a
/// multiple of 512; for a device it has to be.
///
/// # Invariants
///
/// - `at` is a multiple of [`PAGE`], and `stride` as above.
/// - A table has room for a region and the end: for `each` regions, one less than `capacity`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    at: u64,
    capacity: NonZeroUsize,
    each: NonZeroUsize,
    stride: NonZeroU64,
    largest: u64,
}

impl Layout {
    /// Tables of `capacity` entries each, the end included, the first of them at address `at`;
    /// [`None`] if `at` is no multiple of [`PAGE`], or the capacity is below 2.
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

    /// With regions of at most `len` bytes; [`PAGE`] is the least. `INT` and `STOP` can only be at
    /// the end of a region, and a region at the tail stays unused until all of it has been read: so
    /// a region should be a fraction of perf's watermark, as far as the unit has the entries.
    ///
    /// For linear mode a quarter of the ring is the most that does: of two regions, as perf
    /// allocates them for a driver that asks for large pieces and leaves the watermark at half the
    /// ring, the unit is stopped after each, until the reader has been there.
    #[must_use]
    pub fn largest(self, len: u64) -> Self {
        // INVARIANT: The fields that it speaks of stay.
        Self {
            largest: len.clamp(PAGE, Entry::LARGEST),
            ..self
        }
    }

    /// How many entries the storage for `count` regions must have.
    pub fn entries(&self, count: usize) -> Option<usize> {
        let full = count / self.each;
        let rest = count % self.each;

        let entries = full.checked_mul(self.capacity.get())?;
        if rest == 0 {
            Some(entries)
        } else {
            entries.checked_add(rest)?.checked_add(1)
        }
    }

    /// The address of table `n`.
    fn table(&self, n: usize) -> Option<u64> {
        u64::try_from(n)
            .ok()?
            .checked_mul(self.stride.get())?
            .checked_add(self.at)
    }

    /// The number of the table at `address`, and the bytes beyond its beginning.
    fn locate(&self, address: u64) -> Option<(usize, u64)> {
        let way = address.checked_sub(self.at)?;

        Some((usize::try_from(way / self.stride).ok()?, way % self.stride))
    }

    /// Whether entry `index` of the storage is the last one of its table.
    fn is_last(&self, index: usize) -> bool {
        index % self.capacity == self.each.get()
    }

    /// The entry in the storage of region `n`; saturates.
    fn index(&self, n: usize) -> usize {
        n.saturating_add(n / self.each)
    }

    /// The number of the region whose entry is `index`, unless that is the last one of a table.
    fn region(&self, index: usize) -> Option<usize> {
        // Cannot overflow: not above `index`.
        let before = (index / self.capacity).wrapping_mul(self.each.get());
        let within = index % self.capacity;

        (within < self.each.get()).then(|| before.wrapping_add(within))
    }
}

/// A unit's place in a table, as its registers have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The address of the table.
    pub table: u64,
    /// The number of the entry in that table.
    pub entry: u64,
    /// How much of the entry's region is written. All of it if the unit stopped there.
    pub offset: u64,
}

/// Where a unit that follows the marks raises its first interrupt, and where it stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    /// The position of the first interrupt.
    pub int: Pos,
    /// The position where it stops, with another interrupt if that is not the same.
    pub stop: Pos,
}

/// No region ends within the room: the unit could not be stopped in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoEnd;

/// A region of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    /// The number of its entry in the storage.
    index: usize,
    /// Its offset in the ring.
    start: u64,
}

impl Place {
    const FIRST: Self = Self { index: 0, start: 0 };
}

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

    /// Places `INT` and `STOP` for a session at `head` with `room` bytes, which wants to wake the
    /// reader at `wakeup`, and says where they are; the [module](self) has the rules.
    ///
    /// The unit must not be running. Without an end in the room nothing is marked.
    pub fn mark(&mut self, head: Pos, room: u64, wakeup: Pos) -> Result<Marks, NoEnd> {
        self.clear();

        let room = room.min(self.size.len());
        // What is past is due with the first byte.
        let due = if head.reached(wakeup) {
            1
        } else {
            wakeup.distance_from(head)
        };

        self.head = self.find(self.head, head);
        // Distances from the head, from here on. b1 is below 2 * 128 MiB.
        let first = self
            .entry(self.head)
            .len()
            .saturating_sub(self.within(self.head, head));
        if first > room {
            return Err(NoEnd);
        }

        // Rule 1: the end of the region before the one of the first byte that is not ours.
        let limit = head.advance(room);
        let beyond = self.find(self.next(self.stop), limit);
        let stop_at = room.saturating_sub(self.within(beyond, limit));
        self.stop = self.previous(beyond);

        // Rule 2: the end of the region of the last byte before the wakeup point.
        let (mut int, mut int_at) = (self.stop, stop_at);
        if due <= stop_at {
            let byte = due.wrapping_sub(1);

            int = self.find(self.int, head.advance(byte));
            int_at = byte
                .saturating_sub(self.within(int, head.advance(byte)))
                .saturating_add(self.entry(int).len());
            if int == self.head && byte < first {
                int_at = first;
            }
        }
        // Rule 3.
        if int_at >= stop_at && stop_at > first {
            int = self.previous(self.stop);
            int_at = stop_at.saturating_sub(self.entry(self.stop).len());
        }
        self.int = int;

        // INVARIANT: `clear()` took the old ones away. Rule 4.
        self.marked = true;
        self.set(self.int, true, false);
        self.set(self.stop, true, true);

        Ok(Marks {
            int: head.advance(int_at),
            stop: head.advance(stop_at),
        })
    }

    /// Takes `INT` and `STOP` away: for overwrite mode, where the unit goes round and round.
    pub fn clear(&mut self) {
        if self.marked {
            self.set(self.int, false, false);
            self.set(self.stop, false, false);
            self.marked = false;
        }
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

    fn set(&mut self, place: Place, int: bool, stop: bool) {
        if let Some(entry) = self.entries.get_mut(place.index) {
            *entry = entry.marked(int, stop);
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

    /// The region whose entry is `index`.
    fn at(&self, index: usize) -> Option<Place> {
        if let Some(len) = self.uniform {
            let n = self.layout.region(index).filter(|n| *n < self.count)?;
            let start = u64::try_from(n).ok()?.checked_mul(len.get())?;

            return Some(Place { index, start });
        }

        // From the head on: the unit is not far, as a rule.
        let mut place = self.head;
        for _ in 0..self.count {
            if place.index == index {
                return Some(place);
            }
            place = self.next(place);
        }
        None
    }

    fn entry(&self, place: Place) -> Entry {
        // The type invariants: it is there.
        self.entries.get(place.index).copied().unwrap_or_default()
    }

    /// How far `pos` is from the beginning of the region at `place`, which holds it.
    fn within(&self, place: Place, pos: Pos) -> u64 {
        self.offset(pos).saturating_sub(place.start)
    }

    fn offset(&self, pos: Pos) -> u64 {
        pos.get() & self.size.len().wrapping_sub(1)
    }

    /// The region that holds `pos`, looked for from `place` on if it must be looked for.
    fn find(&self, mut place: Place, pos: Pos) -> Place {
        let offset = self.offset(pos);

        if let Some(len) = self.uniform {
            // No more than there are bytes, of which the size is in a `usize`.
            let n = usize::try_from(offset / len).unwrap_or(usize::MAX);

            return Place {
                index: self.layout.index(n),
                start: offset.saturating_sub(offset % len),
            };
        }

        for _ in 0..self.count {
            // Below the start it becomes a huge number.
            if offset.wrapping_sub(place.start) < self.entry(place).len() {
                break;
            }
            place = self.next(place);
        }
        place
    }

    fn next(&self, place: Place) -> Place {
        if place == self.last {
            return Place::FIRST;
        }

        let index = place.index.wrapping_add(1);
        Place {
            index: if self.layout.is_last(index) {
                index.wrapping_add(1)
            } else {
                index
            },
            start: place.start.saturating_add(self.entry(place).len()),
        }
    }

    fn previous(&self, place: Place) -> Place {
        let Some(index) = place.index.checked_sub(1) else {
            return self.last;
        };

        let mut previous = Place {
            index: if self.layout.is_last(index) {
                index.saturating_sub(1)
            } else {
                index
            },
            start: 0,
        };
        previous.start = place.start.saturating_sub(self.entry(previous).len());
        previous
    }
}

/// The end of a table that leads to table `n`.
fn end(layout: &Layout, n: usize) -> Result<Entry, Error> {
    layout.table(n).and_then(Entry::end).ok_or(Error::Address)
}

/// What a unit that met it cannot go on from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// There is no entry at this address.
    Fetch(u64),
    /// These bits are no entry.
    Entry(u64),
    /// A table that has no region, or a place beyond the end of its region.
    Cursor,
}

/// What came of a [`Walker::write`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Outcome {
    /// Bytes that were written: all, unless it is stopped.
    pub written: u64,
    /// Whether an interrupt was raised.
    pub int: bool,
    /// Whether the unit is stopped now.
    pub stopped: bool,
}

/// A unit that writes where a table says, in software: the data path of a driver that has no
/// hardware, or of a model of one.
///
/// It sees of a table what hardware sees: the bits of its entries, by their address.
///
/// # Examples
///
/// ```
/// use auxcore::{ring::Pos, table::{Chunk, Entry, Layout, Table, Walker}};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut storage = [Entry::default(); 8];
/// let layout = Layout::new(0x1000, 8).ok_or("misaligned")?;
/// let chunks = [(0x8000, 8192), (0x2_0000, 8192)].map(|(address, len)| Chunk { address, len });
/// let mut table = Table::new(&mut storage[..], layout, chunks).map_err(|_| "no table")?;
///
/// // Ten bytes before the end of the first region; the second is the last one within the room.
/// let head = Pos::new(8192 - 10);
/// let marks = table.mark(head, 9000, head).map_err(|_| "no end")?;
/// assert_eq!(marks.int, Pos::new(8192));
/// assert_eq!(marks.stop, Pos::new(16384));
///
/// let mut unit = Walker::new(table.seek(head));
/// let mut stores = Vec::new();
/// let outcome = unit
///     .write(15, |at| table.fetch(at), |address, len| stores.push((address, len)))
///     .map_err(|_| "fault")?;
/// assert!(outcome.int && !outcome.stopped);
/// assert_eq!(stores, [(0x8000 + 8182, 10), (0x2_0000, 5)]);
/// assert_eq!(table.position(head, unit.cursor()), Some(head.advance(15)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walker {
    cursor: Cursor,
    stopped: bool,
}

impl Walker {
    /// A unit that is started at `cursor`.
    pub const fn new(cursor: Cursor) -> Self {
        Self {
            cursor,
            stopped: false,
        }
    }

    /// Where it is.
    pub const fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Whether it has met a `STOP`.
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Writes the next `len` bytes: `store` is given the address and the length of each piece.
    /// `fetch` reads an entry of a table.
    ///
    /// A unit that is stopped writes nothing; `len` bytes are lost but for [`Outcome::written`].
    pub fn write(
        &mut self,
        len: u64,
        mut fetch: impl FnMut(u64) -> Option<u64>,
        mut store: impl FnMut(u64, u64),
    ) -> Result<Outcome, Fault> {
        let mut outcome = Outcome::default();

        while outcome.written < len && !self.stopped {
            let region = self.region(&mut fetch)?;
            let room = region
                .len()
                .checked_sub(self.cursor.offset)
                .ok_or(Fault::Cursor)?;
            let now = room.min(len.saturating_sub(outcome.written));

            if now != 0 {
                store(region.base().saturating_add(self.cursor.offset), now);
                // Neither overflows: at most `len`, and at most the region's.
                outcome.written = outcome.written.wrapping_add(now);
                self.cursor.offset = self.cursor.offset.wrapping_add(now);
            }
            if now == room {
                // A unit that begins at the end of a region has not filled it.
                outcome.int |= room != 0 && region.has_int();
                self.stopped = room != 0 && region.has_stop();
                if !self.stopped {
                    self.cursor.entry = self.cursor.entry.saturating_add(1);
                    self.cursor.offset = 0;
                }
            }
        }

        outcome.stopped = self.stopped;
        Ok(outcome)
    }

    /// The region it is at, if need be in the next table.
    fn region(&mut self, fetch: &mut impl FnMut(u64) -> Option<u64>) -> Result<Entry, Fault> {
        // A second end in a row would be a table without a region.
        for _ in 0..2 {
            let address = self
                .cursor
                .entry
                .checked_mul(ENTRY_LEN)
                .and_then(|way| way.checked_add(self.cursor.table))
                .ok_or(Fault::Cursor)?;
            let bits = fetch(address).ok_or(Fault::Fetch(address))?;
            let entry = Entry::from_bits(bits).ok_or(Fault::Entry(bits))?;

            if !entry.is_end() {
                return Ok(entry);
            }
            self.cursor = Cursor {
                table: entry.base(),
                entry: 0,
                offset: 0,
            };
        }
        Err(Fault::Cursor)
    }
}

#[cfg(test)]
#[allow(clippy::as_conversions)] // Small numbers.
mod tests;
