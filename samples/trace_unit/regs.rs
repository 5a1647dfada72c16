// SPDX-License-Identifier: GPL-2.0

//! The registers of the device: see `Documentation/trace-unit.md`.

use kernel::{
    io::Io,
    pci, //
};
use perf::aux::table::Cursor;

/// Size of BAR 0, in bytes.
pub(crate) const SIZE: usize = 0x8_0000;

/// Maximum number of reads of `STATUS` while a unit starts. Each read takes microseconds.
const READS: usize = 20_000;

/// Maximum number of reads of `STATUS` until the last byte of a stopped unit is in memory.
const DRAIN_READS: usize = 1_000;

/// Size of a block of registers, in bytes.
const BLOCK: usize = 0x1000;

/// The common registers.
pub(crate) mod common {
    pub(crate) const ID: usize = 0x00;
    pub(crate) const CAPS: usize = 0x08;
    pub(crate) const CTRL: usize = 0x10;
    pub(crate) const IRQ_STATUS: usize = 0x18;
    pub(crate) const IRQ_MASK: usize = 0x20;
    pub(crate) const ERROR: usize = 0x28;
    pub(crate) const ERROR_ADDRESS: usize = 0x30;

    /// Value of `ID`: `TRCT`, and version 1.
    pub(crate) const IDENTITY: u64 = 0x1_5443_5254;
    /// Bit of `CTRL`.
    pub(crate) const RESET: u64 = 1 << 0;
}

/// The registers of a CPU's unit.
pub(crate) mod unit {
    pub(crate) const CTRL: usize = 0x00;
    pub(crate) const STATUS: usize = 0x08;
    pub(crate) const TABLE: usize = 0x10;
    pub(crate) const POSITION: usize = 0x18;
    pub(crate) const IRQ_STATUS: usize = 0x20;
    pub(crate) const IRQ_MASK: usize = 0x28;
    pub(crate) const WRITTEN: usize = 0x38;
    pub(crate) const DROPPED: usize = 0x40;
    pub(crate) const RATE: usize = 0x48;
    pub(crate) const RANGES: usize = 0x50;
    /// For each range, the shift of its bits in `RANGES`, and the offset of its register `LOW`.
    /// `HIGH` follows `LOW`.
    pub(crate) const RANGE_PLACES: [(u32, usize); 4] =
        [(0, 0x80), (4, 0x90), (8, 0xa0), (12, 0xb0)];

    /// Bits of `CTRL`.
    pub(crate) const ENABLE: u64 = 1 << 0;
    pub(crate) const SOURCE_SHIFT: u32 = 4;
    pub(crate) const KERNEL: u64 = 1 << 8;
    pub(crate) const USER: u64 = 1 << 9;
    pub(crate) const TSC: u64 = 1 << 10;
    pub(crate) const RETURNS: u64 = 1 << 11;
    pub(crate) const CYC: u64 = 1 << 12;
    pub(crate) const MTC: u64 = 1 << 13;
    pub(crate) const EVENT: u64 = 1 << 14;
    pub(crate) const PSB_SHIFT: u32 = 16;
    pub(crate) const MTC_SHIFT: u32 = 20;

    /// Values of the source's four bits in `CTRL`.
    pub(crate) const INSTRUCTIONS: u64 = 0;
    pub(crate) const PATTERN: u64 = 1;

    /// Values of a range's four bits in `RANGES`.
    pub(crate) const RANGE_FILTER: u64 = 1;
    pub(crate) const RANGE_STOP: u64 = 2;

    /// Bits of `STATUS`.
    pub(crate) const RUNNING: u64 = 1 << 0;
    pub(crate) const STOPPED: u64 = 1 << 1;
    pub(crate) const FAILED: u64 = 1 << 2;
}

/// The device's registers.
pub(crate) struct Registers(pci::DevresBar<SIZE>);

