// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From the blocks that a virtual CPU executes to the packets of its trace.
//!
//! QEMU tells when a block begins, and where a discontinuity leads. It does not tell when a block
//! ends. So what a block did is known when the next thing happens:
//!
//! | next | the block | packets |
//! |---|---|---|
//! | a block | has reached its last instruction | of that instruction |
//! | a block | has not: QEMU goes on elsewhere in the middle, to execute an instruction by itself | none |
//! | an interrupt | as for a block at the next instruction | and `FUP`, `TIP` |
//! | an exception at an instruction of it | that instruction was not executed | `FUP`, `TIP` |
//! | an exception behind its last instruction | as for a block there | and `FUP`, `TIP` |
//! | an exception at `int` with a number, its last instruction | was executed | `TIP` |
//!
//! The instructions before a block's last are no branches, so they have no packets.
//!
//! QEMU translates a page of a program once for all addresses where processes have it: a block has the address
//! that it was translated for, and the CPU may execute it elsewhere: where is in its register. The kernel's code
//! is at one address.
//!
//! With events an interrupt or exception is written when its handler begins: its vector and the address of a page
//! fault are known then.
//!
//! Code that is not [`Wanted`] is left with `TIP.PGD`, and entered with `TIP.PGE`. The bounds of a range
//! may be in the middle of a block.

use intel_pt::insn::{Kind, Mode};
use intel_pt::{Encoder, Event, Full, Output, Step};
use qemuplugin::Discontinuity;

mod block;
mod events;
mod wanted;

pub use block::Block;
use block::Here;
use wanted::Does;
pub use wanted::{Range, Wanted, RANGES};

/// What the CPU has in its registers.
pub trait State {
    /// The address that it executes.
    fn pc(&self) -> Option<u64>;

    /// `CR3`.
    fn cr3(&self) -> Option<u64>;

    /// Whether interrupts are enabled.
    fn interrupts(&self) -> Option<bool>;

    /// The interrupt or exception whose handler begins at this address: the CPU is there.
    fn event(&self, handler: u64) -> Option<Event>;
}

/// Where a virtual CPU is.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Nothing was executed yet.
    Nowhere,
    /// In a block.
    In(Here),
    /// A discontinuity has led to this address.
    At(u64),
}

/// The trace of a virtual CPU.
#[derive(Debug)]
pub struct Flow {
    encoder: Encoder,
    place: Place,
    wanted: Wanted,
    ranged: bool,
    /// It begins with the first instruction that is traced, not with the first.
    late: bool,
    /// A range has ended the trace.
    stopped: bool,
    /// Whether events are written.
    events: bool,
    /// An event has taken the CPU from this address, and its handler has executed nothing.
    due: Option<u64>,
}

impl Flow {
    /// That of a CPU that has executed nothing.
    #[must_use]
    pub fn new(encoder: Encoder, wanted: Wanted) -> Self {
        Self {
            events: encoder.config().event,
            due: None,
            encoder,
            place: Place::Nowhere,
            wanted,
            ranged: wanted.has_ranges(),
            late: false,
            stopped: false,
        }
    }

    /// Has it begin with the first instruction that is traced. Before, a CPU of a machine that starts is in
    /// other modes.
    #[must_use]
    pub fn late(self) -> Self {
        Self { late: true, ..self }
    }

    /// Whether a block was executed.
    #[must_use]
    pub const fn is_begun(&self) -> bool {
        !matches!(self.place, Place::Nowhere)
    }

    /// Whether an instruction at this address is traced now.
    #[must_use]
    pub fn traces(&self, address: u64) -> bool {
        self.is_begun() && !self.stopped && self.wanted.at(address) == Does::Trace
    }

