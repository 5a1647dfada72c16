// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the interpreter knows of an instruction.

pub(crate) use crate::place::Place;

/// The size of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// 1 byte.
    B1,
    /// 2 bytes.
    B2,
    /// 4 bytes.
    B4,
    /// 8 bytes.
    B8,
}

impl Width {
    /// Its place in the list: without a jump table, which the kernel is built without, arithmetic is
    /// faster than a choice.
    const fn log(self) -> u32 {
        // CAST: The number of a variant.
        #[allow(clippy::as_conversions)]
        let log = self as u32;

        log
    }

    /// In bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1_u64.wrapping_shl(self.log())
    }

    /// In bits.
    #[inline]
    pub const fn bits(self) -> u32 {
        8_u32.wrapping_shl(self.log())
    }

    /// All bits of such an operand.
    #[inline]
    pub const fn mask(self) -> u64 {
        u64::MAX.wrapping_shr(64_u32.wrapping_sub(self.bits()))
    }

    /// Its highest bit.
    #[inline]
    pub const fn sign(self) -> u64 {
        1_u64.wrapping_shl(self.bits().wrapping_sub(1))
    }

    /// A number of this width, sign-extended.
    pub(crate) const fn extend(self, value: u64) -> u64 {
        let sign = self.sign();

        ((value & self.mask()) ^ sign).wrapping_sub(sign)
    }
}

/// Instructions whose flags are not all defined, or that are long to write down: the processor computes
/// them on values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Native {
    /// ROL: `a` by `b`.
    Rol,
    /// ROR.
    Ror,
    /// ROL of a register by an immediate, whose flags some processors have otherwise than those of ROL by `cl`.
    RolBy,
    /// ROR of a register by an immediate.
    RorBy,
    /// RCL.
    Rcl,
    /// RCR.
    Rcr,
    /// SHL.
    Shl,
    /// SHR.
    Shr,
    /// SAR.
    Sar,
    /// SHLD: `a` from `c` by `b`.
    Shld,
    /// SHRD.
    Shrd,
    /// MUL of the accumulator `a` by `b`: the low and the high half.
    Mul,
    /// IMUL of the accumulator.
    Imul,
    /// IMUL with two or three operands.
    ImulTwo,
    /// DIV of `c`:`a` by `b`: quotient and remainder. They are known to fit.
    Div,
    /// IDIV.
    Idiv,
    /// BT of `a` at bit `b`.
    Bt,
    /// BTS.
    Bts,
    /// BTR.
    Btr,
    /// BTC.
    Btc,
    /// BSF of `b`, into a register with `a`.
    Bsf,
    /// BSR.
    Bsr,
    /// TZCNT, or BSF on a processor that does not know it.
    Tzcnt,
    /// LZCNT, or BSR on a processor that does not know it.
    Lzcnt,
    /// POPCNT.
    Popcnt,
    /// ANDN: not `a`, and `b`. Of BMI1, as the next three.
    Andn,
    /// BLSR of `b`.
    Blsr,
    /// BLSMSK of `b`.
    Blsmsk,
    /// BLSI of `b`.
    Blsi,
    /// BZHI of `b` from bit `a` on. Of BMI2, as the next three.
    Bzhi,
    /// SHLX of `b` by `a`.
    Shlx,
    /// SHRX.
    Shrx,
    /// SARX.
    Sarx,
    /// MOVBE of `a`.
    Movbe,
}

/// What floating-point instructions do to the lowest elements `a` and `b` of vectors. The rest of `a` stays.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Float {
    /// ADDSS, ADDSD.
    Add,
    /// MULSS, MULSD.
    Mul,
    /// SUBSS, SUBSD.
    Sub,
    /// MINSS, MINSD.
    Min,
    /// DIVSS, DIVSD.
    Div,
    /// MAXSS, MAXSD.
    Max,
    /// SQRTSS, SQRTSD of `b`.
    Sqrt,
    /// CVTSS2SD, CVTSD2SS of `b`.
    Convert,
    /// CVTSI2SS, CVTSI2SD of an integer `b`.
    FromInteger,
    /// CVTTSS2SI, CVTTSD2SI of `b`: an integer.
    Truncate,
    /// CVTSS2SI, CVTSD2SI.
    Round,
    /// UCOMISS, UCOMISD: flags.
    Compare,
    /// COMISS, COMISD.
    CompareOrdered,
}

/// What an instruction does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Lea,
    Push,
    Pop,
    /// To `imm`.
    Jump,
    JumpIf(u8),
    Call,
    /// Then `imm` more bytes are taken from the stack.
    Return,
    /// Nothing.
    Nop,
    /// Of two operands.
    Two(Two),
    /// MOV with zero extension from `from`.
    Movzx(Width),
    /// MOV with sign extension from `from`.
    Movsx(Width),
    Not,
    Neg,
    Inc,
    Dec,
    /// Two registers.
    Xchg,
    Bswap,
    /// MOVBE.
    Swapped,
    Cmov(u8),
    Set(u8),
    /// CBW, CWDE, CDQE.
    ExtendA,
    /// CWD, CDQ, CQO.
    ExtendD,
    /// On the destination and the source.
    Native(Native),
    /// On `reg` and the source.
    Three(Native),
    /// MUL and IMUL of the accumulator.
    Multiply(Native),
    /// DIV and IDIV.
    Divide(Native),
    Leave,
    Carry(Carry),
    Direction(bool),
    /// Of a vector register, with what aligned; see [`crate::vector`].
    Vector(Vector, How),
    /// STOS, LODS, MOVS; with a REP prefix or not.
    Stos(bool),
    Movs(bool),
    /// JRCXZ.
    JumpIfCx,
    IndirectJump,
    IndirectCall,
    /// Of memory and the source, as one access.
    Locked(Locked),
    /// PTWRITE of the source.
    PtWrite,
}

