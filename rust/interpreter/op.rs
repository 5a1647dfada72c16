// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the interpreter knows of an instruction.

/// A general register, or one of the bytes `ah`, `ch`, `dh`, `bh`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reg(pub(crate) u8);

impl Reg {
    pub(crate) const AX: Self = Self(0);
    pub(crate) const CX: Self = Self(1);

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
// With a tag of its own it is decided faster.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// MOV from a register or an immediate to a register, of 4 or 8 bytes. These are the most frequent
    /// instructions, and have names of their own.
    Copy,
    /// MOV from memory.
    Load,
    /// MOV to memory.
    Store,
    /// ADD of a register or an immediate to a register.
    AddReg,
    SubReg,
    AndReg,
    OrReg,
    XorReg,
    CmpReg,
    TestReg,
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
    Mov,
    /// MOV with zero extension from `from`.
    Movzx(Width),
    /// MOV with sign extension from `from`.
    Movsx(Width),
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

    /// Whether it ends a block: a branch that does not lead to the next instruction, and what can be executed
    /// again.
    pub(crate) const fn ends(self) -> bool {
        self.is_branch() && !matches!(self, Self::JumpIf(_) | Self::JumpIfCx)
            || matches!(self, Self::Stos(_) | Self::Movs(_))
    }
}

/// Where in [`Task::general`](crate::execute::Task::general) no register is, but 0.
pub(crate) const NONE: u8 = 16;

/// Where the immediate is.
pub(crate) const IMMEDIATE: u8 = 17;

/// An operand that is executed: where it is in [`Task::general`](crate::execute::Task::general), if it is not
/// in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) at: u8,
    /// The lowest of its bits.
    pub(crate) shift: u8,
    pub(crate) is_memory: bool,
}

impl Place {
    const NONE: Self = Self {
        at: NONE,
        shift: 0,
        is_memory: false,
    };
}

/// An instruction that can be interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Op {
    pub(crate) what: What,
    pub(crate) width: Width,
    pub(crate) to: Operand,
    pub(crate) from: Operand,
    /// Where these two are.
    pub(crate) target: Place,
    pub(crate) source: Place,
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
        target: Place::NONE,
        source: Place::NONE,
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

    /// Gives what is frequent the name that it has of its own.
    pub(crate) fn specialise(&mut self) {
        let is_plain = |place: Place| !place.is_memory && place.shift == 0;

        if self.width.bytes() < 4 || self.fs {
            return;
        }
        if is_plain(self.source) && is_plain(self.target) {
            self.what = match self.what {
                What::Mov => What::Copy,
                What::Add => What::AddReg,
                What::Sub => What::SubReg,
                What::And => What::AndReg,
                What::Or => What::OrReg,
                What::Xor => What::XorReg,
                What::Cmp => What::CmpReg,
                What::Test => What::TestReg,
                what => what,
            };
        } else if self.what == What::Mov {
            self.what = if self.source.is_memory {
                What::Load
            } else {
                What::Store
            };
        }
    }

    /// Where an operand is.
    pub(crate) fn place(&self, operand: Operand) -> Place {
        let reg = match operand {
            Operand::Reg => self.reg,
            Operand::Rm => self.rm,
            Operand::Memory => {
                return Place {
                    is_memory: true,
                    ..Place::NONE
                }
            }
            Operand::Immediate => {
                return Place {
                    at: IMMEDIATE,
                    ..Place::NONE
                }
            }
        };

        Place {
            at: reg.number(),
            shift: if reg.is_high() { 8 } else { 0 },
            is_memory: false,
        }
    }
}
