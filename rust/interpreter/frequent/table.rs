// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table of functions that execute instructions, and the choice of a function for an
//! instruction.

use super::*;
use crate::op::Two;
use core::marker::PhantomData;

/// Defines the enum of the functions' numbers, and the first part of the table.
macro_rules! functions {
    ($($name:ident: $function:expr,)*) => {
        #[repr(u8)]
        #[derive(Clone, Copy)]
        enum Named {
            $($name,)*
        }

        /// The number of these functions.
        const NAMED: usize = [$(Named::$name),*].len();

        impl<M: Machine, O: Observer> Functions<M, O> {
            const NAMED: [Function<M, O>; NAMED] = [$($function),*];
        }
    };
}

functions! {
    End: end,
    More: more,
    Any: any,
    Nop: nop,
    Zero1Reg: zero_reg::<W1, M, O>,
    Zero1Mem: zero_mem::<W1, M, O>,
    Zero2Reg: zero_reg::<W2, M, O>,
    Zero2Mem: zero_mem::<W2, M, O>,
    SignReg: sign_reg,
    SignMem: sign_mem,
    Lea4: lea::<W4, M, O>,
    Lea8: lea::<W8, M, O>,
    Cmov4: cmov_reg::<W4, M, O>,
    Cmov8: cmov_reg::<W8, M, O>,
    Shl4: shift::<Shl, W4, M, O>,
    Shl8: shift::<Shl, W8, M, O>,
    Shr4: shift::<Shr, W4, M, O>,
    Shr8: shift::<Shr, W8, M, O>,
    Sar4: shift::<Sar, W4, M, O>,
    Sar8: shift::<Sar, W8, M, O>,
    Multiply4: multiply::<W4, M, O>,
    Multiply8: multiply::<W8, M, O>,
    Set: set_if,
    Count4: count::<W4, M, O>,
    Count8: count::<W8, M, O>,
    LegacyLoad: vector_load::<Legacy, M, O>,
    LowLoad: vector_load::<Low, M, O>,
    WholeLoad: vector_load::<Whole, M, O>,
    LegacyStore: vector_store::<Legacy, M, O>,
    LowStore: vector_store::<Low, M, O>,
    WholeStore: vector_store::<Whole, M, O>,
    Load4: load::<W4, M, O>,
    Load8: load::<W8, M, O>,
    Store4: store::<W4, M, O>,
    Store8: store::<W8, M, O>,
    Push: push,
    Pop: pop,
    Jump: jump,
    Call: call,
    Return: ret,
    JumpReg: jump_reg,
    JumpMem: jump_mem,
    CallReg: call_reg,
    CallMem: call_mem,
    If: jump_if::<0, M, O>,
    If1: jump_if::<1, M, O>,
    If2: jump_if::<2, M, O>,
    If3: jump_if::<3, M, O>,
    If4: jump_if::<4, M, O>,
    If5: jump_if::<5, M, O>,
    If6: jump_if::<6, M, O>,
    If7: jump_if::<7, M, O>,
    If8: jump_if::<8, M, O>,
    If9: jump_if::<9, M, O>,
    If10: jump_if::<10, M, O>,
    If11: jump_if::<11, M, O>,
    If12: jump_if::<12, M, O>,
    If13: jump_if::<13, M, O>,
    If14: jump_if::<14, M, O>,
    If15: jump_if::<15, M, O>,
}

/// The number of operations in [`Two`].
const COMPUTES: usize = 10;
/// 1, 4 and 8 bytes.
const WIDTHS: usize = 3;
/// From a register, an immediate or memory to a register; from a register or an immediate to
/// memory.
const FORMS: usize = 5;
const COMPUTED: usize = COMPUTES * WIDTHS * FORMS;

/// An index of 8 bits is always within the table, so that it needs no bounds check.
const TABLE: usize = 256;

pub(super) struct Functions<M, O>(PhantomData<(M, O)>);

impl<M: Machine, O: Observer> Functions<M, O> {
    const fn widths<C: Compute>() -> [[Function<M, O>; FORMS]; WIDTHS] {
        [
            Self::forms::<C, W1>(),
            Self::forms::<C, W4>(),
            Self::forms::<C, W8>(),
        ]
    }

    const fn forms<C: Compute, W: Wide>() -> [Function<M, O>; FORMS] {
        [
            reg_reg::<C, W, M, O>,
            reg_imm::<C, W, M, O>,
            reg_mem::<C, W, M, O>,
            mem_reg::<C, W, M, O>,
            mem_imm::<C, W, M, O>,
        ]
    }

    const COMPUTED: [[[Function<M, O>; FORMS]; WIDTHS]; COMPUTES] = [
        Self::widths::<Mov>(),
        Self::widths::<Add>(),
        Self::widths::<Or>(),
        [[any; FORMS]; WIDTHS],
        [[any; FORMS]; WIDTHS],
        Self::widths::<And>(),
        Self::widths::<Sub>(),
        Self::widths::<Xor>(),
        Self::widths::<Cmp>(),
        Self::widths::<Test>(),
    ];

    /// The functions by [`Op::run`].
    pub(super) const TABLE: [Function<M, O>; TABLE] = {
        let mut table: [Function<M, O>; TABLE] = [any; TABLE];
        let mut at = 0;

        while at < NAMED {
            table[at] = Self::NAMED[at];
            at += 1;
        }
        while at < NAMED + COMPUTED {
            let (rest, form) = ((at - NAMED) / FORMS, (at - NAMED) % FORMS);

            table[at] = Self::COMPUTED[rest / WIDTHS][rest % WIDTHS][form];
            at += 1;
        }
        table
    };
}

