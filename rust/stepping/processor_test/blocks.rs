// SPDX-License-Identifier: GPL-2.0

//! Tests of blocks of instructions: how they are decoded, and where a limit ends one.

use super::{index, memory::Memory, DATA, DATA_LEN, ELSEWHERE, INSN};
use interpreter::{
    run, Block, Branch, Ended, Float, How, Machine, Native, Observer, Ran, Registers, Values, Width,
};
use std::ops::ControlFlow;

/// `test eax, eax; jnz +2; inc ecx; inc ecx; js +2; inc edx; jmp -14; ud2`
const TEXT: [u8; 16] = [
    0x85, 0xc0, 0x75, 0x02, 0xff, 0xc1, 0xff, 0xc1, 0x78, 0x02, 0xff, 0xc2, 0xeb, 0xf2, 0x0f, 0x0b,
];

/// Memory whose text another CPU changes during a load.
struct Changing {
    memory: Memory,
    is_generated: bool,
    /// The byte of the text that changes, and its new value.
    change: Option<(usize, u8)>,
    is_settled: bool,
    /// The number of the next report.
    report: u64,
    /// The newest report of other text.
    replaced: u64,
    pass: u64,
    /// The number of comparisons of text.
    compared: u32,
    /// The addresses of stores. A store succeeds at any address.
    stored: Vec<u64>,
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
            is_settled: false,
            report: 0,
            replaced: 0,
            pass: 0,
            compared: 0,
            stored: Vec::new(),
        }
    }
}

impl Machine for Changing {
    fn load(&mut self, address: u64, width: Width) -> Option<u64> {
        if let Some((at, byte)) = self.change.take() {
            self.memory.text[at] = byte;
        }
        if address < DATA {
            return Some(0);
        }
        self.memory.load(address, width)
    }

    fn store(&mut self, address: u64, _width: Width, _value: u64) -> Option<()> {
        self.stored.push(address);
        Some(())
    }

    fn replace(&mut self, address: u64, _width: Width, _old: u64, _new: u64) -> Option<bool> {
        self.stored.push(address);
        Some(true)
    }

    fn store_vector(&mut self, _number: u8, address: u64, _how: How) -> Option<()> {
        self.stored.push(address);
        Some(())
    }

    fn text(&mut self, address: u64, words: &mut [u64]) -> bool {
        self.memory.text(address, words)
    }

    fn pass(&self) -> u64 {
        self.pass
    }

    fn is_settled(&mut self, _first: u64, _last: u64) -> bool {
        self.is_settled
    }

    fn has_text(&mut self, address: u64, words: &[u64], masks: [u64; 2]) -> bool {
        self.compared += 1;
        self.memory.has_text(address, words, masks)
    }

    fn is_generated(&mut self, _first: u64, _last: u64) -> bool {
        self.is_generated
    }

    fn report(&mut self, _first: u64, _text: &[u8]) -> u64 {
        self.report
    }

    fn is_replaced(&mut self, _first: u64, _last: u64, report: u64) -> bool {
        self.replaced > report
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

/// The reported text, and the branches, each with the number of instructions that were executed.
#[derive(Default)]
struct Pieces {
    text: Vec<(u64, Vec<u8>, u64)>,
    branches: Vec<(u64, u64)>,
    /// The index of the piece of text that is refused.
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

        // Two rounds of the loop.
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
fn code_is_reported_again_after_a_report_of_other_code() {
    let mut memory = Changing::new(&TEXT);
    memory.is_generated = true;
    let mut blocks = vec![Block::EMPTY; 4];
    let mut pieces = Pieces::default();

    for (report, replaced, want) in [(1, 0, 1), (2, 1, 1), (3, 2, 2), (4, 3, 2), (5, 4, 3)] {
        let mut registers = at_text();
        memory.pass += 1;
        memory.replaced = replaced;
        memory.report = report;
        let ran = interpret(&mut blocks, &mut registers, &mut memory, &mut pieces, 7);
        assert_eq!((ran.executed, ran.ended), (7, Ended::Limit));
        assert_eq!(pieces.text.len(), want, "{report}");
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

    // The observer is asked in each call.
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

    // There is space for only one of the two blocks.
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
fn settled_text_is_compared_once_in_a_call() {
    // dec ecx; jnz -4; ud2
    let text = [0xff, 0xc9, 0x75, 0xfc, 0x0f, 0x0b];
    // The first call reads the text. Later calls compare the text of the loop, and the text behind
    // it.
    for (is_settled, want) in [(false, [10, 11, 11]), (true, [0, 2, 2])] {
        let mut memory = Changing::new(&text);
        memory.is_settled = is_settled;
        let mut blocks = vec![Block::EMPTY; 16];
        let mut pieces = Pieces::default();
        let compared = want.map(|_| {
            let mut registers = at_text();
            registers.general[1] = 10;
            memory.pass += 1;
            memory.compared = 0;
            let ran = interpret(&mut blocks, &mut registers, &mut memory, &mut pieces, 100);
            assert_eq!((ran.executed, ran.ended), (20, Ended::Left));
            memory.compared
        });
        assert_eq!(compared, want, "{is_settled}");
    }
}

#[test]
fn text_that_was_settled_is_compared_in_the_next_call() {
    // inc ecx, which becomes dec ecx; ud2
    let mut memory = Changing::new(&[0xff, 0xc1, 0x0f, 0x0b]);
    memory.is_settled = true;
    let mut blocks = vec![Block::EMPTY; 4];
    let mut pieces = Pieces::default();
    for (byte, want) in [(0xc1, 1), (0xc9, 0xffff_ffff), (0xc1, 1)] {
        let mut registers = at_text();
        memory.memory.text[1] = byte;
        memory.pass += 1;
        let ran = interpret(&mut blocks, &mut registers, &mut memory, &mut pieces, 100);
        assert_eq!((ran.executed, ran.ended), (1, Ended::Left));
        assert_eq!(registers.general[1], want);
    }
}

#[test]
fn a_store_near_the_block_is_left_to_the_processor() {
    // nop; mov [rbx], eax; push rax; movups [rbx], xmm0; lock inc dword [rbx]; rep stosb, and ud2
    // behind each.
    for text in [
        &[0x90, 0x89, 0x03][..],
        &[0x90, 0x50],
        &[0x90, 0x0f, 0x11, 0x03],
        &[0x90, 0xf0, 0xff, 0x03],
        &[0x90, 0xf3, 0xaa],
    ] {
        for (near, stores) in [(INSN + 48, 0), (INSN - 16, 0), (DATA + 64, 1)] {
            let mut memory = Changing::new(&[text, &[0x0f, 0x0b]].concat());
            let mut registers = at_text();
            registers.general[1] = 1;
            registers.general[3] = near;
            // A push writes below the stack pointer.
            registers.general[4] = near;
            registers.general[7] = near;
            let mut pieces = Pieces::default();
            let blocks = &mut [Block::EMPTY];
            let ran = interpret(blocks, &mut registers, &mut memory, &mut pieces, 100);
            let executed = if stores == 0 { 1 } else { 2 };
            assert_eq!(memory.stored.len(), stores, "{text:x?} {near:x}");
            assert_eq!((ran.executed, ran.ended), (executed, Ended::Left));
        }
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

    // In the first call the block has only what was decoded so far.
    assert_eq!(from(0, 7), (7, 0));
    for (limit, want) in [
        // At least one instruction is executed.
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
    // A block that is only a branch.
    assert_eq!(from(12, 1), (1, 0));
}
