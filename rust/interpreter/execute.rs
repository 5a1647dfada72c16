// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A task that is interpreted: its registers and its memory.
//!
//! An instruction is executed whole, or nothing is changed and it is left to the processor: so a fault has
//! the address, the error code and the partial effects that the processor gives it.

use crate::{
    block::Block,
    decode::is_user,
    flags::Flags,
    frequent,
    op::{Op, Place, Width, IMMEDIATE},
    Branch, Machine, Observer, Registers,
};

/// Why the instruction behind this one is not the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It was a branch, to [`Task::ip`].
    Branched,
    /// So it was, and the observer wants no more.
    Enough,
    /// It was a branch that does not lead away, and the observer wants no more.
    Passed,
    /// It has written over code that was decoded.
    Rewritten,
    /// It is executed again: more of a string is left.
    Again,
    /// It is left to the processor: nothing has changed.
    Left,
}

pub(crate) type Done = Result<(), Stop>;

/// The stack pointer.
pub(crate) const SP: u8 = 4;

/// The longest store, in bytes.
const STORE_MAX: u64 = 32;

/// A task that is interpreted.
pub(crate) struct Task<'a, M, O> {
    /// The general registers; then 0, for addresses without one; then the immediate, where it is used. The
    /// others are not used: an index of five bits is always one.
    pub(crate) general: [u64; 32],
    /// The address of the block that is executed, or of what is behind it.
    pub(crate) ip: u64,
    pub(crate) flags: Flags,
    pub(crate) machine: &'a mut M,
    pub(crate) observer: &'a mut O,
    /// Where a store that reaches into the block begins: first address and length.
    code: (u64, u64),
    /// Whether there was one.
    rewritten: bool,
    /// Instructions that were executed before the block.
    pub(crate) executed: u64,
}

impl<'a, M: Machine, O: Observer> Task<'a, M, O> {
    pub(crate) fn new(registers: &Registers, machine: &'a mut M, observer: &'a mut O) -> Self {
        let mut general = [0; 32];

        for (to, from) in general.iter_mut().zip(registers.general) {
            *to = from;
        }
        Self {
            general,
            ip: registers.ip,
            flags: Flags::new(registers.flags),
            machine,
            observer,
            code: (0, 0),
            rewritten: false,
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

    /// Executes the instructions of a block, `limit` at most, up to the first one behind which another is next.
    /// Adds to `executed` how many.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        block: &Block,
        limit: u64,
        executed: &mut u64,
    ) -> Result<(), (Stop, u64)> {
        let (ops, len) = block.first_ops(limit);

        self.code = (
            block.first.wrapping_sub(STORE_MAX),
            block.len.wrapping_add(STORE_MAX),
        );
        self.rewritten = false;
        for op in ops {
            let Err(stop) = frequent::run(self, op) else {
                continue;
            };
            let next = block.first.wrapping_add(op.end.into());
            let from = next.wrapping_sub(op.len.into());
            let mut done = u64::from(op.count);

            match stop {
                Stop::Branched | Stop::Enough => {}
                Stop::Rewritten | Stop::Passed => self.ip = next,
                Stop::Left | Stop::Again => {
                    self.ip = from;
                    done = done.wrapping_sub(1);
                }
            }
            *executed = executed.wrapping_add(done);
            return Err((stop, from));
        }
        *executed = executed.wrapping_add(number(ops.len()));
        self.ip = block.first.wrapping_add(len);
        Ok(())
    }

    /// The address behind an instruction of the block.
    #[inline]
    pub(crate) fn next(&self, op: &Op) -> u64 {
        self.ip.wrapping_add(op.end.into())
    }

    /// So many instructions of the block have been executed.
    #[inline]
    pub(crate) fn executes(&mut self, count: u8) {
        self.observer
            .executes(self.executed.wrapping_add(count.into()));
    }

    /// A branch leads to `to`.
    #[inline]
    pub(crate) fn branch(&mut self, branch: Branch, op: &Op, to: u64) -> Done {
        let next = self.next(op);
        let from = next.wrapping_sub(op.len.into());

        self.ip = to;
        self.executes(op.count);
        if self.observer.branches(branch, from, next, to).is_continue() {
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

        self.executes(op.count);
        if self
            .observer
            .branches(branch, from, next, next)
            .is_continue()
        {
            Ok(())
        } else {
            Err(Stop::Passed)
        }
    }

    /// The end of an instruction that may have written to memory.
    #[inline]
    pub(crate) fn stored(&self) -> Done {
        if self.rewritten {
            Err(Stop::Rewritten)
        } else {
            Ok(())
        }
    }

    /// A general register.
    #[inline]
    pub(crate) fn at(&self, number: u8) -> u64 {
        self.general
            .get(usize::from(number & 31))
            .copied()
            .unwrap_or(0)
    }

    #[inline]
    pub(crate) fn set(&mut self, number: u8, value: u64) {
        if let Some(register) = self.general.get_mut(usize::from(number & 15)) {
            *register = value;
        }
    }

    /// An operand that is not in memory.
    #[inline]
    pub(crate) fn get(&self, place: Place, width: Width) -> u64 {
        self.at(place.at()).wrapping_shr(place.shift().into()) & width.mask()
    }

    /// Writes a register: the upper half becomes 0 with 4 bytes, and stays with fewer.
    #[inline]
    pub(crate) fn put(&mut self, place: Place, width: Width, value: u64) {
        if width.bytes() >= 4 {
            self.set(place.at(), value);
        } else {
            let shift = u32::from(place.shift());
            let mask = width.mask().wrapping_shl(shift);
            let old = self.at(place.at()) & !mask;

            self.set(place.at(), old | value.wrapping_shl(shift));
        }
    }

    /// Makes the immediate an operand.
    #[inline]
    pub(crate) fn set_immediate(&mut self, op: &Op) {
        if let Some(place) = self.general.get_mut(usize::from(IMMEDIATE)) {
            *place = op.imm;
        }
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

    #[inline]
    pub(crate) fn store(&mut self, address: u64, width: Width, value: u64) -> Done {
        self.stores_at(address);
        self.machine.store(address, width, value).ok_or(Stop::Left)
    }

    /// Something is written at this address.
    #[inline]
    pub(crate) fn stores_at(&mut self, address: u64) {
        let (first, len) = self.code;

        if address.wrapping_sub(first) < len {
            self.rewritten = true;
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, value: u64) -> Done {
        let sp = self.at(SP).wrapping_sub(8);

        self.store(sp, Width::B8, value)?;
        self.set(SP, sp);
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

fn number(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(0)
}
