// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The arithmetic flags. Most of them are overwritten before an instruction reads them, so they are
//! computed only when they are read.

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

/// How the current arithmetic flags follow from two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The flags are in `bits`.
    Bits,
    /// The flags of `a + b`.
    Add,
    /// The flags of `a - b`. A bitwise operation has the flags of its result minus 0.
    Sub,
}

/// The flags register.
///
/// `a` and `b` are sign-extended from their width. So both their signed and their unsigned order
/// are those of the original numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags {
    /// All flags. The arithmetic ones are valid only if `source` is [`Source::Bits`].
    bits: u64,
    a: u64,
    b: u64,
    source: Source,
    width: Width,
}

impl Flags {
    pub(crate) const fn new(bits: u64) -> Self {
        Self {
            bits,
            a: 0,
            b: 0,
            source: Source::Bits,
            width: Width::B8,
        }
    }

    /// Sets the flags of the operation `source` on `a` and `b`. Bits above the width are ignored.
    #[inline]
    pub(crate) fn lazy(&mut self, source: Source, width: Width, a: u64, b: u64) {
        self.a = width.extend(a);
        self.b = width.extend(b);
        self.source = source;
        self.width = width;
    }

    /// Sets the flags of a bitwise operation with this result.
    #[inline]
    pub(crate) fn logic(&mut self, width: Width, result: u64) {
        self.lazy(Source::Sub, width, result, 0);
    }

    /// Computes `-a` and sets the flags.
    pub(crate) fn neg(&mut self, width: Width, a: u64) -> u64 {
        let result = a.wrapping_neg() & width.mask();

        self.lazy(Source::Sub, width, 0, a);
        result
    }

    /// Computes `a + b` plus the carry, and sets the flags.
    pub(crate) fn adc(&mut self, width: Width, a: u64, b: u64) -> u64 {
        let carry = u64::from(self.carry());
        let result = a.wrapping_add(b).wrapping_add(carry) & width.mask();
        // Without a carry in, the sum has wrapped if it is less than `a`. With one, also if it is
        // equal.
        let over = if carry == 0 { result < a } else { result <= a };
        let overflow = (a ^ result) & (b ^ result);

        self.eager(width, result, over, overflow, a ^ b ^ result);
        result
    }

    /// Computes `a - b` minus the borrow, and sets the flags.
    pub(crate) fn sbb(&mut self, width: Width, a: u64, b: u64) -> u64 {
        let carry = u64::from(self.carry());
        let result = a.wrapping_sub(b).wrapping_sub(carry) & width.mask();
        let over = if carry == 0 { a < b } else { a <= b };
        let overflow = (a ^ b) & (a ^ result);

        self.eager(width, result, over, overflow, a ^ b ^ result);
        result
    }

    /// Computes `a + 1` and sets all flags but the carry.
    pub(crate) fn inc(&mut self, width: Width, a: u64) -> u64 {
        let carry = self.carry();
        let result = a.wrapping_add(1) & width.mask();

        self.eager(width, result, carry, !a & result, a ^ 1 ^ result);
        result
    }

    /// Computes `a - 1` and sets all flags but the carry.
    pub(crate) fn dec(&mut self, width: Width, a: u64) -> u64 {
        let carry = self.carry();
        let result = a.wrapping_sub(1) & width.mask();

        self.eager(width, result, carry, a & !result, a ^ 1 ^ result);
        result
    }

    /// Sets all arithmetic flags. OF is the highest bit of `overflow` within the width, and AF is
    /// bit 4 of `adjust`.
    fn eager(&mut self, width: Width, result: u64, carry: bool, overflow: u64, adjust: u64) {
        let highest = width.bits().wrapping_sub(1);
        let mut bits = self.bits & !ARITHMETIC;

        bits |= u64::from(carry);
        bits |= u64::from(is_even(result)) << 2;
        bits |= adjust & ADJUST;
        bits |= u64::from(result & width.mask() == 0) << 6;
        bits |= (result.wrapping_shr(highest) & 1) << 7;
        bits |= (overflow.wrapping_shr(highest) & 1) << 11;
        self.set(bits);
    }

    /// The result for the sign-extended numbers. It can have one bit more than the width.
    const fn result(&self) -> u64 {
        match self.source {
            Source::Add => self.a.wrapping_add(self.b),
            _ => self.a.wrapping_sub(self.b),
        }
    }

    /// Computes and returns all flags.
    pub(crate) fn get(&mut self) -> u64 {
        if self.source != Source::Bits {
            let Self { a, b, width, .. } = *self;
            let result = self.result();
            let overflow = match self.source {
                Source::Add => (a ^ result) & (b ^ result),
                _ => (a ^ b) & (a ^ result),
            };

            self.eager(width, result, self.carry(), overflow, a ^ b ^ result);
        }
        self.bits
    }

    /// Sets all flags.
    #[inline]
    pub(crate) fn set(&mut self, bits: u64) {
        self.bits = bits;
        self.source = Source::Bits;
    }

    /// DF.
    pub(crate) const fn direction(&self) -> bool {
        self.bits & DIRECTION != 0
    }

    fn carry(&self) -> bool {
        match self.source {
            Source::Bits => self.bits & CARRY != 0,
            Source::Add => self.result() & self.width.mask() < self.a & self.width.mask(),
            Source::Sub => self.a < self.b,
        }
    }

    /// Whether the flags are those of a subtraction, and have not been computed yet.
    #[inline]
    pub(crate) fn is_comparison(&self) -> bool {
        self.source == Source::Sub
    }

    /// Whether a condition holds. `condition` is the four bits that opcodes have for it.
    #[inline]
    pub(crate) fn has(&self, condition: u8) -> bool {
        if !self.is_comparison() {
            return self.has_other(condition);
        }
        let Self { a, b, .. } = *self;
        let holds = match condition >> 1 & 7 {
            1 => a < b,
            2 => a == b,
            3 => a <= b,
            4 => self.result() & self.width.sign() != 0,
            6 => signed(a) < signed(b),
            7 => signed(a) <= signed(b),
            _ => return self.has_other(condition),
        };

        holds == (condition & 1 == 0)
    }

    /// As [`has`](Self::has), with all flags computed.
    #[inline(never)]
    fn has_other(&self, condition: u8) -> bool {
        let mut flags = *self;
        let bits = flags.get();
        let is_less = (bits & SIGN != 0) != (bits & OVERFLOW != 0);
        let holds = match condition >> 1 & 7 {
            0 => bits & OVERFLOW != 0,
            1 => bits & CARRY != 0,
            2 => bits & ZERO != 0,
            3 => bits & (CARRY | ZERO) != 0,
            4 => bits & SIGN != 0,
            5 => bits & PARITY != 0,
            6 => is_less,
            _ => bits & ZERO != 0 || is_less,
        };

        holds == (condition & 1 == 0)
    }
}

/// Maps a signed number to an unsigned one, so that the order is the same.
const fn signed(number: u64) -> u64 {
    number ^ 1 << 63
}

/// Whether the lowest byte has an even number of bits.
fn is_even(result: u64) -> bool {
    let half = (result ^ result >> 4) & 15;
    let half = u32::try_from(half).unwrap_or(0);

    // Bit `n` is set if `n` has an even number of bits.
    0x9669_u64.wrapping_shr(half) & 1 != 0
}
