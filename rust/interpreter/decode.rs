// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes the bytes of an instruction to an [`Op`], which the interpreter executes.
//!
//! The interpreter executes only instructions that are decoded here. It leaves all doubtful ones to
//! the processor, even an instruction with a useless prefix.

use crate::op::{Carry, Locked, Native, Op, Place, Two, What, Width};

/// A table with the value of a function for each byte.
macro_rules! table {
    ($choose:ident) => {{
        let mut table = [$choose(0); 256];
        let mut byte = 0_u8;

        while byte < u8::MAX {
            byte += 1;
            // CAST: Widening; `From` is not const.
            #[allow(clippy::as_conversions)]
            let place = byte as usize;
            table[place] = $choose(byte);
        }
        table
    }};
}

mod frequent;
mod one_byte;
mod two_bytes;
mod vectors;

pub(crate) use frequent::{Next, Text, PLACES, WORDS};

impl Op {
    /// Decodes the instruction at `ip`. [`None`] if it is left to the processor.
    pub(crate) fn decode(&mut self, text: &[u8], ip: u64) -> Option<()> {
        *self = Self::EMPTY;
        let mut decoder = Decoder {
            text: text.get(..LEN_MAX).unwrap_or(text),
            at: 0,
            small: false,
            repeat: 0,
            rex: 0,
            op: self,
            relative: false,
            lock: false,
            ip,
        };

        decoder.insn()?;
        decoder.end()
    }
}

/// Whether user code can be at an address.
pub(crate) const fn is_user(address: u64) -> bool {
    address >> 47 == 0
}

/// The longest instruction, in bytes.
pub(crate) const LEN_MAX: usize = 15;

const REX_W: u8 = 8;
const REX_R: u8 = 4;
const REX_X: u8 = 2;
const REX_B: u8 = 1;

const ARITHMETIC: [Two; 8] = [
    Two::Add,
    Two::Or,
    Two::Adc,
    Two::Sbb,
    Two::And,
    Two::Sub,
    Two::Xor,
    Two::Cmp,
];

/// By the middle bits of ModRM. Number 6, SAL, is the same as SHL.
const SHIFTS: [Native; 8] = [
    Native::Rol,
    Native::Ror,
    Native::Rcl,
    Native::Rcr,
    Native::Shl,
    Native::Shr,
    Native::Shl,
    Native::Sar,
];

/// The same for a count that is an immediate.
const SHIFTS_BY: [Native; 8] = {
    let mut shifts = SHIFTS;

    shifts[0] = Native::RolBy;
    shifts[1] = Native::RorBy;
    shifts
};

const BITS: [Native; 4] = [Native::Bt, Native::Bts, Native::Btr, Native::Btc];

/// Decodes the part of an instruction behind its opcode.
type Insn = for<'a, 'b> fn(&'b mut Decoder<'a>, u8) -> Option<()>;

/// The kind of a byte, up to the opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Byte {
    Opcode,
    Rex,
    /// Another prefix.
    Prefix,
}

static BYTES: [Byte; 256] = table!(byte);

const fn byte(byte: u8) -> Byte {
    match byte {
        0x40..=0x4f => Byte::Rex,
        0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 => Byte::Prefix,
        _ => Byte::Opcode,
    }
}

impl Byte {
    #[inline]
    fn of(byte: u8) -> Self {
        *BYTES.get(usize::from(byte)).unwrap_or(&Self::Prefix)
    }
}

struct Decoder<'a> {
    text: &'a [u8],
    at: usize,
    /// Whether there is an operand size prefix.
    small: bool,
    /// The repeat prefix, F2 or F3; 0 if there is none.
    repeat: u8,
    rex: u8,
    op: &'a mut Op,
    /// Whether the displacement is relative to the next instruction.
    relative: bool,
    /// Whether there is a LOCK prefix.
    lock: bool,
    /// The address of the instruction.
    ip: u64,
}

