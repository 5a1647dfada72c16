// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random programs.

use intel_pt::insn::{Insn, Mode};

/// A source of random numbers: the same seed gives the same walk.
pub struct Dice(pub u64);

impl Dice {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.word() % u64::try_from(n).unwrap()).unwrap()
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Instructions of many lengths that are no branches, and are valid in both modes.
const PLAIN: &[&[u8]] = &[
    &[0x90],
    &[0xf3, 0x90],
    &[0x89, 0xc8],
    &[0x83, 0xc0, 0x01],
    &[0x8b, 0x44, 0x24, 0x08],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x05, 0x78, 0x56, 0x34, 0x12],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0xc7, 0x44, 0x24, 0x08, 0xe9, 0xeb, 0xc3, 0xff],
    &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0],
    &[0x9c],
    &[0x9d],
    &[0x0f, 0xa2],
    &[0xa4],
    // ptwrite eax, ptwrite [esp+8]
    &[0xf3, 0x0f, 0xae, 0xe0],
    &[0xf3, 0x0f, 0xae, 0x64, 0x24, 0x08],
];

/// An instruction with a REP prefix, which takes several steps.
const REP: &[u8] = &[0xf3, 0xa4];

/// A program: blocks of instructions, each with a branch at its end.
pub struct Program {
    pub text: Vec<u8>,
    pub base: u64,
    mode: Mode,
    pub blocks: Vec<u64>,
}

impl Program {
    /// Makes a random program. Direct jumps and calls lead forward, to a later block. Otherwise a loop of direct branches could only be
    /// left by an asynchronous event, and no trace shows in which iteration that happened.
    pub fn random(dice: &mut Dice, mode: Mode, base: u64) -> Self {
        const BLOCK: usize = 64;
        let count = 4 + dice.below(60);
        let mut text = Vec::new();
        let mut blocks = Vec::new();
        let at = |text: &mut Vec<u8>, dice: &mut Dice| {
            // Adjacent blocks, blocks with gaps, and some far away.
            let gap = match dice.below(40) {
                0 => 0x1_0000,
                1..=9 => dice.below(9),
                _ => 0,
            };
            text.resize(text.len() + gap, 0xf4);
            text.len()
        };

        for _ in 0..count {
            let start = at(&mut text, dice);
            blocks.push(start);
            // The maximum length; the block is filled in below.
            text.resize(start + BLOCK, 0xf4);
        }
        for (i, &start) in blocks.iter().enumerate() {
            let mut body = Vec::new();
            for _ in 0..dice.below(4) {
                body.extend(if dice.one_in(12) {
                    REP
                } else {
                    PLAIN[dice.below(PLAIN.len())]
                });
            }
            let here = start + body.len();
            let any = blocks[dice.below(count)];
            let later = (i + 1 < count).then(|| blocks[i + 1 + dice.below(count - i - 1)]);
            body.extend(branch(dice, mode, here, any, later));
            assert!(body.len() <= BLOCK);
            // The code after the branch is reached when the branch is not taken, or by a return. It leads to the next block.
            if let Some(next) = blocks.get(i + 1) {
                let from = start + body.len() + 5;
                body.push(0xe9);
                body.extend(relative(*next, from));
            } else {
                body.extend([0xff, 0xe0]);
            }
            text[start..start + body.len()].copy_from_slice(&body);
        }
        Self {
            text,
            base,
            mode,
            blocks: blocks.iter().map(|&at| base + to_u64(at)).collect(),
        }
    }

    pub fn insn(&self, ip: u64) -> Insn {
        let at = usize::try_from(ip - self.base).unwrap();
        let end = self.text.len().min(at + 15);
        Insn::decode(&self.text[at..end], self.mode).unwrap()
    }
}

fn to_u64(at: usize) -> u64 {
    u64::try_from(at).unwrap()
}

fn relative(to: usize, from: usize) -> [u8; 4] {
    let distance = i64::try_from(to).unwrap() - i64::try_from(from).unwrap();
    i32::try_from(distance).unwrap().to_le_bytes()
}

/// A branch at `here`: conditional ones lead to `any` block, direct ones to a `later` one.
fn branch(dice: &mut Dice, mode: Mode, here: usize, any: usize, later: Option<usize>) -> Vec<u8> {
    let short = |opcode: u8| {
        let distance = i64::try_from(any).unwrap() - i64::try_from(here + 2).unwrap();
        i8::try_from(distance)
            .ok()
            .map(|distance| vec![opcode, distance.to_le_bytes()[0]])
    };
    let long = |opcode: &[u8], to: usize| {
        let mut bytes = opcode.to_vec();
        bytes.extend(relative(to, here + opcode.len() + 4));
        bytes
    };
    let condition = u8::try_from(dice.below(16)).unwrap();

    match (dice.below(24), later) {
        (0..=5, _) => {
            short(0x70 + condition).unwrap_or_else(|| long(&[0x0f, 0x80 + condition], any))
        }
        (6..=7, _) => long(&[0x0f, 0x80 + condition], any),
        // LOOPNE to JRCXZ.
        (8, _) => short(0xe0 + condition % 4).unwrap_or_else(|| long(&[0x0f, 0x84], any)),
        (9..=10, Some(later)) => long(&[0xe9], later),
        (11, Some(later)) => long(&[0xf2, 0xe9], later),
        (12..=14, Some(later)) => long(&[0xe8], later),
        // Call the next instruction.
        (15, _) => vec![0xe8, 0, 0, 0, 0],
        (16, _) => vec![0xff, 0xd0],
        (17, _) => vec![0xff, 0x54, 0x24, 0x08],
        (18, _) => vec![0xc2, 0x08, 0x00],
        (19, _) => match mode {
            Mode::Bits64 => vec![0x0f, 0x05],
            Mode::Bits32 => vec![0xcd, 0x80],
        },
        (20..=22, _) => vec![0xc3],
        _ => vec![0xff, 0xe0],
    }
}
