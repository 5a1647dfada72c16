// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device and its registers, which `Documentation/trace-unit.md` describes.
//!
//! This module has no sockets, threads or clocks.
//!
//! - [`config`]: the configuration space.
//! - [`unit`]: the unit of a CPU.
//! - [`pattern`]: the source of the pattern.
//! - [`walk`]: follows the table of a unit.
//! - [`fault`]: faults on demand.
//! - [`memory`]: the guest's memory, as the device can access it.

pub mod config;
pub mod fault;
pub mod memory;
pub mod pattern;
pub mod unit;
pub mod walk;

use crate::source::Packets;
use fault::{Fault, Kind};
use memory::Memory;
use std::ops::Range;
use unit::{NoRegister, Unit, INSTRUCTIONS, PATTERN};

/// Size of BAR 0, in bytes.
pub const SIZE: u64 = 0x8_0000;
/// Size of a block of registers, in bytes.
const BLOCK: u64 = 0x1000;
/// Maximum number of CPUs that have a unit.
pub const MAX_CPUS: usize = 64;

mod at {
    pub const ID: u64 = 0x00;
    pub const CAPS: u64 = 0x08;
    pub const CTRL: u64 = 0x10;
    pub const IRQ_STATUS: u64 = 0x18;
    pub const IRQ_MASK: u64 = 0x20;
    pub const ERROR: u64 = 0x28;
    pub const ERROR_ADDRESS: u64 = 0x30;
    pub const ERROR_COUNT: u64 = 0x38;
}

/// Value of `ID`: `TRCT`, and version 1.
const IDENTITY: u64 = 0x1_5443_5254;
/// Number of bits of a device address.
const ADDRESS_BITS: u64 = 52;
const RANGES: u64 = 4;
/// The sources, one bit each.
const SOURCES: u64 = 1 << INSTRUCTIONS | 1 << PATTERN;
const RESET: u64 = 1;

/// An error that the device notes in `ERROR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// DMA to or from an address that is not mapped.
    Unmapped,
    /// DMA while bus mastering is off.
    Master,
    /// A table entry, or a position, is not valid.
    Table,
    /// An access to a register that does not exist, is locked, or cannot have the value.
    Register,
}

impl Error {
    const fn bit(self) -> u64 {
        match self {
            Self::Unmapped => 1 << 0,
            Self::Master => 1 << 1,
            Self::Table => 1 << 2,
            Self::Register => 1 << 3,
        }
    }
}

/// Effects of an operation of a unit on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Noted {
    /// Whether the unit raises its interrupt.
    pub raise: bool,
    /// An error, and its address.
    pub error: Option<(Error, u64)>,
    /// Number of faults on demand that have happened.
    pub faults: u32,
}

/// The common registers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Common {
    irq_status: u64,
    irq_mask: u64,
    error: u64,
    address: u64,
    count: u64,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            irq_status: 0,
            irq_mask: 1,
            error: 0,
            address: 0,
            count: 0,
        }
    }
}

/// The first half of a write to a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Half {
    offset: u64,
    value: u32,
}

/// Raises the vectors of the device's interrupts.
pub trait Raise {
    /// Raises a vector: 0 for errors, `n + 1` for CPU `n`.
    fn raise(&mut self, vector: usize);
}

/// The device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    common: Common,
    units: Vec<Unit>,
    half: Option<Half>,
    faults: Faults,
}

/// The state of faults on demand that is not a unit's. A reset does not clear it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Faults {
    /// Number of faults that have happened.
    happened: u32,
    /// The vectors that are held back.
    late: Vec<usize>,
    /// The CPUs whose interrupt is raised again when its cause is cleared.
    twice: Vec<usize>,
    /// Whether the device does not respond.
    mute: bool,
}

impl Device {
    /// A device with a unit for each CPU, at most [`MAX_CPUS`].
    #[must_use]
    pub fn new(cpus: usize) -> Self {
        Self {
            common: Common::default(),
            units: vec![Unit::default(); cpus.min(MAX_CPUS)],
            half: None,
            faults: Faults::default(),
        }
    }

    /// The unit of a CPU.
    #[must_use]
    pub fn unit(&self, cpu: usize) -> Option<&Unit> {
        self.units.get(cpu)
    }

    /// Resets all registers, and stops all units.
    pub fn reset(&mut self) {
        let faults = std::mem::take(&mut self.faults);
        *self = Self {
            faults,
            ..Self::new(self.units.len())
        };
    }

