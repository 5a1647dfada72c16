// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opcodes of one byte.

use super::*;

impl Decoder<'_> {
    /// Decodes an opcode of one byte.
    pub(super) fn one_byte(&mut self, opcode: u8) -> Option<()> {
        if self.repeat != 0 && !can_repeat(opcode) {
            return None;
        }
        ONE_BYTE.get(usize::from(opcode))?(self, opcode)
    }
}

/// Whether a repeat prefix has a meaning for the opcode, or will never get one.
#[cold]
fn can_repeat(opcode: u8) -> bool {
    matches!(
        opcode,
        0x70..=0x7f
            | 0x90
            | 0xa4
            | 0xa5
            | 0xaa
            | 0xab
            | 0xc2
            | 0xc3
            | 0xe3
            | 0xe8
            | 0xe9
            | 0xeb
            | 0xff
    )
}

/// By opcode. The kernel is built without jump tables, so this is faster than a `match`.
static ONE_BYTE: [Insn; 256] = table!(one_byte);

const fn one_byte(opcode: u8) -> Insn {
    match opcode {
        0x00..=0x3f => |this, opcode| {
            let what = What::Two(*ARITHMETIC.get(usize::from(opcode >> 3))?);

            this.byte_or_more(opcode);
            match opcode & 7 {
                0 | 1 => this.rm_reg(what, false),
                2 | 3 => this.rm_reg(what, true),
                4 | 5 => {
                    this.immediate()?;
                    this.set(what, this.op.reg, Place::Immediate)
                }
                _ => None,
            }
        },
        0x50..=0x57 => |this, opcode| {
            this.on_stack()?;
            this.in_opcode(opcode);
            this.set(What::Push, Place::Memory, this.op.reg)
        },
        0x58..=0x5f => |this, opcode| {
            this.on_stack()?;
            this.in_opcode(opcode);
            this.set(What::Pop, this.op.reg, Place::Memory)
        },
        0x63 => |this, _| {
            let (_, rm) = this.modrm(this.op.width, Width::B4)?;

            if this.op.width == Width::B2 {
                return None;
            }
            this.set(What::Movsx(Width::B4), this.op.reg, rm)
        },
        0x68 | 0x6a => |this, opcode| {
            this.on_stack()?;
            this.op.imm = this.number(if opcode == 0x68 { Width::B4 } else { Width::B1 })?;
            this.set(What::Push, Place::Memory, Place::Immediate)
        },
        0x69 | 0x6b => |this, opcode| {
            let (_, rm) = this.modrm(this.op.width, this.op.width)?;

            if opcode == 0x69 {
                this.immediate()?;
            } else {
                this.op.imm = this.number(Width::B1)?;
            }
            // The immediate is the other factor.
            this.set(What::Native(Native::ImulTwo), Place::Immediate, rm)
        },
        0x70..=0x7f => |this, opcode| this.branch(What::JumpIf(opcode & 15), Width::B1),
        0x80 | 0x81 | 0x83 => |this, opcode| {
            this.byte_or_more(opcode);
            let (middle, rm) = this.modrm(this.op.width, this.op.width)?;

            if opcode == 0x83 {
                this.op.imm = this.number(Width::B1)?;
            } else {
                this.immediate()?;
            }
            this.set(
                What::Two(*ARITHMETIC.get(usize::from(middle))?),
                rm,
                Place::Immediate,
            )
        },
        0x84 | 0x85 => |this, opcode| {
            this.byte_or_more(opcode);
            this.rm_reg(What::Two(Two::Test), false)
        },
        0x86 | 0x87 => |this, opcode| {
            this.byte_or_more(opcode);
            this.rm_reg(What::Xchg, false)?;
            // With a memory operand the exchange is locked, even without LOCK.
            if this.op.target.is_memory() {
                this.op.what = What::Locked(Locked::Exchange);
            }
            Some(())
        },
        0x88 | 0x89 => |this, opcode| {
            this.byte_or_more(opcode);
            this.rm_reg(What::Two(Two::Mov), false)
        },
        0x8a | 0x8b => |this, opcode| {
            this.byte_or_more(opcode);
            this.rm_reg(What::Two(Two::Mov), true)
        },
        0x8d => |this, _| {
            this.rm_reg(What::Lea, true)?;
            (this.op.source.is_memory()).then_some(())
        },
        0x90..=0x97 => |this, opcode| this.exchange(opcode),
        0x98 => |this, _| {
            this.op.what = What::ExtendA;
            Some(())
        },
        0x99 => |this, _| {
            this.op.what = What::ExtendD;
            Some(())
        },
        0xa8 | 0xa9 => |this, opcode| {
            this.byte_or_more(opcode);
            this.immediate()?;
            this.set(What::Two(Two::Test), this.op.reg, Place::Immediate)
        },
        0xa4 | 0xa5 | 0xaa | 0xab => |this, opcode| {
            // F2 has no meaning here.
            if this.repeat == 0xf2 || this.op.fs {
                return None;
            }
            let repeated = this.repeat != 0;

            this.byte_or_more(opcode);
            this.op.what = if opcode < 0xa8 {
                What::Movs(repeated)
            } else {
                What::Stos(repeated)
            };
            Some(())
        },
        0xb0..=0xb7 => |this, opcode| {
            this.op.width = Width::B1;
            this.in_opcode(opcode);
            this.op.imm = this.number(Width::B1)?;
            this.set(What::Two(Two::Mov), this.op.reg, Place::Immediate)
        },
        0xb8..=0xbf => |this, opcode| {
            this.in_opcode(opcode);
            this.op.imm = this.number(this.op.width)?;
            this.set(What::Two(Two::Mov), this.op.reg, Place::Immediate)
        },
        0xc0 | 0xc1 | 0xd0..=0xd3 => |this, opcode| {
            this.byte_or_more(opcode);
            let (middle, rm) = this.modrm(this.op.width, this.op.width)?;
            let (shifts, by) = match opcode {
                0xc0 | 0xc1 => {
                    this.op.imm = this.number(Width::B1)?;
                    (SHIFTS_BY, Place::Immediate)
                }
                0xd0 | 0xd1 => {
                    this.op.imm = 1;
                    (SHIFTS, Place::Immediate)
                }
                _ => (SHIFTS, Place::Cx),
            };

            this.set(What::Native(*shifts.get(usize::from(middle))?), rm, by)
        },
        0xc2 => |this, _| {
            this.near()?;
            this.op.imm = this.number(Width::B2)? & 0xffff;
            this.op.what = What::Return;
            Some(())
        },
        0xc3 => |this, _| {
            // Some compilers emit `rep ret`.
            if this.small {
                return None;
            }
            this.op.what = What::Return;
            Some(())
        },
        0xc4 | 0xc5 => |this, opcode| this.vex(opcode),
        0xc6 | 0xc7 => |this, opcode| {
            this.byte_or_more(opcode);
            let (middle, rm) = this.modrm(this.op.width, this.op.width)?;

            this.immediate()?;
            // The other instructions of the group are XABORT and XBEGIN.
            if middle != 0 {
                return None;
            }
            this.set(What::Two(Two::Mov), rm, Place::Immediate)
        },
        0xc9 => |this, _| {
            this.on_stack()?;
            this.op.what = What::Leave;
            Some(())
        },
        0xe3 => |this, _| this.branch(What::JumpIfCx, Width::B1),
        0xe8 => |this, _| this.branch(What::Call, Width::B4),
        0xe9 => |this, _| this.branch(What::Jump, Width::B4),
        0xeb => |this, _| this.branch(What::Jump, Width::B1),
        0xf5 => |this, _| this.flag(What::Carry(Carry::Complement)),
        0xf6 | 0xf7 => |this, opcode| this.group_3(opcode),
        0xf8 => |this, _| this.flag(What::Carry(Carry::Clear)),
        0xf9 => |this, _| this.flag(What::Carry(Carry::Set)),
        0xfc => |this, _| this.flag(What::Direction(false)),
        0xfd => |this, _| this.flag(What::Direction(true)),
        0xfe => |this, _| {
            this.op.width = Width::B1;
            let (middle, rm) = this.modrm(Width::B1, Width::B1)?;

            match middle {
                0 => this.set(What::Inc, rm, Place::Immediate),
                1 => this.set(What::Dec, rm, Place::Immediate),
                _ => None,
            }
        },
        0xff => |this, _| this.group_5(),
        _ => |_, _| None,
    }
}
