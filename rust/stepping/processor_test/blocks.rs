// SPDX-License-Identifier: GPL-2.0

//! Blocks of instructions: how they are decoded, and where a limit ends one.

use super::{index, memory::Memory, DATA, DATA_LEN, ELSEWHERE, INSN};
use interpreter::{
    run, Block, Branch, Ended, Float, Machine, Native, Observer, Ran, Registers, Values, Width,
};
use std::ops::ControlFlow;

/// `test eax, eax; jnz +2; inc ecx; inc ecx; js +2; inc edx; jmp -14; ud2`
const TEXT: [u8; 16] = [
    0x85, 0xc0, 0x75, 0x02, 0xff, 0xc1, 0xff, 0xc1, 0x78, 0x02, 0xff, 0xc2, 0xeb, 0xf2, 0x0f, 0x0b,
];

/// Memory whose text another CPU changes while a number is read.
struct Changing {
    memory: Memory,
    is_generated: bool,
    /// The byte of the text, and what it becomes.
    change: Option<(usize, u8)>,
}

impl Changing {
    fn new(text: &[u8]) -> Self {
        let mut slot = text.to_vec();
        slot.resize(index(ELSEWHERE - INSN), 0x90);
        let memory = Memory {
            base: 0,
            data: vec![0; index(DATA_LEN)],
            text: slot,
            vectors: [[0; 4]; 16],
            writes: 0,
            distrusted: Vec::new(),
        };
        Self {
            memory,
            is_generated: false,
            change: None,
        }
    }
}

impl Machine for Changing {
    fn load(&mut self, address: u64, width: Width) -> Option<u64> {
        if let Some((at, byte)) = self.change.take() {
            self.memory.text[at] = byte;
        }
        self.memory.load(address, width)
    }

    fn store(&mut self, address: u64, width: Width, value: u64) -> Option<()> {
        self.memory.store(address, width, value)
    }

    fn replace(&mut self, address: u64, width: Width, old: u64, new: u64) -> Option<bool> {
        self.memory.replace(address, width, old, new)
    }

    fn text(&mut self, address: u64, words: &mut [u64]) -> bool {
        self.memory.text(address, words)
    }

    fn has_text(&mut self, address: u64, words: &[u64], masks: [u64; 2]) -> bool {
        self.memory.has_text(address, words, masks)
    }

    fn is_generated(&mut self, _first: u64, _last: u64) -> bool {
        self.is_generated
    }

    fn compute(
        &mut self,
        native: Native,
        width: Width,
        a: u64,
        b: u64,
        c: u64,
        flags: u64,
    ) -> Option<Values> {
        self.memory.compute(native, width, a, b, c, flags)
    }

    fn float(
        &mut self,
        float: Float,
        double: bool,
        width: Width,
        a: u64,
        b: u64,
    ) -> Option<Values> {
        self.memory.float(float, double, width, a, b)
    }
}

/// The pieces of text, with how many instructions were executed before each; and how many at each branch.
#[derive(Default)]
struct Pieces {
    text: Vec<(u64, Vec<u8>, u64)>,
    branches: Vec<(u64, u64)>,
    /// The piece that is refused.
    refused: Option<usize>,
}

impl Observer for Pieces {
    fn code(&mut self, first: u64, text: &[u8], executed: u64) -> ControlFlow<()> {
        if self.refused == Some(self.text.len()) {
            return ControlFlow::Break(());
        }
        self.text.push((first, text.to_vec(), executed));
        ControlFlow::Continue(())
    }

    fn branches(
        &mut self,
        _branch: Branch,
        from: u64,
        _next: u64,
        _to: u64,
        executed: u64,
    ) -> ControlFlow<()> {
        self.branches.push((from, executed));
        ControlFlow::Continue(())
    }
}

fn at_text() -> Registers {
    let mut registers = Registers {
        ip: INSN,
        ..Registers::default()
    };
    registers.general[3] = DATA;
    registers
}

fn interpret(
    blocks: &mut [Block],
    registers: &mut Registers,
    memory: &mut Changing,
    pieces: &mut Pieces,
    limit: u32,
) -> Ran {
    run(blocks, registers, memory, pieces, limit)
}

