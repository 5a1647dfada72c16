// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes the bytes of an instruction.

use super::{Far, Kind, Mode};

/// The parts of an instruction behind its opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Nothing.
    Nothing,
    /// An immediate with this number of bytes.
    Immediate(usize),
    /// An immediate of 2 or 4 bytes, by operand size.
    ImmediateZ,
    /// ModRM, and an immediate with this number of bytes.
    ModRm(usize),
    /// ModRM, and an immediate of 2 or 4 bytes, by operand size.
    ModRmZ,
}

pub(super) struct Decoder<'a> {
    text: &'a [u8],
    pub(super) at: usize,
    mode: Mode,
    operand_prefix: bool,
    address_prefix: bool,
    /// The last F2 or F3 prefix.
    repeat: Option<u8>,
    /// REX.W.
    wide: bool,
}

impl<'a> Decoder<'a> {
    pub(super) const fn new(text: &'a [u8], mode: Mode) -> Self {
        Self {
            text,
            at: 0,
            mode,
            operand_prefix: false,
            address_prefix: false,
            repeat: None,
            wide: false,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.peek()?;

        self.at = self.at.saturating_add(1);
        Some(byte)
    }

    fn skip(&mut self, len: usize) -> Option<()> {
        let at = self.at.checked_add(len)?;

        (at <= self.text.len()).then(|| self.at = at)
    }

    fn is_64(&self) -> bool {
        self.mode == Mode::Bits64
    }

    /// Whether direct near branches have 16-bit displacements and targets.
    pub(super) fn narrow(&self) -> bool {
        self.operand_prefix && !self.is_64()
    }

    /// The length of an immediate that has the operand's size, but at most 4 bytes.
    fn size_z(&self) -> usize {
        if self.operand_prefix && !self.wide {
            2
        } else {
            4
        }
    }

    pub(super) fn insn(&mut self) -> Option<Kind> {
        let opcode = self.prefixes()?;

        match opcode {
            0x0f => self.two_bytes(),
            0x62 if self.is_64() || self.is_vector()? => self.evex(),
            0xc4 if self.is_64() || self.is_vector()? => self.vex(3),
            0xc5 if self.is_64() || self.is_vector()? => self.vex(2),
            0x8f if self.peek()? & 0x1f >= 8 => self.xop(),
            _ => self.one_byte(opcode),
        }
    }

    /// Reads prefixes and the opcode behind them.
    fn prefixes(&mut self) -> Option<u8> {
        loop {
            let byte = self.byte()?;

            match byte {
                0x66 => self.operand_prefix = true,
                0x67 => self.address_prefix = true,
                0xf2 | 0xf3 => self.repeat = Some(byte),
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 => {}
                0x40..=0x4f if self.is_64() => {
                    // REX has an effect only directly in front of the opcode.
                    self.wide = byte & 8 != 0;
                    continue;
                }
                opcode => return Some(opcode),
            }
            self.wide = false;
        }
    }

    /// In 32-bit mode VEX and EVEX share their first byte with instructions that have no register
    /// form.
    fn is_vector(&self) -> Option<bool> {
        Some(self.peek()? >= 0xc0)
    }

    fn one_byte(&mut self, opcode: u8) -> Option<Kind> {
        let kind = match opcode {
            0x70..=0x7f | 0xe0..=0xe3 => Kind::Conditional {
                displacement: self.displacement(1)?,
            },
            0xeb => Kind::Jump {
                displacement: self.displacement(1)?,
            },
            0xe9 => Kind::Jump {
                displacement: self.near_displacement()?,
            },
            0xe8 => Kind::Call {
                displacement: self.near_displacement()?,
            },
            0xc2 => {
                self.skip(2)?;
                Kind::Return
            }
            0xc3 => Kind::Return,
            0xca => {
                self.skip(2)?;
                Kind::Far(Far::Return)
            }
            0xcb => Kind::Far(Far::Return),
            0xcc => Kind::Far(Far::Interrupt(3)),
            0xcd => Kind::Far(Far::Interrupt(self.byte()?)),
            0xce => Kind::Far(Far::Interrupt(4)),
            0xcf => Kind::Far(Far::InterruptReturn),
            0x9a => {
                self.far_pointer()?;
                Kind::Far(Far::Call)
            }
            0xea => {
                self.far_pointer()?;
                Kind::Far(Far::Jump)
            }
            0xff => match self.modrm()? >> 3 & 7 {
                2 => Kind::IndirectCall,
                3 => Kind::Far(Far::Call),
                4 => Kind::IndirectJump,
                5 => Kind::Far(Far::Jump),
                _ => Kind::Other,
            },
            0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf if self.repeat.is_some() => Kind::String,
            0x9c => Kind::PushFlags,
            0x9d => Kind::PopFlags,
            0x17 => Kind::Shadow,
            0x8e => match self.modrm()? >> 3 & 7 {
                2 => Kind::Shadow,
                _ => Kind::Other,
            },
            0xc6 => {
                let modrm = self.modrm()?;

                self.skip(1)?;
                match modrm {
                    0xf8 => Kind::TransactionAbort,
                    _ => Kind::Other,
                }
            }
            0xc7 => {
                let modrm = self.modrm()?;
                let displacement = self.displacement(self.size_z())?;

                match modrm {
                    0xf8 => Kind::TransactionBegin { displacement },
                    _ => Kind::Other,
                }
            }
            // TEST has an immediate. The other instructions of the group have none.
            0xf6 | 0xf7 => {
                let modrm = self.modrm()?;

                if modrm >> 3 & 7 < 2 {
                    self.skip(if opcode == 0xf6 { 1 } else { self.size_z() })?;
                }
                Kind::Other
            }
            _ => {
                self.rest(self.one_byte_rest(opcode)?)?;
                Kind::Other
            }
        };

        Some(kind)
    }

    /// The parts behind an opcode of one byte; [`None`] if it is not known.
    fn one_byte_rest(&self, opcode: u8) -> Option<Rest> {
        Some(match opcode {
            0x00..=0x3f => match opcode & 7 {
                0..=3 => Rest::ModRm(0),
                4 => Rest::Immediate(1),
                5 => Rest::ImmediateZ,
                _ => Rest::Nothing,
            },
            0x62 | 0x63 | 0x84..=0x8d | 0x8f | 0xc4 | 0xc5 | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe => {
                Rest::ModRm(0)
            }
            0x68 | 0xa9 => Rest::ImmediateZ,
            0x69 | 0x81 => Rest::ModRmZ,
            0x6a | 0xa8 | 0xb0..=0xb7 | 0xd4 | 0xe4..=0xe7 => Rest::Immediate(1),
            0x6b | 0x80 | 0x82 | 0x83 | 0xc0 | 0xc1 => Rest::ModRm(1),
            // The prefix REX2.
            0xd5 if self.is_64() => return None,
            0xd5 => Rest::Immediate(1),
            0xa0..=0xa3 => Rest::Immediate(match (self.mode, self.address_prefix) {
                (Mode::Bits64, false) => 8,
                (Mode::Bits64, true) | (Mode::Bits32, false) => 4,
                (Mode::Bits32, true) => 2,
            }),
            0xb8..=0xbf if self.wide => Rest::Immediate(8),
            0xb8..=0xbf => Rest::ImmediateZ,
            0xc8 => Rest::Immediate(3),
            _ => Rest::Nothing,
        })
    }

    fn two_bytes(&mut self) -> Option<Kind> {
        let opcode = self.byte()?;

        let kind = match opcode {
            0x05 => Kind::Far(Far::Syscall),
            0x34 => Kind::Far(Far::Sysenter),
            0x07 | 0x35 => Kind::Far(Far::Sysret),
            0x80..=0x8f => Kind::Conditional {
                displacement: self.near_displacement()?,
            },
            0xa2 => Kind::Cpuid,
            0xae => {
                let middle = self.modrm()? >> 3 & 7;

                match (self.repeat, self.operand_prefix, middle) {
                    (Some(0xf3), false, 4) => Kind::PtWrite,
                    _ => Kind::Other,
                }
            }
            0x38 => {
                self.byte()?;
                self.rest(Rest::ModRm(0))?;
                Kind::Other
            }
            0x3a => {
                self.byte()?;
                self.rest(Rest::ModRm(1))?;
                Kind::Other
            }
            // Moves from and to control and debug registers have no memory form, whatever ModRM
            // contains.
            0x20..=0x23 => {
                self.byte()?;
                Kind::Other
            }
            _ => {
                self.rest(self.two_bytes_rest(opcode))?;
                Kind::Other
            }
        };

        Some(kind)
    }

    /// The parts behind an opcode of two bytes.
    fn two_bytes_rest(&self, opcode: u8) -> Rest {
        match opcode {
            0x04..=0x0c | 0x0e | 0x30..=0x37 | 0x77 | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf => {
                Rest::Nothing
            }
            // 3DNow! has its opcode at the end.
            0x0f => Rest::ModRm(1),
            // EXTRQ and INSERTQ of SSE4a.
            0x78 if self.operand_prefix || self.repeat == Some(0xf2) => Rest::ModRm(2),
            _ => Rest::ModRm(vector_immediate(opcode)),
        }
    }

    /// Reads VEX and its instruction. `len` is the length of VEX, including the byte that was
    /// already read.
    fn vex(&mut self, len: u8) -> Option<Kind> {
        let first = self.byte()?;
        let map = if len == 2 {
            1
        } else {
            self.byte()?;
            first & 0x1f
        };
        let opcode = self.byte()?;

        self.rest(match map {
            // VZEROUPPER, VZEROALL.
            1 if opcode == 0x77 => Rest::Nothing,
            1 => Rest::ModRm(vector_immediate(opcode)),
            2 => Rest::ModRm(0),
            3 => Rest::ModRm(1),
            // URDMSR, UWRMSR.
            7 => Rest::ModRm(4),
            _ => return None,
        })?;
        Some(Kind::Other)
    }

    fn evex(&mut self) -> Option<Kind> {
        let map = self.byte()? & 7;

        self.skip(2)?;
        let opcode = self.byte()?;

        self.rest(match map {
            1 => Rest::ModRm(vector_immediate(opcode)),
            2 | 5 | 6 => Rest::ModRm(0),
            3 => Rest::ModRm(1),
            // 4 is APX.
            _ => return None,
        })?;
        Some(Kind::Other)
    }

    fn xop(&mut self) -> Option<Kind> {
        let map = self.byte()? & 0x1f;

        self.skip(2)?;
        self.rest(match map {
            8 => Rest::ModRm(1),
            9 => Rest::ModRm(0),
            10 => Rest::ModRm(4),
            _ => return None,
        })?;
        Some(Kind::Other)
    }

    fn rest(&mut self, rest: Rest) -> Option<()> {
        match rest {
            Rest::Nothing => Some(()),
            Rest::Immediate(len) => self.skip(len),
            Rest::ImmediateZ => self.skip(self.size_z()),
            Rest::ModRm(len) => {
                self.modrm()?;
                self.skip(len)
            }
            Rest::ModRmZ => {
                self.modrm()?;
                self.skip(self.size_z())
            }
        }
    }

    /// Reads ModRM. Skips SIB and the displacement, if there are any.
    fn modrm(&mut self) -> Option<u8> {
        let modrm = self.byte()?;
        let (form, base) = (modrm >> 6, modrm & 7);

        if form == 3 {
            return Some(modrm);
        }
        if self.address_prefix && !self.is_64() {
            self.skip(match (form, base) {
                (0, 6) | (2, _) => 2,
                (1, _) => 1,
                _ => 0,
            })?;
            return Some(modrm);
        }

        let base = if base == 4 { self.byte()? & 7 } else { base };

        self.skip(match (form, base) {
            (0, 5) | (2, _) => 4,
            (1, _) => 1,
            _ => 0,
        })?;
        Some(modrm)
    }

    /// Skips an offset and a selector.
    fn far_pointer(&mut self) -> Option<()> {
        self.skip(self.size_z())?;
        self.skip(2)
    }

    /// Reads the displacement of a near branch, of 2 or 4 bytes.
    fn near_displacement(&mut self) -> Option<i32> {
        self.displacement(if self.narrow() { 2 } else { 4 })
    }

    /// Reads a signed number of 1, 2 or 4 bytes.
    fn displacement(&mut self, len: usize) -> Option<i32> {
        let bytes = self.text.get(self.at..)?;

        self.skip(len)?;
        Some(match len {
            1 => i8::from_le_bytes(*bytes.first_chunk()?).into(),
            2 => i16::from_le_bytes(*bytes.first_chunk()?).into(),
            _ => i32::from_le_bytes(*bytes.first_chunk()?),
        })
    }
}

/// The length of the immediate of an opcode in the map that 0F, VEX and EVEX share.
const fn vector_immediate(opcode: u8) -> usize {
    match opcode {
        0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => 1,
        _ => 0,
    }
}
