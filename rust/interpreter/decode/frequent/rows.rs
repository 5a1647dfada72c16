// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tables of opcodes: operands, widths and the operation of each instruction.

use crate::decode::{ARITHMETIC, SHIFTS_BY};
use crate::op::{How, Native, Op, Place, Two, Vector, What, Width};

/// The operands of an instruction.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shape {
    /// The instruction is not in the table.
    Other,
    /// No operands.
    Plain,
    /// A target that is relative to the next instruction.
    Branch,
    /// A register whose number is in the opcode, which is pushed.
    Push,
    /// A register whose number is in the opcode, which is popped.
    Pop,
    /// A register whose number is in the opcode, and an immediate.
    Opcode,
    /// The accumulator, and an immediate.
    Accumulator,
    /// `rm`, and an immediate if there is one. This shape and all below have ModRM.
    Rm,
    /// `rm, reg`.
    RmReg,
    /// `reg, rm`.
    RegRm,
    /// `reg, rm`, of which `rm` is in memory.
    RegMemory,
    /// No operands: ModRM is ignored.
    Nothing,
    /// The operands of the row in `GROUP` that `ModRM.reg` selects.
    Group,
}

/// The instructions that can follow an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The next instruction in memory.
    Behind,
    /// The next instruction in memory, or another one.
    Branch,
    /// The instruction [ends](What::ends) a block.
    End,
}

impl Next {
    pub(super) const fn of(what: What) -> Self {
        if what.ends() {
            Self::End
        } else if what.is_branch() {
            Self::Branch
        } else {
            Self::Behind
        }
    }
}

/// The properties of an instruction that its opcode determines, together with REX.W.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) shape: Shape,
    what: What,
    width: Width,
    /// The instruction, as far as its opcode determines it. With ModRM, operands and function are
    /// missing.
    pub(super) op: Op,
    pub(super) next: Next,
    /// The length of the immediate, in bytes.
    pub(super) immediate: u8,
    /// Whether the operand `reg`, and the operand `rm`, is a byte.
    pub(super) is_byte: bool,
    pub(super) rm_is_byte: bool,
    /// The numbers of the functions that execute it: with `rm` in a register, in memory without an
    /// index, and in memory with an index.
    pub(super) run: [u8; 3],
    /// The number of its group: see [`group_row()`].
    pub(super) group: u8,
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

    /// Sets the width of a byte if the lowest bit of the opcode is clear.
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

    /// Adds the functions, and sets the width of 8 bytes if REX.W does so.
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
    /// The target and the source.
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

/// The opcodes of one byte, without and with REX.W; then those behind 0F.
pub(super) static ROWS: [[Row; 256]; 4] = {
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

/// Moves of vectors, by whether they store, by whether memory must be aligned, and by [`How`].
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
pub(super) fn move_row(prefix: u8, opcode: u8, how: How) -> Option<(&'static Row, bool)> {
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

/// The rows of groups, by whether operands have 8 bytes, by the number of the group, and by the
/// middle bits of ModRM.
pub(super) static GROUP: [[[Row; 8]; GROUPS]; 2] = {
    let mut rows = [[[Row::OTHER; 8]; GROUPS]; 2];
    let mut at = 0;

    while at < 2 * GROUPS * 8 {
        let (wide, group, middle) = (at / 8 / GROUPS, at / 8 % GROUPS, at % 8);

        rows[wide][group][middle] = group_row(group, middle).done(wide == 1);
        at += 1;
    }
    rows
};

/// The row of the group with this number in [`one_byte()`], for these middle bits of ModRM.
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
