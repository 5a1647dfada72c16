// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Blocks of guest code, and the addresses at which they are executed.

use intel_pt::insn::{Far, Insn, Kind};
use qemuplugin::Discontinuity;

/// A block of guest code, with the address for which it was translated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Block {
    /// The address of the first instruction.
    pub first: u64,
    /// Offset of each other instruction from the first.
    pub others: Box<[u16]>,
    /// Offset of the last instruction from the first.
    pub last: u16,
    /// The last instruction.
    pub insn: Insn,
    /// Whether the last instruction writes `CR3`.
    pub writes_cr3: bool,
    /// Offset from the first instruction of each instruction that follows a `CLI`.
    pub behind_cli: Box<[u16]>,
    /// Whether the last instruction may enable interrupts.
    pub may_enable: bool,
}

/// A block that a CPU executes, at an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Here {
    pub(super) block: &'static Block,
    /// The address at which the first instruction is executed.
    pub(super) first: u64,
}

impl Here {
    /// The address of the last instruction.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.first.wrapping_add(u64::from(self.block.last))
    }

    /// Whether `at` is in the block, so that QEMU may continue there in the middle of the block.
    #[inline]
    pub(super) fn has(&self, at: u64) -> bool {
        at.wrapping_sub(self.first) <= u64::from(self.block.last)
    }

    /// The addresses of the instructions after the first.
    pub(super) fn others(&self) -> impl Iterator<Item = u64> + '_ {
        let at = |offset: &u16| self.first.wrapping_add(u64::from(*offset));
        self.block.others.iter().map(at)
    }

    /// Whether the instruction in front of `at` is a `CLI` of the kernel. A program may not execute `CLI`.
    pub(super) fn is_behind_cli(&self, at: u64) -> bool {
        let offset = at.wrapping_sub(self.first);
        let is = |one: &u16| u64::from(*one) == offset;
        at >> 63 != 0 && self.block.behind_cli.iter().any(is)
    }

    /// Whether a discontinuity at `from` is caused by the last instruction, an `int` with a number. `int3` does not count, as a decoder may
    /// not know of it: the kernel places it while it patches code.
    pub(super) fn interrupts(&self, kind: Discontinuity, from: u64) -> bool {
        let insn = self.block.insn;
        kind == Discontinuity::Exception
            && from == self.last()
            && matches!(insn.kind, Kind::Far(Far::Interrupt(_)))
            && insn.len > 1
    }
}
