// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A task that is interpreted: its registers and its memory.
//!
//! An instruction is executed whole, or nothing is changed and it is left to the processor: so a fault has
//! the address, the error code and the partial effects that the processor gives it.

use crate::{
    block::{Block, WORDS},
    decode::is_user,
    flags::Flags,
    frequent,
    op::{Op, Place, Width},
    Branch, Machine, Observer, Registers,
};

/// Why the instruction behind this one is not the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The block ends there.
    End,
    /// More of the block can be decoded.
    More,
    /// So many instructions were executed as were to be.
    Limit,
    /// The observer does not want what is next.
    Refused,
    /// It was a branch, to [`Task::ip`].
    Branched,
    /// So it was, and the observer wants no more.
    Enough,
    /// It was a branch that does not lead away, and the observer wants no more.
    Passed,
    /// It is executed again: more of a string is left.
    Again,
    /// It is left to the processor: nothing has changed.
    Left,
}

pub(crate) type Done = Result<(), Stop>;

/// The longest store, in bytes.
const STORE_MAX: u64 = 32;

/// From the longest store in front of a block to the end of the longest block, in bytes.
// CAST: Widening; `From` is not const.
#[allow(clippy::as_conversions)]
const REACH: u64 = STORE_MAX + 8 * WORDS as u64;

/// A task that is interpreted.
pub(crate) struct Task<'a, M, O> {
    /// What a [`Place`] can be: the general registers, then 0, then the immediate. The others are not used.
    pub(crate) general: [u64; Place::COUNT],
    /// The address of the block that is executed, or of what is behind it.
    pub(crate) ip: u64,
    pub(crate) flags: Flags,
    pub(crate) machine: &'a mut M,
    pub(crate) observer: &'a mut O,
    /// Instructions that were executed before the block.
    pub(crate) executed: u64,
    /// [`Machine::pass()`].
    pub(crate) pass: u64,
}

impl<'a, M: Machine, O: Observer> Task<'a, M, O> {
    pub(crate) fn new(registers: &Registers, machine: &'a mut M, observer: &'a mut O) -> Self {
        let mut general = [0; Place::COUNT];

        for (to, from) in general.iter_mut().zip(registers.general) {
            *to = from;
        }
        Self {
            pass: machine.pass(),
            general,
            ip: registers.ip,
            flags: Flags::new(registers.flags),
            machine,
            observer,
            executed: 0,
        }
    }

    pub(crate) fn registers(&mut self) -> Registers {
        let mut general = [0; 16];

        for (to, from) in general.iter_mut().zip(self.general) {
            *to = from;
        }
        Registers {
            general,
            ip: self.ip,
            flags: self.flags.get(),
        }
    }

    /// Executes instructions of a block, `left` at most, up to the first one behind which another is next. Takes from
    /// `left` how many. Returns why it has stopped, and the address of the last instruction if that has not branched.
    #[inline]
    pub(crate) fn execute(&mut self, block: &Block, left: &mut u64) -> (Stop, u64) {
        let (last, stop) = match block.limited(0, *left) {
            None => self.run(&block.ops),
            Some(count) => self.run_some(block, 0, count),
        };

        self.stopped(block, last, stop, left)
    }

    /// As [`execute`](Self::execute), for a block that has become longer behind its first `start` instructions, which
    /// were executed.
    pub(crate) fn resume(&mut self, block: &Block, start: usize, left: &mut u64) -> (Stop, u64) {
        let before = u64::try_from(start).unwrap_or(0);

        self.ip = block.first;
        self.executed = self.executed.wrapping_sub(before);
        *left = left.wrapping_add(before);
        let (last, stop) = match block.limited(start, *left) {
            None => {
                let (last, stop) = self.run(block.ops.get(start..).unwrap_or(&[]));
                (last.wrapping_add(start), stop)
            }
            Some(count) => self.run_some(block, start, count),
        };

        self.stopped(block, last, stop, left)
    }

    /// What follows the instruction at this place in the block: see [`execute`](Self::execute).
    #[inline(always)]
    fn stopped(&mut self, block: &Block, last: usize, stop: Stop, left: &mut u64) -> (Stop, u64) {
        if stop != Stop::Branched {
            return self.stopped_otherwise(block, last, stop, left);
        }
        // A block has at most 16 instructions.
        let done = u64::try_from(last).unwrap_or(0).wrapping_add(1);

        self.executed = self.executed.wrapping_add(done);
        *left = left.wrapping_sub(done);
        (stop, self.ip)
    }

    /// As [`stopped`](Self::stopped), if that has not led to another block.
    #[inline(never)]
    fn stopped_otherwise(
        &mut self,
        block: &Block,
        last: usize,
        stop: Stop,
        left: &mut u64,
    ) -> (Stop, u64) {
        let op = block.ops.get(last).unwrap_or(&Op::EMPTY);
        let mut done = u64::from(op.count);
        let next = || block.first.wrapping_add(op.end.into());
        let from = || next().wrapping_sub(op.len.into());

        match stop {
            Stop::Branched | Stop::Enough => {}
            Stop::Left | Stop::Again => {
                self.ip = from();
                done = done.wrapping_sub(1);
            }
            _ => self.ip = next(),
        }
        self.executed = self.executed.wrapping_add(done);
        *left = left.saturating_sub(done);
        (stop, from())
    }