/// What an instruction does to memory that no other CPU writes meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Locked {
    /// With LOCK, as the next four.
    Two(Two),
    Not,
    Neg,
    Inc,
    Dec,
    /// XCHG.
    Exchange,
    /// XADD.
    Add,
    /// CMPXCHG.
    Compare,
}

impl Locked {
    /// What an instruction does with LOCK; [`None`] if it has no such form.
    pub(crate) const fn of(what: What) -> Option<Self> {
        Some(match what {
            What::Two(Two::Mov | Two::Cmp | Two::Test) => return None,
            What::Two(two) => Self::Two(two),
            What::Not => Self::Not,
            What::Neg => Self::Neg,
            What::Inc => Self::Inc,
            What::Dec => Self::Dec,
            What::Locked(locked) => locked,
            _ => return None,
        })
    }
}

/// What becomes of two operands, each of any kind. Most instructions are these.
// With a number of its own it is found in a table.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Two {
    Mov,
    Add,
    Or,
    Adc,
    Sbb,
    And,
    Sub,
    Xor,
    Cmp,
    Test,
}

/// The part of a vector register that an instruction has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum How {
    /// SSE: 128 bits, and a write leaves those above them.
    Legacy,
    /// VEX: 128 bits, and a write clears those above them.
    Low,
    /// VEX: 256 bits.
    Whole,
}

/// What an instruction does to vector registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vector {
    /// Between memory and a register, or two registers. With memory: whether it must be aligned.
    Move(bool),
    /// From a general register or memory.
    FromGeneral,
    /// To one.
    ToGeneral,
    /// 64 bits; the others become 0.
    MoveLow,
    /// As many as the width has; the others become 0 if they come from memory, else they stay.
    MoveScalar,
    /// The upper 64 bits, or the lower ones; the others stay.
    LoadHalf(bool),
    StoreHalf(bool),
    HighToLow,
    /// To all elements of this width.
    Broadcast(Width),
    /// Of the lowest element, of 8 bytes or 4.
    Float(Float, bool),
    /// A bit of each byte.
    Mask,
    ZeroUpper,
    And,
    AndNot,
    Or,
    Xor,
    /// Of elements of this width.
    Equal(Width),
    Add(Width),
    Sub(Width),
    Greater(Width),
    /// Of bytes without a sign.
    Min,
    Max,
    /// The elements of two low halves in turn.
    UnpackLow(Width),
    UnpackHigh(Width),
    /// 4-byte elements, by the immediate.
    Shuffle,
    /// Of elements, by the immediate.
    ShiftRight(Width),
    ShiftLeft(Width),
    BytesRight,
    BytesLeft,
}

impl Vector {
    /// Whether VEX has no third operand for it.
    pub(crate) const fn has_two_operands(self, in_memory: bool) -> bool {
        match self {
            Self::Move(_)
            | Self::FromGeneral
            | Self::ToGeneral
            | Self::MoveLow
            | Self::Mask
            | Self::ZeroUpper
            | Self::StoreHalf(_)
            | Self::Broadcast(_)
            | Self::Shuffle
            | Self::Float(
                Float::Compare | Float::CompareOrdered | Float::Truncate | Float::Round,
                _,
            ) => true,
            Self::MoveScalar => in_memory,
            _ => false,
        }
    }
}

/// What becomes of the carry flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carry {
    Clear,
    Set,
    Complement,
}

impl What {
    /// Whether another instruction than the next can follow.
    pub(crate) const fn is_branch(self) -> bool {
        matches!(
            self,
            Self::Jump
                | Self::JumpIf(_)
                | Self::JumpIfCx
                | Self::Call
                | Self::IndirectJump
                | Self::IndirectCall
                | Self::Return
        )
    }

    /// Whether it ends a block: a branch that does not lead to the next instruction, and what can be executed
    /// again.
    pub(crate) const fn ends(self) -> bool {
        self.is_branch() && !matches!(self, Self::JumpIf(_) | Self::JumpIfCx)
            || matches!(self, Self::Stos(_) | Self::Movs(_))
    }
}

/// An instruction that can be interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Op {
    /// Of the address; with that of the next instruction where it is relative to that.
    pub(crate) displacement: u64,
    /// Sign-extended; the target of a direct branch.
    pub(crate) imm: u64,
    pub(crate) what: What,
    pub(crate) width: Width,
    /// What is written, and what is only read.
    pub(crate) target: Place,
    pub(crate) source: Place,
    /// The register in the middle of ModRM, or that in the opcode.
    pub(crate) reg: Place,
    pub(crate) base: Place,
    pub(crate) index: Place,
    pub(crate) scale: u8,
    /// Whether the address is relative to `fs`.
    pub(crate) fs: bool,
    /// In bytes.
    pub(crate) len: u8,
    /// Where it ends in its block, and how many instructions of the block end there.
    pub(crate) end: u8,
    pub(crate) count: u8,
    /// The function that executes it; see [`crate::frequent`].
    pub(crate) run: u8,
}

impl Op {
    /// Ends a block, and has no length.
    pub(crate) const EMPTY: Self = Self {
        displacement: 0,
        imm: 0,
        what: What::Nop,
        width: Width::B8,
        target: Place::Ax,
        source: Place::Ax,
        reg: Place::Ax,
        base: Place::Zero,
        index: Place::Zero,
        scale: 0,
        fs: false,
        len: 0,
        end: 0,
        count: 0,
        run: 0,
    };
}
