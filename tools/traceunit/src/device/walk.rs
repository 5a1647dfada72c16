// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows the table of regions of a unit.

use super::memory::{Memory, Refused};

/// The entry leads to the next table.
pub(super) const END: u64 = 1 << 0;
/// The unit raises an interrupt when the region is full.
const INT: u64 = 1 << 2;
/// The unit stops when the region is full.
const STOP: u64 = 1 << 4;
const SIZE_SHIFT: u32 = 6;
const SIZE: u64 = 0xf << SIZE_SHIFT;
const BASE: u64 = 0x000f_ffff_ffff_f000;

/// Size of an entry, in bytes.
const ENTRY: u64 = 8;
/// Maximum number of consecutive `END` entries that a unit follows.
const MAX_ENDS: u32 = 65536;

/// The position of a unit: the registers `TABLE` and `POSITION`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The address of the table; 0 for none.
    pub table: u64,
    /// The number of the entry in the table.
    pub entry: u32,
    /// Number of bytes written to the entry's region.
    pub offset: u32,
}

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Number of bytes written to memory.
    pub bytes: u64,
    /// Whether a region with `INT` is full.
    pub int: bool,
    /// Whether a region with `STOP` is full.
    pub stopped: bool,
    /// The fault because of which the unit cannot continue, if any.
    pub fault: Option<Fault>,
}

/// The reason why a unit cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The unit cannot access this address.
    Memory(Refused, u64),
    /// The entry at this address is not valid, or the position is behind the end of the entry's region.
    Table(u64),
}

/// A region.
struct Region {
    base: u64,
    len: u32,
    bits: u64,
}

impl Position {
    /// Writes as many of `bytes` as there is space for.
    pub fn write(&mut self, mut bytes: &[u8], memory: &mut impl Memory) -> Written {
        let mut written = Written::default();
        while !bytes.is_empty() && !written.stopped {
            if let Err(fault) = self.piece(&mut bytes, memory, &mut written) {
                written.fault = Some(fault);
                break;
            }
        }
        written
    }

    /// Number of bytes, up to `want`, for which there is space before the unit stops. Returns `want` if an entry is not valid, and
    /// [`Self::write()`] then reports the fault.
    pub fn space(&self, want: usize, memory: &mut impl Memory) -> usize {
        let mut at = *self;
        let mut space = 0usize;
        while space < want {
            let Ok(region) = at.region(memory) else {
                return want;
            };
            let here = usize::try_from(region.len.saturating_sub(at.offset)).unwrap_or(0);
            space = space.saturating_add(here);
            if region.bits & STOP != 0 {
                break;
            }
            at.entry = at.entry.wrapping_add(1);
            at.offset = 0;
        }
        space.min(want)
    }

    /// Writes as many of `bytes` as the current region has space for.
    fn piece(
        &mut self,
        bytes: &mut &[u8],
        memory: &mut impl Memory,
        written: &mut Written,
    ) -> Result<(), Fault> {
        let region = self.region(memory)?;
        let space = usize::try_from(region.len.saturating_sub(self.offset)).unwrap_or(0);
        let (now, later) = bytes.split_at(space.min(bytes.len()));
        let address = region.base.saturating_add(self.offset.into());
        // At the end of a region, the address is not part of it.
        if !now.is_empty() {
            memory
                .write(address, now)
                .map_err(|refused| Fault::Memory(refused, address))?;
        }
        let len = u32::try_from(now.len()).unwrap_or(0);
        self.offset = self.offset.saturating_add(len);
        written.bytes = written.bytes.saturating_add(len.into());
        *bytes = later;
        if self.offset == region.len {
            written.int |= region.bits & INT != 0;
            written.stopped = region.bits & STOP != 0;
            if !written.stopped {
                self.entry = self.entry.wrapping_add(1);
                self.offset = 0;
            }
        }
        Ok(())
    }

    /// The current region. Follows `END` entries first.
    fn region(&mut self, memory: &mut impl Memory) -> Result<Region, Fault> {
        for _ in 0..MAX_ENDS {
            if self.table == 0 {
                return Err(Fault::Table(0));
            }
            let at = self
                .table
                .saturating_add(u64::from(self.entry).saturating_mul(ENTRY));
            let mut bits = [0; 8];
            memory
                .read(at, &mut bits)
                .map_err(|refused| Fault::Memory(refused, at))?;
            let bits = u64::from_le_bytes(bits);
            let base = bits & BASE;
            if bits & END != 0 {
                if bits & !(BASE | END) != 0 {
                    return Err(Fault::Table(at));
                }
                (self.table, self.entry) = (base, 0);
                continue;
            }
            let len = 4096u32 << ((bits & SIZE) >> SIZE_SHIFT);
            let aligned = base & u64::from(len).wrapping_sub(1) == 0;
            if bits & !(BASE | SIZE | INT | STOP) != 0 || !aligned || self.offset > len {
                return Err(Fault::Table(at));
            }
            return Ok(Region { base, len, bits });
        }
        Err(Fault::Table(self.table))
    }
}
