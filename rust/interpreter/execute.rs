// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an instruction does to the registers and the memory.
//!
//! An instruction is executed whole, or nothing is changed and it is left to the processor: so a fault has
//! the address, the error code and the partial effects that the processor gives it.

use crate::{
    flags::{self, Flags, Source},
    op::{Carry, Native, Op, Operand, Place, What, Width, IMMEDIATE},
    Machine, Registers, Values,
};

/// Left to the processor: nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leave;

/// What follows an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// The next one.
    Next,
    /// That at an address, of a branch.
    To(u64),
    /// The same again: more of a string is left.
    Again,
}

/// The accumulator.
const AX: Place = Place {
    at: 0,
    shift: 0,
    is_memory: false,
};
const DX: Place = Place { at: 2, ..AX };

/// The stack pointer.
const SP: u8 = 4;
const BP: u8 = 5;
const SI: u8 = 6;
const DI: u8 = 7;

/// The number of a string's elements after which something else can come in between.
pub(crate) const STRING_MAX: u64 = 64;

/// The longest store, in bytes.
const STORE_MAX: u64 = 32;

/// A task that is interpreted.
pub(crate) struct Task<'a, M> {
    /// The general registers; then 0, for addresses without one; then the immediate. The others are not
    /// used: an index of five bits is always one.
    pub(crate) general: [u64; 32],
    pub(crate) ip: u64,
    pub(crate) flags: Flags,
    pub(crate) machine: &'a mut M,
    /// Where code is that was decoded and not executed yet: first address and length.
    pub(crate) code: (u64, u64),
    /// Whether it was written over.
    pub(crate) rewritten: bool,
}

