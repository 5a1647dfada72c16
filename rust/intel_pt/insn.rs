// SPDX-License-Identifier: GPL-2.0 OR MIT

//! x86 instructions, as far as a branch trace has to know them: how long they are, and where they
//! can lead.
//!
//! [`Insn::decode`] reads one. It knows what runs in user mode, up to AVX-512 and AVX10, XOP and
//! 3DNow!; what it does not know (APX, say) is [`None`], and then the caller has
//! [`Insn::UNKNOWN`]. It does not say whether an instruction is valid: what the processor refuses
//! is never executed.
//!
//! Processors differ in one thing that matters here: with an operand size prefix on a near branch
//! in 64-bit mode, Intel's ignore the prefix, and so does this.

mod decoder;

use self::decoder::Decoder;

/// How the processor reads instructions.
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
    /// What it does to the flow of control.
    pub kind: Kind,
    /// The mode that it was read in.
    pub mode: Mode,
    /// Whether the instruction pointer is cut to 16 bits by a direct branch.
    narrow: bool,
}

/// What an instruction does to the flow of control.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Goes on with the next one.
    Other,
    /// Not known to this decoder: what it does has to be seen.
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
    /// Near JMP to what a register or memory holds.
    IndirectJump,
    /// Near CALL of what a register or memory holds.
    IndirectCall,
    /// Near RET.
    Return,
    /// Leaves the code segment.
    Far(Far),
    /// INS, OUTS, MOVS, CMPS, STOS, LODS or SCAS with a REP prefix: a single step executes one
    /// iteration, and the address stays the same until the last.
    String,
    /// PUSHF, PUSHFD, PUSHFQ: writes TF to the stack.
    PushFlags,
    /// POPF, POPFD, POPFQ: takes TF from the stack.
    PopFlags,
    /// MOV SS or POP SS: the trap after it comes one instruction late.
    Shadow,
    /// CPUID: some hypervisors lose the trap after it.
    Cpuid,
    /// XBEGIN: single-stepping aborts the transaction, so the fallback comes next.
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
    /// IRET, IRETD, IRETQ: takes TF from the stack.
    InterruptReturn,
    /// Far CALL.
    Call,
    /// Far JMP.
    Jump,
    /// Far RET.
    Return,
}

impl Kind {
    /// Whether it is a branch: what comes next need not be the next instruction.
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
    /// What stands for an instruction that could not be read or is not known.
    pub const UNKNOWN: Self = Self {
        len: 0,
        kind: Kind::Unknown,
        mode: Mode::Bits64,
        narrow: false,
    };

    /// Reads the instruction that `text` begins with. [`None`] if `text` ends before it does, or
    /// if it is not known.
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

    /// Whether the instruction that `text` begins with certainly leaves the flags register's control
    /// bits alone, and is no load of SS: in its few first bytes, which is quicker than to
    /// [decode](Self::decode) it. False also if these do not say.
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
                // POP SS, MOV to a segment register, PUSHF, POPF, IRET, and REX2, behind which is
                // another opcode.
                0x17 | 0x8e | 0x9c | 0x9d | 0xcf | 0xd5 => return false,
                _ => return true,
            }
        }
        false
    }

    /// The address behind it, if it stands at `ip`.
    pub const fn next(&self, ip: u64) -> u64 {
        // CAST: Widening; `From` is not const.
        #[allow(clippy::as_conversions, clippy::cast_lossless)]
        let next = ip.wrapping_add(self.len as u64);

        self.cut(next)
    }

    /// Where it leads if it is a direct branch, taken, and stands at `ip`.
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
