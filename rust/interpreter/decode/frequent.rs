// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The most frequent encodings, in tables: without legacy prefixes, and with operands that the opcode and ModRM
//! give.
//!
//! Others are left to [`Op::decode()`], which knows these, too.

use super::{is_user, ARITHMETIC, LEN_MAX, REX_B, REX_R, REX_W, REX_X, SHIFTS_BY};
use crate::op::{How, Native, Op, Place, Two, Vector, What, Width};

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

/// Which operands an instruction has.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shape {
    /// It is not in the table.
    Other,
    /// None.
    Plain,
    /// The address of the immediate, which is relative.
    Branch,
    /// In the opcode, and pushed.
    Push,
    /// In the opcode, and popped.
    Pop,
    /// In the opcode, and an immediate.
    Opcode,
    /// The accumulator, and an immediate.
    Accumulator,
    /// `rm`, and an immediate if there is one. This and the next have ModRM.
    Rm,
    /// `rm, reg`.
    RmReg,
    /// `reg, rm`.
    RegRm,
    /// `reg, rm`, of which `rm` is in memory.
    RegMemory,
    /// ModRM has none that matters.
    Nothing,
    /// As the row says that ModRM has the number of.
    Group,
}

/// What can follow an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The one behind it.
    Behind,
    /// That one, or another.
    Branch,
    /// The instruction [ends](What::ends) a block.
    End,
}

impl Next {
    const fn of(what: What) -> Self {
        if what.ends() {
            Self::End
        } else if what.is_branch() {
            Self::Branch
        } else {
            Self::Behind
        }
    }
}

/// What is known of an instruction by its opcode, and by whether its operands have 8 bytes.
#[derive(Clone, Copy)]
struct Row {
    shape: Shape,
    what: What,
    width: Width,
    /// The instruction, as far as its opcode tells. One with ModRM lacks operands and function.
    op: Op,
    next: Next,
    /// The immediate, in bytes.
    immediate: u8,
    /// Whether a byte is the operand that ModRM has by its own number, and the other.
    is_byte: bool,
    rm_is_byte: bool,
    /// The function that executes it, with `rm` in a register, in memory without an index, and with one.
    run: [u8; 3],
    /// The number of its group: see [`group_row()`].
    group: u8,
}

impl Row {
    const OTHER: Self = Self {
        shape: Shape::Other,
        what: What::Nop,
        width: Width::B4,
        op: Op::EMPTY,
        next: Next::Behind,
        immediate: 0,
        is_byte: false,
        rm_is_byte: false,
        run: [0; 3],
        group: 0,
    };

    const fn new(shape: Shape, what: What) -> Self {
        Self {
            shape,
            what,
            ..Self::OTHER
        }
    }

    const fn of_group(number: u8) -> Self {
        Self {
            shape: Shape::Group,
            group: number,
            ..Self::OTHER
        }
    }

    const fn with_immediate(self, bytes: u8) -> Self {
        Self {
            immediate: bytes,
            ..self
        }
    }

    /// The lowest bit of the opcode is clear for bytes.
    const fn with_bytes(self, opcode: u8) -> Self {
        let is_byte = opcode & 1 == 0;

        Self {
            width: if is_byte { Width::B1 } else { self.width },
            is_byte,
            rm_is_byte: is_byte,
            ..self
        }
    }

    const fn of_bytes(self) -> Self {
        self.with_bytes(0)
    }

    const fn wide(self) -> Self {
        Self {
            width: Width::B8,
            ..self
        }
    }

    /// With the functions, and with 8 bytes if the prefix says so.
    const fn done(self, has_rex_w: bool) -> Self {
        let row = if has_rex_w && matches!(self.width, Width::B4) {
            self.wide()
        } else {
            self
        };

        let run = [
            row.function(Place::Ax, Place::Zero),
            row.function(Place::Memory, Place::Zero),
            row.function(Place::Memory, Place::Ax),
        ];
        let (target, source) = row.shape.operands(Place::Ax, Place::Ax);

        Self {
            op: Op {
                what: row.what,
                width: row.width,
                target,
                source,
                run: run[0],
                ..Op::EMPTY
            },
            next: Next::of(row.what),
            run,
            ..row
        }
    }

    const fn function(self, rm: Place, index: Place) -> u8 {
        let (target, source) = self.shape.operands(Place::Ax, rm);
        let op = Op {
            what: self.what,
            width: self.width,
            target,
            source,
            index,
            ..Op::EMPTY
        };

        match op.function() {
            Some(run) => run,
            None => 0,
        }
    }
}

