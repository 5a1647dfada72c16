// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The unit of a CPU: its registers, and its writes to memory.

use super::fault::{self, Faulty, Kind};
use super::memory::{Memory, Refused};
use super::walk::{Fault, Position};
use super::{Error, Noted};
use crate::flow::{Range, Wanted, RANGES};
use crate::source::{Packets, Request};
use intel_pt::Mtc;

/// The offsets of the registers.
mod at {
    pub const TABLE: u64 = 0x10;
    pub const POSITION: u64 = 0x18;
    pub const IRQ_STATUS: u64 = 0x20;
    pub const IRQ_MASK: u64 = 0x28;
    pub const GENERATED: u64 = 0x30;
    pub const WRITTEN: u64 = 0x38;
    pub const DROPPED: u64 = 0x40;
    pub const RATE: u64 = 0x48;
    pub const RANGES: u64 = 0x50;
    /// Registers `LOW` and `HIGH` of the first range.
    pub const BOUNDS: u64 = 0x80;
}

/// Ticks of the time stamp counter for one tick of the coarse clock.
pub const COARSE: u32 = 512;

/// The offset of `CTRL`.
pub const CTRL: u64 = 0x00;
/// The offset of `STATUS`.
pub const STATUS: u64 = 0x08;
const ENABLE: u64 = 1;
const SOURCE: u64 = 0xf0;
const SOURCE_SHIFT: u32 = 4;
/// The number of the source that traces instructions.
pub const INSTRUCTIONS: u32 = 0;
/// The number of the source that generates the pattern.
pub const PATTERN: u32 = 1;
const KERNEL: u64 = 1 << 8;
const USER: u64 = 1 << 9;
const TSC: u64 = 1 << 10;
const RETURNS: u64 = 1 << 11;
const CYC: u64 = 1 << 12;
const MTC: u64 = 1 << 13;
const EVENT: u64 = 1 << 14;
const PSB_SHIFT: u32 = 16;
const PSB: u64 = 0xf << PSB_SHIFT;
const MTC_SHIFT: u32 = 20;
const MTC_PERIOD: u64 = 0xf << MTC_SHIFT;
/// The bits of `CTRL` that can be set for instructions.
const OF_INSTRUCTIONS: u64 = KERNEL | USER | TSC | RETURNS | CYC | MTC | EVENT | PSB | MTC_PERIOD;
/// Values of a range's four bits in `RANGES`.
const FILTER: u64 = 1;
const STOP: u64 = 2;

const STATUS_RUNNING: u64 = 1 << 0;
const STATUS_STOPPED: u64 = 1 << 1;
const STATUS_FAILED: u64 = 1 << 2;

const IRQ_INT: u64 = 1 << 0;
const IRQ_FAILED: u64 = 1 << 1;
const IRQS: u64 = IRQ_INT | IRQ_FAILED;

const OFFSET: u64 = 0x0fff_ffff;
const PAGE: u64 = 4096;
const RATE_FIRST: u64 = 1000;
/// Number of bytes between two `PSB`s if the bits of `PSB` are 0.
const PSB_FIRST: u64 = 2048;

/// The unit of a CPU.
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
    /// Whether the source has begun.
    running: bool,
    ranges: u64,
    bounds: [(u64, u64); RANGES],
    /// The pending fault on demand.
    fault: Option<fault::Fault>,
    /// Trace that a fault holds back from memory.
    held: Vec<u8>,
    /// Number of reads of `STATUS` until the trace in `held` is written to memory, after the unit was disabled.
    draining: Option<u32>,
    /// Address behind the last byte that the unit has written.
    last: u64,
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
            running: false,
            ranges: 0,
            bounds: [(0, 0); RANGES],
            fault: None,
            held: Vec::new(),
            draining: None,
            last: 0,
        }
    }
}

impl Unit {
    /// Whether the unit is enabled.
    #[must_use]
    pub const fn is_enabled(&self) -> bool {
        self.control & ENABLE != 0
    }

    fn source(&self) -> u64 {
        (self.control & SOURCE) >> SOURCE_SHIFT
    }

    /// Whether the unit is enabled and its source is the pattern.
    #[must_use]
    pub fn makes_pattern(&self) -> bool {
        self.is_enabled() && self.source() == u64::from(PATTERN)
    }

