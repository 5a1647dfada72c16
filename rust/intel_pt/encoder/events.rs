// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Event Trace: packets of interrupts and exceptions, of returns from them, and of whether
//! interrupts are enabled.
//!
//! | event | packets |
//! |---|---|
//! | an interrupt, an exception | `EVD` (of a page fault), `CFE`, `FUP`, and `TIP` or `TIP.PGD`; only `EVD` and `CFE` while tracing is off |
//! | INT, IRET | `CFE` with the flag for a `FUP` behind it, `FUP` with its address, `TIP` or `TIP.PGD` |
//! | CLI, STI, POPF | `MODE.Exec`, `FUP` with the address from which on the flag holds |
//! | any other change of the interrupt flag | `MODE.Exec` in front of its `TIP` or `TIP.PGE` |

use super::{Encoder, Full, Output, State};
use crate::insn::{Far, Mode};
use crate::packet::{Address, Cfe, Group};

/// An interrupt or an exception.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its vector.
    pub vector: u8,
    /// The address of a page fault.
    pub page_fault: Option<u64>,
}

/// The source of a transfer, whose packets precede a packet with an address.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// An event that has taken the thread away. The `FUP` behind it has the thread's address.
    Event(Event),
    /// A far transfer that was executed: the type and the vector of its `CFE`, and its address.
    Far(Cfe, u8, u64),
}

impl Origin {
    pub(super) fn add(self, group: &mut Group, state: &mut State) {
        match self {
            Self::Event(Event { vector, page_fault }) => {
                if let Some(cr2) = page_fault {
                    group.evd_page_fault(cr2);
                }
                group.cfe(Cfe::Interrupt, vector, false);
            }
            Self::Far(kind, vector, from) => {
                group.cfe(kind, vector, true);
                group.address(Address::Fup, from, &mut state.last_ip);
            }
        }
    }
}

impl Encoder {
    /// Sets whether interrupts are enabled at the next instruction. Writes nothing: the next
    /// `MODE.Exec` has the flag.
    ///
    /// Without [`Config::event`](super::Config::event) [`Output::interrupts()`] overrides this.
    pub fn set_interrupts(&mut self, enabled: bool) {
        self.state.interrupts = enabled;
    }

    /// Traces that interrupts are enabled, or disabled, from the instruction at `ip` on. The
    /// instruction before it has changed that, and is not a branch.
    pub fn interrupts_change(
        &mut self,
        enabled: bool,
        ip: u64,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        let before = self.state;

        self.set_interrupts(enabled);
        if !self.state.on
            || !self.config.event
            || self.config.branch_disable
            || self.state.interrupts == before.interrupts
        {
            return Ok(());
        }

        let mut group = Group::new();
        let mut state = self.state;

        // Tracing is on, so there was a `MODE.Exec`.
        if let Some((mode, _)) = state.mode {
            group.tnt(&mut state.tnt);
            self.time(&mut group, &mut state, output);
            self.mode_exec(&mut group, &mut state, mode, output);
            group.address(Address::Fup, ip, &mut state.last_ip);
        }
        self.write(&group, state, output)
            .inspect_err(|_| self.state = before)
    }

    /// As [`interrupt`](Self::interrupt), for an event that may be known. If tracing is off, only
    /// the event is written.
    pub fn interrupt_by(
        &mut self,
        event: Option<Event>,
        from: u64,
        to: u64,
        mode: Mode,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        let origin = event.filter(|_| self.config.event).map(Origin::Event);

        if self.config.branch_disable || !self.state.begun || !self.state.on && origin.is_none() {
            return Ok(());
        }

        let mut group = Group::new();
        let mut state = self.state;

        group.tnt(&mut state.tnt);
        self.time(&mut group, &mut state, output);
        if let Some(origin) = origin {
            origin.add(&mut group, &mut state);
        }
        if !state.on {
            return self.write(&group, state, output);
        }
        group.address(Address::Fup, from, &mut state.last_ip);
        self.mode_exec(&mut group, &mut state, mode, output);
        group.address(Address::Tip, to, &mut state.last_ip);
        self.finish(&mut group, state, to, output)?;
        self.calls.clear();
        Ok(())
    }

    /// As [`disable`](Self::disable), for an event that may be known. It also fails if there is no
    /// space for the event.
    pub fn disable_by(
        &mut self,
        event: Option<Event>,
        ip: u64,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        let origin = event.filter(|_| self.config.event).map(Origin::Event);

        self.close(origin, Some(ip), None, output)
    }

    /// As [`far`](Self::far), for a known instruction. It also fails if there is no space for its
    /// `CFE`.
    pub fn far_by(&mut self, far: Far, from: u64, output: &mut impl Output) -> Result<(), Full> {
        self.close(self.origin(far, from), None, None, output)
    }

    /// The `CFE` of a far transfer at `from`, if it has one.
    pub(super) fn origin(&self, far: Far, from: u64) -> Option<Origin> {
        if !self.config.event {
            return None;
        }
        match far {
            Far::Interrupt(vector) => Some(Origin::Far(Cfe::Interrupt, vector, from)),
            Far::InterruptReturn => Some(Origin::Far(Cfe::InterruptReturn, 0, from)),
            _ => None,
        }
    }
}
