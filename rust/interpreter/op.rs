// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the interpreter knows of an instruction.

/// A general register, or one of the bytes `ah`, `ch`, `dh`, `bh`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reg(pub(crate) u8);

impl Reg {
    pub(crate) const AX: Self = Self(0);
    pub(crate) const CX: Self = Self(1);
    pub(crate) const DX: Self = Self(2);

    /// Its number, 0 to 15.
    pub(crate) const fn number(self) -> u8 {
        self.0 & 15
    }

    /// Whether it is the second byte of that register.
    pub(crate) const fn is_high(self) -> bool {
        self.0 & 16 != 0
    }
}

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

/// Where an operand comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operand {
    /// The register in `reg`.
    Reg,
    /// The register in `rm`.
    Rm,
    /// Memory.
    Memory,
    /// `imm`.
    Immediate,
}

/// Instructions whose flags are not all defined, or that are long to write down: the processor computes
/// them on values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Native {
    /// ROL: `a` by `b`.
    Rol,
    /// ROR.
    Ror,
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
}

/// What an instruction does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// Nothing.
    Nop,
    Mov,
    /// MOV with zero extension from `from`.
    Movzx(Width),
    /// MOV with sign extension from `from`.
    Movsx(Width),
    Lea,
    Add,
    Or,
    Adc,
    Sbb,
    And,
    Sub,
    Xor,
    Cmp,
    Test,
    Not,
    Neg,
    Inc,
    Dec,
    /// Two registers.
    Xchg,
    Bswap,
    Cmov(u8),
    Set(u8),
    /// CBW, CWDE, CDQE.
    ExtendA,
    /// CWD, CDQ, CQO.
    ExtendD,
    /// On the destination and the source.
    Native(Native),
    /// MUL and IMUL of the accumulator.
    Multiply(Native),
    /// DIV and IDIV.
    Divide(Native),
    Push,
    Pop,
    Leave,
    Carry(Carry),
    Direction(bool),
    /// Of a vector register, with what aligned; see [`crate::vector`].
    Vector(Vector, How),
    /// STOS, LODS, MOVS; with a REP prefix or not.
    Stos(bool),
    Movs(bool),
    /// To `imm`.
    Jump,
    JumpIf(u8),
    /// JRCXZ.
    JumpIfCx,
    Call,
    IndirectJump,
    IndirectCall,
    /// Then `imm` more bytes are taken from the stack.
    Return,
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
    /// Of bytes without a sign.
    Min,
    /// The low halves of two.
    UnpackLow,
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

    /// Whether it ends a block: a branch, and what can be executed again.
    pub(crate) const fn ends(self) -> bool {
        self.is_branch() || matches!(self, Self::Stos(_) | Self::Movs(_))
    }
}

/// No register.
pub(crate) const NONE: u8 = 16;

/// An instruction that can be interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Op {
    pub(crate) what: What,
    pub(crate) width: Width,
    pub(crate) to: Operand,
    pub(crate) from: Operand,
    /// In bytes.
    pub(crate) len: u8,
    pub(crate) reg: Reg,
    pub(crate) rm: Reg,
    pub(crate) base: u8,
    pub(crate) index: u8,
    pub(crate) scale: u8,
    /// Whether the address is relative to `fs`.
    pub(crate) fs: bool,
    /// Of the address; with that of the next instruction where it is relative to that.
    pub(crate) displacement: u64,
    /// Sign-extended; the target of a direct branch.
    pub(crate) imm: u64,
}

impl Op {
    /// Does nothing, and has no length.
    pub(crate) const EMPTY: Self = Self {
        what: What::Nop,
        width: Width::B8,
        to: Operand::Rm,
        from: Operand::Reg,
        len: 0,
        reg: Reg::AX,
        rm: Reg::AX,
        base: NONE,
        index: NONE,
        scale: 0,
        fs: false,
        displacement: 0,
        imm: 0,
    };

    /// The address of its memory operand, without the base of a segment.
    pub(crate) fn address(&self, registers: &[u64; 16]) -> u64 {
        let at = |number: u8| registers.get(usize::from(number)).copied().unwrap_or(0);

        self.displacement
            .wrapping_add(at(self.base))
            .wrapping_add(at(self.index).wrapping_shl(u32::from(self.scale)))
    }
}
