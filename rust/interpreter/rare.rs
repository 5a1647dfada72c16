// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The implementation of all instructions, in all of their forms.

use crate::{
    flags::{self, Flags, Source},
    op::{Carry, Native, Op, Place, Two, What, Width},
    task::{to, Done, Stop, Task},
    Branch, Machine, Observer, Values,
};

/// The number of elements after which a string instruction is interrupted.
pub(crate) const STRING_MAX: u64 = 64;

impl<M: Machine, O: Observer> Task<'_, M, O> {
    /// Reads the source operand.
    #[inline]
    pub(crate) fn source(&mut self, op: &Op, width: Width) -> Result<u64, Stop> {
        if op.source.is_memory() {
            let address = self.address(op)?;
            self.load(address, width)
        } else {
            Ok(self.get(op.source, width))
        }
    }

    /// Writes the target operand.
    #[inline]
    pub(crate) fn write(&mut self, op: &Op, width: Width, value: u64) -> Done {
        if op.target.is_memory() {
            let address = self.address(op)?;
            self.store(address, width, value)
        } else {
            self.put(op.target, width, value);
            Ok(())
        }
    }

    /// Reads the target operand.
    #[inline]
    fn target(&mut self, op: &Op) -> Result<u64, Stop> {
        if op.target.is_memory() {
            let address = self.address(op)?;
            self.load(address, op.width)
        } else {
            Ok(self.get(op.target, op.width))
        }
    }

    /// Reads both operands, writes the result of `f`, and sets the flags.
    #[inline]
    fn both(&mut self, op: &Op, source: Source, f: impl FnOnce(u64, u64) -> u64) -> Done {
        let width = op.width;
        let b = self.source(op, width)?;
        let a = self.target(op)?;
        let result = f(a, b) & width.mask();

        self.write(op, width, result)?;
        self.flags.lazy(source, width, a, b);
        Ok(())
    }

    /// As [`both`](Self::both), for a bitwise operation.
    #[inline]
    fn bitwise(&mut self, op: &Op, f: impl FnOnce(u64, u64) -> u64) -> Done {
        let b = self.source(op, op.width)?;
        let a = self.target(op)?;
        let result = f(a, b) & op.width.mask();

        self.write(op, op.width, result)?;
        self.flags.logic(op.width, result);
        Ok(())
    }

    /// As [`both`](Self::both), for an operation with the carry. The flags stay if the write fails.
    fn carried(&mut self, op: &Op, f: impl FnOnce(&mut Flags, Width, u64, u64) -> u64) -> Done {
        let b = self.source(op, op.width)?;
        let a = self.target(op)?;
        let mut flags = self.flags;
        let result = f(&mut flags, op.width, a, b);

        self.write(op, op.width, result)?;
        self.flags = flags;
        Ok(())
    }

    /// As [`both`](Self::both), for an operation on one operand.
    #[inline]
    fn one(&mut self, op: &Op, f: impl FnOnce(&mut Flags, Width, u64) -> u64) -> Done {
        let a = self.target(op)?;
        let mut flags = self.flags;
        let result = f(&mut flags, op.width, a);

        self.write(op, op.width, result)?;
        self.flags = flags;
        Ok(())
    }

    /// Executes any instruction.
    pub(crate) fn any(&mut self, op: &Op) -> Done {
        self.set_immediate(op);
        match op.what {
            What::Nop => {}
            What::PtWrite => {
                let value = self.source(op, op.width)?;
                let from = self.next(op).wrapping_sub(op.len.into());

                let executed = self.executed_with(op.count.wrapping_sub(1));
                if !self.observer.ptwrite(from, value, op.width, executed) {
                    return Err(Stop::Left);
                }
            }
            What::Two(Two::Mov) => {
                let value = self.source(op, op.width)?;
                self.write(op, op.width, value)?;
            }
            What::Movzx(from) => {
                let value = self.source(op, from)?;
                self.put(op.target, op.width, value);
            }
            What::Movsx(from) => {
                let value = from.extend(self.source(op, from)?) & op.width.mask();
                self.put(op.target, op.width, value);
            }
            What::Two(Two::Add) => self.both(op, Source::Add, u64::wrapping_add)?,
            What::Two(Two::Sub) => self.both(op, Source::Sub, u64::wrapping_sub)?,
            What::Two(Two::And) => self.bitwise(op, |a, b| a & b)?,
            What::Two(Two::Or) => self.bitwise(op, |a, b| a | b)?,
            What::Two(Two::Xor) => self.bitwise(op, |a, b| a ^ b)?,
            What::Two(Two::Adc) => self.carried(op, Flags::adc)?,
            What::Two(Two::Sbb) => self.carried(op, Flags::sbb)?,
            What::Two(Two::Cmp) => {
                let b = self.source(op, op.width)?;
                let a = self.target(op)?;
                self.flags.lazy(Source::Sub, op.width, a, b);
            }
            What::Two(Two::Test) => {
                let b = self.source(op, op.width)?;
                let a = self.target(op)?;
                self.flags.logic(op.width, a & b);
            }
            What::Not => self.one(op, |_, width, a| !a & width.mask())?,
            What::Neg => self.one(op, Flags::neg)?,
            What::Inc => self.one(op, Flags::inc)?,
            What::Dec => self.one(op, Flags::dec)?,
            What::Xchg => {
                let (a, b) = (self.get(op.target, op.width), self.get(op.source, op.width));
                self.put(op.target, op.width, b);
                self.put(op.source, op.width, a);
            }
            What::Bswap => {
                let value = self.get(op.target, op.width).swap_bytes();
                let unused = 64_u32.wrapping_sub(op.width.bits());
                self.put(op.target, op.width, value.wrapping_shr(unused));
            }
            What::Swapped => {
                let a = self.source(op, op.width)?;
                let values = self.compute(Native::Movbe, op.width, (a, 0, 0))?;
                self.write(op, op.width, values.low)?;
            }
            What::Three(native) => {
                let b = self.source(op, op.width)?;
                let a = self.get(op.reg, op.width);
                let values = self.compute(native, op.width, (a, b, 0))?;
                self.put(op.target, op.width, values.low);
                self.flags.set(values.flags);
            }
            What::Cmov(condition) => {
                // The source is read, and the upper half becomes 0, whether the condition holds or
                // not.
                let value = self.source(op, op.width)?;
                let old = self.get(op.target, op.width);
                let new = if self.flags.has(condition) {
                    value
                } else {
                    old
                };
                self.put(op.target, op.width, new);
            }
            What::Set(condition) => {
                let holds = self.flags.has(condition);
                self.write(op, Width::B1, u64::from(holds))?;
            }
            What::ExtendA => {
                let half = match op.width {
                    Width::B8 => Width::B4,
                    Width::B4 => Width::B2,
                    _ => Width::B1,
                };
                let value = half.extend(self.at(Place::Ax)) & op.width.mask();
                self.put(Place::Ax, op.width, value);
            }
            What::ExtendD => {
                let is_negative = self.at(Place::Ax) & op.width.sign() != 0;
                let value = if is_negative { op.width.mask() } else { 0 };
                self.put(Place::Dx, op.width, value);
            }
            What::Native(native) => self.native(op, native)?,
            What::Multiply(native) => self.multiply(op, native)?,
            What::Divide(native) => self.divide(op, native)?,
            What::Leave => {
                let bp = self.at(Place::Bp);
                let value = self.load(bp, Width::B8)?;
                self.set(Place::Sp, bp.wrapping_add(8));
                self.set(Place::Bp, value);
            }
            What::Carry(carry) => {
                let flags = self.flags.get();
                self.flags.set(match carry {
                    Carry::Clear => flags & !flags::CARRY,
                    Carry::Set => flags | flags::CARRY,
                    Carry::Complement => flags ^ flags::CARRY,
                });
            }
            What::Direction(down) => {
                let flags = self.flags.get();
                self.flags.set(if down {
                    flags | flags::DIRECTION
                } else {
                    flags & !flags::DIRECTION
                });
            }
            What::Locked(locked) => self.locked(op, locked)?,
            What::Vector(what, how) => self.vector(op, what, how)?,
            What::Stos(repeated) => self.string(op, repeated, false)?,
            What::Movs(repeated) => self.string(op, repeated, true)?,
            What::Lea => {
                let address = self.effective(op) & op.width.mask();
                self.put(op.target, op.width, address);
            }
            What::Push => {
                let value = self.source(op, Width::B8)?;
                self.push(value)?;
            }
            What::Pop => {
                let sp = self.at(Place::Sp);
                let value = self.load(sp, Width::B8)?;
                self.set(Place::Sp, sp.wrapping_add(8));
                self.put(op.target, Width::B8, value);
            }
            What::JumpIf(condition) => {
                let holds = self.flags.has(condition);
                return self.jump_if(op, holds);
            }
            What::JumpIfCx => {
                let holds = self.at(Place::Cx) == 0;
                return self.jump_if(op, holds);
            }
            What::Jump => return self.branch(Branch::Jump, op, op.imm),
            What::Call => {
                self.push(self.next(op))?;
                return self.branch(Branch::Call, op, op.imm);
            }
            What::Return => {
                let sp = self.at(Place::Sp);
                let target = to(self.load(sp, Width::B8)?)?;
                self.set(Place::Sp, sp.wrapping_add(8).wrapping_add(op.imm));
                return self.branch(Branch::Return, op, target);
            }
            What::IndirectJump => {
                let target = to(self.source(op, Width::B8)?)?;
                return self.branch(Branch::IndirectJump, op, target);
            }
            What::IndirectCall => {
                let target = to(self.source(op, Width::B8)?)?;
                self.push(self.next(op))?;
                return self.branch(Branch::IndirectCall, op, target);
            }
        }
        Ok(())
    }

    /// Executes a conditional branch.
    #[inline(always)]
    pub(crate) fn jump_if(&mut self, op: &Op, holds: bool) -> Done {
        if holds {
            self.branch(Branch::Conditional { taken: true }, op, op.imm)
        } else {
            self.pass(op)
        }
    }

    fn compute(
        &mut self,
        native: Native,
        width: Width,
        (a, b, c): (u64, u64, u64),
    ) -> Result<Values, Stop> {
        let flags = self.flags.get();
        let old = flags & flags::ARITHMETIC;
        let mut values = self
            .machine
            .compute(native, width, a, b, c, old)
            .ok_or(Stop::Left)?;

        values.low &= width.mask();
        values.high &= width.mask();
        values.flags = flags & !flags::ARITHMETIC | values.flags & flags::ARITHMETIC;
        Ok(values)
    }

    fn native(&mut self, op: &Op, native: Native) -> Done {
        // With a memory operand, the flags for an immediate are the same as for `cl`.
        let native = match native {
            Native::RolBy if op.target.is_memory() => Native::Rol,
            Native::RorBy if op.target.is_memory() => Native::Ror,
            native => native,
        };
        // The count of a shift is a byte.
        let b = match native {
            Native::Rol
            | Native::Ror
            | Native::RolBy
            | Native::RorBy
            | Native::Rcl
            | Native::Rcr
            | Native::Shl
            | Native::Shr
            | Native::Sar
            | Native::Shld
            | Native::Shrd => self.source(op, Width::B1)?,
            _ => self.source(op, op.width)?,
        };
        let a = self.target(op)?;
        // A double shift takes bits from this register, and a multiplication writes it.
        let reg = op.reg;
        let c = self.get(reg, op.width);
        // The result of a 16-bit double shift is undefined if the count is more than 16.
        if matches!(native, Native::Shld | Native::Shrd) && op.width == Width::B2 {
            return Err(Stop::Left);
        }
        let values = self.compute(native, op.width, (a, b, c))?;

        match native {
            Native::Bt => {}
            Native::ImulTwo => self.put(reg, op.width, values.low),
            // With a count of 0 this writes the old value to memory, which a debugger cannot see.
            // The upper half of a register becomes 0 with any count.
            _ => self.write(op, op.width, values.low)?,
        }
        self.flags.set(values.flags);
        Ok(())
    }

    fn multiply(&mut self, op: &Op, native: Native) -> Done {
        let b = self.source(op, op.width)?;
        let a = self.get(Place::Ax, op.width);
        let values = self.compute(native, op.width, (a, b, 0))?;

        self.put(Place::Ax, op.width, values.low);
        self.put(Place::Dx, op.width, values.high);
        self.flags.set(values.flags);
        Ok(())
    }

    fn divide(&mut self, op: &Op, native: Native) -> Done {
        let b = self.source(op, op.width)?;
        let (a, c) = (self.get(Place::Ax, op.width), self.get(Place::Dx, op.width));

        if !fits(native, op.width, a, b, c) {
            return Err(Stop::Left);
        }
        let values = self.compute(native, op.width, (a, b, c))?;

        self.put(Place::Ax, op.width, values.low);
        self.put(Place::Dx, op.width, values.high);
        self.flags.set(values.flags);
        Ok(())
    }

    /// STOS and MOVS. With a REP prefix it executes at most [`STRING_MAX`] elements.
    fn string(&mut self, op: &Op, repeated: bool, moves: bool) -> Done {
        let mut done = 0;

        loop {
            let left = if repeated { self.at(Place::Cx) } else { 1 };

            if left == 0 {
                return Ok(());
            }
            if done == STRING_MAX {
                return Err(Stop::Again);
            }
            match self.element(op.width, moves) {
                Ok(()) => {}
                // The finished elements stay. The processor continues behind them.
                Err(_) if done > 0 => return Err(Stop::Again),
                Err(stop) => return Err(stop),
            }
            done = done.wrapping_add(1);
            if !repeated {
                return Ok(());
            }
            self.set(Place::Cx, left.wrapping_sub(1));
        }
    }

    /// Executes one element of a string instruction.
    fn element(&mut self, width: Width, moves: bool) -> Done {
        let (from, to) = (self.at(Place::Si), self.at(Place::Di));
        let value = if moves {
            self.load(from, width)?
        } else {
            self.at(Place::Ax) & width.mask()
        };
        let step = if self.flags.direction() {
            width.bytes().wrapping_neg()
        } else {
            width.bytes()
        };

        self.store(to, width, value)?;
        self.set(Place::Di, to.wrapping_add(step));
        if moves {
            self.set(Place::Si, from.wrapping_add(step));
        }
        Ok(())
    }
}

/// Whether the quotient of `c`:`a` by `b` fits into the width. For IDIV only a dividend that is
/// sign-extended from `a` is accepted; programs hardly use others.
fn fits(native: Native, width: Width, a: u64, b: u64, c: u64) -> bool {
    match native {
        Native::Div => c < b,
        _ => {
            let is_extended = c
                == if a & width.sign() != 0 {
                    width.mask()
                } else {
                    0
                };
            let overflows = a == width.sign() && b == width.mask();

            b != 0 && is_extended && !overflows
        }
    }
}
