// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Vector instructions, with and without VEX, and the other instructions with VEX.

use super::{Decoder, REX_B, REX_R, REX_W, REX_X};
use crate::op::{Float, How, Native, Place, Vector, What, Width};

/// The map that an opcode belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Map {
    /// Behind 0F.
    First,
    /// Behind 0F 38.
    Second,
}

/// A prefix that is part of the opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prefix {
    None,
    Small,
    F3,
    F2,
}

impl Decoder<'_> {
    /// Decodes a vector instruction without VEX.
    pub(super) fn legacy_vector(&mut self, map: Map, opcode: u8) -> Option<()> {
        let prefix = match (self.small, self.repeat) {
            (false, 0) => Prefix::None,
            (true, 0) => Prefix::Small,
            (false, 0xf3) => Prefix::F3,
            (false, _) => Prefix::F2,
            _ => return None,
        };

        self.vector(map, opcode, prefix, How::Legacy, None)
    }

    /// Decodes VEX, which replaces all prefixes but those of segments, and the instruction behind
    /// it.
    pub(super) fn vex(&mut self, first: u8) -> Option<()> {
        if self.small || self.rex != 0 {
            return None;
        }
        let mut byte = self.byte()?;
        let mut map = Map::First;
        // The bits R, X and B are inverted.
        let mut rex = if byte & 0x80 == 0 { REX_R } else { 0 };

        if first == 0xc4 {
            if byte & 0x40 == 0 {
                rex |= REX_X;
            }
            if byte & 0x20 == 0 {
                rex |= REX_B;
            }
            map = match byte & 0x1f {
                1 => Map::First,
                2 => Map::Second,
                _ => return None,
            };
            byte = self.byte()?;
            if byte & 0x80 != 0 {
                rex |= REX_W;
            }
        }
        self.rex = rex;
        let how = if byte & 4 == 0 { How::Low } else { How::Whole };
        let prefix = match byte & 3 {
            0 => Prefix::None,
            1 => Prefix::Small,
            2 => Prefix::F3,
            _ => Prefix::F2,
        };
        let second = !(byte >> 3) & 15;
        let opcode = self.byte()?;

        if map == Map::Second && matches!(opcode, 0xf2 | 0xf3 | 0xf5 | 0xf7) {
            self.general(opcode, prefix, how, second)
        } else {
            self.vector(map, opcode, prefix, how, Some(second))
        }
    }

    /// Decodes an instruction with VEX on general registers.
    fn general(&mut self, opcode: u8, prefix: Prefix, how: How, second: u8) -> Option<()> {
        self.op.width = self.by_rex();
        let (middle, rm) = self.modrm(self.op.width, self.op.width)?;
        let first = Place::register(second);
        let native = match (opcode, prefix, middle) {
            (0xf2, Prefix::None, _) => Native::Andn,
            (0xf3, Prefix::None, 1) => Native::Blsr,
            (0xf3, Prefix::None, 2) => Native::Blsmsk,
            (0xf3, Prefix::None, 3) => Native::Blsi,
            (0xf5, Prefix::None, _) => Native::Bzhi,
            (0xf7, Prefix::Small, _) => Native::Shlx,
            (0xf7, Prefix::F3, _) => Native::Sarx,
            (0xf7, Prefix::F2, _) => Native::Shrx,
            _ => return None,
        };
        let target = if opcode == 0xf3 { first } else { self.op.reg };

        self.op.reg = first;
        self.set(What::Three(native), target, rm)?;
        (how == How::Low).then_some(())
    }

    const fn by_rex(&self) -> Width {
        if self.rex & REX_W != 0 {
            Width::B8
        } else {
            Width::B4
        }
    }

    /// Decodes a vector instruction. `second`: the additional operand in VEX; 0 if it has none.
    fn vector(
        &mut self,
        map: Map,
        opcode: u8,
        prefix: Prefix,
        how: How,
        second: Option<u8>,
    ) -> Option<()> {
        let two_operands = second.is_none_or(|second| second == 0);
        let is_low = how != How::Whole;

        if map == Map::First && opcode == 0x77 {
            self.op.what = What::Vector(Vector::ZeroUpper, how);
            return (prefix == Prefix::None && how == How::Low && two_operands).then_some(());
        }
        // None of the registers is a byte.
        let (middle, rm) = self.modrm(Width::B8, Width::B8)?;
        let in_memory = rm.is_memory();
        let reg = self.op.reg;
        let (what, width) = if map == Map::Second {
            (self.broadcast(opcode, prefix, how)?, None)
        } else {
            match prefix {
                Prefix::None | Prefix::Small => {
                    self.packed(opcode, prefix == Prefix::Small, is_low, in_memory, middle)?
                }
                Prefix::F3 | Prefix::F2 => self.scalar(opcode, prefix == Prefix::F2, is_low)?,
            }
        };

        // In this form, VEX.vvvv must name no register.
        if what.has_two_operands(in_memory) && !two_operands {
            return None;
        }
        self.op.width = width.unwrap_or(self.by_rex());
        let is_group = matches!(opcode, 0x71..=0x73) && map == Map::First;
        let stores = map == Map::First
            && matches!(
                opcode,
                0x11 | 0x13 | 0x17 | 0x29 | 0x2b | 0x7f | 0xd6 | 0xe7
            )
            || map == Map::First && opcode == 0x7e && prefix == Prefix::Small;
        let (target, source) = if is_group {
            // The additional operand is the target.
            (second.map_or(rm, Place::register), rm)
        } else if stores {
            (rm, reg)
        } else {
            (reg, rm)
        };

        if is_group || opcode == 0x70 {
            self.op.imm = self.number(Width::B1)? & 0xff;
        }
        if is_group && in_memory {
            return None;
        }
        // The register that is the first source.
        self.op.reg = match second {
            Some(second) if !is_group && !what.has_two_operands(in_memory) => {
                Place::register(second)
            }
            _ if target.is_memory() => source,
            _ => target,
        };
        if what == Vector::Move(true) {
            // The bits of the address that must be 0.
            self.op.imm = how.bytes().wrapping_sub(1);
        }
        self.set(What::Vector(what, how), target, source)
    }

    /// The broadcast that the opcode stands for.
    fn broadcast(&mut self, opcode: u8, prefix: Prefix, how: How) -> Option<Vector> {
        let width = match opcode {
            0x78 => Width::B1,
            0x79 => Width::B2,
            0x58 => Width::B4,
            0x59 => Width::B8,
            _ => return None,
        };

        (prefix == Prefix::Small && how != How::Legacy && self.rex & REX_W == 0)
            .then_some(Vector::Broadcast(width))
    }

    /// An operation on whole vectors, with the prefix 66 or without one. Also the width of an
    /// operand that is not a vector.
    fn packed(
        &mut self,
        opcode: u8,
        small: bool,
        is_low: bool,
        in_memory: bool,
        middle: u8,
    ) -> Option<(Vector, Option<Width>)> {
        let eight = Some(Width::B8);
        let any = match opcode {
            0x10 | 0x11 => Some(Vector::Move(false)),
            0x28 | 0x29 => Some(Vector::Move(true)),
            0x2b if in_memory => Some(Vector::Move(true)),
            0x12 if is_low && in_memory => return Some((Vector::LoadHalf(false), eight)),
            0x16 if is_low && in_memory => return Some((Vector::LoadHalf(true), eight)),
            0x13 if is_low && in_memory => return Some((Vector::StoreHalf(false), eight)),
            0x17 if is_low && in_memory => return Some((Vector::StoreHalf(true), eight)),
            // MOVHLPS and MOVLHPS.
            0x12 if is_low && !small => return Some((Vector::HighToLow, None)),
            0x16 if is_low && !small => return Some((Vector::UnpackLow(Width::B8), None)),
            0x2e if is_low => Some(Vector::Float(Float::Compare, small)),
            0x2f if is_low => Some(Vector::Float(Float::CompareOrdered, small)),
            0x54 => Some(Vector::And),
            0x55 => Some(Vector::AndNot),
            0x56 => Some(Vector::Or),
            0x57 => Some(Vector::Xor),
            _ => None,
        };
        if let Some(any) = any {
            return Some((any, None));
        }
        // Without the prefix, the other opcodes are those of MMX.
        if !small {
            return None;
        }
        Some((
            match opcode {
                0x60 => Vector::UnpackLow(Width::B1),
                0x61 => Vector::UnpackLow(Width::B2),
                0x62 => Vector::UnpackLow(Width::B4),
                0x6c => Vector::UnpackLow(Width::B8),
                0x68 => Vector::UnpackHigh(Width::B1),
                0x69 => Vector::UnpackHigh(Width::B2),
                0x6a => Vector::UnpackHigh(Width::B4),
                0x6d => Vector::UnpackHigh(Width::B8),
                0x64 => Vector::Greater(Width::B1),
                0x65 => Vector::Greater(Width::B2),
                0x66 => Vector::Greater(Width::B4),
                0x74 => Vector::Equal(Width::B1),
                0x75 => Vector::Equal(Width::B2),
                0x76 => Vector::Equal(Width::B4),
                0xd4 => Vector::Add(Width::B8),
                0xd6 if is_low => return Some((Vector::MoveLow, eight)),
                0xd7 if !in_memory => Vector::Mask,
                0xda => Vector::Min,
                0xdb => Vector::And,
                0xde => Vector::Max,
                0xdf => Vector::AndNot,
                0xe7 if in_memory => Vector::Move(true),
                0xeb => Vector::Or,
                0xef => Vector::Xor,
                0xf8 => Vector::Sub(Width::B1),
                0xf9 => Vector::Sub(Width::B2),
                0xfa => Vector::Sub(Width::B4),
                0xfb => Vector::Sub(Width::B8),
                0xfc => Vector::Add(Width::B1),
                0xfd => Vector::Add(Width::B2),
                0xfe => Vector::Add(Width::B4),
                0x6e if is_low => Vector::FromGeneral,
                0x7e if is_low => Vector::ToGeneral,
                0x6f | 0x7f => Vector::Move(true),
                0x70 => Vector::Shuffle,
                0x71 => match middle {
                    2 => Vector::ShiftRight(Width::B2),
                    6 => Vector::ShiftLeft(Width::B2),
                    _ => return None,
                },
                0x72 => match middle {
                    2 => Vector::ShiftRight(Width::B4),
                    6 => Vector::ShiftLeft(Width::B4),
                    _ => return None,
                },
                0x73 => match middle {
                    2 => Vector::ShiftRight(Width::B8),
                    6 => Vector::ShiftLeft(Width::B8),
                    3 => Vector::BytesRight,
                    7 => Vector::BytesLeft,
                    _ => return None,
                },
                _ => return None,
            },
            None,
        ))
    }

    /// An operation on the lowest element, of 4 or 8 bytes. Also the width of an operand that is
    /// not a vector.
    fn scalar(
        &mut self,
        opcode: u8,
        double: bool,
        is_low: bool,
    ) -> Option<(Vector, Option<Width>)> {
        let width = if double { Width::B8 } else { Width::B4 };
        let float = match opcode {
            0x10 | 0x11 if is_low => return Some((Vector::MoveScalar, Some(width))),
            0x6f | 0x7f if !double => return Some((Vector::Move(false), None)),
            0x7e if !double && is_low => return Some((Vector::MoveLow, Some(Width::B8))),
            // The integer is a general register or memory. REX.W gives its width.
            0x2a => Float::FromInteger,
            0x2c => Float::Truncate,
            0x2d => Float::Round,
            0x51 => Float::Sqrt,
            0x58 => Float::Add,
            0x59 => Float::Mul,
            0x5a => Float::Convert,
            0x5c => Float::Sub,
            0x5d => Float::Min,
            0x5e => Float::Div,
            0x5f => Float::Max,
            _ => return None,
        };

        is_low.then_some((Vector::Float(float, double), None))
    }
}
