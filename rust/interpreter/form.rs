// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Forms of instructions. All instructions of one form compute the same function.

use crate::op::{Locked, Native, Op, Two, Vector, What};

/// The function that an instruction computes, independent of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form(u8);

impl Form {
    /// The number of each form is less than this.
    pub const COUNT: usize = 128;

    /// The form of instructions that compute nothing: moves of general registers, branches, the
    /// stack.
    const OTHER: Self = Self(0);

    /// The form of the instruction that `text` begins with. [`None`] if the interpreter does not
    /// know it.
    pub fn of(text: &[u8]) -> Option<Self> {
        let mut op = Op::EMPTY;

        op.decode(text, 0)?;
        Some(op.what.form())
    }

    /// The number of the form, which is unique.
    #[inline]
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl What {
    /// The form of an instruction.
    // CAST: The numbers of variants. No enum has more variants than the numbers that are reserved
    // for it here.
    #[allow(clippy::as_conversions)]
    pub(crate) const fn form(self) -> Form {
        Form(match self {
            Self::Two(Two::Mov) => return Form::OTHER,
            Self::Two(two) => 1 + two as u8,
            Self::Not => 16,
            Self::Neg => 17,
            Self::Inc => 18,
            Self::Dec => 19,
            Self::Bswap => 20,
            Self::Cmov(_) => 21,
            Self::Set(_) | Self::JumpIf(_) => 22,
            Self::Movzx(_) | Self::Movsx(_) | Self::ExtendA | Self::ExtendD => 23,
            Self::Carry(_) => 24,
            Self::Lea => 25,
            Self::Native(native)
            | Self::Three(native)
            | Self::Multiply(native)
            | Self::Divide(native) => 32 + native as u8,
            Self::Swapped => 32 + Native::Movbe as u8,
            Self::Vector(vector, _) => return vector.form(),
            Self::Locked(locked) => return locked.form(),
            _ => return Form::OTHER,
        })
    }
}

impl Locked {
    const fn form(self) -> Form {
        match self {
            Self::Two(two) => What::Two(two).form(),
            Self::Not => What::Not.form(),
            Self::Neg => What::Neg.form(),
            Self::Inc => What::Inc.form(),
            Self::Dec => What::Dec.form(),
            Self::Exchange => Form::OTHER,
            Self::Add => What::Two(Two::Add).form(),
            Self::Compare => What::Two(Two::Cmp).form(),
        }
    }
}

impl Vector {
    #[allow(clippy::as_conversions)]
    const fn form(self) -> Form {
        Form(match self {
            Self::Float(float, _) => 80 + float as u8,
            Self::And => 96,
            Self::AndNot => 97,
            Self::Or => 98,
            Self::Xor => 99,
            Self::Equal(_) => 100,
            Self::Add(_) => 101,
            Self::Sub(_) => 102,
            Self::Greater(_) => 103,
            Self::Min => 104,
            Self::Max => 105,
            Self::UnpackLow(_) => 106,
            Self::UnpackHigh(_) => 107,
            Self::Shuffle => 108,
            Self::ShiftRight(_) => 109,
            Self::ShiftLeft(_) => 110,
            Self::BytesRight => 111,
            Self::BytesLeft => 112,
            Self::Mask => 113,
            _ => 114,
        })
    }
}

// CAST: Numbers of variants.
#[allow(clippy::as_conversions)]
const _: () = {
    assert!((Two::Test as usize) < 15);
    assert!((Native::Movbe as usize) < 80 - 32);
    assert!(114 < Form::COUNT);
};