    /// Number of faults on demand that have happened.
    #[must_use]
    pub const fn faults(&self) -> u32 {
        self.faults.happened
    }

    /// Requests a fault. A fault that happens later replaces one that is still pending in its unit.
    pub fn fault(&mut self, fault: Fault, memory: &mut impl Memory, raise: &mut impl Raise) {
        match fault.kind {
            Kind::Release => {
                for vector in std::mem::take(&mut self.faults.late) {
                    raise.raise(vector);
                }
                if self.faults.mute {
                    self.faults.mute = false;
                    self.reset();
                }
                return;
            }
            Kind::Mute => {
                self.reset();
                self.faults.mute = true;
            }
            Kind::Reset => self.reset(),
            _ => {
                let Some(unit) = self.units.get_mut(fault.cpu) else {
                    return;
                };
                if !fault.kind.is_now() {
                    unit.arm(fault);
                    return;
                }
                let noted = unit.fails(fault, memory);
                self.note(fault.cpu, noted, raise);
            }
        }
        self.faults.happened = self.faults.happened.wrapping_add(1);
    }

    /// The source of a CPU has generated `bytes`.
    pub fn put(
        &mut self,
        cpu: usize,
        bytes: &[u8],
        memory: &mut impl Memory,
        raise: &mut impl Raise,
    ) {
        let noted = self.units.get_mut(cpu).map(|unit| unit.put(bytes, memory));
        self.note(cpu, noted.unwrap_or_default(), raise);
    }

    /// The source of a CPU's instructions has generated `packets`.
    pub fn put_packets(
        &mut self,
        cpu: usize,
        packets: &Packets,
        memory: &mut impl Memory,
        raise: &mut impl Raise,
    ) {
        let unit = self.units.get_mut(cpu);
        let noted = unit.map(|unit| unit.put_packets(packets, memory));
        self.note(cpu, noted.unwrap_or_default(), raise);
    }

    /// The unit of a CPU.
    pub fn unit_mut(&mut self, cpu: usize) -> Option<&mut Unit> {
        self.units.get_mut(cpu)
    }

    /// Reads from BAR 0.
    pub fn read(
        &mut self,
        offset: u64,
        to: &mut [u8],
        memory: &mut impl Memory,
        raise: &mut impl Raise,
    ) {
        if self.faults.mute {
            to.fill(0xff);
            return;
        }
        to.fill(0);
        let register = offset & !7;
        if let Some(cpu) = cpu(offset).filter(|_| register % BLOCK == unit::STATUS) {
            let noted = self.units.get_mut(cpu).map(|unit| unit.drain(memory));
            self.note(cpu, noted.unwrap_or_default(), raise);
        }
        let value = match access(offset, to.len()) {
            Some(_) => self.register(register),
            None => Err(NoRegister),
        };
        match value {
            Ok(value) => {
                let bytes = value.to_le_bytes();
                let from = usize::try_from(offset % 8).unwrap_or(0);
                for (to, from) in to.iter_mut().zip(bytes.iter().skip(from)) {
                    *to = *from;
                }
            }
            Err(NoRegister) => self.error(Error::Register, offset, raise),
        }
    }

    /// Writes to BAR 0.
    pub fn write(&mut self, offset: u64, from: &[u8], raise: &mut impl Raise) {
        if self.faults.mute {
            return;
        }
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(from) {
            *to = *from;
        }
        let value = u64::from_le_bytes(bytes);
        let half = self.half.take();
        let whole = match (access(offset, from.len()), u32::try_from(value)) {
            (Some(Access::Whole), _) => Some(value),
            (Some(Access::Low), Ok(value)) => {
                self.half = Some(Half { offset, value });
                return;
            }
            (Some(Access::High), _) => half
                .filter(|half| half.offset == offset & !7)
                .map(|half| value << 32 | u64::from(half.value)),
            _ => None,
        };
        let register = offset & !7;
        let done = whole
            .ok_or(NoRegister)
            .and_then(|value| self.set(register, value, raise));
        if done.is_err() {
            self.error(Error::Register, register, raise);
        }
    }

