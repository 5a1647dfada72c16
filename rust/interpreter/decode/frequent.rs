// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The most frequent encodings, in tables: without legacy prefixes, and with operands that the opcode and ModRM
//! give.
//!
//! Others are left to [`Op::decode()`], which knows these, too.

use super::{is_user, LEN_MAX, REX_B, REX_R, REX_W, REX_X};
use crate::op::{How, Op, Place, Width};
use rows::{move_row, Row, Shape, GROUP, ROWS};

mod rows;

pub(crate) use rows::Next;

/// Words of text that a block can lie in.
pub(crate) const WORDS: usize = 12;

/// Places for words of text: more than there are words, and a power of 2, so that an access needs no check.
pub(crate) const PLACES: usize = 16;

/// Text in words, the lowest byte of each first.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    pub(crate) words: &'a [u64; PLACES],
    /// Where the first word is.
    pub(crate) ip: u64,
    /// Instructions end in front of this byte.
    pub(crate) end: usize,
}

impl Text<'_> {
    /// The address of a byte.
    #[inline(always)]
    fn at(self, byte: usize) -> u64 {
        self.ip.wrapping_add(u64::try_from(byte).unwrap_or(0))
    }

    /// Eight bytes from one on. Those behind the end do not matter.
    #[inline(always)]
    fn eight(self, at: usize) -> u64 {
        let word = at.wrapping_shr(3);
        let bits = u32::try_from(at & 7).unwrap_or(0).wrapping_mul(8);
        let word_at = |word: usize| self.words.get(word % PLACES).copied().unwrap_or(0);
        let (low, high) = (word_at(word), word_at(word.wrapping_add(1)));

        // Of `high` nothing, if `bits` is 0.
        low.wrapping_shr(bits) | high.wrapping_shl(1).wrapping_shl(bits ^ 63)
    }
}

#[inline(always)]
fn low(bytes: u64) -> u8 {
    let [low, ..] = bytes.to_le_bytes();

    low
}

/// A register by its three bits, and a bit of the REX prefix.
#[inline(always)]
fn register(number: u8, rex: u8, bit: u8) -> Place {
    Place::register(number | if rex & bit != 0 { 8 } else { 0 })
}

impl Op {
    /// Becomes the instruction at a byte of the text, and says what can follow it; [`None`] if the instruction is left to
    /// the processor.
    #[inline(always)]
    pub(crate) fn decode_at(&mut self, text: Text<'_>, start: usize) -> Option<Next> {
        if let Some(next) = self.frequent(text, start) {
            return Some(next);
        }
        self.other(text, start)
    }

    /// As [`decode_at`](Self::decode_at), for any instruction.
    #[inline(never)]
    fn other(&mut self, text: Text<'_>, start: usize) -> Option<Next> {
        if self.vector_move(text, start).is_some() {
            return Some(Next::Behind);
        }
        let [first, second] = [start, start.wrapping_add(8)].map(|at| text.eight(at));
        let bytes = (u128::from(first) | u128::from(second) << 64).to_le_bytes();
        let len = text.end.saturating_sub(start).min(LEN_MAX);
        let ip = text.ip.wrapping_add(u64::try_from(start).ok()?);

        self.decode(bytes.get(..len)?, ip)?;
        Some(Next::of(self.what))
    }

    /// Becomes the instruction if that has a [`move_row()`], and either a VEX prefix of two bytes, or 66 or F3 or none in
    /// front of REX and 0F. If not, it becomes anything.
    #[inline]
    fn vector_move(&mut self, text: Text<'_>, start: usize) -> Option<()> {
        let bytes = text.eight(start);
        let [first, second, third, fourth, ..] = bytes.to_le_bytes();
        let prefix = if first == 0xf3 { 2 } else { 1 };
        let (prefix, how, rex, opcode, len) = match (first, second, third) {
            // VEX.vvvv has no register: all of its bits are set.
            (0xc5, ..) if second & 0x78 == 0x78 => {
                let how = if second & 4 == 0 {
                    How::Low
                } else {
                    How::Whole
                };
                let rex = if second & 0x80 == 0 { REX_R } else { 0 };

                (second & 3, how, rex, third, 3_u8)
            }
            (0x66 | 0xf3, 0x0f, _) => (prefix, How::Legacy, 0, third, 3),
            (0x66 | 0xf3, 0x40..=0x4f, 0x0f) => (prefix, How::Legacy, second, fourth, 4),
            (0x0f, ..) => (0, How::Legacy, 0, second, 2),
            (0x40..=0x4f, 0x0f, _) => (0, How::Legacy, first, third, 3),
            _ => return None,
        };
        let (row, is_aligned) = move_row(prefix, opcode, how)?;
        let at = start.wrapping_add(len.into());

        *self = row.op;
        let (end, _) = self.operands(row, rex, text, text.eight(at), at)?;

        if rex & REX_W != 0 {
            self.width = Width::B8;
        }
        self.reg = if self.target.is_memory() {
            self.source
        } else {
            self.target
        };
        if is_aligned {
            // Bits of the address that must be 0.
            self.imm = how.bytes().wrapping_sub(1);
        }
        self.len = low(u64::try_from(end.wrapping_sub(start)).unwrap_or(0));
        (end <= text.end).then_some(())
    }

