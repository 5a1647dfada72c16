// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From the bytes of an instruction to what the interpreter does for it.
//!
//! Only what is decoded here is interpreted. Anything that is not certain, down to a prefix that has no
//! use, is left to the processor.

use crate::op::{Carry, Native, Op, Operand, Reg, What, Width, NONE};

mod two_bytes;

impl Op {
    /// The instruction at `ip`; [`None`] if it is left to the processor.
    pub(crate) fn decode(text: &[u8], ip: u64) -> Option<Self> {
        let text = text.get(..LEN_MAX).unwrap_or(text);
        let mut decoder = Decoder {
            text,
            at: 0,
            ip,
            small: false,
            repeat: 0,
            rex: 0,
            op: Self::EMPTY,
            relative: false,
        };

        decoder.insn()?;
        decoder.end()
    }
}

/// The longest instruction, in bytes.
pub(crate) const LEN_MAX: usize = 15;

const REX_W: u8 = 8;
const REX_R: u8 = 4;
const REX_X: u8 = 2;
const REX_B: u8 = 1;

const ARITHMETIC: [What; 8] = [
    What::Add,
    What::Or,
    What::Adc,
    What::Sbb,
    What::And,
    What::Sub,
    What::Xor,
    What::Cmp,
];

/// SAL, in the middle, is SHL.
const SHIFTS: [Native; 8] = [
    Native::Rol,
    Native::Ror,
    Native::Rcl,
    Native::Rcr,
    Native::Shl,
    Native::Shr,
    Native::Shl,
    Native::Sar,
];

const BITS: [Native; 4] = [Native::Bt, Native::Bts, Native::Btr, Native::Btc];

struct Decoder<'a> {
    text: &'a [u8],
    at: usize,
    ip: u64,
    /// The operand size prefix.
    small: bool,
    /// F2, F3 or 0.
    repeat: u8,
    rex: u8,
    op: Op,
    /// Whether the displacement counts from the next instruction.
    relative: bool,
}

