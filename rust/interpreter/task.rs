// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A task that is interpreted: its registers and its memory.
//!
//! An instruction is executed completely, or it changes nothing and is left to the processor. So
//! the processor raises each fault, with its address, its error code and its partial effects.

use crate::{
    decode::{is_user, WORDS},
    flags::Flags,
    op::{Op, Place, Width},
    Branch, Machine, Observer, Registers,
};

/// Why the next instruction of the block is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The block ends.
    End,
    /// More of the block can be decoded.
    More,
    /// The limit of instructions is reached.
    Limit,
    /// The observer refuses the next instructions.
    Refused,
    /// The instruction has branched to [`Task::ip`].
    Branched,
    /// The instruction has branched to [`Task::ip`], and the observer stops the interpreter.
    Enough,
    /// The instruction is a branch that was not taken, and the observer stops the interpreter.
    Passed,
    /// The string instruction has elements left and is executed again.
    Again,
    /// The instruction is left to the processor. Nothing has changed.
    Left,
}

pub(crate) type Done = Result<(), Stop>;

/// The longest store, in bytes.
const STORE_MAX: u64 = 32;

/// The length of the longest block and of the longest store in front of it, in bytes.
// CAST: Widening; `From` is not const.
#[allow(clippy::as_conversions)]
const REACH: u64 = STORE_MAX + 8 * WORDS as u64;

/// A task that is interpreted.
pub(crate) struct Task<'a, M, O> {
    /// The values of [`Place`]s: the general registers, then 0, then the immediate. The other
    /// elements are not used.
    pub(crate) general: [u64; Place::COUNT],
    /// The address of the block that is executed; afterwards, of the next instruction.
    pub(crate) ip: u64,
    pub(crate) flags: Flags,
    pub(crate) machine: &'a mut M,
    pub(crate) observer: &'a mut O,
    /// The number of instructions that were executed before the block.
    pub(crate) executed: u64,
    /// The value of [`Machine::pass()`].
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

    /// The address behind an instruction of the block.
    #[inline]
    pub(crate) fn next(&self, op: &Op) -> u64 {
        self.ip.wrapping_add(op.end.into())
    }

    /// The number of executed instructions, with `count` instructions of the block.
    #[inline]
    pub(crate) fn executed_with(&self, count: u8) -> u64 {
        self.executed.wrapping_add(count.into())
    }

    /// Executes a branch to `to`.
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

    /// Executes a conditional branch that is not taken.
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

    /// The value of a place in [`Task::general`].
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

    /// Reads an operand that is not in memory.
    #[inline]
    pub(crate) fn get(&self, place: Place, width: Width) -> u64 {
        let (register, shift) = place.in_register();

        self.at(register).wrapping_shr(shift) & width.mask()
    }

    /// Writes a register. With 4 bytes the upper half becomes 0; with fewer the other bits stay.
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

    /// Stores the immediate, so that it can be read as an operand.
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

    /// Loads a number into a register. The bits above the number become 0.
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

    /// Fails with [`Stop::Left`] if a store to this address may change the block that is executed.
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

/// Checks the target of a branch. At any other address the processor faults, so the branch is left
/// to it.
#[inline]
pub(crate) fn to(address: u64) -> Result<u64, Stop> {
    if is_user(address) {
        Ok(address)
    } else {
        Err(Stop::Left)
    }
}
