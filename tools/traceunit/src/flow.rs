// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Turns the blocks that a virtual CPU executes into the packets of its trace.
//!
//! QEMU reports when a block begins, and where a discontinuity leads. It does not report when a block ends. So the next report shows which
//! instructions of a block were executed:
//!
//! | next report | the block | packets |
//! |---|---|---|
//! | a block | has reached its last instruction | those of that instruction |
//! | a block | has not reached it: QEMU continues in the middle, to execute an instruction by itself | none |
//! | an interrupt | as for a block at the next instruction | the same, then `FUP`, `TIP` |
//! | an exception at an instruction of the block | that instruction was not executed | `FUP`, `TIP` |
//! | an exception behind the last instruction | as for a block there | the same, then `FUP`, `TIP` |
//! | an exception at the last instruction, an `int` with a number | that instruction was executed | `TIP` |
//!
//! Only the last instruction of a block can be a branch, so the others have no packets.
//!
//! QEMU translates a page of a program once for all addresses at which processes have mapped it. A block has the address for which it was
//! translated. The CPU may execute it at another address, which is in the CPU's instruction pointer. Kernel code has one address.
//!
//! With events, the packets of an interrupt or exception are written when its handler begins. Only then are the vector and the address of a
//! page fault known.
//!
//! `TIP.PGD` ends the trace where code begins that is not [`Wanted`], and `TIP.PGE` begins it again. The bounds of a range may be in the
//! middle of a block.

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

/// State that is read from the CPU's registers.
pub trait State {
    /// Address of the instruction that the CPU executes.
    fn pc(&self) -> Option<u64>;

    /// `CR3`.
    fn cr3(&self) -> Option<u64>;

    /// Whether interrupts are enabled.
    fn interrupts(&self) -> Option<bool>;

    /// The interrupt or exception whose handler begins at this address, which the CPU executes now.
    fn event(&self, handler: u64) -> Option<Event>;
}

/// Position of a virtual CPU.
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
    /// The trace begins with the first instruction that is [`Wanted`].
    late: bool,
    /// A stop range has ended the trace.
    stopped: bool,
    /// Whether packets of events are written.
    events: bool,
    /// The address at which an event has interrupted the CPU, if the event's handler has not begun yet.
    due: Option<u64>,
}

impl Flow {
    /// The flow of a CPU that has not executed anything.
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

    /// Lets the trace begin with the first instruction that is [`Wanted`]. Before that, a CPU that starts up is in other modes.
    #[must_use]
    pub fn late(self) -> Self {
        Self { late: true, ..self }
    }

    /// Whether a block has begun.
    #[must_use]
    pub const fn is_begun(&self) -> bool {
        !matches!(self.place, Place::Nowhere)
    }

    /// Whether an instruction at this address is traced now.
    #[must_use]
    pub fn traces(&self, address: u64) -> bool {
        self.is_begun() && !self.stopped && self.wanted.at(address) == Does::Trace
    }

    /// The CPU is about to execute a block. `whole` returns whether the CPU has reached the last instruction of the previous block.
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
            // Only an address inside the block can be a continuation in its middle.
            let whole = !before.has(first) || whole();
            // The common case: code before and after is traced.
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

    /// The CPU executes `to` after a block. `whole`: it has reached the last instruction of the block.
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

    /// The CPU executes `first`, and no block precedes it.
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
            // A change that QEMU does not report as a discontinuity, such as a reset.
            Place::At(to) if to != first => self.leads(None, to, first, output),
            Place::At(_) | Place::In(_) => Ok(()),
            Place::Nowhere => {
                self.address_space(state.cr3(), output)?;
                self.encoder.begin(false, output)
            }
        }
    }

    /// Writes a `PTW` packet with `message` in front of the next instruction.
    ///
    /// # Errors
    ///
    /// There is no space for the packets.
    #[cold]
    pub fn message(&mut self, message: u64, output: &mut impl Output) -> Result<(), Full> {
        self.encoder.message(message, output)
    }

    /// Difference between the address at which the current block is executed and the address for which it was translated.
    #[must_use]
    pub fn shift(&self) -> u64 {
        match self.place {
            Place::In(here) => here.first.wrapping_sub(here.block.first),
            _ => 0,
        }
    }

    /// Whether the instruction at `from` was executed and causes this discontinuity itself.
    #[must_use]
    pub fn is_executed(&self, kind: Discontinuity, from: u64) -> bool {
        matches!(self.place, Place::In(block) if block.interrupts(kind, from))
    }

    /// A discontinuity takes the CPU from `from` to `to`. `whole`: the CPU has reached the last instruction of the block.
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
            // An exception that is not at the last instruction is at the one behind it, which could not be fetched.
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

    /// The CPU executes `at` next. Begins or ends the trace there, as [`Wanted`] requires.
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

    /// The instructions of a block after the first were executed, up to the one at `end` and without it, or all.
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

    /// The last instruction of a block was executed and has led to `to`, which is traced.
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

    /// The whole block was executed, and the CPU executes `to` next.
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

    /// An interrupt or exception has taken the CPU from `from`, which was not executed, to `to`.
    fn goes(&mut self, from: u64, to: u64, output: &mut impl Output) -> Result<(), Full> {
        if self.events {
            self.due = Some(from);
            return Ok(());
        }
        self.leads(None, from, to, output)
    }

    /// Writes the packets of such a change, with this event. The gates of Linux disable interrupts.
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

    /// Ends the trace. `whole`: the CPU has reached the last instruction of the block, which is not executed yet.
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
