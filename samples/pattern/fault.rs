// SPDX-License-Identifier: GPL-2.0

//! Faults that an event can ask the unit to simulate.

use core::num::NonZero;
use kernel::prelude::*;

/// A simulated fault.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The driver takes interrupts this many ticks late.
    Late(u64),
    /// The driver never takes interrupts.
    Lost,
    /// The unit loses all packets of each tick whose number is a multiple of this.
    Overflow(NonZero<u64>),
    /// The last packet collides, and is lost, in each tick whose number is a multiple of this.
    Collision(NonZero<u64>),
    /// The driver takes interrupts only after the next start.
    Pending,
    /// `setup_aux()` fails before it allocates anything.
    Setup,
    /// `setup_aux()` fails at its last allocations, those of the table.
    Memory,
    /// The unit does not start.
    Start,
}

/// Default of `nth` for [`Fault::Overflow`] and [`Fault::Collision`].
const DEFAULT_NTH: NonZero<u64> = NonZero::new(16).unwrap();

impl Fault {
    pub(crate) fn new(number: u64, nth: u64) -> Result<Self> {
        let every = NonZero::new(nth).unwrap_or(DEFAULT_NTH);

        Ok(match number {
            0 => Self::None,
            1 => Self::Late(nth.max(1)),
            2 => Self::Lost,
            3 => Self::Overflow(every),
            4 => Self::Collision(every),
            5 => Self::Pending,
            6 => Self::Setup,
            7 => Self::Memory,
            8 => Self::Start,
            _ => return Err(EINVAL),
        })
    }
}

/// The interrupt line from the unit to the driver. The fault can delay or drop interrupts.
pub(crate) struct Line {
    /// Ticks since the unit raised its interrupt, if the driver has not taken it.
    raised: Option<u64>,
    /// Whether an interrupt of the previous transaction is pending.
    stale: bool,
}

impl Line {
    /// A line at the start of a transaction. `stale`: an interrupt of the previous one is pending.
    pub(crate) fn new(stale: bool) -> Self {
        Self {
            raised: None,
            stale,
        }
    }

    /// Whether the driver takes an interrupt at the end of this tick. `raise`: the unit has raised
    /// one in this tick.
    pub(crate) fn take(&mut self, fault: Fault, raise: bool) -> bool {
        if raise && self.raised.is_none() {
            self.raised = Some(0);
        }

        let taken = match (fault, &mut self.raised) {
            _ if core::mem::take(&mut self.stale) => true,
            (_, None) | (Fault::Lost | Fault::Pending, _) => false,
            (Fault::Late(late), Some(ticks)) if *ticks < late => {
                *ticks = ticks.saturating_add(1);
                false
            }
            _ => true,
        };
        if taken {
            self.raised = None;
        }
        taken
    }

    /// Whether the next transaction takes an interrupt that was raised in this one.
    pub(crate) fn is_pending(&self, fault: Fault) -> bool {
        fault == Fault::Pending && (self.stale || self.raised.is_some())
    }
}
