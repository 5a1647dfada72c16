// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table of functions that execute instructions, and which one executes an instruction.

use super::*;
use core::marker::PhantomData;

/// Names for the places in a table of functions, and the table.
macro_rules! functions {
    ($($name:ident: $function:expr,)*) => {
        #[repr(u8)]
        #[derive(Clone, Copy)]
        enum Named {
            $($name,)*
        }

        /// How many these are.
        const NAMED: usize = [$(Named::$name),*].len();

        impl<M: Machine, O: Observer> Functions<M, O> {
            const NAMED: [Function<M, O>; NAMED] = [$($function),*];
        }
    };
}

functions! {
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
    VectorLoad: vector_load,
    VectorStore: vector_store,
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

/// What [`Two`] has.
const COMPUTES: usize = 10;
/// 1, 4 and 8 bytes.
const WIDTHS: usize = 3;
/// From a register, an immediate or memory to a register; from a register or an immediate to memory.
const FORMS: usize = 5;
const COMPUTED: usize = COMPUTES * WIDTHS * FORMS;

/// As many as a place has numbers: an index needs no check.
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

    /// By [`Op::run`].
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
    /// Chooses the function that executes it.
    /// `displacement`: of a direct branch.
    pub(crate) fn choose(&mut self, displacement: u64) {
        self.run = match self.computed() {
            Some(at) => u8::try_from(NAMED.wrapping_add(at)).unwrap_or(0),
            // CAST: The number of a variant.
            #[allow(clippy::as_conversions)]
            None => self.named(displacement) as u8,
        };
    }

    /// Whether an operand is the whole of a register, or of its lowest part.
    fn is_plain(place: Place) -> bool {
        !place.is_memory() && !place.is_immediate() && !place.is_high()
    }

    fn named(&self, displacement: u64) -> Named {
        let from_register = Self::is_plain(self.source);
        let from_memory = self.source.is_memory() && !self.fs;
        let width = self.width;

        match (self.what, width) {
            (What::Nop, _) => Named::Nop,
            (What::Movzx(Width::B1), Width::B4 | Width::B8) if from_register => Named::Zero1Reg,
            (What::Movzx(Width::B1), Width::B4 | Width::B8) if from_memory => Named::Zero1Mem,
            (What::Movzx(Width::B2), Width::B4 | Width::B8) if from_register => Named::Zero2Reg,
            (What::Movzx(Width::B2), Width::B4 | Width::B8) if from_memory => Named::Zero2Mem,
            (What::Movsx(Width::B4), Width::B8) if from_register => Named::SignReg,
            (What::Movsx(Width::B4), Width::B8) if from_memory => Named::SignMem,
            (What::Lea, Width::B4) => Named::Lea4,
            (What::Lea, Width::B8) => Named::Lea8,
            (What::Cmov(_), Width::B4) if from_register => Named::Cmov4,
            (What::Cmov(_), Width::B8) if from_register => Named::Cmov8,
            (What::Native(native), Width::B4 | Width::B8)
                if native != Native::ImulTwo && Self::is_plain(self.target) =>
            {
                match (native, width) {
                    (Native::Shl, Width::B4) => Named::Shl4,
                    (Native::Shl, _) => Named::Shl8,
                    (Native::Shr, Width::B4) => Named::Shr4,
                    (Native::Shr, _) => Named::Shr8,
                    (Native::Sar, Width::B4) => Named::Sar4,
                    (Native::Sar, _) => Named::Sar8,
                    _ => Named::Any,
                }
            }
            (What::Vector(Vector::Move(_), _), _) if from_memory => Named::VectorLoad,
            (What::Vector(Vector::Move(_), _), _) if self.target.is_memory() && !self.fs => {
                Named::VectorStore
            }
            (What::Push, _) if from_register => Named::Push,
            (What::Pop, _) => Named::Pop,
            (What::Jump, _) => Named::Jump,
            (What::Call, _) => Named::Call,
            (What::Return, _) if self.imm == 0 => Named::Return,
            (What::IndirectJump, _) if from_memory => Named::JumpMem,
            (What::IndirectJump, _) if from_register => Named::JumpReg,
            (What::IndirectCall, _) if from_memory => Named::CallMem,
            (What::IndirectCall, _) if from_register => Named::CallReg,
            (What::Set(_), _) if Self::is_plain(self.target) => Named::Set,
            (What::Inc | What::Dec, Width::B4) if Self::is_plain(self.target) => Named::Count4,
            (What::Inc | What::Dec, Width::B8) if Self::is_plain(self.target) => Named::Count8,
            (What::Native(Native::ImulTwo), Width::B4) if !self.fs => Named::Multiply4,
            (What::Native(Native::ImulTwo), Width::B8) if !self.fs => Named::Multiply8,
            (What::JumpIf(condition), _) if displacement != 0 => match condition & 15 {
                0 => Named::If,
                1 => Named::If1,
                2 => Named::If2,
                3 => Named::If3,
                4 => Named::If4,
                5 => Named::If5,
                6 => Named::If6,
                7 => Named::If7,
                8 => Named::If8,
                9 => Named::If9,
                10 => Named::If10,
                11 => Named::If11,
                12 => Named::If12,
                13 => Named::If13,
                14 => Named::If14,
                _ => Named::If15,
            },
            _ => Named::Any,
        }
    }

    /// Where in [`Functions::COMPUTED`] it is.
    fn computed(&self) -> Option<usize> {
        let What::Two(two) = self.what else {
            return None;
        };
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
            3 + usize::from(source.is_immediate())
        } else if source.is_memory() {
            2
        } else {
            usize::from(source.is_immediate())
        };

        if self.fs || source.is_high() || target.is_high() {
            return None;
        }
        Some((compute * WIDTHS + width) * FORMS + form)
    }
}
