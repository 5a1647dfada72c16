// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Classifies x86 instructions: their length, and where control goes after them.
//!
//! [`Insn::decode`] reads one instruction. It covers user mode up to AVX-512 and AVX10, XOP and
//! 3DNow!. It returns [`None`] for others, such as APX, for which [`Insn::UNKNOWN`] stands. It does
//! not check whether an instruction is valid, since a processor does not execute an invalid one.
//!
//! With an operand size prefix on a near branch in 64-bit mode, processors of Intel ignore the
//! prefix, and so does this decoder. Processors of AMD do not.

mod decoder;

use self::decoder::Decoder;

/// The mode in which the processor decodes instructions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// 64-bit code, `x32` too.
    Bits64,
    /// 32-bit code, in a 32-bit process or a compatibility segment.
    Bits32,
}

/// The longest instruction, in bytes.
pub const LEN_MAX: usize = 15;

/// An instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Insn {
    /// Its length in bytes, 1 to [`LEN_MAX`]; 0 for [`Insn::UNKNOWN`].
    pub len: u8,
    /// Its effect on the flow of control.
    pub kind: Kind,
    /// The mode in which it was decoded.
    pub mode: Mode,
    /// Whether a direct branch truncates the instruction pointer to 16 bits.
    narrow: bool,
}

/// The effect of an instruction on the flow of control.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The next instruction follows.
    Other,
    /// Not known to this decoder: only execution shows its effect.
    Unknown,
    /// Jcc, JCXZ, JECXZ, JRCXZ, LOOP, LOOPE, LOOPNE.
    Conditional {
        /// From the end of the instruction to the target.
        displacement: i32,
    },
    /// Direct near JMP.
    Jump {
        /// From the end of the instruction to the target.
        displacement: i32,
    },
    /// Direct near CALL.
    Call {
        /// From the end of the instruction to the target.
        displacement: i32,
    },
    /// Near JMP to an address in a register or in memory.
    IndirectJump,
    /// Near CALL of an address in a register or in memory.
    IndirectCall,
    /// Near RET.
    Return,
    /// Leaves the code segment.
    Far(Far),
    /// INS, OUTS, MOVS, CMPS, STOS, LODS or SCAS with a REP prefix: a single step executes one
    /// iteration, and the address stays the same until the last.
    String,
    /// PUSHF, PUSHFD, PUSHFQ: stores TF to the stack.
    PushFlags,
    /// POPF, POPFD, POPFQ: loads TF from the stack.
    PopFlags,
    /// MOV SS or POP SS: its single-step trap comes one instruction late.
    Shadow,
    /// PTWRITE: its operand is written to the trace.
    PtWrite,
    /// CPUID: some hypervisors lose its single-step trap.
    Cpuid,
    /// XBEGIN: a single step aborts the transaction, so the fallback follows.
    TransactionBegin {
        /// From the end of the instruction to the fallback.
        displacement: i32,
    },
    /// XABORT.
    TransactionAbort,
}

/// A transfer that leaves the code segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Far {
    /// SYSCALL.
    Syscall,
    /// SYSENTER.
    Sysenter,
    /// SYSRET, SYSEXIT.
    Sysret,
    /// INT with its number; INT3 is 3 and INTO is 4.
    Interrupt(u8),
    /// IRET, IRETD, IRETQ: loads TF from the stack.
    InterruptReturn,
    /// Far CALL.
    Call,
    /// Far JMP.
    Jump,
    /// Far RET.
    Return,
}

impl Kind {
    /// Whether it is a branch: another instruction than the next one can follow.
    pub const fn is_branch(self) -> bool {
        matches!(
            self,
            Self::Conditional { .. }
                | Self::Jump { .. }
                | Self::Call { .. }
                | Self::IndirectJump
                | Self::IndirectCall
                | Self::Return
                | Self::Far(_)
        )
    }
}

impl Insn {
    /// Stands for an instruction that could not be read, or that is not known.
    pub const UNKNOWN: Self = Self {
        len: 0,
        kind: Kind::Unknown,
        mode: Mode::Bits64,
        narrow: false,
    };

    /// Decodes the instruction at the beginning of `text`. [`None`] if `text` is shorter than the
    /// instruction, or if the instruction is not known.
    ///
    /// # Examples
    ///
    /// ```
    /// use intel_pt::insn::{Insn, Kind, Mode};
    ///
    /// // jne -2; nop
    /// let insn = Insn::decode(&[0x75, 0xfe, 0x90], Mode::Bits64).unwrap();
    ///
    /// assert_eq!(insn.len, 2);
    /// assert_eq!(insn.kind, Kind::Conditional { displacement: -2 });
    /// assert_eq!(insn.target(0x1000), Some(0x1000));
    /// assert_eq!(insn.next(0x1000), 0x1002);
    /// ```
    pub fn decode(text: &[u8], mode: Mode) -> Option<Self> {
        let text = text.get(..LEN_MAX).unwrap_or(text);
        let mut decoder = Decoder::new(text, mode);
        let kind = decoder.insn()?;

        Some(Self {
            len: decoder.at.try_into().ok()?,
            kind,
            mode,
            narrow: decoder.narrow(),
        })
    }

    /// Whether the instruction at the beginning of `text` certainly neither stores nor loads TF,
    /// and does not load SS. Reads only prefixes and the first opcode byte, which is faster than
    /// [`decode`](Self::decode). False if these bytes do not decide it.
    ///
    /// # Examples
    ///
    /// ```
    /// use intel_pt::insn::{Insn, Mode};
    ///
    /// // add rax, rbx; pushf
    /// assert!(Insn::is_plain(&[0x48, 0x01, 0xd8], Mode::Bits64));
    /// assert!(!Insn::is_plain(&[0x9c], Mode::Bits64));
    /// ```
    pub fn is_plain(text: &[u8], mode: Mode) -> bool {
        for byte in text {
            match byte {
                0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 => {}
                0x40..=0x4f if mode == Mode::Bits64 => {}
                // POP SS, MOV to a segment register, PUSHF, POPF, IRET, and REX2, which has another
                // opcode behind it.
                0x17 | 0x8e | 0x9c | 0x9d | 0xcf | 0xd5 => return false,
                _ => return true,
            }
        }
        false
    }

    /// The address behind the instruction, if the instruction is at `ip`.
    pub const fn next(&self, ip: u64) -> u64 {
        // CAST: Widening; `From` is not const.
        #[allow(clippy::as_conversions, clippy::cast_lossless)]
        let next = ip.wrapping_add(self.len as u64);

        self.cut(next)
    }

    /// The target of a direct branch at `ip`. [`None`] for other instructions.
    pub const fn target(&self, ip: u64) -> Option<u64> {
        match self.kind {
            Kind::Conditional { displacement }
            | Kind::Jump { displacement }
            | Kind::Call { displacement } => {
                // CAST: Widening; `From` is not const.
                #[allow(clippy::as_conversions, clippy::cast_lossless)]
                let target = self.next(ip).wrapping_add_signed(displacement as i64);
                let target = self.cut(target);

                Some(if self.narrow { target & 0xffff } else { target })
            }
            _ => None,
        }
    }

    const fn cut(&self, ip: u64) -> u64 {
        match self.mode {
            Mode::Bits64 => ip,
            Mode::Bits32 => ip & 0xffff_ffff,
        }
    }
}

#[cfg(test)]
mod tests;
