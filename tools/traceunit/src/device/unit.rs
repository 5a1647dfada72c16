// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The unit of a CPU: its registers, and its way to memory.

use super::memory::{Memory, Refused};
use super::walk::{Fault, Position};
use super::{Error, Noted};

/// The offsets of the registers.
mod at {
    pub const CTRL: u64 = 0x00;
    pub const STATUS: u64 = 0x08;
    pub const TABLE: u64 = 0x10;
    pub const POSITION: u64 = 0x18;
    pub const IRQ_STATUS: u64 = 0x20;
    pub const IRQ_MASK: u64 = 0x28;
    pub const GENERATED: u64 = 0x30;
    pub const WRITTEN: u64 = 0x38;
    pub const DROPPED: u64 = 0x40;
    pub const RATE: u64 = 0x48;
}

const ENABLE: u64 = 1;
const SOURCE: u64 = 0xf0;
const SOURCE_SHIFT: u32 = 4;
/// The number of the source that makes the stream of `pattern`.
pub const PATTERN: u32 = 1;

const STATUS_RUNNING: u64 = 1 << 0;
const STATUS_STOPPED: u64 = 1 << 1;
const STATUS_FAILED: u64 = 1 << 2;

const IRQ_INT: u64 = 1 << 0;
const IRQ_FAILED: u64 = 1 << 1;
const IRQS: u64 = IRQ_INT | IRQ_FAILED;

const OFFSET: u64 = 0x0fff_ffff;
const PAGE: u64 = 4096;
const RATE_FIRST: u64 = 1000;

/// A unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    control: u64,
    stopped: bool,
    failed: bool,
    position: Position,
    irq_status: u64,
    irq_mask: u64,
    generated: u64,
    written: u64,
    rate: u64,
}

impl Default for Unit {
    fn default() -> Self {
        Self {
            control: 0,
            stopped: false,
            failed: false,
            position: Position::default(),
            irq_status: 0,
            irq_mask: IRQS,
            generated: 0,
            written: 0,
            rate: RATE_FIRST,
        }
    }
}

impl Unit {
    /// Whether it is enabled: then its source is the pattern.
    #[must_use]
    pub const fn is_enabled(&self) -> bool {
        self.control & ENABLE != 0
    }

    /// Microseconds for 1024 bytes of the pattern.
    #[must_use]
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// The register at this offset.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn read(&self, offset: u64) -> Result<u64, NoRegister> {
        let flag = |set, bit| if set { bit } else { 0 };
        Ok(match offset {
            at::CTRL => self.control,
            at::STATUS => {
                let running = self.is_enabled() && !self.stopped && !self.failed;
                flag(running, STATUS_RUNNING)
                    | flag(self.stopped, STATUS_STOPPED)
                    | flag(self.failed, STATUS_FAILED)
            }
            at::TABLE => self.position.table,
            at::POSITION => u64::from(self.position.entry) << 32 | u64::from(self.position.offset),
            at::IRQ_STATUS => self.irq_status,
            at::IRQ_MASK => self.irq_mask,
            at::GENERATED => self.generated,
            at::WRITTEN => self.written,
            at::DROPPED => self.generated.wrapping_sub(self.written),
            at::RATE => self.rate,
            _ => return Err(NoRegister),
        })
    }

    /// Writes a register.
    ///
    /// # Errors
    ///
    /// There is none, it can only be read, it is locked while the unit is enabled, or it does not have
    /// this value.
    pub fn write(&mut self, offset: u64, value: u64) -> Result<Noted, NoRegister> {
        let enabled = self.is_enabled();
        match offset {
            at::CTRL => {
                let enables = value & ENABLE != 0;
                let changes = (self.control ^ value) & !ENABLE != 0;
                let makes = (value & SOURCE) >> SOURCE_SHIFT == u64::from(PATTERN);
                if value & !(ENABLE | SOURCE) != 0 || enables && (enabled && changes || !makes) {
                    return Err(NoRegister);
                }
                if !enabled && enables {
                    self.stopped = false;
                    self.failed = false;
                }
                self.control = value;
            }
            at::IRQ_STATUS if value & !IRQS == 0 => self.irq_status &= !value,
            at::IRQ_MASK if value & !IRQS == 0 => {
                let raise = self.irq_status & self.irq_mask & !value != 0;
                self.irq_mask = value;
                return Ok(Noted { raise, error: None });
            }
            _ if enabled => return Err(NoRegister),
            at::TABLE if value % PAGE == 0 => self.position.table = value,
            at::POSITION if value & 0xf000_0000 == 0 => {
                self.position.entry = u32::try_from(value >> 32).map_err(|_| NoRegister)?;
                self.position.offset = u32::try_from(value & OFFSET).map_err(|_| NoRegister)?;
            }
            at::RATE if value != 0 && value <= u32::MAX.into() => self.rate = value,
            _ => return Err(NoRegister),
        }
        Ok(Noted::default())
    }

    /// The source has made `bytes`. What has no place is dropped.
    pub fn put(&mut self, bytes: &[u8], memory: &mut impl Memory) -> Noted {
        self.generated = self.generated.wrapping_add(len(bytes));
        if !self.is_enabled() || self.stopped || self.failed {
            return Noted::default();
        }
        let done = self.position.write(bytes, memory);
        self.written = self.written.wrapping_add(done.bytes);
        self.stopped = done.stopped;
        let before = self.irq_status;
        if done.int {
            self.irq_status |= IRQ_INT;
        }
        let error = done.fault.map(|fault| {
            self.failed = true;
            self.irq_status |= IRQ_FAILED;
            match fault {
                Fault::Memory(Refused::Unmapped, address) => (Error::Unmapped, address),
                Fault::Memory(Refused::Master, address) => (Error::Master, address),
                Fault::Table(address) => (Error::Table, address),
            }
        });
        Noted {
            raise: self.irq_status & !before & !self.irq_mask != 0,
            error,
        }
    }
}

/// There is no such register, or it cannot be written now, or not with this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRegister;

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
