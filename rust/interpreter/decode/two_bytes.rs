// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opcodes behind 0F, and behind VEX.

use super::{Decoder, BITS, REX_B, REX_R, REX_W, REX_X};
use crate::op::{How, Native, Operand, Vector, What, Width};

impl Decoder<'_> {
    pub(super) fn two_bytes(&mut self, opcode: u8) -> Option<()> {
        let repeated = matches!(
            opcode,
            0x1e | 0x80..=0x8f | 0xb8 | 0xbc | 0xbd | 0x6f | 0x7e | 0x7f
        );
        if self.repeat != 0 && !repeated {
            return None;
        }

        match opcode {
            0x10..=0x11 | 0x28..=0x2b | 0x54..=0x57 | 0x60..=0x7f | 0xd0..=0xff => {
                let prefix = match (self.small, self.repeat) {
                    (false, 0) => 0,
                    (true, 0) => 1,
                    (false, 0xf3) => 2,
                    _ => return None,
                };
                self.vector(opcode, prefix, How::Legacy, None)
            }
            // Hints, NOP, and ENDBR64.
            0x0d | 0x18 | 0x19 | 0x1c | 0x1d | 0x1f => {
                let (_, rm) = self.modrm(self.op.width, self.op.width)?;

                self.op.what = What::Nop;
                (opcode != 0x0d && opcode != 0x1c || rm == Operand::Memory).then_some(())
            }
            0x1e => {
                let modrm = self.byte()?;

                self.op.what = What::Nop;
                (self.repeat == 0xf3 && modrm == 0xfa && !self.small).then_some(())
            }
            0x40..=0x4f => self.rm_reg(What::Cmov(opcode & 15), true),
            0x80..=0x8f => self.branch(What::JumpIf(opcode & 15), Width::B4),
            0x90..=0x9f => {
                self.op.width = Width::B1;
                let (_, rm) = self.modrm(Width::B1, Width::B1)?;

                self.set(What::Set(opcode & 15), rm, Operand::Immediate)
            }
            0xa3 | 0xab | 0xb3 | 0xbb => {
                let bits = *BITS.get(usize::from(opcode >> 3 & 3))?;

                self.rm_reg(What::Native(bits), false)?;
                // In memory the bit may be far away.
                (self.op.to == Operand::Rm).then_some(())
            }
            0xa4 | 0xac => {
                let double = if opcode == 0xa4 {
                    Native::Shld
                } else {
                    Native::Shrd
                };
                let (_, rm) = self.modrm(self.op.width, self.op.width)?;

                self.op.imm = self.number(Width::B1)?;
                self.set(What::Native(double), rm, Operand::Immediate)
            }
            0xaf => self.rm_reg(What::Native(Native::ImulTwo), true),
            0xb6 | 0xbe => self.extended(opcode, Width::B1),
            0xb7 | 0xbf => self.extended(opcode, Width::B2),
            0xb8 if self.repeat == 0xf3 => self.rm_reg(What::Native(Native::Popcnt), true),
            0xba => {
                let (middle, rm) = self.modrm(self.op.width, self.op.width)?;
                let bits = *BITS.get(usize::from(middle.checked_sub(4)?))?;

                self.op.imm = self.number(Width::B1)?;
                self.set(What::Native(bits), rm, Operand::Immediate)
            }
            0xbc | 0xbd => {
                let native = match (opcode, self.repeat) {
                    (0xbc, 0) => Native::Bsf,
                    (0xbd, 0) => Native::Bsr,
                    (0xbc, 0xf3) => Native::Tzcnt,
                    (0xbd, 0xf3) => Native::Lzcnt,
                    _ => return None,
                };
                self.rm_reg(What::Native(native), true)
            }
            0xc8..=0xcf => {
                self.in_opcode(opcode);
                // Of 16 bits it is undefined.
                if self.op.width == Width::B2 {
                    return None;
                }
                self.set(What::Bswap, Operand::Reg, Operand::Reg)
            }
            _ => None,
        }
    }

    /// VEX, which takes the place of all other prefixes but those of segments.
    pub(super) fn vex(&mut self, first: u8) -> Option<()> {
        if self.small || self.rex != 0 {
            return None;
        }
        let mut byte = self.byte()?;
        // Three of its bits are inverted.
        let mut rex = if byte & 0x80 == 0 { REX_R } else { 0 };

        if first == 0xc4 {
            if byte & 0x40 == 0 {
                rex |= REX_X;
            }
            if byte & 0x20 == 0 {
                rex |= REX_B;
            }
            if byte & 0x1f != 1 {
                return None;
            }
            byte = self.byte()?;
            if byte & 0x80 != 0 {
                rex |= REX_W;
            }
        }
        self.rex = rex;
        self.op.width = if rex & REX_W != 0 {
            Width::B8
        } else {
            Width::B4
        };
        let how = if byte & 4 == 0 { How::Low } else { How::Whole };
        let second = !(byte >> 3) & 15;
        let opcode = self.byte()?;

        self.vector(opcode, byte & 3, how, Some(second))
    }

    /// An instruction on vector registers. `prefix`: none, 66, F3, F2. `second`: what VEX has for an operand
    /// more, 0 if it has none.
    fn vector(&mut self, opcode: u8, prefix: u8, how: How, second: Option<u8>) -> Option<()> {
        let two_operands = second.is_none_or(|second| second == 0);
        let is_low = how != How::Whole;

        if opcode == 0x77 {
            self.op.what = What::Vector(Vector::ZeroUpper, how);
            return (prefix == 0 && how == How::Low && two_operands).then_some(());
        }
        let width = if self.rex & REX_W != 0 {
            Width::B8
        } else {
            Width::B4
        };
        let (_, rm) = self.modrm(Width::B8, Width::B8)?;
        // In memory, if `only`.
        let memory = |only: bool| !only || rm == Operand::Memory;
        let stores = matches!(opcode, 0x11 | 0x29 | 0x2b | 0x7e | 0x7f | 0xd6 | 0xe7);
        let what = match (opcode, prefix) {
            (0x10 | 0x11, 0 | 1) | (0x6f | 0x7f, 2) if two_operands => Vector::Move(false),
            (0x28 | 0x29, 0 | 1) | (0x6f | 0x7f, 1) if two_operands => Vector::Move(true),
            (0x2b, 0 | 1) | (0xe7, 1) if two_operands && memory(true) => Vector::Move(true),
            (0x6e, 1) if two_operands && is_low => Vector::FromGeneral,
            (0x7e, 1) if two_operands && is_low => Vector::ToGeneral,
            (0x7e, 2) if two_operands && is_low => {
                self.op.width = Width::B8;
                return self.set(What::Vector(Vector::MoveLow, how), Operand::Reg, rm);
            }
            (0xd6, 1) if two_operands && is_low => {
                self.op.width = Width::B8;
                return self.set(What::Vector(Vector::MoveLow, how), rm, Operand::Reg);
            }
            (0xd7, 1) if two_operands && rm == Operand::Rm => Vector::Mask,
            (0x54, 0 | 1) | (0xdb, 1) => Vector::And,
            (0x55, 0 | 1) | (0xdf, 1) => Vector::AndNot,
            (0x56, 0 | 1) | (0xeb, 1) => Vector::Or,
            (0x57, 0 | 1) | (0xef, 1) => Vector::Xor,
            (0x74, 1) => Vector::Equal(Width::B1),
            (0x75, 1) => Vector::Equal(Width::B2),
            (0x76, 1) => Vector::Equal(Width::B4),
            (0xf8, 1) => Vector::Sub(Width::B1),
            (0xf9, 1) => Vector::Sub(Width::B2),
            (0xfa, 1) => Vector::Sub(Width::B4),
            (0xfb, 1) => Vector::Sub(Width::B8),
            (0xfc, 1) => Vector::Add(Width::B1),
            (0xfd, 1) => Vector::Add(Width::B2),
            (0xfe, 1) => Vector::Add(Width::B4),
            (0xd4, 1) => Vector::Add(Width::B8),
            (0xda, 1) => Vector::Min,
            (0x6c, 1) => Vector::UnpackLow,
            _ => return None,
        };

        self.op.width = width;
        // The first of two sources.
        self.op.imm = u64::from(second.unwrap_or(self.op.reg.number()));
        let what = What::Vector(what, how);
        if stores {
            self.set(what, rm, Operand::Reg)
        } else {
            self.set(what, Operand::Reg, rm)
        }
    }

    /// MOVZX and MOVSX.
    fn extended(&mut self, opcode: u8, from: Width) -> Option<()> {
        let (_, rm) = self.modrm(self.op.width, from)?;
        let what = if opcode < 0xb8 {
            What::Movzx(from)
        } else {
            What::Movsx(from)
        };

        self.set(what, Operand::Reg, rm)
    }
}
