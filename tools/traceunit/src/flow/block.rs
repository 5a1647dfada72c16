// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Blocks of guest code, and where they are executed.

use intel_pt::insn::{Far, Insn, Kind};
use qemuplugin::Discontinuity;

/// A block of guest code, by the address that it was translated for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Block {
    /// The address of its first instruction.
    pub first: u64,
    /// From there to each other instruction.
    pub others: Box<[u16]>,
    /// From there to its last instruction.
    pub last: u16,
    /// The last instruction.
    pub insn: Insn,
    /// Whether that writes `CR3`.
    pub writes_cr3: bool,
    /// From there to each instruction behind `CLI`.
    pub behind_cli: Box<[u16]>,
    /// Whether the last instruction may enable interrupts.
    pub may_enable: bool,
}

/// A block that a CPU executes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Here {
    pub(super) block: &'static Block,
    /// The address of its first instruction.
    pub(super) first: u64,
}

impl Here {
    /// The address of its last instruction.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.first.wrapping_add(u64::from(self.block.last))
    }

    /// Whether `at` is in it, so that QEMU can go on there in the middle of the block.
    #[inline]
    pub(super) fn has(&self, at: u64) -> bool {
        at.wrapping_sub(self.first) <= u64::from(self.block.last)
    }

    /// The addresses of its instructions, without the first.
    pub(super) fn others(&self) -> impl Iterator<Item = u64> + '_ {
        let at = |offset: &u16| self.first.wrapping_add(u64::from(*offset));
        self.block.others.iter().map(at)
    }

    /// Whether the instruction in front of this one is `CLI`, of the kernel's: a program may not execute it.
    pub(super) fn is_behind_cli(&self, at: u64) -> bool {
        let offset = at.wrapping_sub(self.first);
        let is = |one: &u16| u64::from(*one) == offset;
        at >> 63 != 0 && self.block.behind_cli.iter().any(is)
    }

    /// Whether a discontinuity at `from` is an `int` with a number, the last instruction. A breakpoint is
    /// none, as a decoder may not know of it: the kernel puts it where it patches code.
    pub(super) fn interrupts(&self, kind: Discontinuity, from: u64) -> bool {
        let insn = self.block.insn;
        kind == Discontinuity::Exception
            && from == self.last()
            && matches!(insn.kind, Kind::Far(Far::Interrupt(_)))
            && insn.len > 1
    }
}