    /// The CPU is about to execute a block. `whole` tells whether it has reached the last instruction of
    /// the one before.
    ///
    /// # Errors
    ///
    /// There is no space for the packets.
    #[inline]
    pub fn executes(
        &mut self,
        block: &'static Block,
        whole: impl FnOnce() -> bool,
        state: &impl State,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        let first = match block.first >> 63 {
            0 => state.pc().unwrap_or(block.first),
            _ => block.first,
        };
        let here = Here { block, first };
        if self.late && !self.is_begun() && self.wanted.at(first) != Does::Trace {
            return Ok(());
        }
        if let Place::In(before) = self.place {
            // Where QEMU goes on in the middle of a block is in it.
            let whole = !before.has(first) || whole();
            // As most are: traced before and after.
            if whole
                && !before.block.writes_cr3
                && !self.ranged
                && !self.events
                && self.encoder.is_on()
                && self.wanted.is_privileged(first)
            {
                self.place = Place::In(here);
                return self.steps(before, first, output);
            }
            self.follows(before, first, whole, state, output)?;
        } else {
            self.begins(first, state, output)?;
        }
        self.has_interrupts(first, state, output)?;
        self.place = Place::In(here);
        self.arrives(first, output)
    }

    /// `to` is executed after a block, all of which was executed if it is `whole`.
    #[cold]
    fn follows(
        &mut self,
        before: Here,
        to: u64,
        whole: bool,
        state: &impl State,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        if !whole {
            return self.passes(before, Some(to), output);
        }
        self.jumps(before, state);
        self.leaves(before, to, output)?;
        match before.block.writes_cr3 {
            true => self.address_space(state.cr3(), output),
            false => Ok(()),
        }
    }

    /// `first` is executed after no block.
    #[cold]
    fn begins(
        &mut self,
        first: u64,
        state: &impl State,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        if let Place::At(to) = self.place {
            let event = self.due.and_then(|_| state.event(to));
            self.is_due(event, to, output)?;
        }
        match self.place {
            // What QEMU does not report as a discontinuity, such as a reset.
            Place::At(to) if to != first => self.leads(None, to, first, output),
            Place::At(_) | Place::In(_) => Ok(()),
            Place::Nowhere => {
                self.address_space(state.cr3(), output)?;
                self.encoder.begin(false, output)
            }
        }
    }

    /// A message in front of what is executed next.
    ///
    /// # Errors
    ///
    /// There is no space for the packets.
    #[cold]
    pub fn message(&mut self, message: u64, output: &mut impl Output) -> Result<(), Full> {
        self.encoder.message(message, output)
    }

    /// From the address that the block was translated for to where it is executed.
    #[must_use]
    pub fn shift(&self) -> u64 {
        match self.place {
            Place::In(here) => here.first.wrapping_sub(here.block.first),
            _ => 0,
        }
    }

    /// Whether a discontinuity at `from` is what the instruction there does.
    #[must_use]
    pub fn is_executed(&self, kind: Discontinuity, from: u64) -> bool {
        matches!(self.place, Place::In(block) if block.interrupts(kind, from))
    }

    /// A discontinuity takes the CPU from `from` to `to`. `whole`: it has reached the last instruction of
    /// the block.
    ///
    /// # Errors
    ///
    /// There is no space for the packets.
    pub fn discontinuity(
        &mut self,
        kind: Discontinuity,
        from: u64,
        to: u64,
        whole: bool,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        if let Place::At(at) = self.place {
            self.is_due(None, at, output)?;
        }
        match (self.place, kind) {
            (Place::Nowhere, _) => return Ok(()),
            (Place::In(block), kind) if block.interrupts(kind, from) => {
                self.encoder.set_interrupts(false);
                self.leaves(block, to, output)?;
            }
            // An exception at another instruction than the last is at the one behind it, which could
            // not be fetched.
            (Place::In(block), _)
                if whole && (kind == Discontinuity::Interrupt || from != block.last()) =>
            {
                self.reaches(block, kind, from, output)?;
                self.arrives(from, output)?;
                self.goes(from, to, output)?;
            }
            (Place::In(block), _) => {
                self.passes(block, Some(from), output)?;
                self.goes(from, to, output)?;
            }
            (Place::At(_), _) => self.goes(from, to, output)?,
        }
        self.place = Place::At(to);
        match self.due {
            Some(_) => Ok(()),
            None => self.arrives(to, output),
        }
    }

