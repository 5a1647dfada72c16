// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where operands are.

/// The place of an operand: an index of [`Task::general`](crate::task::Task::general), or a variant
/// for an operand elsewhere. Each variant is in range of that array, so no access needs a bounds
/// check.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Ax,
    Cx,
    Dx,
    Bx,
    Sp,
    Bp,
    Si,
    Di,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    /// A constant 0: for addresses without a base or an index.
    Zero,
    /// The immediate of the instruction.
    Immediate,
    /// In memory.
    Memory,
    /// The second byte of a register, as the next three.
    HighA,
    HighC,
    HighD,
    HighB,
}

impl Place {
    /// The number of variants.
    pub(crate) const COUNT: usize = 23;

    const REGISTERS: [Self; 16] = [
        Self::Ax,
        Self::Cx,
        Self::Dx,
        Self::Bx,
        Self::Sp,
        Self::Bp,
        Self::Si,
        Self::Di,
        Self::R8,
        Self::R9,
        Self::R10,
        Self::R11,
        Self::R12,
        Self::R13,
        Self::R14,
        Self::R15,
    ];

    /// The whole of a register, or its lowest part.
    #[inline]
    pub(crate) fn register(number: u8) -> Self {
        *Self::REGISTERS
            .get(usize::from(number & 15))
            .unwrap_or(&Self::Ax)
    }

    /// The second byte of one of the first four registers.
    pub(crate) const fn high(number: u8) -> Self {
        match number & 3 {
            0 => Self::HighA,
            1 => Self::HighC,
            2 => Self::HighD,
            _ => Self::HighB,
        }
    }

    #[inline]
    pub(crate) const fn is_memory(self) -> bool {
        matches!(self, Self::Memory)
    }

    #[inline]
    pub(crate) const fn is_immediate(self) -> bool {
        matches!(self, Self::Immediate)
    }

    /// Whether it is the second byte of a register.
    #[inline]
    pub(crate) const fn is_high(self) -> bool {
        self.number() >= Self::HighA.number()
    }

    /// The register that it is in, and its lowest bit there.
    #[inline]
    pub(crate) fn in_register(self) -> (Self, u32) {
        match self {
            Self::HighA => (Self::Ax, 8),
            Self::HighC => (Self::Cx, 8),
            Self::HighD => (Self::Dx, 8),
            Self::HighB => (Self::Bx, 8),
            whole => (whole, 0),
        }
    }

    /// The processor's number of a register.
    #[inline]
    pub(crate) const fn number(self) -> u8 {
        // CAST: The number of a variant.
        #[allow(clippy::as_conversions)]
        let number = self as u8;

        number
    }

    /// The index in [`Task::general`](crate::task::Task::general).
    #[inline]
    pub(crate) const fn index(self) -> usize {
        // CAST: The number of a variant.
        #[allow(clippy::as_conversions)]
        let index = self as usize;

        index
    }
}
