// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interrupts and exceptions, and whether interrupts are enabled.
//!
//! `CLI` can be anywhere in a block. What enables interrupts is the last instruction of one: whether it has is in the
//! registers when the next block begins. Where no block does, an interrupt shows that they are enabled.

use super::block::Here;
use super::{Flow, State};
use intel_pt::insn::{Far, Kind};
use intel_pt::{Event, Full, Output};
use qemuplugin::Discontinuity;

impl Flow {
    /// The event that is due, if one is, has taken the CPU to this handler.
    pub(super) fn is_due(
        &mut self,
        event: Option<Event>,
        to: u64,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        let Some(from) = self.due.take() else {
            return Ok(());
        };
        self.leads(event, from, to, output)?;
        self.arrives(to, output)
    }

    /// `first` is executed next, with these registers.
    pub(super) fn has_interrupts(
        &mut self,
        first: u64,
        state: &impl State,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        match state.interrupts().filter(|_| self.events) {
            Some(enabled) => self.encoder.interrupts_change(enabled, first, output),
            None => Ok(()),
        }
    }

    /// The last instruction of a block was executed, with these registers behind it: a far transfer has a packet that
    /// says whether interrupts are enabled.
    pub(super) fn jumps(&mut self, block: Here, state: &impl State) {
        if self.events && matches!(block.block.insn.kind, Kind::Far(_)) {
            if let Some(enabled) = state.interrupts() {
                self.encoder.set_interrupts(enabled);
            }
        }
    }

    /// All of a block was executed, and a discontinuity of this kind is at `from`, which is next.
    pub(super) fn reaches(
        &mut self,
        block: Here,
        kind: Discontinuity,
        from: u64,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        // Programs are executed with interrupts.
        let enabled = kind == Discontinuity::Interrupt || from >> 63 == 0;
        match block.block.insn.kind {
            Kind::Far(Far::Syscall) => self.encoder.set_interrupts(false),
            Kind::Far(_) if enabled => self.encoder.set_interrupts(true),
            // What the encoder knows is older.
            _ if enabled && !self.events => self.encoder.set_interrupts(true),
            _ => {}
        }
        self.leaves(block, from, output)?;
        match block.block.may_enable && enabled {
            true => self.encoder.interrupts_change(true, from, output),
            false => Ok(()),
        }
    }
}