impl Shape {
    /// Target and source.
    const fn operands(self, reg: Place, rm: Place) -> (Place, Place) {
        match self {
            Self::RmReg => (rm, reg),
            Self::RegRm | Self::RegMemory => (reg, rm),
            Self::Rm => (rm, Place::Immediate),
            Self::Opcode | Self::Accumulator => (reg, Place::Immediate),
            Self::Push => (Place::Memory, reg),
            Self::Pop => (reg, Place::Memory),
            _ => (Place::Ax, Place::Ax),
        }
    }
}

/// Opcodes of one byte, without and with REX.W; and those behind 0F.
static ROWS: [[Row; 256]; 4] = {
    const fn one(opcode: u8) -> Row {
        one_byte(opcode).done(false)
    }
    const fn one_wide(opcode: u8) -> Row {
        one_byte(opcode).done(true)
    }
    const fn two(opcode: u8) -> Row {
        two_bytes(opcode).done(false)
    }
    const fn two_wide(opcode: u8) -> Row {
        two_bytes(opcode).done(true)
    }
    [table!(one), table!(one_wide), table!(two), table!(two_wide)]
};

const fn one_byte(opcode: u8) -> Row {
    use Shape::{Accumulator, Branch, Opcode, Plain, Pop, Push, RegMemory, RegRm, RmReg};

    match opcode {
        0x00..=0x3f if opcode & 7 < 6 => {
            // CAST: Widening; `From` is not const.
            #[allow(clippy::as_conversions)]
            let what = What::Two(ARITHMETIC[(opcode >> 3) as usize]);

            match opcode & 7 {
                0 | 1 => Row::new(RmReg, what).with_bytes(opcode),
                2 | 3 => Row::new(RegRm, what).with_bytes(opcode),
                4 => Row::new(Accumulator, what).of_bytes().with_immediate(1),
                _ => Row::new(Accumulator, what).with_immediate(4),
            }
        }
        0x50..=0x57 => Row::new(Push, What::Push).wide(),
        0x58..=0x5f => Row::new(Pop, What::Pop).wide(),
        0x63 => Row::new(RegRm, What::Movsx(Width::B4)),
        0x70..=0x7f => Row::new(Branch, What::JumpIf(opcode & 15)).with_immediate(1),
        0x80 => Row::of_group(1).of_bytes().with_immediate(1),
        0x81 => Row::of_group(0).with_immediate(4),
        0x83 => Row::of_group(0).with_immediate(1),
        0x84 | 0x85 => Row::new(RmReg, What::Two(Two::Test)).with_bytes(opcode),
        0x88 | 0x89 => Row::new(RmReg, What::Two(Two::Mov)).with_bytes(opcode),
        0x8a | 0x8b => Row::new(RegRm, What::Two(Two::Mov)).with_bytes(opcode),
        0x8d => Row::new(RegMemory, What::Lea),
        0x98 => Row::new(Plain, What::ExtendA),
        0x99 => Row::new(Plain, What::ExtendD),
        0xa8 => Row::new(Accumulator, What::Two(Two::Test))
            .of_bytes()
            .with_immediate(1),
        0xa9 => Row::new(Accumulator, What::Two(Two::Test)).with_immediate(4),
        0xb8..=0xbf => Row::new(Opcode, What::Two(Two::Mov)).with_immediate(4),
        0xc1 => Row::of_group(2).with_immediate(1),
        0xc3 => Row::new(Plain, What::Return),
        0xc6 => Row::of_group(7).of_bytes().with_immediate(1),
        0xc7 => Row::of_group(6).with_immediate(4),
        0xc9 => Row::new(Plain, What::Leave).wide(),
        0xe8 => Row::new(Branch, What::Call).with_immediate(4),
        0xe9 => Row::new(Branch, What::Jump).with_immediate(4),
        0xeb => Row::new(Branch, What::Jump).with_immediate(1),
        0xf6 => Row::of_group(3).of_bytes(),
        0xf7 => Row::of_group(4),
        0xff => Row::of_group(5),
        _ => Row::OTHER,
    }
}

const fn two_bytes(opcode: u8) -> Row {
    use Shape::{Branch, Nothing, RegRm, Rm};

    match opcode {
        0x1f => Row::new(Nothing, What::Nop),
        0x40..=0x4f => Row::new(RegRm, What::Cmov(opcode & 15)),
        0x80..=0x8f => Row::new(Branch, What::JumpIf(opcode & 15)).with_immediate(4),
        0x90..=0x9f => Row::new(Rm, What::Set(opcode & 15)).of_bytes(),
        0xaf => Row::new(RegRm, What::Native(Native::ImulTwo)),
        0xb6 | 0xb7 | 0xbe | 0xbf => {
            let from = if opcode & 1 == 0 {
                Width::B1
            } else {
                Width::B2
            };
            let what = if opcode < 0xb8 {
                What::Movzx(from)
            } else {
                What::Movsx(from)
            };

            Row {
                rm_is_byte: opcode & 1 == 0,
                ..Row::new(RegRm, what)
            }
        }
        _ => Row::OTHER,
    }
}

