// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults on demand: the behaviour of a device that is broken or removed.

use super::memory::{Memory, Refused};
use super::walk::END;

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Interrupts that were held back are raised. A device that did not respond is reset and responds again.
    Release,
    /// The next interrupt of the unit is held back.
    InterruptLate,
    /// The next interrupt of the unit is lost.
    InterruptLost,
    /// The next interrupt of the unit is raised again when its cause is cleared.
    InterruptTwice,
    /// The unit raises an interrupt now, without a cause.
    InterruptSpurious,
    /// The next interrupt of the unit is raised as that of another CPU, which the argument selects.
    InterruptElsewhere,
    /// The unit raises its interrupt when it is disabled.
    InterruptStopped,
    /// When the unit is disabled, it holds back its last piece of trace for a number of reads of `STATUS`: the argument.
    DmaLate,
    /// The unit writes 64 bytes now, behind the last byte that it has written.
    DmaStale,
    /// The next piece of trace is written to the page whose number is the argument.
    DmaWild,
    /// The bits of the argument are inverted in the next entry of a region that the unit reads.
    Entry,
    /// The argument, which is signed, is added to `WRITTEN`.
    Written,
    /// The argument is added to the number of the unit's current entry.
    Position,
    /// The unit is enabled, although the guest has not enabled it.
    Restart,
    /// The device does not respond any more.
    Mute,
    /// The device is reset.
    Reset,
    /// The argument, which is signed, is added to `DROPPED` and `GENERATED`.
    Dropped,
}

impl Kind {
    const ALL: [Self; 17] = [
        Self::Release,
        Self::InterruptLate,
        Self::InterruptLost,
        Self::InterruptTwice,
        Self::InterruptSpurious,
        Self::InterruptElsewhere,
        Self::InterruptStopped,
        Self::DmaLate,
        Self::DmaStale,
        Self::DmaWild,
        Self::Entry,
        Self::Written,
        Self::Position,
        Self::Restart,
        Self::Mute,
        Self::Reset,
        Self::Dropped,
    ];

    /// Whether the fault happens at once.
    #[must_use]
    pub const fn is_now(self) -> bool {
        matches!(
            self,
            Self::InterruptSpurious
                | Self::DmaStale
                | Self::Written
                | Self::Position
                | Self::Restart
                | Self::Dropped
        )
    }

    /// Whether the fault happens when a unit raises its interrupt.
    #[must_use]
    pub const fn is_of_interrupt(self) -> bool {
        matches!(
            self,
            Self::InterruptLate
                | Self::InterruptLost
                | Self::InterruptTwice
                | Self::InterruptElsewhere
        )
    }
}

/// A fault: the values of `FAULT` and `ARGUMENT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: Kind,
    /// The CPU whose unit has the fault.
    pub cpu: usize,
    /// The argument. Its meaning depends on the kind.
    pub argument: u32,
}

impl Fault {
    /// The fault that these registers select, if it exists.
    #[must_use]
    pub fn new(fault: u32, argument: u32) -> Option<Self> {
        let [kind, cpu, 0, 0] = fault.to_le_bytes() else {
            return None;
        };
        Some(Self {
            kind: *Kind::ALL.get(usize::from(kind))?,
            cpu: cpu.into(),
            argument,
        })
    }

    /// The argument as a signed number.
    pub(super) fn signed(self) -> i64 {
        i32::from_ne_bytes(self.argument.to_ne_bytes()).into()
    }
}

/// The memory, as a unit with a fault accesses it.
pub(super) struct Faulty<'a, M> {
    pub(super) memory: &'a mut M,
    pub(super) fault: &'a mut Option<Fault>,
    /// Address behind the last byte that was written.
    pub(super) last: &'a mut u64,
    /// Number of faults that have happened.
    pub(super) happened: u32,
}

impl<M> Faulty<'_, M> {
    /// Takes the pending fault if it has this kind: it happens now. Returns its argument.
    fn take(&mut self, kind: Kind) -> Option<u64> {
        let fault = self.fault.take_if(|fault| fault.kind == kind)?;
        self.happened = self.happened.wrapping_add(1);
        Some(fault.argument.into())
    }
}

impl<M: Memory> Memory for Faulty<'_, M> {
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.memory.read(address, to)?;
        // An entry that leads to the next table has no `INT` and no `STOP` to invert.
        let leads_on = to.first().is_some_and(|&byte| u64::from(byte) & END != 0);
        if leads_on {
            return Ok(());
        }
        if let Some(bits) = self.take(Kind::Entry) {
            for (byte, bits) in to.iter_mut().zip(bits.to_le_bytes()) {
                *byte ^= bits;
            }
        }
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Refused> {
        let address = match self.take(Kind::DmaWild) {
            Some(page) => page << 12,
            None => address,
        };
        self.memory.write(address, from)?;
        let len = u64::try_from(from.len()).unwrap_or(0);
        *self.last = address.saturating_add(len);
        Ok(())
    }
}
