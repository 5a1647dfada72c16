// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A unit that follows a table, in software.

use super::{entry::ENTRY_LEN, Entry};

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
/// let mut entries = [Entry::default(); 8];
/// let layout = Layout::new(0x1000, 8).ok_or("misaligned")?;
/// let chunks = [(0x8000, 8192), (0x2_0000, 8192)].map(|(address, len)| Chunk { address, len });
/// // Regions of one length: no offsets are needed.
/// let mut table =
///     Table::new(&mut entries[..], &mut [][..], layout, chunks).map_err(|_| "no table")?;
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
