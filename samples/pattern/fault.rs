// SPDX-License-Identifier: GPL-2.0

//! What shall go wrong, if the event asks for it.

use core::num::NonZero;
use kernel::prelude::*;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Interrupts are taken so many ticks late.
    Late(u64),
    /// Interrupts are never taken.
    Lost,
    /// The unit overflows inside in each tick whose number is a multiple of this.
    Overflow(NonZero<u64>),
    /// Packets collide in each tick whose number is a multiple of this.
    Collision(NonZero<u64>),
    /// Interrupts are taken only after the next start.
    Pending,
    /// There is no bounce memory, and no table, from the beginning.
    Setup,
    /// Memory ends with the last piece.
    Memory,
    /// The unit does not start.
    Start,
}

/// A fault that occurs now and then does so at multiples of this tick.
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

/// The line from the unit to the driver, on which it raises its interrupt, with what is wrong with it.
pub(crate) struct Line {
    /// Raised so many ticks ago, and not taken.
    raised: Option<u64>,
    /// What is left over from the session before.
    stale: bool,
}

impl Line {
    /// A line at the start of a session; `stale` if an interrupt of the one before is still pending.
    pub(crate) fn new(stale: bool) -> Self {
        Self {
            raised: None,
            stale,
        }
    }

    /// Whether an interrupt is taken at the end of this tick, in which it was raised or not.
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

    /// Whether what was raised will be taken in the session after this one.
    pub(crate) fn is_pending(&self, fault: Fault) -> bool {
        fault == Fault::Pending && (self.stale || self.raised.is_some())
    }
}