impl<'a, M: Machine> Task<'a, M> {
    pub(crate) fn new(registers: &Registers, machine: &'a mut M) -> Self {
        let mut general = [0; 32];

        for (to, from) in general.iter_mut().zip(registers.general) {
            *to = from;
        }
        Self {
            general,
            ip: registers.ip,
            flags: Flags::new(registers.flags),
            machine,
            code: (0, 0),
            rewritten: false,
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

    /// A general register.
    #[inline]
    fn at(&self, number: u8) -> u64 {
        self.general
            .get(usize::from(number & 31))
            .copied()
            .unwrap_or(0)
    }

    #[inline]
    fn set(&mut self, number: u8, value: u64) {
        if let Some(register) = self.general.get_mut(usize::from(number & 15)) {
            *register = value;
        }
    }

    #[inline]
    fn get(&self, place: Place, width: Width) -> u64 {
        self.at(place.at).wrapping_shr(place.shift.into()) & width.mask()
    }

    /// Writes a register: the upper half becomes 0 with 4 bytes, and stays with fewer.
    #[inline]
    pub(crate) fn put(&mut self, place: Place, width: Width, value: u64) {
        if width.bytes() >= 4 {
            self.set(place.at, value);
        } else {
            let shift = u32::from(place.shift);
            let mask = width.mask().wrapping_shl(shift);
            let old = self.at(place.at) & !mask;

            self.set(place.at, old | value.wrapping_shl(shift));
        }
    }

    /// The address of the memory operand, without the base of a segment.
    #[inline]
    fn effective(&self, op: &Op) -> u64 {
        let index = self.at(op.index).wrapping_shl(op.scale.into());

        op.displacement
            .wrapping_add(self.at(op.base))
            .wrapping_add(index)
    }

    #[inline]
    pub(crate) fn address(&mut self, op: &Op) -> Result<u64, Leave> {
        let address = self.effective(op);

        if op.fs {
            Ok(address.wrapping_add(self.machine.fs_base().ok_or(Leave)?))
        } else {
            Ok(address)
        }
    }

    #[inline]
    fn load(&mut self, address: u64, width: Width) -> Result<u64, Leave> {
        self.machine.load(address, width).ok_or(Leave)
    }

    #[inline]
    fn store(&mut self, address: u64, width: Width, value: u64) -> Result<(), Leave> {
        self.stores_at(address);
        self.machine.store(address, width, value).ok_or(Leave)
    }

    /// Something is written at this address.
    #[inline]
    pub(crate) fn stores_at(&mut self, address: u64) {
        let (first, len) = self.code;

        // What begins before the code can reach into it.
        if address.wrapping_sub(first.wrapping_sub(STORE_MAX)) < len.wrapping_add(STORE_MAX) {
            self.rewritten = true;
        }
    }

    /// The operand that is read.
    #[inline]
    pub(crate) fn source(&mut self, op: &Op, width: Width) -> Result<u64, Leave> {
        if op.source.is_memory {
            let address = self.address(op)?;
            self.load(address, width)
        } else {
            Ok(self.get(op.source, width))
        }
    }

    /// Writes the operand that is only written.
    #[inline]
    pub(crate) fn write(&mut self, op: &Op, width: Width, value: u64) -> Result<(), Leave> {
        if op.target.is_memory {
            let address = self.address(op)?;
            self.store(address, width, value)
        } else {
            self.put(op.target, width, value);
            Ok(())
        }
    }

    /// The operand that is read first.
    #[inline]
    fn target(&mut self, op: &Op) -> Result<u64, Leave> {
        if op.target.is_memory {
            let address = self.address(op)?;
            self.load(address, op.width)
        } else {
            Ok(self.get(op.target, op.width))
        }
    }

    /// Reads both operands, and writes what `f` makes of them.
    #[inline]
    fn both(
        &mut self,
        op: &Op,
        source: Source,
        f: impl FnOnce(u64, u64) -> u64,
    ) -> Result<Then, Leave> {
        let width = op.width;
        let b = self.source(op, width)?;
        let a = self.target(op)?;
        let result = f(a, b) & width.mask();

        self.write(op, width, result)?;
        self.flags.lazy(source, width, a, b, result);
        Ok(Then::Next)
    }

    /// As [`both`](Self::both), with the carry. The flags are as before if the write fails.
    fn carried(
        &mut self,
        op: &Op,
        f: impl FnOnce(&mut Flags, Width, u64, u64) -> u64,
    ) -> Result<Then, Leave> {
        let b = self.source(op, op.width)?;
        let a = self.target(op)?;
        let mut flags = self.flags;
        let result = f(&mut flags, op.width, a, b);

        self.write(op, op.width, result)?;
        self.flags = flags;
        Ok(Then::Next)
    }

    /// As [`both`](Self::both), with one operand.
    #[inline]
    fn one(
        &mut self,
        op: &Op,
        f: impl FnOnce(&mut Flags, Width, u64) -> u64,
    ) -> Result<Then, Leave> {
        let a = self.target(op)?;
        let mut flags = self.flags;
        let result = f(&mut flags, op.width, a);

        self.write(op, op.width, result)?;
        self.flags = flags;
        Ok(Then::Next)
    }

    fn push(&mut self, value: u64) -> Result<(), Leave> {
        let sp = self.at(SP).wrapping_sub(8);

        self.store(sp, Width::B8, value)?;
        self.set(SP, sp);
        Ok(())
    }

    /// Executes an instruction that lies before `next`.
    #[inline]
    pub(crate) fn execute(&mut self, op: &Op, next: u64) -> Result<Then, Leave> {
        if let Some(place) = self.general.get_mut(usize::from(IMMEDIATE)) {
            *place = op.imm;
        }
        match op.what {
            What::Copy => {
                let value = self.at(op.source.at) & op.width.mask();
                self.set(op.target.at, value);
            }
            What::Load => {
                let value = self.load(self.effective(op), op.width)?;
                self.set(op.target.at, value);
            }
            What::Store => {
                let value = self.at(op.source.at) & op.width.mask();
                self.store(self.effective(op), op.width, value)?;
            }
            What::AddReg => self.registers_only(op, Source::Add, u64::wrapping_add),
            What::SubReg => self.registers_only(op, Source::Sub, u64::wrapping_sub),
            What::AndReg => self.registers_only(op, Source::Logic, |a, b| a & b),
            What::OrReg => self.registers_only(op, Source::Logic, |a, b| a | b),
            What::XorReg => self.registers_only(op, Source::Logic, |a, b| a ^ b),
            What::CmpReg => {
                self.compared(op, Source::Sub, u64::wrapping_sub);
            }
            What::TestReg => {
                self.compared(op, Source::Logic, |a, b| a & b);
            }
            What::Lea => {
                let address = self.effective(op) & op.width.mask();
                self.put(op.target, op.width, address);
            }
            What::Push => {
                let value = self.source(op, Width::B8)?;
                self.push(value)?;
            }
            What::Pop => {
                let sp = self.at(SP);
                let value = self.load(sp, Width::B8)?;
                self.set(SP, sp.wrapping_add(8));
                self.put(op.target, Width::B8, value);
            }
            What::Jump => return to(op.imm),
            What::JumpIf(condition) => {
                return to(if self.flags.has(condition) {
                    op.imm
                } else {
                    next
                })
            }
            What::Call => {
                let target = to(op.imm)?;
                self.push(next)?;
                return Ok(target);
            }
            What::Return => {
                let sp = self.at(SP);
                let target = to(self.load(sp, Width::B8)?)?;
                self.set(SP, sp.wrapping_add(8).wrapping_add(op.imm));
                return Ok(target);
            }
            _ => return self.execute_rare(op, next),
        }
        Ok(Then::Next)
    }

    /// What `f` makes of two registers, or of a register and the immediate, of 4 or 8 bytes, and its flags.
    #[inline]
    fn compared(&mut self, op: &Op, source: Source, f: impl FnOnce(u64, u64) -> u64) -> u64 {
        let mask = op.width.mask();
        let a = self.at(op.target.at) & mask;
        let b = self.at(op.source.at) & mask;
        let result = f(a, b) & mask;

        self.flags.lazy(source, op.width, a, b, result);
        result
    }

    /// As [`compared`](Self::compared), into the first register.
    #[inline]
    fn registers_only(&mut self, op: &Op, source: Source, f: impl FnOnce(u64, u64) -> u64) {
        let result = self.compared(op, source, f);

        self.set(op.target.at, result);
    }

    /// Executes an instruction that [`execute`](Self::execute) does not.
    #[inline(never)]
    fn execute_rare(&mut self, op: &Op, next: u64) -> Result<Then, Leave> {
        match op.what {
            What::Nop => {}
            What::Mov => {
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
            What::Add => return self.both(op, Source::Add, u64::wrapping_add),
            What::Sub => return self.both(op, Source::Sub, u64::wrapping_sub),
            What::And => return self.both(op, Source::Logic, |a, b| a & b),
            What::Or => return self.both(op, Source::Logic, |a, b| a | b),
            What::Xor => return self.both(op, Source::Logic, |a, b| a ^ b),
            What::Adc => return self.carried(op, Flags::adc),
            What::Sbb => return self.carried(op, Flags::sbb),
            What::Cmp => {
                let b = self.source(op, op.width)?;
                let a = self.target(op)?;
                let result = a.wrapping_sub(b) & op.width.mask();
                self.flags.lazy(Source::Sub, op.width, a, b, result);
            }
            What::Test => {
                let b = self.source(op, op.width)?;
                let a = self.target(op)?;
                self.flags.lazy(Source::Logic, op.width, a, b, a & b);
            }
            What::Not => return self.one(op, |_, width, a| !a & width.mask()),
            What::Neg => return self.one(op, Flags::neg),
            What::Inc => return self.one(op, Flags::inc),
            What::Dec => return self.one(op, Flags::dec),
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
            What::Cmov(condition) => {
                // The source is read in any case, and the upper half becomes 0.
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
                let value = half.extend(self.at(0)) & op.width.mask();
                self.put(AX, op.width, value);
            }
            What::ExtendD => {
                let is_negative = self.at(0) & op.width.sign() != 0;
                let value = if is_negative { op.width.mask() } else { 0 };
                self.put(DX, op.width, value);
            }
            What::Native(native) => return self.native(op, native),
            What::Multiply(native) => return self.multiply(op, native),
            What::Divide(native) => return self.divide(op, native),
            What::Leave => {
                let bp = self.at(BP);
                let value = self.load(bp, Width::B8)?;
                self.set(SP, bp.wrapping_add(8));
                self.set(BP, value);
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
            What::Vector(what, how) => return self.vector(op, what, how),
            What::Stos(repeated) => return self.string(op, repeated, false),
            What::Movs(repeated) => return self.string(op, repeated, true),
            What::JumpIfCx => return to(if self.at(1) == 0 { op.imm } else { next }),
            What::IndirectJump => return to(self.source(op, Width::B8)?),
            What::IndirectCall => {
                let target = to(self.source(op, Width::B8)?)?;
                self.push(next)?;
                return Ok(target);
            }
            // The others are not rare.
            _ => return Err(Leave),
        }
        Ok(Then::Next)
    }

    fn compute(
        &mut self,
        native: Native,
        width: Width,
        (a, b, c): (u64, u64, u64),
    ) -> Result<Values, Leave> {
        let flags = self.flags.get();
        let old = flags & flags::ARITHMETIC;
        let mut values = self
            .machine
            .compute(native, width, a, b, c, old)
            .ok_or(Leave)?;

        values.low &= width.mask();
        values.high &= width.mask();
        values.flags = flags & !flags::ARITHMETIC | values.flags & flags::ARITHMETIC;
        Ok(values)
    }

    fn native(&mut self, op: &Op, native: Native) -> Result<Then, Leave> {
        // The count of a shift is a byte.
        let b = match native {
            Native::Rol
            | Native::Ror
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
        // The register that a double shift takes from, and the only target of a multiplication.
        let reg = op.place(Operand::Reg);
        let c = self.get(reg, op.width);
        // With 16 bits the result of a double shift by more is undefined.
        if matches!(native, Native::Shld | Native::Shrd) && op.width == Width::B2 {
            return Err(Leave);
        }
        let values = self.compute(native, op.width, (a, b, c))?;

        match native {
            Native::Bt => {}
            Native::ImulTwo => self.put(reg, op.width, values.low),
            // A count of 0 writes nothing to memory that a debugger could see; the register's upper
            // half becomes 0 in any case.
            _ => self.write(op, op.width, values.low)?,
        }
        self.flags.set(values.flags);
        Ok(Then::Next)
    }

    fn multiply(&mut self, op: &Op, native: Native) -> Result<Then, Leave> {
        let b = self.source(op, op.width)?;
        let a = self.get(AX, op.width);
        let values = self.compute(native, op.width, (a, b, 0))?;

        self.put(AX, op.width, values.low);
        self.put(DX, op.width, values.high);
        self.flags.set(values.flags);
        Ok(Then::Next)
    }

    fn divide(&mut self, op: &Op, native: Native) -> Result<Then, Leave> {
        let b = self.source(op, op.width)?;
        let (a, c) = (self.get(AX, op.width), self.get(DX, op.width));

        if !fits(native, op.width, a, b, c) {
            return Err(Leave);
        }
        let values = self.compute(native, op.width, (a, b, c))?;

        self.put(AX, op.width, values.low);
        self.put(DX, op.width, values.high);
        self.flags.set(values.flags);
        Ok(Then::Next)
    }

    /// STOS and MOVS. With a REP prefix up to [`STRING_MAX`] elements.
    fn string(&mut self, op: &Op, repeated: bool, moves: bool) -> Result<Then, Leave> {
        let mut done = 0;

        loop {
            let left = if repeated { self.at(1) } else { 1 };

            if left == 0 {
                return Ok(Then::Next);
            }
            if done == STRING_MAX {
                return Ok(Then::Again);
            }
            match self.element(op.width, moves) {
                Ok(()) => {}
                // What is done is done: the processor goes on from there.
                Err(Leave) if done > 0 => return Ok(Then::Again),
                Err(Leave) => return Err(Leave),
            }
            done = done.wrapping_add(1);
            if !repeated {
                return Ok(Then::Next);
            }
            self.set(1, left.wrapping_sub(1));
        }
    }

    /// An element of a string.
    fn element(&mut self, width: Width, moves: bool) -> Result<(), Leave> {
        let (from, to) = (self.at(SI), self.at(DI));
        let value = if moves {
            self.load(from, width)?
        } else {
            self.at(0) & width.mask()
        };
        let step = if self.flags.direction() {
            width.bytes().wrapping_neg()
        } else {
            width.bytes()
        };

        self.store(to, width, value)?;
        self.set(DI, to.wrapping_add(step));
        if moves {
            self.set(SI, from.wrapping_add(step));
        }
        Ok(())
    }
}

/// A branch to `address`. The processor faults at an address that is none.
fn to(address: u64) -> Result<Then, Leave> {
    // User code is in the lower half.
    if address >> 47 == 0 {
        Ok(Then::To(address))
    } else {
        Err(Leave)
    }
}

/// Whether the quotient of `c`:`a` by `b` fits into the width. The dividends that programs have are
/// extended ones.
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
