// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Vector registers: moves, and what functions on strings do.

use crate::{
    execute::{Leave, Task, Then},
    op::{How, Op, Operand, Vector, Width},
    Machine,
};

/// Four words, the lowest first. Instructions on 128 bits have two of them.
type Value = [u64; 4];

impl How {
    /// In bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Legacy | Self::Low => 16,
            Self::Whole => 32,
        }
    }
}

impl<M: Machine> Task<'_, M> {
    pub(crate) fn vector(&mut self, op: &Op, what: Vector, how: How) -> Result<Then, Leave> {
        match what {
            Vector::Move(aligned) => self.move_vector(op, how, aligned)?,
            Vector::FromGeneral => {
                let value = self.source(op, op.width)?;
                self.set_vector(op.reg.number(), [value, 0, 0, 0], how)?;
            }
            Vector::ToGeneral => {
                let [value, ..] = self.get_vector(op.reg.number())?;
                self.write(op, op.width, value & op.width.mask())?;
            }
            Vector::MoveLow => self.move_low(op, how)?,
            Vector::Mask => {
                let value = self.get_vector(op.rm.number())?;
                let used = if how == How::Whole { 4 } else { 2 };
                let masks = value.into_iter().take(used).enumerate();
                let mask = masks.fold(0, |mask, (at, word)| {
                    let shift = u32::try_from(at).unwrap_or(0).wrapping_mul(8);
                    mask | mask_of(word).wrapping_shl(shift)
                });
                self.put(op.target, Width::B8, mask);
            }
            Vector::ZeroUpper => self.machine.zero_upper().ok_or(Leave)?,
            _ => {
                let first = u8::try_from(op.imm).map_err(|_| Leave)?;
                let a = self.get_vector(first)?;
                let b = self.vector_source(op, how)?;
                self.set_vector(op.reg.number(), computed(what, a, b), how)?;
            }
        }
        Ok(Then::Next)
    }

    fn get_vector(&mut self, number: u8) -> Result<Value, Leave> {
        self.machine.vector(number).ok_or(Leave)
    }

    fn set_vector(&mut self, number: u8, value: Value, how: How) -> Result<(), Leave> {
        self.machine.set_vector(number, value, how).ok_or(Leave)
    }

    /// Where an operand in memory is. SSE wants it aligned.
    fn vector_address(&mut self, op: &Op, how: How, aligned: bool) -> Result<u64, Leave> {
        let address = self.address(op)?;

        if aligned && address & how.bytes().wrapping_sub(1) != 0 {
            return Err(Leave);
        }
        Ok(address)
    }

    fn move_vector(&mut self, op: &Op, how: How, aligned: bool) -> Result<(), Leave> {
        let (reg, rm) = (op.reg.number(), op.rm.number());

        if op.from == Operand::Memory {
            let address = self.vector_address(op, how, aligned)?;
            self.machine.load_vector(reg, address, how).ok_or(Leave)
        } else if op.to == Operand::Memory {
            let address = self.vector_address(op, how, aligned)?;
            self.stores_at(address);
            self.machine.store_vector(reg, address, how).ok_or(Leave)
        } else {
            let (from, to) = if op.to == Operand::Reg {
                (rm, reg)
            } else {
                (reg, rm)
            };
            let value = self.get_vector(from)?;
            self.set_vector(to, value, how)
        }
    }

    fn move_low(&mut self, op: &Op, how: How) -> Result<(), Leave> {
        let (reg, rm) = (op.reg.number(), op.rm.number());
        let value = match op.from {
            Operand::Memory => self.source(op, Width::B8)?,
            Operand::Reg => self.get_vector(reg)?[0],
            _ => self.get_vector(rm)?[0],
        };

        match op.to {
            Operand::Memory => self.write(op, Width::B8, value),
            Operand::Reg => self.set_vector(reg, [value, 0, 0, 0], how),
            _ => self.set_vector(rm, [value, 0, 0, 0], how),
        }
    }

    /// The second source. What is in memory is read by one access, through the register that is written:
    /// its old value is not needed any more.
    fn vector_source(&mut self, op: &Op, how: How) -> Result<Value, Leave> {
        if op.from != Operand::Memory {
            return self.get_vector(op.rm.number());
        }
        let reg = op.reg.number();
        let address = self.vector_address(op, how, how == How::Legacy)?;

        self.machine.load_vector(reg, address, how).ok_or(Leave)?;
        self.get_vector(reg)
    }
}

/// What is made of two registers. The words that an instruction has not do not matter.
fn computed(what: Vector, a: Value, b: Value) -> Value {
    if what == Vector::UnpackLow {
        return [a[0], b[0], a[2], b[2]];
    }
    let mut result = [0; 4];

    for ((to, a), b) in result.iter_mut().zip(a).zip(b) {
        *to = match what {
            Vector::And => a & b,
            Vector::AndNot => !a & b,
            Vector::Or => a | b,
            Vector::Xor => a ^ b,
            Vector::Equal(width) => each(width, a, b, |a, b| if a == b { u64::MAX } else { 0 }),
            Vector::Add(width) => each(width, a, b, u64::wrapping_add),
            Vector::Sub(width) => each(width, a, b, u64::wrapping_sub),
            Vector::Min => each(Width::B1, a, b, u64::min),
            _ => 0,
        };
    }
    result
}

/// What `f` makes of the elements of two words.
fn each(width: Width, a: u64, b: u64, f: impl Fn(u64, u64) -> u64) -> u64 {
    let mask = width.mask();
    let mut result = 0;

    let mut shift = 0_u32;

    while shift < u64::BITS {
        let (a, b) = (a.wrapping_shr(shift) & mask, b.wrapping_shr(shift) & mask);

        result |= (f(a, b) & mask).wrapping_shl(shift);
        shift = shift.wrapping_add(width.bits());
    }
    result
}

/// The highest bits of its bytes.
fn mask_of(word: u64) -> u64 {
    // Each comes to another place of the highest byte.
    (word & 0x8080_8080_8080_8080).wrapping_mul(0x0002_0408_1020_4081) >> 56
}