    /// `at` is next: the trace begins or ends there if it is to.
    fn arrives(&mut self, at: u64, output: &mut impl Output) -> Result<(), Full> {
        match self.wanted.at(at) {
            Does::Trace if self.encoder.is_on() || self.stopped => Ok(()),
            Does::Trace => self.encoder.enable(at, Mode::Bits64, output),
            Does::Nothing => self.encoder.disable(at, output),
            Does::Stop if self.stopped => Ok(()),
            Does::Stop => {
                self.encoder.disable(at, output)?;
                self.stopped = true;
                self.encoder.stopped(output)
            }
        }
    }

    /// The instructions of a block were executed, without its first: up to that at `end`, or all.
    fn passes(
        &mut self,
        block: Here,
        end: Option<u64>,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        if self.ranged || self.events {
            for at in block.others() {
                if block.is_behind_cli(at) {
                    self.encoder.interrupts_change(false, at, output)?;
                }
                if Some(at) == end {
                    break;
                }
                self.arrives(at, output)?;
            }
        }
        Ok(())
    }

    /// The last instruction of a block has led to `to`, which is traced.
    #[inline]
    fn steps(&mut self, block: Here, to: u64, output: &mut impl Output) -> Result<(), Full> {
        let step = Step {
            insn: block.block.insn,
            from: block.last(),
            to,
            mode: Mode::Bits64,
        };
        self.encoder.step(&step, output)?;
        Ok(())
    }

    /// All of a block was executed, and `to` is next.
    fn leaves(&mut self, block: Here, to: u64, output: &mut impl Output) -> Result<(), Full> {
        self.passes(block, None, output)?;
        if self.wanted.at(to) == Does::Trace {
            return self.steps(block, to, output);
        }
        match block.block.insn.kind {
            Kind::Far(far) => self.encoder.far_by(far, block.last(), output),
            kind if kind.is_branch() => self.encoder.leave(to, output),
            _ => self.encoder.disable(to, output),
        }
    }

    /// The CPU was to execute `from`, and executes `to`.
    fn goes(&mut self, from: u64, to: u64, output: &mut impl Output) -> Result<(), Full> {
        if self.events {
            self.due = Some(from);
            return Ok(());
        }
        self.leads(None, from, to, output)
    }

    /// The same, by this event. The gates of Linux disable interrupts.
    fn leads(
        &mut self,
        event: Option<Event>,
        from: u64,
        to: u64,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        self.encoder.set_interrupts(false);
        match self.wanted.at(to) {
            Does::Trace => self
                .encoder
                .interrupt_by(event, from, to, Mode::Bits64, output),
            Does::Nothing | Does::Stop => self.encoder.disable_by(event, from, output),
        }
    }

    fn address_space(&mut self, cr3: Option<u64>, output: &mut impl Output) -> Result<(), Full> {
        match cr3 {
            Some(cr3) if self.wanted.kernel => self.encoder.address_space(cr3, output),
            _ => Ok(()),
        }
    }

    /// The trace ends. `whole` is as for [`Self::discontinuity`]: then all of the block but its last
    /// instruction was executed.
    ///
    /// # Errors
    ///
    /// There is no space for the packets.
    pub fn ends(&mut self, whole: bool, output: &mut impl Output) -> Result<(), Full> {
        if let Place::At(at) = self.place {
            self.is_due(None, at, output)?;
        }
        let at = match self.place {
            Place::Nowhere => return Ok(()),
            Place::In(block) if whole => {
                self.passes(block, None, output)?;
                block.last()
            }
            Place::In(block) => block.first,
            Place::At(at) => at,
        };
        self.place = Place::Nowhere;
        self.encoder.disable(at, output)
    }
}

#[cfg(test)]
mod tests;
