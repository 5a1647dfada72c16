// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The decoded form of an instruction.

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
    /// The binary logarithm of the number of bytes. The kernel is built without jump tables, so
    /// arithmetic is faster than a `match`.
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

    /// The mask of all bits of such an operand.
    #[inline]
    pub const fn mask(self) -> u64 {
        u64::MAX.wrapping_shr(64_u32.wrapping_sub(self.bits()))
    }

    /// The highest bit of such an operand.
    #[inline]
    pub const fn sign(self) -> u64 {
        1_u64.wrapping_shl(self.bits().wrapping_sub(1))
    }

    /// Sign-extends a number of this width.
    pub(crate) const fn extend(self, value: u64) -> u64 {
        let sign = self.sign();

        ((value & self.mask()) ^ sign).wrapping_sub(sign)
    }
}

/// Instructions that the processor computes on values: some of their flags are undefined, or their
/// code would be long.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Native {
    /// ROL of `a` by `b`.
    Rol,
    /// ROR.
    Ror,
    /// ROL of a register by an immediate. On some processors its flags differ from those of ROL by
    /// `cl`.
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
    /// SHLD of `a` by `b`, with bits from `c`.
    Shld,
    /// SHRD.
    Shrd,
    /// MUL of the accumulator `a` by `b`: the lower and the upper half.
    Mul,
    /// IMUL of the accumulator.
    Imul,
    /// IMUL with two or three operands.
    ImulTwo,
    /// DIV of `c`:`a` by `b`: quotient and remainder. The quotient is known to fit.
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
    /// BSF of `b` into a register that holds `a`.
    Bsf,
    /// BSR.
    Bsr,
    /// TZCNT, or BSF on a processor without TZCNT.
    Tzcnt,
    /// LZCNT, or BSR on a processor without LZCNT.
    Lzcnt,
    /// POPCNT.
    Popcnt,
    /// ANDN: `!a & b`. Part of BMI1, as the next three.
    Andn,
    /// BLSR of `b`.
    Blsr,
    /// BLSMSK of `b`.
    Blsmsk,
    /// BLSI of `b`.
    Blsi,
    /// BZHI of `b` from bit `a` on. Part of BMI2, as the next three.
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

/// Scalar floating-point operations on the lowest elements `a` and `b` of two vectors. The other
/// bits of `a` stay.
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

/// The operation of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Lea,
    Push,
    Pop,
    /// Direct JMP to `imm`.
    Jump,
    JumpIf(u8),
    Call,
    /// RET, which removes `imm` more bytes from the stack.
    Return,
    /// NOP, and other instructions that have no effect here.
    Nop,
    /// An operation on two operands.
    Two(Two),
    /// MOV with zero extension from this width.
    Movzx(Width),
    /// MOV with sign extension from this width.
    Movsx(Width),
    Not,
    Neg,
    Inc,
    Dec,
    /// XCHG of two registers.
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
    /// An operation on the target and the source.
    Native(Native),
    /// An operation on `reg` and the source.
    Three(Native),
    /// MUL and IMUL of the accumulator.
    Multiply(Native),
    /// DIV and IDIV.
    Divide(Native),
    Leave,
    Carry(Carry),
    Direction(bool),
    /// An operation on this part of a vector register; see [`crate::vector`].
    Vector(Vector, How),
    /// STOS or MOVS; true with a REP prefix.
    Stos(bool),
    Movs(bool),
    /// JRCXZ.
    JumpIfCx,
    IndirectJump,
    IndirectCall,
    /// An atomic operation on memory and the source.
    Locked(Locked),
    /// PTWRITE of the source.
    PtWrite,
}

/// Atomic operations on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Locked {
    /// With a LOCK prefix, as the next four.
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
    /// The operation of an instruction with LOCK; [`None`] if LOCK is not possible.
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

/// Operations on two operands of any kind. Most instructions have one of these.
// The number of a variant is an index of a table.
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

/// The part of a vector register that an instruction uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum How {
    /// SSE: 128 bits. A write keeps the bits above them.
    Legacy,
    /// VEX: 128 bits. A write clears the bits above them.
    Low,
    /// VEX: 256 bits.
    Whole,
}

/// Operations on vector registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vector {
    /// A move between memory and a register, or between two registers. True if memory must be
    /// aligned.
    Move(bool),
    /// From a general register or memory.
    FromGeneral,
    /// To a general register or memory.
    ToGeneral,
    /// A move of 64 bits. The other bits become 0.
    MoveLow,
    /// A move of an operand of the instruction's width. The other bits become 0 if it comes from
    /// memory, else they stay.
    MoveScalar,
    /// The upper 64 bits if true, else the lower ones. The other bits stay.
    LoadHalf(bool),
    StoreHalf(bool),
    HighToLow,
    /// A copy to all elements of this width.
    Broadcast(Width),
    /// On the lowest element, which has 8 bytes if true, else 4.
    Float(Float, bool),
    /// The highest bit of each byte.
    Mask,
    ZeroUpper,
    And,
    AndNot,
    Or,
    Xor,
    /// On elements of this width, as the next three.
    Equal(Width),
    Add(Width),
    Sub(Width),
    Greater(Width),
    /// On unsigned bytes, as the next one.
    Min,
    Max,
    /// The elements of the two lower halves in turn.
    UnpackLow(Width),
    UnpackHigh(Width),
    /// A choice of 4-byte elements by the immediate.
    Shuffle,
    /// A shift of elements by the immediate.
    ShiftRight(Width),
    ShiftLeft(Width),
    BytesRight,
    BytesLeft,
}

impl Vector {
    /// Whether the VEX form of the instruction has only two operands.
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

/// An operation on the carry flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carry {
    Clear,
    Set,
    Complement,
}

impl What {
    /// Whether execution can continue elsewhere than at the next instruction.
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

    /// Whether the instruction ends a block: an unconditional branch, or a string instruction,
    /// which may be executed again.
    pub(crate) const fn ends(self) -> bool {
        self.is_branch() && !matches!(self, Self::JumpIf(_) | Self::JumpIfCx)
            || matches!(self, Self::Stos(_) | Self::Movs(_))
    }
}

/// An instruction that can be interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Op {
    /// The displacement of the address. If it is relative to the next instruction, that
    /// instruction's address is added to it.
    pub(crate) displacement: u64,
    /// The immediate, sign-extended; or the target of a direct branch.
    pub(crate) imm: u64,
    pub(crate) what: What,
    pub(crate) width: Width,
    /// The operand that may be written, and the operand that is only read.
    pub(crate) target: Place,
    pub(crate) source: Place,
    /// The register in the middle bits of ModRM, or in the opcode.
    pub(crate) reg: Place,
    pub(crate) base: Place,
    pub(crate) index: Place,
    pub(crate) scale: u8,
    /// Whether the address is relative to `fs`.
    pub(crate) fs: bool,
    /// In bytes.
    pub(crate) len: u8,
    /// The offset of the instruction's end in the block, and the number of the block's instructions
    /// up to there.
    pub(crate) end: u8,
    pub(crate) count: u8,
    /// The function that executes it; see [`crate::frequent`].
    pub(crate) run: u8,
}

impl Op {
    /// Ends a block. It is no instruction, and has no length.
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