impl Registers {
    pub(crate) fn new(bar: pci::DevresBar<SIZE>) -> Self {
        Self(bar)
    }

    /// Reads a register. [`None`] if the device is gone; all bits of a removed device read as 1.
    pub(crate) fn read(&self, offset: usize) -> Option<u64> {
        let bar = self.0.try_access()?;

        bar.try_read64(offset)
            .ok()
            .filter(|&value| value != u64::MAX)
    }

    /// Writes a register; does nothing if the device is gone.
    pub(crate) fn write(&self, value: u64, offset: usize) {
        if let Some(bar) = self.0.try_access() {
            // An offset beyond the registers is that of a CPU without a unit.
            let _ = bar.try_write64(value, offset);
        }
    }

    /// The registers of a CPU's unit.
    pub(crate) fn of(&self, cpu: u32) -> UnitRegisters<'_> {
        let block = usize::try_from(cpu).unwrap_or(usize::MAX).saturating_add(1);

        UnitRegisters {
            registers: self,
            at: block.saturating_mul(BLOCK),
        }
    }
}

/// The registers of a CPU's unit.
#[derive(Clone, Copy)]
pub(crate) struct UnitRegisters<'a> {
    registers: &'a Registers,
    at: usize,
}

impl UnitRegisters<'_> {
    /// Reads a register. [`None`] if the device is gone.
    pub(crate) fn read(self, offset: usize) -> Option<u64> {
        self.registers.read(self.at.saturating_add(offset))
    }

    /// Writes a register; does nothing if the device is gone.
    pub(crate) fn write(self, value: u64, offset: usize) {
        self.registers.write(value, self.at.saturating_add(offset));
    }

    /// Reads and clears the pending causes of the unit's interrupt.
    pub(crate) fn acknowledge(self) -> u64 {
        let status = self.read(unit::IRQ_STATUS).unwrap_or(0);

        self.write(status, unit::IRQ_STATUS);
        status
    }

    /// Starts the unit. `control` is the value for `CTRL`.
    pub(crate) fn start(self, control: u64) {
        self.write(control, unit::CTRL);
        // If a reset has cleared the registers, the unit never runs: do not wait.
        if control >> unit::SOURCE_SHIFT & 0xf == unit::INSTRUCTIONS && self.has(control) {
            self.wait_until_running();
        }
    }

    /// Waits until the unit runs, stops or fails. The first start of a unit that traces
    /// instructions takes some milliseconds.
    fn wait_until_running(self) {
        let begun = unit::RUNNING | unit::STOPPED | unit::FAILED;

        for _ in 0..READS {
            if self
                .read(unit::STATUS)
                .is_none_or(|status| status & begun != 0)
            {
                return;
            }
        }
    }

    /// Whether `CTRL` still has the value `control` that was written to it. It reads as 0 after a
    /// reset, and as ones if the device is gone.
    pub(crate) fn has(self, control: u64) -> bool {
        self.read(unit::CTRL) == Some(control)
    }

    /// Stops the unit. `control` is the value of `CTRL`. Returns true when the unit's last byte is
    /// in memory or the device is gone, and false if the unit does not stop.
    pub(crate) fn stop(self, control: u64) -> bool {
        self.write(control & !unit::ENABLE, unit::CTRL);
        (0..DRAIN_READS).any(|_| {
            self.read(unit::STATUS)
                .is_none_or(|status| status & unit::RUNNING == 0)
        })
    }

    /// The unit's place in the table.
    pub(crate) fn cursor(self) -> Option<Cursor> {
        let position = self.read(unit::POSITION)?;

        Some(Cursor {
            table: self.read(unit::TABLE)?,
            entry: position >> 32,
            offset: position & u64::from(u32::MAX),
        })
    }

    /// Removes the table from a stopped unit. The unit can then reach no memory.
    pub(crate) fn forget_table(self) {
        self.write(0, unit::TABLE);
    }
}
