// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A unit that follows a table, in software.

use super::{entry::ENTRY_LEN, Entry};

/// The registers of a unit: its place in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The address of the table.
    pub table: u64,
    /// The number of the entry in that table.
    pub entry: u64,
    /// Bytes written to the region of the entry: the region's length if the unit has stopped at its
    /// end.
    pub offset: u64,
}

/// Why a unit cannot continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No entry is at this address.
    Fetch(u64),
    /// These bits are not an entry.
    Entry(u64),
    /// The table has no region, or the cursor is behind the end of its region.
    Cursor,
}

/// The result of a [`Walker::write`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Outcome {
    /// Bytes written: fewer than asked if the unit has stopped.
    pub written: u64,
    /// Whether the unit has raised an interrupt.
    pub int: bool,
    /// Whether the unit has stopped.
    pub stopped: bool,
}

/// A unit in software that follows a table: for a driver without hardware, or for a device model.
///
/// It reads the table as hardware does: the bits of entries, by address.
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
/// // Ten bytes before the end of the first region. The second is the last one within the space.
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
    /// A unit that starts at `cursor`.
    pub const fn new(cursor: Cursor) -> Self {
        Self {
            cursor,
            stopped: false,
        }
    }

    /// Where the unit is.
    pub const fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Whether the unit has stopped at a `STOP`.
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Writes the next `len` bytes. `fetch` returns the bits of the entry at an address. `store`
    /// gets the address and the length of each contiguous piece.
    ///
    /// A unit that has stopped writes nothing. So `len` - [`Outcome::written`] bytes are lost.
    pub fn write(
        &mut self,
        len: u64,
        mut fetch: impl FnMut(u64) -> Option<u64>,
        mut store: impl FnMut(u64, u64),
    ) -> Result<Outcome, Fault> {
        let mut outcome = Outcome::default();

        while outcome.written < len && !self.stopped {
            let region = self.region(&mut fetch)?;
            let space = region
                .len()
                .checked_sub(self.cursor.offset)
                .ok_or(Fault::Cursor)?;
            let now = space.min(len.saturating_sub(outcome.written));

            if now != 0 {
                store(region.base().saturating_add(self.cursor.offset), now);
                // Neither overflows: `written` is at most `len`, and the offset is at most the
                // length of the region.
                outcome.written = outcome.written.wrapping_add(now);
                self.cursor.offset = self.cursor.offset.wrapping_add(now);
            }
            if now == space {
                // A unit that starts at the end of a region does not fill it, so the region's marks
                // have no effect.
                outcome.int |= space != 0 && region.has_int();
                self.stopped = space != 0 && region.has_stop();
                if !self.stopped {
                    self.cursor.entry = self.cursor.entry.saturating_add(1);
                    self.cursor.offset = 0;
                }
            }
        }

        outcome.stopped = self.stopped;
        Ok(outcome)
    }

    /// The region at the cursor. A cursor at the end of a table moves to the next table first.
    fn region(&mut self, fetch: &mut impl FnMut(u64) -> Option<u64>) -> Result<Entry, Fault> {
        // Two `END` entries in a row mean a table without a region.
        for _ in 0..2 {
            let address = self
                .cursor
                .entry
                .checked_mul(ENTRY_LEN)
                .and_then(|offset| offset.checked_add(self.cursor.table))
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