impl Decoder<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.text.get(self.at).copied()?;

        self.at = self.at.checked_add(1)?;
        Some(byte)
    }

    /// A signed number of so many bytes, sign-extended.
    fn number(&mut self, width: Width) -> Option<u64> {
        let mut number = 0_u64;
        let mut shift = 0_u32;

        while shift < width.bits() {
            number |= u64::from(self.byte()?).wrapping_shl(shift);
            shift = shift.wrapping_add(8);
        }
        Some(width.extend(number))
    }

    /// Reads the instruction.
    fn insn(&mut self) -> Option<()> {
        let opcode = self.prefixes()?;

        self.op.width = if self.rex & REX_W != 0 {
            Width::B8
        } else if self.small {
            Width::B2
        } else {
            Width::B4
        };
        if opcode == 0x0f {
            let opcode = self.byte()?;
            self.two_bytes(opcode)
        } else {
            self.one_byte(opcode)
        }
    }

    fn end(mut self) -> Option<Op> {
        self.op.len = self.at.try_into().ok()?;
        let next = self.ip.wrapping_add(u64::from(self.op.len));

        if self.relative {
            self.op.displacement = self.op.displacement.wrapping_add(next);
        }
        if matches!(
            self.op.what,
            What::Jump | What::JumpIf(_) | What::JumpIfCx | What::Call
        ) {
            self.op.imm = self.op.imm.wrapping_add(next);
        }
        self.op.target = self.op.place(self.op.to);
        self.op.source = self.op.place(self.op.from);
        self.op.specialise();
        Some(self.op)
    }

    /// Reads prefixes and the opcode behind them. LOCK, `gs` and 32-bit addresses are left to the
    /// processor.
    fn prefixes(&mut self) -> Option<u8> {
        loop {
            let byte = self.byte()?;

            match byte {
                0x66 => self.small = true,
                0xf2 | 0xf3 => self.repeat = byte,
                // Without a meaning in 64-bit code, but for `fs`, the last of them.
                0x26 | 0x2e | 0x36 | 0x3e if !self.op.fs => {}
                0x64 => self.op.fs = true,
                0x40..=0x4f => {
                    self.rex = byte;
                    let opcode = self.byte()?;
                    // Only right before the opcode.
                    let is_prefix = matches!(opcode, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
                    return (!is_prefix).then_some(opcode);
                }
                0x26 | 0x2e | 0x36 | 0x3e | 0x65 | 0x67 | 0xf0 => return None,
                opcode => return Some(opcode),
            }
        }
    }

    /// A register of the operand's width, by its number.
    fn register(&self, number: u8, width: Width) -> Reg {
        match (width, number) {
            // With any REX prefix these are the low bytes of four other registers.
            (Width::B1, 4..=7) if self.rex == 0 => Reg(number & 3 | 16),
            _ => Reg(number),
        }
    }

    /// Reads ModRM; the operands are of these widths. Returns the three bits in the middle.
    fn modrm(&mut self, reg: Width, rm: Width) -> Option<(u8, Operand)> {
        let modrm = self.byte()?;
        let (form, middle, low) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let extended = |bit, number: u8| {
            if self.rex & bit != 0 {
                number | 8
            } else {
                number
            }
        };

        self.op.reg = self.register(extended(REX_R, middle), reg);
        if form == 3 {
            self.op.rm = self.register(extended(REX_B, low), rm);
            return Some((middle, Operand::Rm));
        }
        let mut base = extended(REX_B, low);
        let mut has_base = true;

        if low == 4 {
            let sib = self.byte()?;
            let index = if self.rex & REX_X != 0 {
                sib >> 3 & 7 | 8
            } else {
                sib >> 3 & 7
            };

            base = if self.rex & REX_B != 0 {
                sib & 7 | 8
            } else {
                sib & 7
            };
            self.op.index = if index == 4 { NONE } else { index };
            self.op.scale = sib >> 6;
            has_base = !(form == 0 && sib & 7 == 5);
        } else if form == 0 && low == 5 {
            has_base = false;
            self.relative = true;
        }
        self.op.base = if has_base { base } else { NONE };
        self.op.displacement = match form {
            1 => self.number(Width::B1)?,
            2 => self.number(Width::B4)?,
            _ if !has_base => self.number(Width::B4)?,
            _ => 0,
        };
        Some((middle, Operand::Memory))
    }

    /// An immediate of the operand's width, but 4 bytes at most.
    fn immediate(&mut self) -> Option<()> {
        let width = match self.op.width {
            Width::B8 => Width::B4,
            width => width,
        };
        self.op.imm = self.number(width)?;
        Some(())
    }

    /// Both operands, and what is done.
    fn set(&mut self, what: What, to: Operand, from: Operand) -> Option<()> {
        self.op.what = what;
        self.op.to = to;
        self.op.from = from;
        Some(())
    }

    /// `rm, reg`, or `reg, rm`.
    fn rm_reg(&mut self, what: What, reversed: bool) -> Option<()> {
        let (_, rm) = self.modrm(self.op.width, self.op.width)?;

        if reversed {
            self.set(what, Operand::Reg, rm)
        } else {
            self.set(what, rm, Operand::Reg)
        }
    }

    /// The width of an opcode whose lowest bit is clear for bytes.
    fn byte_or_more(&mut self, opcode: u8) {
        if opcode & 1 == 0 {
            self.op.width = Width::B1;
        }
    }

    /// The register in the lowest bits of the opcode.
    fn in_opcode(&mut self, opcode: u8) {
        let low = opcode & 7;
        let number = if self.rex & REX_B != 0 { low | 8 } else { low };

        self.op.reg = self.register(number, self.op.width);
    }

    /// The width of what the stack takes: 8 bytes, or 2 with a prefix, which nobody uses.
    fn on_stack(&mut self) -> Option<()> {
        if self.small {
            return None;
        }
        self.op.width = Width::B8;
        Some(())
    }

    /// A near branch. Processors differ about an operand size prefix. A repeat prefix has no use, or is
    /// one of MPX.
    fn near(&mut self) -> Option<()> {
        (!self.small && self.repeat != 0xf3).then_some(())
    }

    fn branch(&mut self, what: What, width: Width) -> Option<()> {
        self.near()?;
        self.op.imm = self.number(width)?;
        self.op.what = what;
        Some(())
    }

    fn one_byte(&mut self, opcode: u8) -> Option<()> {
        // Where a repeat prefix has no meaning it may get one.
        let repeated = matches!(opcode, 0x90 | 0xa4 | 0xa5 | 0xaa | 0xab)
            || matches!(
                opcode,
                0x70..=0x7f | 0xc2 | 0xc3 | 0xe3 | 0xe8 | 0xe9 | 0xeb | 0xff
            );
        if self.repeat != 0 && !repeated {
            return None;
        }

        match opcode {
            0x00..=0x3f => {
                let what = *ARITHMETIC.get(usize::from(opcode >> 3))?;

                self.byte_or_more(opcode);
                match opcode & 7 {
                    0 | 1 => self.rm_reg(what, false),
                    2 | 3 => self.rm_reg(what, true),
                    4 | 5 => {
                        self.immediate()?;
                        self.set(what, Operand::Reg, Operand::Immediate)
                    }
                    _ => None,
                }
            }
            0x50..=0x57 => {
                self.on_stack()?;
                self.in_opcode(opcode);
                self.set(What::Push, Operand::Memory, Operand::Reg)
            }
            0x58..=0x5f => {
                self.on_stack()?;
                self.in_opcode(opcode);
                self.set(What::Pop, Operand::Reg, Operand::Memory)
            }
            0x63 => {
                let (_, rm) = self.modrm(self.op.width, Width::B4)?;

                if self.op.width == Width::B2 {
                    return None;
                }
                self.set(What::Movsx(Width::B4), Operand::Reg, rm)
            }
            0x68 | 0x6a => {
                self.on_stack()?;
                self.op.imm = self.number(if opcode == 0x68 { Width::B4 } else { Width::B1 })?;
                self.set(What::Push, Operand::Memory, Operand::Immediate)
            }
            0x69 | 0x6b => {
                let (_, rm) = self.modrm(self.op.width, self.op.width)?;

                if opcode == 0x69 {
                    self.immediate()?;
                } else {
                    self.op.imm = self.number(Width::B1)?;
                }
                // The other factor is the immediate.
                self.set(What::Native(Native::ImulTwo), Operand::Immediate, rm)
            }
            0x70..=0x7f => self.branch(What::JumpIf(opcode & 15), Width::B1),
            0x80 | 0x81 | 0x83 => {
                self.byte_or_more(opcode);
                let (middle, rm) = self.modrm(self.op.width, self.op.width)?;

                if opcode == 0x83 {
                    self.op.imm = self.number(Width::B1)?;
                } else {
                    self.immediate()?;
                }
                self.set(
                    *ARITHMETIC.get(usize::from(middle))?,
                    rm,
                    Operand::Immediate,
                )
            }
            0x84 | 0x85 => {
                self.byte_or_more(opcode);
                self.rm_reg(What::Test, false)
            }
            // With memory it is locked.
            0x86 | 0x87 => {
                self.byte_or_more(opcode);
                self.rm_reg(What::Xchg, false)?;
                (self.op.to == Operand::Rm).then_some(())
            }
            0x88 | 0x89 => {
                self.byte_or_more(opcode);
                self.rm_reg(What::Mov, false)
            }
            0x8a | 0x8b => {
                self.byte_or_more(opcode);
                self.rm_reg(What::Mov, true)
            }
            0x8d => {
                self.rm_reg(What::Lea, true)?;
                (self.op.from == Operand::Memory).then_some(())
            }
            0x90..=0x97 => self.exchange(opcode),
            0x98 => {
                self.op.what = What::ExtendA;
                Some(())
            }
            0x99 => {
                self.op.what = What::ExtendD;
                Some(())
            }
            0xa8 | 0xa9 => {
                self.byte_or_more(opcode);
                self.immediate()?;
                self.set(What::Test, Operand::Reg, Operand::Immediate)
            }
            0xa4 | 0xa5 | 0xaa | 0xab => {
                // F2 means nothing here.
                if self.repeat == 0xf2 || self.op.fs {
                    return None;
                }
                let repeated = self.repeat != 0;

                self.byte_or_more(opcode);
                self.op.what = if opcode < 0xa8 {
                    What::Movs(repeated)
                } else {
                    What::Stos(repeated)
                };
                Some(())
            }
            0xb0..=0xb7 => {
                self.op.width = Width::B1;
                self.in_opcode(opcode);
                self.op.imm = self.number(Width::B1)?;
                self.set(What::Mov, Operand::Reg, Operand::Immediate)
            }
            0xb8..=0xbf => {
                self.in_opcode(opcode);
                self.op.imm = self.number(self.op.width)?;
                self.set(What::Mov, Operand::Reg, Operand::Immediate)
            }
            0xc0 | 0xc1 | 0xd0..=0xd3 => {
                self.byte_or_more(opcode);
                let (middle, rm) = self.modrm(self.op.width, self.op.width)?;
                let what = What::Native(*SHIFTS.get(usize::from(middle))?);

                match opcode {
                    0xc0 | 0xc1 => self.op.imm = self.number(Width::B1)?,
                    0xd0 | 0xd1 => self.op.imm = 1,
                    _ => {
                        self.op.reg = Reg::CX;
                        return self.set(what, rm, Operand::Reg);
                    }
                }
                self.set(what, rm, Operand::Immediate)
            }
            0xc2 => {
                self.near()?;
                self.op.imm = self.number(Width::B2)? & 0xffff;
                self.op.what = What::Return;
                Some(())
            }
            0xc3 => {
                // `rep ret` is what some compilers write.
                if self.small {
                    return None;
                }
                self.op.what = What::Return;
                Some(())
            }
            0xc4 | 0xc5 => self.vex(opcode),
            0xc6 | 0xc7 => {
                self.byte_or_more(opcode);
                let (middle, rm) = self.modrm(self.op.width, self.op.width)?;

                self.immediate()?;
                // The others are XABORT and XBEGIN.
                if middle != 0 {
                    return None;
                }
                self.set(What::Mov, rm, Operand::Immediate)
            }
            0xc9 => {
                self.on_stack()?;
                self.op.what = What::Leave;
                Some(())
            }
            0xe3 => self.branch(What::JumpIfCx, Width::B1),
            0xe8 => self.branch(What::Call, Width::B4),
            0xe9 => self.branch(What::Jump, Width::B4),
            0xeb => self.branch(What::Jump, Width::B1),
            0xf5 => self.flag(What::Carry(Carry::Complement)),
            0xf6 | 0xf7 => self.group_3(opcode),
            0xf8 => self.flag(What::Carry(Carry::Clear)),
            0xf9 => self.flag(What::Carry(Carry::Set)),
            0xfc => self.flag(What::Direction(false)),
            0xfd => self.flag(What::Direction(true)),
            0xfe => {
                self.op.width = Width::B1;
                let (middle, rm) = self.modrm(Width::B1, Width::B1)?;

                match middle {
                    0 => self.set(What::Inc, rm, Operand::Immediate),
                    1 => self.set(What::Dec, rm, Operand::Immediate),
                    _ => None,
                }
            }
            0xff => self.group_5(),
            _ => None,
        }
    }

    fn flag(&mut self, what: What) -> Option<()> {
        self.op.what = what;
        Some(())
    }

    /// NOP, PAUSE, and XCHG with the accumulator.
    fn exchange(&mut self, opcode: u8) -> Option<()> {
        self.in_opcode(opcode);
        match (opcode, self.repeat) {
            (0x90, 0) if self.rex & REX_B == 0 => {
                self.op.what = What::Nop;
                Some(())
            }
            (0x90, 0xf3) if self.rex == 0 => {
                self.op.what = What::Nop;
                Some(())
            }
            (_, 0) => {
                self.op.rm = Reg::AX;
                self.set(What::Xchg, Operand::Rm, Operand::Reg)
            }
            _ => None,
        }
    }

    /// TEST, NOT, NEG, MUL, IMUL, DIV, IDIV.
    fn group_3(&mut self, opcode: u8) -> Option<()> {
        self.byte_or_more(opcode);
        let (middle, rm) = self.modrm(self.op.width, self.op.width)?;
        let what = match middle {
            0 => {
                self.immediate()?;
                return self.set(What::Test, rm, Operand::Immediate);
            }
            2 => return self.set(What::Not, rm, Operand::Immediate),
            3 => return self.set(What::Neg, rm, Operand::Immediate),
            4 => What::Multiply(Native::Mul),
            5 => What::Multiply(Native::Imul),
            6 => What::Divide(Native::Div),
            7 => What::Divide(Native::Idiv),
            _ => return None,
        };

        // Bytes have their result in AX.
        if self.op.width == Width::B1 {
            return None;
        }
        self.set(what, Operand::Reg, rm)
    }

    /// INC, DEC, indirect calls and jumps, PUSH.
    fn group_5(&mut self) -> Option<()> {
        let modrm = *self.text.get(self.at)?;
        let middle = modrm >> 3 & 7;

        if self.repeat != 0 && !(self.repeat == 0xf2 && matches!(middle, 2 | 4)) {
            return None;
        }
        if matches!(middle, 2 | 4 | 6) {
            self.on_stack()?;
        }
        let (_, rm) = self.modrm(self.op.width, self.op.width)?;

        match middle {
            0 => self.set(What::Inc, rm, Operand::Immediate),
            1 => self.set(What::Dec, rm, Operand::Immediate),
            2 => self.set(What::IndirectCall, Operand::Reg, rm),
            4 => self.set(What::IndirectJump, Operand::Reg, rm),
            6 => self.set(What::Push, Operand::Memory, rm),
            _ => None,
        }
    }
}