    /// Executes instructions, up to the first one behind which another is next: its place, and why.
    #[inline]
    fn run(&mut self, ops: &[Op]) -> (usize, Stop) {
        let mut at = 0_usize;

        // The compiler unrolls this, and no loop whose length it does not know.
        let (fours, rest) = ops.split_at(ops.len() & !3);

        for four in fours.chunks_exact(4) {
            for op in four {
                if let Err(stop) = frequent::run(self, op) {
                    return (at, stop);
                }
                at = at.wrapping_add(1);
            }
        }
        for op in rest {
            if let Err(stop) = frequent::run(self, op) {
                return (at, stop);
            }
            at = at.wrapping_add(1);
        }
        (at.saturating_sub(1), Stop::End)
    }

    /// As [`run`](Self::run), for the instructions from `start` to in front of `end`.
    #[cold]
    fn run_some(&mut self, block: &Block, start: usize, end: usize) -> (usize, Stop) {
        let ops = block.ops.get(start..end).unwrap_or(&[]);

        match self.run(ops) {
            // If there is no instruction, there is none at this place, either.
            (_, Stop::End) => (end.wrapping_sub(1), Stop::Limit),
            (last, stop) => (last.wrapping_add(start), stop),
        }
    }

    /// The address behind an instruction of the block.
    #[inline]
    pub(crate) fn next(&self, op: &Op) -> u64 {
        self.ip.wrapping_add(op.end.into())
    }

    /// How many instructions have been executed, with so many of the block.
    #[inline]
    pub(crate) fn executed_with(&self, count: u8) -> u64 {
        self.executed.wrapping_add(count.into())
    }

    /// A branch leads to `to`.
    #[inline]
    pub(crate) fn branch(&mut self, branch: Branch, op: &Op, to: u64) -> Done {
        let next = self.next(op);
        let from = next.wrapping_sub(op.len.into());

        let executed = self.executed_with(op.count);

        self.ip = to;
        if self
            .observer
            .branches(branch, from, next, to, executed)
            .is_continue()
        {
            Err(Stop::Branched)
        } else {
            Err(Stop::Enough)
        }
    }

    /// A branch does not lead away.
    #[inline]
    pub(crate) fn pass(&mut self, op: &Op) -> Done {
        let next = self.next(op);
        let from = next.wrapping_sub(op.len.into());
        let branch = Branch::Conditional { taken: false };

        let executed = self.executed_with(op.count);

        if self
            .observer
            .branches(branch, from, next, next, executed)
            .is_continue()
        {
            Ok(())
        } else {
            Err(Stop::Passed)
        }
    }

    /// A general register, or one of the others in [`Task::general`].
    #[inline]
    pub(crate) fn at(&self, place: Place) -> u64 {
        self.general.get(place.index()).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn set(&mut self, place: Place, value: u64) {
        if let Some(register) = self.general.get_mut(place.index()) {
            *register = value;
        }
    }

    /// An operand that is not in memory.
    #[inline]
    pub(crate) fn get(&self, place: Place, width: Width) -> u64 {
        let (register, shift) = place.in_register();

        self.at(register).wrapping_shr(shift) & width.mask()
    }

    /// Writes a register: the upper half becomes 0 with 4 bytes, and stays with fewer.
    #[inline]
    pub(crate) fn put(&mut self, place: Place, width: Width, value: u64) {
        let (register, shift) = place.in_register();

        if width.bytes() >= 4 {
            self.set(register, value);
        } else {
            let mask = width.mask().wrapping_shl(shift);
            let old = self.at(register) & !mask;

            self.set(register, old | value.wrapping_shl(shift));
        }
    }

    /// Makes the immediate an operand.
    #[inline]
    pub(crate) fn set_immediate(&mut self, op: &Op) {
        self.set(Place::Immediate, op.imm);
    }

    /// The address of the memory operand, without the base of a segment.
    #[inline]
    pub(crate) fn effective(&self, op: &Op) -> u64 {
        let index = self.at(op.index).wrapping_shl(op.scale.into());

        op.displacement
            .wrapping_add(self.at(op.base))
            .wrapping_add(index)
    }

    #[inline]
    pub(crate) fn address(&mut self, op: &Op) -> Result<u64, Stop> {
        let address = self.effective(op);

        if op.fs {
            Ok(address.wrapping_add(self.machine.fs_base().ok_or(Stop::Left)?))
        } else {
            Ok(address)
        }
    }

    #[inline]
    pub(crate) fn load(&mut self, address: u64, width: Width) -> Result<u64, Stop> {
        self.machine.load(address, width).ok_or(Stop::Left)
    }

    /// Loads a register, of which the bits above the number become 0.
    #[inline]
    pub(crate) fn load_to(&mut self, place: Place, address: u64, width: Width) -> Done {
        let Some(register) = self.general.get_mut(place.index()) else {
            return Err(Stop::Left);
        };

        *register = self.machine.load(address, width).ok_or(Stop::Left)?;
        Ok(())
    }

    #[inline]
    pub(crate) fn store(&mut self, address: u64, width: Width, value: u64) -> Done {
        self.store_to(address)?;
        self.machine.store(address, width, value).ok_or(Stop::Left)
    }

    /// [`Stop::Left`] if a store to this address may change the block that is executed.
    #[inline]
    pub(crate) fn store_to(&self, address: u64) -> Done {
        if address.wrapping_sub(self.ip).wrapping_add(STORE_MAX) < REACH {
            Err(Stop::Left)
        } else {
            Ok(())
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, value: u64) -> Done {
        let sp = self.at(Place::Sp).wrapping_sub(8);

        self.store(sp, Width::B8, value)?;
        self.set(Place::Sp, sp);
        Ok(())
    }
}

/// An address that a branch can lead to. The processor faults at one that is none.
#[inline]
pub(crate) fn to(address: u64) -> Result<u64, Stop> {
    if is_user(address) {
        Ok(address)
    } else {
        Err(Stop::Left)
    }
}
