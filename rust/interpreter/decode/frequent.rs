// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes the most frequent encodings by tables. They have no legacy prefixes, and their operands
//! are given by the opcode and by ModRM.
//!
//! Other encodings are left to [`Op::decode()`], which decodes these too.

use super::{is_user, LEN_MAX, REX_B, REX_R, REX_W, REX_X};
use crate::op::{How, Op, Place, Width};
use rows::{move_row, Row, Shape, GROUP, ROWS};

mod rows;

pub(crate) use rows::Next;

/// The number of words of text that a block can lie in.
pub(crate) const WORDS: usize = 12;

/// The length of the array for words of text: more than [`WORDS`], and a power of 2, so that an
/// access needs no bounds check.
pub(crate) const PLACES: usize = 16;

/// Text in words, the lowest byte of each first.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    pub(crate) words: &'a [u64; PLACES],
    /// The address of the first word.
    pub(crate) ip: u64,
    /// All instructions end before this byte.
    pub(crate) end: usize,
}

impl Text<'_> {
    /// The address of a byte.
    #[inline(always)]
    fn at(self, byte: usize) -> u64 {
        self.ip.wrapping_add(u64::try_from(byte).unwrap_or(0))
    }

    /// Eight bytes from byte `at` on. Bytes behind the end of the text have any value.
    #[inline(always)]
    fn eight(self, at: usize) -> u64 {
        let word = at.wrapping_shr(3);
        let bits = u32::try_from(at & 7).unwrap_or(0).wrapping_mul(8);
        let word_at = |word: usize| self.words.get(word % PLACES).copied().unwrap_or(0);
        let (low, high) = (word_at(word), word_at(word.wrapping_add(1)));

        // If `bits` is 0, this shifts out all of `high`.
        low.wrapping_shr(bits) | high.wrapping_shl(1).wrapping_shl(bits ^ 63)
    }
}

#[inline(always)]
fn low(bytes: u64) -> u8 {
    let [low, ..] = bytes.to_le_bytes();

    low
}

/// A register by three bits of its number, and `bit` of the REX prefix.
#[inline(always)]
fn register(number: u8, rex: u8, bit: u8) -> Place {
    Place::register(number | if rex & bit != 0 { 8 } else { 0 })
}

impl Op {
    /// Decodes the instruction at byte `start` of the text. Returns what can follow it; [`None`] if
    /// it is left to the processor.
    #[inline(always)]
    pub(crate) fn decode_at(&mut self, text: Text<'_>, start: usize) -> Option<Next> {
        if let Some(next) = self.frequent(text, start) {
            return Some(next);
        }
        self.other(text, start)
    }

    /// As [`decode_at`](Self::decode_at), for an instruction that the tables do not have.
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

    /// Decodes an instruction that has a [`move_row()`]. It must have a VEX prefix of two bytes, or
    /// at most one of 66 and F3 in front of REX and 0F. On failure `self` has any value.
    #[inline]
    fn vector_move(&mut self, text: Text<'_>, start: usize) -> Option<()> {
        let bytes = text.eight(start);
        let [first, second, third, fourth, ..] = bytes.to_le_bytes();
        let prefix = if first == 0xf3 { 2 } else { 1 };
        let (prefix, how, rex, opcode, len) = match (first, second, third) {
            // All bits of VEX.vvvv are set: it names no register.
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
            // The bits of the address that must be 0.
            self.imm = how.bytes().wrapping_sub(1);
        }
        self.len = low(u64::try_from(end.wrapping_sub(start)).unwrap_or(0));
        (end <= text.end).then_some(())
    }

    /// As [`decode_at`](Self::decode_at), for a frequent instruction. On failure `self` has any
    /// value.
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
                // With REX.W the immediate has 8 bytes.
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

    /// Reads the operands from ModRM, which is the first of `bytes`, and the immediate. Returns the
    /// end of the instruction, and what can follow it.
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

        // The operand may be the second byte of a register.
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
                    // Behind REX and SIB, `bytes` does not hold the whole immediate.
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
