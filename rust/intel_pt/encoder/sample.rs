// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records of sampled instructions: blocks of items, as PEBS writes them into a trace.

use super::{Encoder, Full, Output};
use crate::{
    insn::Mode,
    packet::{Address, Block, Group, GROUP_MAX},
};

/// The numbers of [`Block::Basic`]'s items.
const IP: u8 = 0;
const COUNTERS: u8 = 1;
const TIMESTAMP: u8 = 2;

/// The numbers of [`Block::Registers`]' items; the general registers follow.
const FLAGS: u8 = 0;
const NEXT: u8 = 1;

/// The number of general registers in 32-bit code.
const GENERAL_32: usize = 8;

/// The maximum length of the packets of a sample, with the packets in front of it and behind it.
const SAMPLE_MAX: usize = 2 * GROUP_MAX + 3 + 3 * 9 + 3 + 18 * 9 + 2 + 9;

/// An executed instruction, and the registers after it.
///
/// Reference: the adaptive PEBS record, in its basic and its general registers group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// The address of the instruction.
    pub ip: u64,
    /// The counters that have sampled the instruction, one bit each.
    pub counters: u64,
    /// The address of the next instruction.
    pub next: u64,
    /// The flags.
    pub flags: u64,
    /// The general registers, by their numbers: RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
    pub general: [u64; 16],
}

impl Sample {
    /// Adds the blocks of the sample.
    fn add<const MAX: usize>(&self, group: &mut Group<MAX>, mode: Mode, time: Option<u64>) {
        let general = match mode {
            Mode::Bits64 => self.general.len(),
            Mode::Bits32 => GENERAL_32,
        };

        group.bbp(Block::Basic, Mode::Bits64);
        group.bip(IP, self.ip, Mode::Bits64);
        group.bip(COUNTERS, self.counters, Mode::Bits64);
        if let Some(time) = time {
            group.bip(TIMESTAMP, time, Mode::Bits64);
        }
        group.bbp(Block::Registers, mode);
        group.bip(FLAGS, self.flags, mode);
        group.bip(NEXT, self.next, mode);
        for (value, item) in self.general.iter().take(general).zip(2..) {
            group.bip(item, *value, mode);
        }
    }
}

impl Encoder {
    /// Traces a sample of the instruction that was executed last, in `mode`. Called after
    /// [`step`](Self::step), or before [`far`](Self::far). `follows`: whether the trace follows the
    /// thread to the next instruction. Does nothing if tracing is off.
    pub fn sample(
        &mut self,
        sample: &Sample,
        mode: Mode,
        follows: bool,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        if !self.state.on {
            return Ok(());
        }

        let mut state = self.state;
        let mut group = Group::<SAMPLE_MAX>::new();
        let mut front = Group::new();
        let mut behind = Group::new();
        let time = self.config.tsc.then(|| output.tsc());

        front.tnt(&mut state.tnt);
        self.time(&mut front, &mut state, output);
        group.add(&front);
        sample.add(&mut group, mode, time);
        group.bep(follows);
        if follows {
            group.address(Address::Fup, sample.next, &mut state.last_ip);
        }
        // If the trace has packets of branches, a due `PSB` follows one of those.
        if self.config.branch_disable && self.psb_due(&state) {
            self.psb(&mut behind, &mut state, None, output);
        }
        group.add(&behind);
        self.write(&group, state, output)
    }
}
