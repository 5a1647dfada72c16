// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The arithmetic flags. Most of them are overwritten before anything looks, so they are computed when
//! something does.

use crate::op::Width;

/// CF.
pub const CARRY: u64 = 1;
/// PF.
pub const PARITY: u64 = 1 << 2;
/// AF.
pub const ADJUST: u64 = 1 << 4;
/// ZF.
pub const ZERO: u64 = 1 << 6;
/// SF.
pub const SIGN: u64 = 1 << 7;
/// DF.
pub const DIRECTION: u64 = 1 << 10;
/// OF.
pub const OVERFLOW: u64 = 1 << 11;

/// The flags that arithmetic sets.
pub const ARITHMETIC: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW;

/// How the newest flags come from numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// They are in `bits`.
    Bits,
    /// Of `a + b`.
    Add,
    /// Of `a - b`.
    Sub,
    /// Of a bitwise operation.
    Logic,
}

/// The flags register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags {
    /// The arithmetic ones are old where they come from elsewhere.
    bits: u64,
    source: Source,
    width: Width,
    a: u64,
    b: u64,
    /// Not wider than `width`.
    result: u64,
}

impl Flags {
    pub(crate) const fn new(bits: u64) -> Self {
        Self {
            bits,
            source: Source::Bits,
            width: Width::B8,
            a: 0,
            b: 0,
            result: 0,
        }
    }

    /// Those of a result that `source` made of `a` and `b`. No number has more bits than `width`.
    #[inline]
    pub(crate) fn lazy(&mut self, source: Source, width: Width, a: u64, b: u64, result: u64) {
        self.source = source;
        self.width = width;
        self.a = a;
        self.b = b;
        self.result = result;
    }

    /// `-a`.
    pub(crate) fn neg(&mut self, width: Width, a: u64) -> u64 {
        let result = a.wrapping_neg() & width.mask();

        self.lazy(Source::Sub, width, 0, a, result);
        result
    }

    /// `a + b` and the carry.
    pub(crate) fn adc(&mut self, width: Width, a: u64, b: u64) -> u64 {
        let carry = u64::from(self.carry());
        let result = a.wrapping_add(b).wrapping_add(carry) & width.mask();
        // Without the carry it has come round if it is less, with it if it is not more.
        let over = if carry == 0 { result < a } else { result <= a };
        let overflow = (a ^ result) & (b ^ result);

        self.eager(width, result, over, overflow, a ^ b ^ result);
        result
    }

    /// `a - b` and the borrow.
    pub(crate) fn sbb(&mut self, width: Width, a: u64, b: u64) -> u64 {
        let carry = u64::from(self.carry());
        let result = a.wrapping_sub(b).wrapping_sub(carry) & width.mask();
        let over = if carry == 0 { a < b } else { a <= b };
        let overflow = (a ^ b) & (a ^ result);

        self.eager(width, result, over, overflow, a ^ b ^ result);
        result
    }

    /// `a + 1`: the carry stays.
    pub(crate) fn inc(&mut self, width: Width, a: u64) -> u64 {
        let carry = self.carry();
        let result = a.wrapping_add(1) & width.mask();

        self.eager(width, result, carry, !a & result, a ^ 1 ^ result);
        result
    }

    /// `a - 1`: the carry stays.
    pub(crate) fn dec(&mut self, width: Width, a: u64) -> u64 {
        let carry = self.carry();
        let result = a.wrapping_sub(1) & width.mask();

        self.eager(width, result, carry, a & !result, a ^ 1 ^ result);
        result
    }

    /// Sets all arithmetic flags. Of `overflow` the highest bit of the width counts, of `adjust` bit 4.
    fn eager(&mut self, width: Width, result: u64, carry: bool, overflow: u64, adjust: u64) {
        let mut bits = self.bits & !ARITHMETIC;

        bits |= of_result(width, result) | adjust & ADJUST;
        if carry {
            bits |= CARRY;
        }
        if overflow & width.sign() != 0 {
            bits |= OVERFLOW;
        }
        *self = Self::new(bits);
    }

    /// All flags.
    pub(crate) fn get(&mut self) -> u64 {
        let Self {
            width,
            a,
            b,
            result,
            ..
        } = *self;

        match self.source {
            Source::Bits => {}
            Source::Add => {
                let overflow = (a ^ result) & (b ^ result);
                self.eager(width, result, result < a, overflow, a ^ b ^ result);
            }
            Source::Sub => {
                let overflow = (a ^ b) & (a ^ result);
                self.eager(width, result, a < b, overflow, a ^ b ^ result);
            }
            Source::Logic => self.eager(width, result, false, 0, 0),
        }
        self.bits
    }

    /// Sets all flags.
    pub(crate) fn set(&mut self, bits: u64) {
        *self = Self::new(bits);
    }

    /// DF.
    pub(crate) const fn direction(&self) -> bool {
        self.bits & DIRECTION != 0
    }

    fn carry(&self) -> bool {
        match self.source {
            Source::Bits => self.bits & CARRY != 0,
            Source::Add => self.result < self.a,
            Source::Sub => self.a < self.b,
            Source::Logic => false,
        }
    }

    fn zero(&self) -> bool {
        match self.source {
            Source::Bits => self.bits & ZERO != 0,
            _ => self.result == 0,
        }
    }

    fn sign(&self) -> bool {
        match self.source {
            Source::Bits => self.bits & SIGN != 0,
            _ => self.result & self.width.sign() != 0,
        }
    }

    fn overflow(&self) -> bool {
        let Self { a, b, result, .. } = *self;
        let bits = match self.source {
            Source::Bits => return self.bits & OVERFLOW != 0,
            Source::Add => (a ^ result) & (b ^ result),
            Source::Sub => (a ^ b) & (a ^ result),
            Source::Logic => 0,
        };

        bits & self.width.sign() != 0
    }

    fn parity(&self) -> bool {
        match self.source {
            Source::Bits => self.bits & PARITY != 0,
            _ => is_even(self.result),
        }
    }

    /// Whether a condition holds, by the four bits that opcodes have for it.
    #[inline]
    pub(crate) fn has(&self, condition: u8) -> bool {
        let holds = match condition >> 1 & 7 {
            0 => self.overflow(),
            1 => self.carry(),
            2 => self.zero(),
            3 => self.carry() || self.zero(),
            4 => self.sign(),
            5 => self.parity(),
            6 => self.sign() != self.overflow(),
            _ => self.zero() || self.sign() != self.overflow(),
        };

        holds == (condition & 1 == 0)
    }
}

/// ZF, SF and PF.
fn of_result(width: Width, result: u64) -> u64 {
    let mut bits = 0;

    if result == 0 {
        bits |= ZERO;
    }
    if result & width.sign() != 0 {
        bits |= SIGN;
    }
    if is_even(result) {
        bits |= PARITY;
    }
    bits
}

/// Whether the lowest byte has an even number of bits.
fn is_even(result: u64) -> bool {
    let half = (result ^ result >> 4) & 15;
    let half = u32::try_from(half).unwrap_or(0);

    // A bit for each number below 16.
    0x9669_u64.wrapping_shr(half) & 1 != 0
}