/// Moves of vectors, by where they store, whether they must be aligned, and [`How`].
static MOVES: [[[Row; 3]; 2]; 2] = {
    const fn rows(shape: Shape, is_aligned: bool) -> [Row; 3] {
        [
            row(shape, is_aligned, How::Legacy),
            row(shape, is_aligned, How::Low),
            row(shape, is_aligned, How::Whole),
        ]
    }
    const fn row(shape: Shape, is_aligned: bool, how: How) -> Row {
        Row::new(shape, What::Vector(Vector::Move(is_aligned), how)).done(false)
    }
    [
        [rows(Shape::RegRm, false), rows(Shape::RegRm, true)],
        [rows(Shape::RmReg, false), rows(Shape::RmReg, true)],
    ]
};

/// The row in [`MOVES`] for a prefix, numbered as in VEX, and an opcode behind 0F.
#[inline]
fn move_row(prefix: u8, opcode: u8, how: How) -> Option<(&'static Row, bool)> {
    let (stores, is_aligned) = match (prefix, opcode) {
        (0 | 1, 0x10 | 0x11) => (opcode == 0x11, false),
        (0 | 1, 0x28 | 0x29) => (opcode == 0x29, true),
        (1 | 2, 0x6f | 0x7f) => (opcode == 0x7f, prefix == 1),
        _ => return None,
    };
    // CAST: The number of a variant.
    #[allow(clippy::as_conversions)]
    let place = how as usize;
    let row = MOVES
        .get(usize::from(stores))?
        .get(usize::from(is_aligned))?
        .get(place)?;

    Some((row, is_aligned))
}

const GROUPS: usize = 8;

/// By whether operands have 8 bytes, by the number of the group, and by that in ModRM.
static GROUP: [[[Row; 8]; GROUPS]; 2] = {
    let mut rows = [[[Row::OTHER; 8]; GROUPS]; 2];
    let mut at = 0;

    while at < 2 * GROUPS * 8 {
        let (wide, group, middle) = (at / 8 / GROUPS, at / 8 % GROUPS, at % 8);

        rows[wide][group][middle] = group_row(group, middle).done(wide == 1);
        at += 1;
    }
    rows
};

/// Of the group with this number, in [`one_byte()`], and with this one in ModRM.
const fn group_row(group: usize, middle: usize) -> Row {
    use Shape::{RegRm, Rm};

    match (group, middle) {
        (0, _) => Row::new(Rm, What::Two(ARITHMETIC[middle])),
        (1, _) => Row::new(Rm, What::Two(ARITHMETIC[middle])).of_bytes(),
        (2, _) => Row::new(Rm, What::Native(SHIFTS_BY[middle])),
        (3, 0) => Row::new(Rm, What::Two(Two::Test))
            .of_bytes()
            .with_immediate(1),
        (4, 0) => Row::new(Rm, What::Two(Two::Test)).with_immediate(4),
        (4, 2) => Row::new(Rm, What::Not),
        (4, 3) => Row::new(Rm, What::Neg),
        (5, 0) => Row::new(Rm, What::Inc),
        (5, 1) => Row::new(Rm, What::Dec),
        (5, 2) => Row::new(RegRm, What::IndirectCall).wide(),
        (5, 4) => Row::new(RegRm, What::IndirectJump).wide(),
        (6, 0) => Row::new(Rm, What::Two(Two::Mov)),
        (7, 0) => Row::new(Rm, What::Two(Two::Mov)).of_bytes(),
        _ => Row::OTHER,
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

    /// Becomes the instruction if that is one of [`MOVES`], with one prefix in front of REX and 0F at most, or with a VEX
    /// prefix of two bytes. If not, it becomes anything.
    #[inline]
    fn vector_move(&mut self, text: Text<'_>, start: usize) -> Option<()> {
        let bytes = text.eight(start);
        let [first, second, third, fourth, ..] = bytes.to_le_bytes();
        let prefix = if first == 0xf3 { 2 } else { 1 };
        let (prefix, how, rex, opcode, len) = match (first, second, third) {
            // It has room for an operand more.
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
