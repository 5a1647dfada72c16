// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults on demand: what a device does that is broken, or goes.

use super::memory::{Memory, Refused};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What was kept back comes, and a device that did not answer does, after a reset.
    Release,
    /// The next interrupt of the unit is kept back.
    InterruptLate,
    /// The next interrupt of the unit does not come.
    InterruptLost,
    /// The next interrupt of the unit comes again when its reason is cleared.
    InterruptTwice,
    /// An interrupt of the unit comes now, without a reason.
    InterruptSpurious,
    /// The next interrupt of the unit comes as that of the CPU that the argument says.
    InterruptElsewhere,
    /// The unit raises its interrupt when it is disabled.
    InterruptStopped,
    /// The unit keeps its last piece of trace back when it is disabled, for as many reads of `STATUS`
    /// as the argument says.
    DmaLate,
    /// The unit writes 64 bytes now, behind the last that it has written.
    DmaStale,
    /// The next piece of trace is written to the page that the argument says.
    DmaWild,
    /// The bits of the argument are the other way round in the next entry that the unit reads.
    Entry,
    /// `WRITTEN` has the argument, which has a sign, added to it.
    Written,
    /// The unit goes on as many entries later as the argument says.
    Position,
    /// The unit is enabled, although the guest has not enabled it.
    Restart,
    /// The device does not answer any more.
    Mute,
    /// The device is reset.
    Reset,
    /// `DROPPED` has the argument, which has a sign, added to it, and so has `GENERATED`.
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

    /// Whether it happens when it is asked for.
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

    /// Whether it is one of those that happen when a unit raises its interrupt.
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

/// What is written to `FAULT` and `ARGUMENT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: Kind,
    /// The CPU whose unit it happens to.
    pub cpu: usize,
    /// What it is for depends on the kind.
    pub argument: u32,
}

impl Fault {
    /// The fault that these registers mean, if there is such a one.
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

    /// The argument, with its sign.
    pub(super) fn signed(self) -> i64 {
        i32::from_ne_bytes(self.argument.to_ne_bytes()).into()
    }
}

/// Memory, as a unit reaches it that has a fault.
pub(super) struct Faulty<'a, M> {
    pub(super) memory: &'a mut M,
    pub(super) fault: &'a mut Option<Fault>,
    /// Behind the last byte that was written.
    pub(super) last: &'a mut u64,
    /// How many faults have happened.
    pub(super) happened: u32,
}

impl<M> Faulty<'_, M> {
    /// The argument of this fault, which happens now.
    fn take(&mut self, kind: Kind) -> Option<u64> {
        let fault = self.fault.take_if(|fault| fault.kind == kind)?;
        self.happened = self.happened.wrapping_add(1);
        Some(fault.argument.into())
    }
}

impl<M: Memory> Memory for Faulty<'_, M> {
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.memory.read(address, to)?;
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