impl Op {
    /// Ends a block of which more can be decoded.
    pub(crate) const MORE: Self = Self {
        // CAST: The number of a variant.
        #[allow(clippy::as_conversions)]
        run: Named::More as u8,
        ..Self::EMPTY
    };

    /// Chooses the function that executes the instruction; [`None`] if there is no such
    /// instruction.
    #[inline]
    pub(crate) fn choose(&mut self) -> Option<()> {
        self.run = self.function()?;
        Some(())
    }

    /// The number of the function that executes the instruction; [`None`] if there is no such
    /// instruction.
    // CAST: The numbers of variants and of functions, which are fewer than `TABLE`.
    #[allow(clippy::as_conversions, clippy::cast_possible_truncation)]
    pub(crate) const fn function(&self) -> Option<u8> {
        Some(match self.what {
            What::Two(Two::Mov) if self.is_simple() => self.moves() as u8,
            What::Two(two) => match self.computed(two) {
                Some(at) => NAMED.wrapping_add(at) as u8,
                None => Named::Any as u8,
            },
            What::JumpIf(condition) => (Named::If as u8).wrapping_add(condition & 15),
            What::Locked(_) if !self.target.is_memory() => return None,
            _ => self.named() as u8,
        })
    }

    /// Whether the instruction moves 4 or 8 bytes between a register and memory whose address has
    /// no index.
    const fn is_simple(&self) -> bool {
        let is_move =
            self.source.is_memory() || self.target.is_memory() && !self.source.is_immediate();

        is_move
            && !self.fs
            && matches!(
                (self.width, self.index),
                (Width::B4 | Width::B8, Place::Zero)
            )
    }

    /// The function for such a move.
    const fn moves(&self) -> Named {
        match (self.source.is_memory(), self.width) {
            (true, Width::B8) => Named::Load8,
            (true, _) => Named::Load4,
            (false, Width::B8) => Named::Store8,
            (false, _) => Named::Store4,
        }
    }

    /// Whether an operand is a register, or the lowest part of one.
    const fn is_plain(place: Place) -> bool {
        !place.is_memory() && !place.is_immediate() && !place.is_high()
    }

    #[inline(never)]
    const fn named(&self) -> Named {
        let from_memory = self.source.is_memory() && !self.fs;
        let is_wide = matches!(self.width, Width::B8);
        let is_small = !is_wide && !matches!(self.width, Width::B4);
        let by_width = if is_wide {
            [
                Named::Lea8,
                Named::Cmov8,
                Named::Multiply8,
                Named::Shl8,
                Named::Shr8,
                Named::Sar8,
                Named::Count8,
            ]
        } else {
            [
                Named::Lea4,
                Named::Cmov4,
                Named::Multiply4,
                Named::Shl4,
                Named::Shr4,
                Named::Sar4,
                Named::Count4,
            ]
        };
        let [lea, cmov, multiply, shl, shr, sar, count] = by_width;

        match self.what {
            What::Nop => Named::Nop,
            What::Lea if !is_small => lea,
            What::Push => self.from(Named::Push, Named::Any),
            What::Pop => Named::Pop,
            What::Jump => Named::Jump,
            What::Call => Named::Call,
            What::Return if self.imm == 0 => Named::Return,
            What::IndirectJump => self.from(Named::JumpReg, Named::JumpMem),
            What::IndirectCall => self.from(Named::CallReg, Named::CallMem),
            What::Movzx(Width::B1) if !is_small => self.from(Named::Zero1Reg, Named::Zero1Mem),
            What::Movzx(Width::B2) if !is_small => self.from(Named::Zero2Reg, Named::Zero2Mem),
            What::Movsx(Width::B4) if is_wide => self.from(Named::SignReg, Named::SignMem),
            What::Cmov(_) if !is_small => self.from(cmov, Named::Any),
            What::Vector(Vector::Move(_), how) if from_memory => match how {
                How::Legacy => Named::LegacyLoad,
                How::Low => Named::LowLoad,
                How::Whole => Named::WholeLoad,
            },
            What::Vector(Vector::Move(_), how) if self.target.is_memory() && !self.fs => {
                match how {
                    How::Legacy => Named::LegacyStore,
                    How::Low => Named::LowStore,
                    How::Whole => Named::WholeStore,
                }
            }
            What::Native(Native::ImulTwo) if !is_small && !self.fs => multiply,
            What::Native(native) if !is_small && Self::is_plain(self.target) => match native {
                Native::Shl => shl,
                Native::Shr => shr,
                Native::Sar => sar,
                _ => Named::Any,
            },
            What::Set(_) if Self::is_plain(self.target) => Named::Set,
            What::Inc | What::Dec if !is_small && Self::is_plain(self.target) => count,
            _ => Named::Any,
        }
    }

    /// Chooses between two functions by the place of the source.
    const fn from(&self, register: Named, memory: Named) -> Named {
        if self.source.is_memory() && !self.fs {
            memory
        } else if Self::is_plain(self.source) {
            register
        } else {
            Named::Any
        }
    }

    /// The index in [`Functions::COMPUTED`].
    #[inline]
    const fn computed(&self, two: Two) -> Option<usize> {
        // CAST: The number of a variant.
        #[allow(clippy::as_conversions)]
        let compute = two as usize;
        let width = match self.width {
            Width::B1 => 0,
            Width::B2 => return None,
            Width::B4 => 1,
            Width::B8 => 2,
        };
        let (target, source) = (self.target, self.source);
        let form = if target.is_memory() {
            if source.is_immediate() {
                4
            } else {
                3
            }
        } else if source.is_memory() {
            2
        } else if source.is_immediate() {
            1
        } else {
            0
        };

        if self.fs || source.is_high() || target.is_high() {
            return None;
        }
        Some((compute * WIDTHS + width) * FORMS + form)
    }
}