    fn register(&self, offset: u64) -> Result<u64, NoRegister> {
        if let Some(cpu) = cpu(offset) {
            return self.units.get(cpu).ok_or(NoRegister)?.read(offset % BLOCK);
        }
        let cpus = u64::try_from(self.units.len()).unwrap_or(0);
        Ok(match offset {
            at::ID => IDENTITY,
            at::CAPS => {
                let coarse = u64::from(unit::COARSE) << 32;
                cpus | RANGES << 8 | ADDRESS_BITS << 16 | SOURCES << 24 | coarse
            }
            at::CTRL => 0,
            at::IRQ_STATUS => self.common.irq_status,
            at::IRQ_MASK => self.common.irq_mask,
            at::ERROR => self.common.error,
            at::ERROR_ADDRESS => self.common.address,
            at::ERROR_COUNT => self.common.count,
            _ => return Err(NoRegister),
        })
    }

    fn set(&mut self, offset: u64, value: u64, raise: &mut impl Raise) -> Result<(), NoRegister> {
        if let Some(cpu) = cpu(offset) {
            let unit = self.units.get_mut(cpu).ok_or(NoRegister)?;
            let noted = unit.write(offset % BLOCK, value)?;
            let again = &mut self.faults.twice;
            if !unit.has_reason() && again.contains(&cpu) {
                again.retain(|of| *of != cpu);
                raise.raise(cpu.saturating_add(1));
            }
            self.note(cpu, noted, raise);
            return Ok(());
        }
        match offset {
            at::CTRL if value & !RESET == 0 => {
                if value == RESET {
                    self.reset();
                }
            }
            at::IRQ_STATUS if value & !1 == 0 => self.common.irq_status &= !value,
            at::IRQ_MASK if value & !1 == 0 => {
                let unmasked = self.common.irq_mask & !value;
                self.common.irq_mask = value;
                if self.common.irq_status & unmasked != 0 {
                    raise.raise(0);
                }
            }
            at::ERROR if value & !0xf == 0 => self.common.error &= !value,
            _ => return Err(NoRegister),
        }
        Ok(())
    }

    fn note(&mut self, cpu: usize, noted: Noted, raise: &mut impl Raise) {
        if let Some((error, address)) = noted.error {
            self.error(error, address, raise);
        }
        self.faults.happened = self.faults.happened.wrapping_add(noted.faults);
        if noted.raise {
            self.raise(cpu, raise);
        }
    }

    /// Raises the interrupt of a unit, with a fault if one is pending.
    fn raise(&mut self, cpu: usize, raise: &mut impl Raise) {
        let vector = cpu.saturating_add(1);
        let unit = self.units.get_mut(cpu);
        let Some(fault) = unit.and_then(Unit::interrupt_fault) else {
            raise.raise(vector);
            return;
        };
        let faults = &mut self.faults;
        faults.happened = faults.happened.wrapping_add(1);
        match fault.kind {
            Kind::InterruptLate => faults.late.push(vector),
            Kind::InterruptTwice => {
                faults.twice.push(cpu);
                raise.raise(vector);
            }
            Kind::InterruptElsewhere => {
                let other = usize::try_from(fault.argument).unwrap_or(usize::MAX);
                raise.raise(other.saturating_add(1));
            }
            _ => {}
        }
    }

    fn error(&mut self, error: Error, address: u64, raise: &mut impl Raise) {
        let common = &mut self.common;
        if common.error == 0 {
            common.address = address;
        }
        common.error |= error.bit();
        common.count = common.count.saturating_add(1);
        let before = common.irq_status;
        common.irq_status = 1;
        if before & 1 == 0 && common.irq_mask & 1 == 0 {
            raise.raise(0);
        }
    }
}

/// The part of a register that is accessed.
enum Access {
    Whole,
    Low,
    High,
}

fn access(offset: u64, len: usize) -> Option<Access> {
    match (offset % 8, len) {
        (0, 8) => Some(Access::Whole),
        (0, 4) => Some(Access::Low),
        (4, 4) => Some(Access::High),
        _ => None,
    }
}

/// The CPUs whose units a write to this offset in BAR 0 can start or stop. `cpus`: number of CPUs.
#[must_use]
pub fn controlled(offset: u64, cpus: usize) -> Range<usize> {
    match (cpu(offset), offset % BLOCK & !7) {
        (None, at::CTRL) => 0..cpus,
        (Some(cpu), unit::CTRL) if cpu < cpus => cpu..cpu.saturating_add(1),
        _ => 0..0,
    }
}

/// The CPU whose block of registers has this offset in BAR 0.
#[must_use]
pub fn cpu(offset: u64) -> Option<usize> {
    usize::try_from((offset / BLOCK).checked_sub(1)?).ok()
}

#[cfg(test)]
mod tests;
