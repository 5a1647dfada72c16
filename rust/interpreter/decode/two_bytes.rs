// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opcodes behind 0F.

use super::{vectors::Map, Decoder, Insn, BITS};
use crate::op::{Locked, Native, Place, What, Width};

impl Decoder<'_> {
    pub(super) fn two_bytes(&mut self, opcode: u8) -> Option<()> {
        if self.repeat != 0 && !can_repeat(opcode) {
            return None;
        }

        TWO_BYTES.get(usize::from(opcode))?(self, opcode)
    }

    /// MOVBE.
    fn swapped(&mut self, opcode: u8) -> Option<()> {
        let (_, rm) = self.modrm(self.op.width, self.op.width)?;

        if opcode & 1 == 0 {
            self.set(What::Swapped, self.op.reg, rm)?;
        } else {
            self.set(What::Swapped, rm, self.op.reg)?;
        }
        (rm.is_memory() && self.repeat == 0).then_some(())
    }

    /// MOVZX and MOVSX.
    fn extended(&mut self, opcode: u8, from: Width) -> Option<()> {
        let (_, rm) = self.modrm(self.op.width, from)?;
        let what = if opcode < 0xb8 {
            What::Movzx(from)
        } else {
            What::Movsx(from)
        };

        self.set(what, self.op.reg, rm)
    }
}

/// Whether a repeat prefix has a meaning for the opcode.
#[cold]
fn can_repeat(opcode: u8) -> bool {
    matches!(
        opcode,
        0x10..=0x17 | 0x1e | 0x28..=0x2f | 0x50..=0x8f | 0xae | 0xb8 | 0xbc | 0xbd | 0xd0..=0xff
    )
}

/// By the opcode.
static TWO_BYTES: [Insn; 256] = table!(two_bytes);

const fn two_bytes(opcode: u8) -> Insn {
    match opcode {
        0x10..=0x17 | 0x28..=0x2f | 0x50..=0x7f | 0xd0..=0xff => {
            |this, opcode| this.legacy_vector(Map::First, opcode)
        }
        0x38 => |this, _| {
            let opcode = this.byte()?;

            match opcode {
                0xf0 | 0xf1 => this.swapped(opcode),
                _ => None,
            }
        },
        // Hints, NOP, and ENDBR64.
        0x0d | 0x18 | 0x19 | 0x1c | 0x1d | 0x1f => |this, opcode| {
            let (_, rm) = this.modrm(this.op.width, this.op.width)?;

            this.op.what = What::Nop;
            (opcode != 0x0d && opcode != 0x1c || rm.is_memory()).then_some(())
        },
        0x1e => |this, _| {
            let modrm = this.byte()?;

            this.op.what = What::Nop;
            (this.repeat == 0xf3 && modrm == 0xfa && !this.small).then_some(())
        },
        0x40..=0x4f => |this, opcode| this.rm_reg(What::Cmov(opcode & 15), true),
        0x80..=0x8f => |this, opcode| this.branch(What::JumpIf(opcode & 15), Width::B4),
        0x90..=0x9f => |this, opcode| {
            this.op.width = Width::B1;
            let (_, rm) = this.modrm(Width::B1, Width::B1)?;

            this.set(What::Set(opcode & 15), rm, Place::Immediate)
        },
        0xa3 | 0xab | 0xb3 | 0xbb => |this, opcode| {
            let bits = *BITS.get(usize::from(opcode >> 3 & 3))?;

            this.rm_reg(What::Native(bits), false)?;
            // With a memory operand, the bit may be far from the address.
            (!this.op.target.is_memory()).then_some(())
        },
        0xa4 | 0xac => |this, opcode| {
            let double = if opcode == 0xa4 {
                Native::Shld
            } else {
                Native::Shrd
            };
            let (_, rm) = this.modrm(this.op.width, this.op.width)?;

            this.op.imm = this.number(Width::B1)?;
            this.set(What::Native(double), rm, Place::Immediate)
        },
        // Only PTWRITE of this group.
        0xae => |this, _| {
            let (middle, rm) = this.modrm(this.op.width, this.op.width)?;

            this.set(What::PtWrite, this.op.reg, rm)?;
            (this.repeat == 0xf3 && middle == 4 && !this.small).then_some(())
        },
        0xaf => |this, _| this.rm_reg(What::Native(Native::ImulTwo), true),
        0xb0 | 0xb1 | 0xc0 | 0xc1 => |this, opcode| {
            let locked = if opcode < 0xc0 {
                Locked::Compare
            } else {
                Locked::Add
            };

            this.byte_or_more(opcode);
            this.rm_reg(What::Locked(locked), false)
        },
        0xb6 | 0xbe => |this, opcode| this.extended(opcode, Width::B1),
        0xb7 | 0xbf => |this, opcode| this.extended(opcode, Width::B2),
        0xb8 => |this, _| {
            if this.repeat != 0xf3 {
                return None;
            }
            this.rm_reg(What::Native(Native::Popcnt), true)
        },
        0xba => |this, _| {
            let (middle, rm) = this.modrm(this.op.width, this.op.width)?;
            let bits = *BITS.get(usize::from(middle.checked_sub(4)?))?;

            this.op.imm = this.number(Width::B1)?;
            this.set(What::Native(bits), rm, Place::Immediate)
        },
        0xbc | 0xbd => |this, opcode| {
            let native = match (opcode, this.repeat) {
                (0xbc, 0) => Native::Bsf,
                (0xbd, 0) => Native::Bsr,
                (0xbc, 0xf3) => Native::Tzcnt,
                (0xbd, 0xf3) => Native::Lzcnt,
                _ => return None,
            };
            this.rm_reg(What::Native(native), true)
        },
        0xc8..=0xcf => |this, opcode| {
            this.in_opcode(opcode);
            // The result is undefined for 16 bits.
            if this.op.width == Width::B2 {
                return None;
            }
            this.set(What::Bswap, this.op.reg, this.op.reg)
        },
        _ => |_, _| None,
    }
}
