// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interrupts and exceptions, and the interrupt flag.
//!
//! `CLI` can be anywhere in a block. An instruction that may enable interrupts is the last one of its block. Whether it has enabled them is
//! in the registers when the next block begins. If no block begins, an interrupt shows that interrupts are enabled.

use super::block::Here;
use super::{Flow, State};
use intel_pt::insn::{Far, Kind};
use intel_pt::{Event, Full, Output};
use qemuplugin::Discontinuity;

impl Flow {
    /// Writes the packets of the pending event, if there is one. It has taken the CPU to the handler at `to`.
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

    /// The CPU executes `first` next, with these registers. Writes a packet if the interrupt flag has changed.
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

    /// The last instruction of a block was executed, and these are the registers after it. If it is a far transfer, its packets contain the
    /// interrupt flag.
    pub(super) fn jumps(&mut self, block: Here, state: &impl State) {
        if self.events && matches!(block.block.insn.kind, Kind::Far(_)) {
            if let Some(enabled) = state.interrupts() {
                self.encoder.set_interrupts(enabled);
            }
        }
    }

    /// The whole block was executed. A discontinuity of this kind is at `from`, the next instruction.
    pub(super) fn reaches(
        &mut self,
        block: Here,
        kind: Discontinuity,
        from: u64,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        // Programs are executed with interrupts enabled.
        let enabled = kind == Discontinuity::Interrupt || from >> 63 == 0;
        match block.block.insn.kind {
            Kind::Far(Far::Syscall) => self.encoder.set_interrupts(false),
            Kind::Far(_) if enabled => self.encoder.set_interrupts(true),
            // The flag that the encoder has may be out of date.
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