    /// The instructions to trace, if the unit is enabled and its source is instructions.
    #[must_use]
    pub fn instructions(&self) -> Option<Request> {
        if !self.is_enabled() || self.source() != u64::from(INSTRUCTIONS) {
            return None;
        }
        let has = |bit| self.control & bit != 0;
        let kind = |index| self.ranges >> (4 * index) & 0xf;
        let mut ranges = [None; RANGES];
        for ((range, index), (low, high)) in ranges.iter_mut().zip(0u64..).zip(self.bounds) {
            let stops = kind(index) == STOP;
            *range = (kind(index) != 0).then_some(Range { low, high, stops });
        }
        Some(Request {
            wanted: Wanted {
                kernel: has(KERNEL),
                user: has(USER),
                ranges,
            },
            tsc: has(TSC),
            cyc: has(CYC),
            mtc: has(MTC).then_some(Mtc {
                ratio: COARSE,
                // The field has four bits, so this cannot fail.
                shift: u8::try_from((self.control & MTC_PERIOD) >> MTC_SHIFT).unwrap_or(0),
            }),
            event: has(EVENT),
            ret_compression: has(RETURNS),
            psb_period: PSB_FIRST << ((self.control & PSB) >> PSB_SHIFT),
            late: false,
        })
    }

    /// The source has begun.
    pub const fn runs(&mut self) {
        self.running = true;
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
    /// There is no such register.
    pub fn read(&self, offset: u64) -> Result<u64, NoRegister> {
        let flag = |set, bit| if set { bit } else { 0 };
        Ok(match offset {
            CTRL => self.control,
            STATUS => {
                let running = self.running && !self.stopped && !self.failed;
                flag(running || self.draining.is_some(), STATUS_RUNNING)
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
            at::RANGES => self.ranges,
            _ => {
                match bound(offset).and_then(|(range, high)| Some((self.bounds.get(range)?, high)))
                {
                    Some(((low, _), false)) => *low,
                    Some(((_, high), true)) => *high,
                    None => return Err(NoRegister),
                }
            }
        })
    }

    /// Writes a register.
    ///
    /// # Errors
    ///
    /// The register does not exist, is read-only, is locked while the unit is enabled, or cannot have this value.
    pub fn write(&mut self, offset: u64, value: u64) -> Result<Noted, NoRegister> {
        let enabled = self.is_enabled();
        match offset {
            CTRL => {
                let enables = value & ENABLE != 0;
                let changes = (self.control ^ value) & !ENABLE != 0;
                let source = (value & SOURCE) >> SOURCE_SHIFT;
                let bits = match source {
                    _ if source == u64::from(PATTERN) => 0,
                    _ if source == u64::from(INSTRUCTIONS) => OF_INSTRUCTIONS,
                    _ => return Err(NoRegister),
                };
                if value & !(ENABLE | SOURCE | bits) != 0
                    || enables && (enabled && changes || self.draining.is_some())
                {
                    return Err(NoRegister);
                }
                self.control = value;
                self.running = self.makes_pattern();
                match (enabled, enables) {
                    (false, true) => self.enabled(),
                    (true, false) => return Ok(self.disabled()),
                    _ => {}
                }
            }
            at::IRQ_STATUS if value & !IRQS == 0 => self.irq_status &= !value,
            at::IRQ_MASK if value & !IRQS == 0 => {
                let raise = self.irq_status & self.irq_mask & !value != 0;
                self.irq_mask = value;
                return Ok(Noted {
                    raise,
                    ..Noted::default()
                });
            }
            _ if enabled => return Err(NoRegister),
            at::TABLE if value % PAGE == 0 => self.position.table = value,
            at::POSITION if value & 0xf000_0000 == 0 => {
                self.position.entry = u32::try_from(value >> 32).map_err(|_| NoRegister)?;
                self.position.offset = u32::try_from(value & OFFSET).map_err(|_| NoRegister)?;
            }
            at::RATE if value != 0 && value <= u32::MAX.into() => self.rate = value,
            at::RANGES if are_ranges(value) => self.ranges = value,
            _ => {
                let (range, high) = bound(offset).ok_or(NoRegister)?;
                let bounds = self.bounds.get_mut(range).ok_or(NoRegister)?;
                match high {
                    false => bounds.0 = value,
                    true => bounds.1 = value,
                }
            }
        }
        Ok(Noted::default())
    }

    fn enabled(&mut self) {
        self.stopped = false;
        self.failed = false;
    }

    fn disabled(&mut self) -> Noted {
        let mut noted = Noted::default();
        match self.fault {
            Some(fault) if fault.kind == Kind::InterruptStopped => {
                self.fault = None;
                self.irq_status |= IRQ_INT;
                noted.raise = self.irq_status & !self.irq_mask != 0;
                noted.faults = 1;
            }
            Some(fault) if fault.kind == Kind::DmaLate => {
                self.fault = None;
                self.draining = Some(fault.argument);
                noted.faults = 1;
            }
            _ => {}
        }
        noted
    }

    /// `STATUS` is read. Writes the trace that a fault has held back, if its time has come.
    pub fn drain(&mut self, memory: &mut impl Memory) -> Noted {
        match &mut self.draining {
            Some(0) => {
                self.draining = None;
                let held = std::mem::take(&mut self.held);
                self.write_trace(&held, memory)
            }
            Some(reads) => {
                *reads = reads.saturating_sub(1);
                Noted::default()
            }
            None => Noted::default(),
        }
    }

    /// Sets a fault that happens later.
    pub fn arm(&mut self, fault: fault::Fault) {
        self.fault = Some(fault);
    }

    /// Performs a fault that happens at once.
    pub fn fails(&mut self, fault: fault::Fault, memory: &mut impl Memory) -> Noted {
        let mut noted = Noted::default();
        match fault.kind {
            Kind::InterruptSpurious => noted.raise = true,
            Kind::DmaStale => {
                // Stay in the page: the next one may have another owner.
                let space = usize::try_from(self.last.wrapping_neg() % PAGE).unwrap_or(0);
                let stale = [0xee; 64];
                let stale = stale.get(..space).unwrap_or(&stale);
                if let Err(refused) = memory.write(self.last, stale) {
                    noted.error = Some((refused.into(), self.last));
                }
            }
            Kind::Written => self.written = self.written.wrapping_add_signed(fault.signed()),
            Kind::Dropped => {
                self.generated = self.generated.wrapping_add_signed(fault.signed());
            }
            Kind::Position => {
                self.position.entry = self.position.entry.wrapping_add(fault.argument);
            }
            Kind::Restart if !self.is_enabled() => {
                self.control |= ENABLE;
                self.running = self.makes_pattern();
                self.enabled();
            }
            _ => {}
        }
        noted
    }

    /// Takes the pending fault, if it is one of the interrupt that the unit raises now.
    pub fn interrupt_fault(&mut self) -> Option<fault::Fault> {
        self.fault.take_if(|fault| fault.kind.is_of_interrupt())
    }

    /// Whether a cause of an interrupt is pending.
    #[must_use]
    pub const fn has_reason(&self) -> bool {
        self.irq_status != 0
    }

    /// The source of instructions has generated `packets`. Groups without space are dropped. No group is cut: the unit stops before the
    /// first one that does not fit.
    pub fn put_packets(&mut self, packets: &Packets, memory: &mut impl Memory) -> Noted {
        let all = packets.as_bytes();
        let held = self.held.len();
        let space = match self.is_on() {
            true => self.position.space(all.len().saturating_add(held), memory),
            false => 0,
        };
        let space = space.saturating_sub(held);
        let (now, later) = all
            .split_at_checked(packets.fit(space))
            .unwrap_or((all, &[]));
        let mut noted = self.put(now, memory);
        if !later.is_empty() && self.is_on() {
            self.stopped = true;
            noted.raise |= !self.irq_status & !self.irq_mask & IRQ_INT != 0;
            self.irq_status |= IRQ_INT;
        }
        self.generated = self.generated.wrapping_add(len(later));
        noted
    }

    fn is_on(&self) -> bool {
        self.is_enabled() && !self.stopped && !self.failed
    }

    /// The source has generated `bytes`. Bytes without space are dropped.
    pub fn put(&mut self, bytes: &[u8], memory: &mut impl Memory) -> Noted {
        self.generated = self.generated.wrapping_add(len(bytes));
        if !self.is_on() {
            return Noted::default();
        }
        let late = self.fault.is_some_and(|fault| fault.kind == Kind::DmaLate);
        if !late && self.held.is_empty() {
            return self.write_trace(bytes, memory);
        }
        let mut due = std::mem::take(&mut self.held);
        match late {
            true => self.held.extend_from_slice(bytes),
            false => due.extend_from_slice(bytes),
        }
        self.write_trace(&due, memory)
    }

    fn write_trace(&mut self, bytes: &[u8], memory: &mut impl Memory) -> Noted {
        let mut faulty = Faulty {
            memory,
            fault: &mut self.fault,
            last: &mut self.last,
            happened: 0,
        };
        let done = self.position.write(bytes, &mut faulty);
        let faults = faulty.happened;
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
                Fault::Memory(refused, address) => (refused.into(), address),
                Fault::Table(address) => (Error::Table, address),
            }
        });
        Noted {
            raise: self.irq_status & !before & !self.irq_mask != 0,
            error,
            faults,
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Unmapped => Self::Unmapped,
            Refused::Master => Self::Master,
        }
    }
}

/// The register does not exist, cannot be written now, or cannot have this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRegister;

/// The range whose bound this register has, and whether it is the range's last address.
fn bound(offset: u64) -> Option<(usize, bool)> {
    let index = offset.checked_sub(at::BOUNDS)? / 8;
    Some((usize::try_from(index / 2).ok()?, index % 2 == 1))
}

fn are_ranges(value: u64) -> bool {
    (0u64..16).all(|index| match value >> (4 * index) & 0xf {
        0 => true,
        FILTER | STOP => usize::try_from(index).is_ok_and(|index| index < RANGES),
        _ => false,
    })
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