    /// As [`decode_at`](Self::decode_at), if the instruction is a frequent one. If not, it becomes anything.
    #[inline(always)]
    fn frequent(&mut self, text: Text<'_>, start: usize) -> Option<Next> {
        let mut bytes = text.eight(start);
        let mut opcode = low(bytes);
        let mut at = start.wrapping_add(1);
        let mut rex = 0;

        bytes >>= 8;
        if opcode & 0xf0 == 0x40 {
            rex = opcode;
            opcode = low(bytes);
            bytes >>= 8;
            at = at.wrapping_add(1);
        }
        let wide = usize::from(rex & REX_W != 0);
        let rows = if opcode == 0x0f {
            opcode = low(bytes);
            at = at.wrapping_add(1);
            bytes = text.eight(at);
            ROWS.get(2 | wide)?
        } else {
            ROWS.get(wide)?
        };
        let row = rows.get(usize::from(opcode))?;
        let mut next = row.next;

        *self = row.op;
        if row.shape >= Shape::Rm {
            (at, next) = self.operands(row, rex, text, bytes, at)?;
        } else {
            let reg = register(opcode & 7, rex, REX_B);

            match row.shape {
                Shape::Other => return None,
                // The immediate has 8 bytes.
                Shape::Opcode if rex & REX_W != 0 => return None,
                Shape::Opcode | Shape::Pop => (self.reg, self.target) = (reg, reg),
                Shape::Push => (self.reg, self.source) = (reg, reg),
                _ => {}
            }
            if row.immediate == 1 {
                self.imm = Width::B1.extend(bytes);
                at = at.wrapping_add(1);
            } else if row.immediate != 0 {
                self.imm = Width::B4.extend(bytes);
                at = at.wrapping_add(4);
            }
            if row.shape == Shape::Branch {
                self.imm = self.imm.wrapping_add(text.at(at));
                if !is_user(self.imm) {
                    return None;
                }
            }
        }
        self.len = low(u64::try_from(at.wrapping_sub(start)).unwrap_or(0));
        (at <= text.end).then_some(next)
    }

    /// Reads the operands that ModRM gives, from what is behind the opcode, and the immediate. Returns where that
    /// ends, and what can follow the instruction.
    #[inline(always)]
    fn operands(
        &mut self,
        row: &'static Row,
        rex: u8,
        text: Text<'_>,
        bytes: u64,
        at: usize,
    ) -> Option<(usize, Next)> {
        let modrm = low(bytes);
        let (form, middle, number) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let mut at = at.wrapping_add(1);
        let mut bytes = bytes >> 8;
        let mut immediate = row.immediate;

        // The second byte of a register, perhaps.
        if rex == 0 && row.rm_is_byte && (row.is_byte && middle >= 4 || form == 3 && number >= 4) {
            return None;
        }
        let row = if row.shape == Shape::Group {
            let groups = GROUP.get(usize::from(rex & REX_W != 0))?;
            let row = groups
                .get(usize::from(row.group))?
                .get(usize::from(middle))?;

            immediate |= row.immediate;
            *self = row.op;
            row
        } else {
            row
        };
        let reg = register(middle, rex, REX_R);
        let mut place = 0;
        let rm = if form == 3 {
            register(number, rex, REX_B)
        } else {
            let mut base = number;

            place = 1;
            if number == 4 {
                let sib = low(bytes);
                let index = register(sib >> 3 & 7, rex, REX_X);

                bytes >>= 8;
                at = at.wrapping_add(1);
                base = sib & 7;
                if index != Place::Sp {
                    self.index = index;
                    place = 2;
                }
                self.scale = sib >> 6;
            }
            if form != 0 || base != 5 {
                self.base = register(base, rex, REX_B);
            }
            if form == 1 {
                self.displacement = Width::B1.extend(bytes);
                at = at.wrapping_add(1);
                bytes >>= 8;
                if immediate == 4 {
                    // Not all of it is there behind REX and SIB.
                    bytes = text.eight(at);
                }
            } else if form == 2 || base == 5 {
                self.displacement = Width::B4.extend(bytes);
                at = at.wrapping_add(4);
                if form == 0 && number == 5 {
                    let next = text.at(at.wrapping_add(immediate.into()));

                    self.displacement = self.displacement.wrapping_add(next);
                }
                if immediate != 0 {
                    bytes = text.eight(at);
                }
            }
            Place::Memory
        };

        self.reg = reg;
        self.run = *row.run.get(place)?;
        match row.shape {
            Shape::RegRm => (self.target, self.source) = (reg, rm),
            Shape::RmReg => (self.target, self.source) = (rm, reg),
            Shape::Rm => self.target = rm,
            Shape::RegMemory if rm.is_memory() => (self.target, self.source) = (reg, rm),
            Shape::Nothing => {}
            _ => return None,
        }
        if immediate == 1 {
            self.imm = Width::B1.extend(bytes);
            at = at.wrapping_add(1);
        } else if immediate != 0 {
            self.imm = Width::B4.extend(bytes);
            at = at.wrapping_add(4);
        }
        Some((at, row.next))
    }
}

#[cfg(test)]
mod tests;