#[test]
fn an_observer_gets_generated_code_as_a_whole() {
    for is_generated in [false, true] {
        let mut memory = Changing::new(&TEXT);
        memory.is_generated = is_generated;
        let mut registers = at_text();
        let mut pieces = Pieces::default();
        let mut blocks = vec![Block::EMPTY; 4];

        // Twice around.
        let ran = interpret(&mut blocks, &mut registers, &mut memory, &mut pieces, 14);
        assert_eq!((ran.executed, ran.ended), (14, Ended::Limit));
        let want = (INSN, TEXT[..14].to_vec(), 0);
        assert_eq!(pieces.text, Vec::from_iter(is_generated.then_some(want)));
        let branches = [(2, 2), (8, 5), (12, 7), (2, 9), (8, 12), (12, 14)];
        assert_eq!(pieces.branches, branches.map(|(at, n)| (INSN + at, n)));
        assert_eq!((registers.general[1], registers.general[2]), (4, 2));
    }
}

#[test]
fn code_that_the_observer_refuses_is_not_executed() {
    let mut memory = Changing::new(&TEXT);
    memory.is_generated = true;
    let mut registers = at_text();
    let mut pieces = Pieces {
        refused: Some(0),
        ..Pieces::default()
    };
    let mut blocks = vec![Block::EMPTY; 4];

    // It is asked again.
    for _ in 0..2 {
        let ran = interpret(&mut blocks, &mut registers, &mut memory, &mut pieces, 7);
        assert_eq!((ran.executed, ran.ended), (0, Ended::Refused));
    }
}

#[test]
fn a_call_decodes_so_much_and_no_more() {
    // Two jumps, to each other.
    let mut memory = Changing::new(&[0xeb, 0x00, 0xeb, 0xfc]);
    let mut registers = at_text();
    let mut pieces = Pieces::default();
    let mut executed = |blocks: &mut [Block]| {
        let ran = interpret(blocks, &mut registers, &mut memory, &mut pieces, 1000);
        assert_eq!(ran.ended, Ended::Limit);
        ran.executed
    };

    // There is a place for one of both.
    let one = &mut [Block::EMPTY];
    assert_eq!([executed(one), executed(one)], [192, 192]);
    assert_eq!(executed(&mut [Block::EMPTY; 4]), 1000);
}

#[test]
fn text_that_changes_behind_a_branch_is_not_executed() {
    // mov eax, [rbx]; test eax, eax; jnz +2; inc ecx, which becomes dec ecx; ud2
    let text = [0x8b, 0x03, 0x85, 0xc0, 0x75, 0x02, 0xff, 0xc1, 0x0f, 0x0b];
    for change in [None, Some((7, 0xc9))] {
        let mut memory = Changing::new(&text);
        memory.change = change;
        let mut registers = at_text();
        let mut pieces = Pieces::default();
        let blocks = &mut [Block::EMPTY];

        let ran = interpret(blocks, &mut registers, &mut memory, &mut pieces, 100);
        assert_eq!((ran.executed, ran.ended), (4, Ended::Left));
        let want = if change.is_some() { 0xffff_ffff } else { 1 };
        assert_eq!(registers.general[1], want);
    }
}

#[test]
fn a_limit_ends_in_front_of_a_branch() {
    let mut blocks = vec![Block::EMPTY; 4];
    let mut memory = Changing::new(&TEXT);
    let mut from = |ip: u64, limit| {
        let mut registers = at_text();
        registers.ip = INSN + ip;
        let mut pieces = Pieces::default();
        let ran = interpret(&mut blocks, &mut registers, &mut memory, &mut pieces, limit);

        assert_eq!(ran.ended, Ended::Limit);
        (ran.executed, registers.ip - INSN)
    };

    // The first time the block has only what was decoded.
    assert_eq!(from(0, 7), (7, 0));
    for (limit, want) in [
        // One at least.
        (1, (1, 2)),
        (2, (1, 2)),
        (3, (1, 2)),
        (4, (4, 8)),
        (5, (4, 8)),
        (6, (6, 12)),
        (7, (7, 0)),
        (8, (8, 2)),
        (9, (8, 2)),
    ] {
        assert_eq!(from(0, limit), want, "{limit}");
    }
    // A branch by itself.
    assert_eq!(from(12, 1), (1, 0));
}