impl Decoder<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.text.get(self.at).copied()?;

        self.at = self.at.checked_add(1)?;
        Some(byte)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.text.get(self.at..)?.first_chunk()?;

        self.at = self.at.wrapping_add(N);
        Some(*bytes)
    }

    /// Reads a signed number of this width and sign-extends it.
    fn number(&mut self, width: Width) -> Option<u64> {
        Some(match width {
            Width::B1 => Width::B1.extend(self.byte()?.into()),
            Width::B2 => Width::B2.extend(u16::from_le_bytes(self.bytes()?).into()),
            Width::B4 => Width::B4.extend(u32::from_le_bytes(self.bytes()?).into()),
            Width::B8 => u64::from_le_bytes(self.bytes()?),
        })
    }

    /// Decodes the instruction.
    fn insn(&mut self) -> Option<()> {
        let opcode = self.prefixes()?;

        self.op.width = if self.rex & REX_W != 0 {
            Width::B8
        } else if self.small {
            Width::B2
        } else {
            Width::B4
        };
        if opcode == 0x0f {
            let opcode = self.byte()?;
            self.two_bytes(opcode)
        } else {
            self.one_byte(opcode)
        }
    }

    fn end(self) -> Option<()> {
        let op = self.op;

        op.len = self.at.try_into().ok()?;
        if self.relative {
            op.displacement = op
                .displacement
                .wrapping_add(self.ip)
                .wrapping_add(op.len.into());
        }
        if self.lock {
            op.what = What::Locked(Locked::of(op.what)?);
        }
        op.choose()
    }

    /// Reads the prefixes and the opcode behind them. `gs` and 32-bit addresses are left to the
    /// processor.
    #[inline]
    fn prefixes(&mut self) -> Option<u8> {
        let first = self.byte()?;

        match Byte::of(first) {
            Byte::Opcode => Some(first),
            Byte::Rex => self.behind_rex(first),
            Byte::Prefix => self.more_prefixes(first),
        }
    }

    /// Reads the opcode, which must follow the REX prefix directly.
    #[inline]
    fn behind_rex(&mut self, rex: u8) -> Option<u8> {
        let opcode = self.byte()?;

        self.rex = rex;
        (Byte::of(opcode) == Byte::Opcode).then_some(opcode)
    }

    /// As [`prefixes`](Self::prefixes), if `first` is a prefix other than REX.
    #[inline(never)]
    fn more_prefixes(&mut self, first: u8) -> Option<u8> {
        let mut byte = first;

        loop {
            match byte {
                0x66 => self.small = true,
                0xf2 | 0xf3 => self.repeat = byte,
                // These have no effect in 64-bit code. Behind `fs` they are left to the processor.
                0x26 | 0x2e | 0x36 | 0x3e if !self.op.fs => {}
                0x64 => self.op.fs = true,
                0xf0 => self.lock = true,
                0x40..=0x4f => return self.behind_rex(byte),
                0x26 | 0x2e | 0x36 | 0x3e | 0x65 | 0x67 => return None,
                opcode => return Some(opcode),
            }
            byte = self.byte()?;
        }
    }

    /// The register with this number, as an operand of this width.
    #[inline]
    fn register(&self, number: u8, width: Width) -> Place {
        if width == Width::B1 {
            self.byte_register(number)
        } else {
            Place::register(number)
        }
    }

    #[inline(never)]
    fn byte_register(&self, number: u8) -> Place {
        // With any REX prefix these are the low bytes of four other registers.
        if self.rex == 0 && number & 12 == 4 {
            Place::high(number & 3)
        } else {
            Place::register(number)
        }
    }

    /// Reads ModRM for operands of these widths. Returns the three middle bits and the operand
    /// `rm`.
    fn modrm(&mut self, reg: Width, rm: Width) -> Option<(u8, Place)> {
        let modrm = self.byte()?;
        let (form, middle, low) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let extended = |bit, number: u8| {
            if self.rex & bit != 0 {
                number | 8
            } else {
                number
            }
        };

        self.op.reg = self.register(extended(REX_R, middle), reg);
        if form == 3 {
            return Some((middle, self.register(extended(REX_B, low), rm)));
        }
        let mut base = extended(REX_B, low);
        let mut has_base = true;

        if low == 4 {
            let sib = self.byte()?;
            let index = if self.rex & REX_X != 0 {
                sib >> 3 & 7 | 8
            } else {
                sib >> 3 & 7
            };

            base = if self.rex & REX_B != 0 {
                sib & 7 | 8
            } else {
                sib & 7
            };
            self.op.index = if index == 4 {
                Place::Zero
            } else {
                Place::register(index)
            };
            self.op.scale = sib >> 6;
            has_base = !(form == 0 && sib & 7 == 5);
        } else if form == 0 && low == 5 {
            has_base = false;
            self.relative = true;
        }
        self.op.base = if has_base {
            Place::register(base)
        } else {
            Place::Zero
        };
        self.op.displacement = match form {
            1 => self.number(Width::B1)?,
            2 => self.number(Width::B4)?,
            _ if !has_base => self.number(Width::B4)?,
            _ => 0,
        };
        Some((middle, Place::Memory))
    }

    /// Reads an immediate of the operand's width, but of at most 4 bytes.
    fn immediate(&mut self) -> Option<()> {
        let width = match self.op.width {
            Width::B8 => Width::B4,
            width => width,
        };
        self.op.imm = self.number(width)?;
        Some(())
    }

    /// Sets the operation and both operands.
    fn set(&mut self, what: What, target: Place, source: Place) -> Option<()> {
        self.op.what = what;
        self.op.target = target;
        self.op.source = source;
        Some(())
    }

    /// Decodes the operands `rm, reg`, or `reg, rm` if `reversed`.
    fn rm_reg(&mut self, what: What, reversed: bool) -> Option<()> {
        let (_, rm) = self.modrm(self.op.width, self.op.width)?;

        if reversed {
            self.set(what, self.op.reg, rm)
        } else {
            self.set(what, rm, self.op.reg)
        }
    }

    /// Sets the width of a byte if the lowest bit of the opcode is clear.
    fn byte_or_more(&mut self, opcode: u8) {
        if opcode & 1 == 0 {
            self.op.width = Width::B1;
        }
    }

    /// Sets `reg` to the register in the lowest bits of the opcode.
    fn in_opcode(&mut self, opcode: u8) {
        let low = opcode & 7;
        let number = if self.rex & REX_B != 0 { low | 8 } else { low };

        self.op.reg = self.register(number, self.op.width);
    }

    /// Sets the width of an operand on the stack: 8 bytes. With the prefix 66 it would be 2, which
    /// compilers do not use.
    fn on_stack(&mut self) -> Option<()> {
        if self.small {
            return None;
        }
        self.op.width = Width::B8;
        Some(())
    }

    /// Checks the prefixes of a near branch. Processors differ in the effect of an operand size
    /// prefix. F3 has no use here, and F2 is a prefix of MPX.
    fn near(&mut self) -> Option<()> {
        (!self.small && self.repeat != 0xf3).then_some(())
    }

    fn branch(&mut self, what: What, width: Width) -> Option<()> {
        self.near()?;
        let displacement = self.number(width)?;
        let len = u64::try_from(self.at).ok()?;

        // The displacement is the last part of the instruction.
        self.op.imm = self.ip.wrapping_add(len).wrapping_add(displacement);
        self.op.what = what;
        is_user(self.op.imm).then_some(())
    }

    fn flag(&mut self, what: What) -> Option<()> {
        self.op.what = what;
        Some(())
    }

    /// NOP, PAUSE, and XCHG with the accumulator.
    fn exchange(&mut self, opcode: u8) -> Option<()> {
        self.in_opcode(opcode);
        match (opcode, self.repeat) {
            (0x90, 0) if self.rex & REX_B == 0 => {
                self.op.what = What::Nop;
                Some(())
            }
            (0x90, 0xf3) if self.rex == 0 => {
                self.op.what = What::Nop;
                Some(())
            }
            (_, 0) => self.set(What::Xchg, Place::Ax, self.op.reg),
            _ => None,
        }
    }

    /// TEST, NOT, NEG, MUL, IMUL, DIV, IDIV.
    fn group_3(&mut self, opcode: u8) -> Option<()> {
        self.byte_or_more(opcode);
        let (middle, rm) = self.modrm(self.op.width, self.op.width)?;
        let what = match middle {
            0 => {
                self.immediate()?;
                return self.set(What::Two(Two::Test), rm, Place::Immediate);
            }
            2 => return self.set(What::Not, rm, Place::Immediate),
            3 => return self.set(What::Neg, rm, Place::Immediate),
            4 => What::Multiply(Native::Mul),
            5 => What::Multiply(Native::Imul),
            6 => What::Divide(Native::Div),
            7 => What::Divide(Native::Idiv),
            _ => return None,
        };

        // With byte operands the result is in AX, which is not decoded.
        if self.op.width == Width::B1 {
            return None;
        }
        self.set(what, self.op.reg, rm)
    }

    /// INC, DEC, indirect calls and jumps, PUSH.
    fn group_5(&mut self) -> Option<()> {
        let modrm = *self.text.get(self.at)?;
        let middle = modrm >> 3 & 7;

        if self.repeat != 0 && !(self.repeat == 0xf2 && matches!(middle, 2 | 4)) {
            return None;
        }
        if matches!(middle, 2 | 4 | 6) {
            self.on_stack()?;
        }
        let (_, rm) = self.modrm(self.op.width, self.op.width)?;

        match middle {
            0 => self.set(What::Inc, rm, Place::Immediate),
            1 => self.set(What::Dec, rm, Place::Immediate),
            2 => self.set(What::IndirectCall, self.op.reg, rm),
            4 => self.set(What::IndirectJump, self.op.reg, rm),
            6 => self.set(What::Push, Place::Memory, rm),
            _ => None,
        }
    }
}
