// SPDX-License-Identifier: GPL-2.0

//! Tests of the interpreter against the processor that runs them: the same instruction, registers,
//! flags and memory.
//!
//! Instructions are random bytes that the interpreter decodes. Each is in a page of code, between
//! code that loads all registers and code that stores them. `INTERPRETER_CASES` is the number of
//! instructions to execute.

#![allow(clippy::unwrap_used)] // A test.

use iced_x86::code_asm::{
    ptr, qword_ptr, r10, r11, r12, r13, r14, r15, r8, r9, rax, rbp, rbx, rcx, rdi, rdx,
    registers::ymm::*, rsi, rsp, AsmRegister64, CodeAssembler,
};
use interpreter::{
    is_taken, run, Block, Branch, Ended, Form, Observer, Registers, ARITHMETIC, DIRECTION,
};
use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
use std::arch::asm;
use std::ops::ControlFlow;

#[path = "processor_test/blocks.rs"]
mod blocks;
#[path = "check.rs"]
mod check;
#[path = "processor_test/memory.rs"]
mod memory;
#[path = "processor.rs"]
mod processor;
#[path = "processor_test/ptwrite.rs"]
mod ptwrite;

use memory::{knows, Memory};

/// The general registers, by their numbers.
const GENERAL: [AsmRegister64; 16] = [
    rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
];

const VECTORS: [iced_x86::code_asm::AsmRegisterYmm; 16] = [
    ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11, ymm12, ymm13, ymm14,
    ymm15,
];

const PAGE: usize = 4096;
const PAGE_LEN: u64 = 4096;

/// The offsets of the pages of state and data. The page of code is at 0.
const STATE: u64 = PAGE_LEN;
const DATA: u64 = 2 * PAGE_LEN;
const DATA_LEN: u64 = 2 * PAGE_LEN;
const ALL: usize = 4 * PAGE;

/// Offsets in the code: the code that loads the registers, the instruction, the target of branches,
/// and the code that stores the registers.
const ENTRY: u64 = 0;
const INSN: u64 = 0x400;
const ELSEWHERE: u64 = 0x440;
const EXIT: u64 = 0x500;

/// Offsets in the state, behind the general registers: flags, the address where execution has
/// ended, the caller's stack pointer, a spare word, and the vector registers.
const FLAGS: u64 = 16 * 8;
const CAME_OUT: u64 = 17 * 8;
const CALLER: u64 = 18 * 8;
const SPARE: u64 = 19 * 8;
const YMM: u64 = 64 * 8;

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// Pages that can be executed and written.
struct Pages {
    base: u64,
}

impl Pages {
    fn new() -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC;
        // The pages are within reach of absolute addresses of 32 bits.
        let wanted = std::ptr::without_provenance_mut(0x1000_0000);
        // SAFETY: A new mapping, which nothing else has.
        let place = unsafe { mmap_anonymous(wanted, ALL, access, MapFlags::PRIVATE) }.unwrap();
        let base = u64::try_from(place.expose_provenance()).unwrap();
        assert!(base < 1 << 31);
        let pages = Self { base };

        pages.assemble(ENTRY, |asm, state| {
            for register in [rbx, rbp, r12, r13, r14, r15] {
                asm.push(register)?;
            }
            asm.mov(ptr(state + CALLER), rsp)?;
            for (register, at) in VECTORS.into_iter().zip((0..).step_by(32)) {
                asm.vmovdqu(register, ptr(state + YMM + at))?;
            }
            // The flags are loaded first, since moves do not change them.
            asm.push(qword_ptr(state + FLAGS))?;
            asm.popfq()?;
            for (register, at) in GENERAL.into_iter().zip((0..).step_by(8)) {
                asm.mov(register, ptr(state + at))?;
            }
            asm.jmp(base + INSN)
        });
        pages.assemble(ELSEWHERE, |asm, state| {
            asm.mov(ptr(state + SPARE), rax)?;
            asm.mov(rax, base + ELSEWHERE)?;
            asm.mov(ptr(state + CAME_OUT), rax)?;
            asm.mov(rax, ptr(state + SPARE))?;
            asm.jmp(base + EXIT)
        });
        pages.assemble(EXIT, |asm, state| {
            for (register, at) in GENERAL.into_iter().zip((0..).step_by(8)) {
                asm.mov(ptr(state + at), register)?;
            }
            asm.mov(rsp, ptr(state + CALLER))?;
            asm.pushfq()?;
            asm.pop(qword_ptr(state + FLAGS))?;
            asm.cld()?;
            for (register, at) in VECTORS.into_iter().zip((0..).step_by(32)) {
                asm.vmovdqu(ptr(state + YMM + at), register)?;
            }
            asm.vzeroupper()?;
            for register in [r15, r14, r13, r12, rbp, rbx] {
                asm.pop(register)?;
            }
            asm.ret()
        });
        pages
    }

    fn assemble(
        &self,
        at: u64,
        code: impl FnOnce(&mut CodeAssembler, u64) -> Result<(), iced_x86::IcedError>,
    ) {
        let mut asm = CodeAssembler::new(64).unwrap();
        code(&mut asm, self.base + STATE).unwrap();
        let bytes = asm.assemble(self.base + at).unwrap();
        self.bytes(at, bytes.len()).copy_from_slice(&bytes);
    }

    /// A part of the pages.
    #[allow(clippy::mut_from_ref)] // No two are used at once.
    fn bytes(&self, at: u64, len: usize) -> &mut [u8] {
        assert!(index(at) + len <= ALL);
        let place = std::ptr::with_exposed_provenance_mut(index(self.base + at));
        // SAFETY: The bytes are in the mapping, which stays. This thread alone uses it, and keeps
        // no other reference.
        unsafe { std::slice::from_raw_parts_mut(place, len) }
    }

    fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.bytes(at, 8).try_into().unwrap())
    }

    fn set_word(&self, at: u64, word: u64) {
        self.bytes(at, 8).copy_from_slice(&word.to_le_bytes());
    }

    /// Has the processor execute `text` with these registers.
    fn execute(&self, text: &[u8], before: &Registers) -> Registers {
        let slot = self.bytes(INSN, index(ELSEWHERE - INSN));
        slot.fill(0x90);
        slot[..text.len()].copy_from_slice(text);
        for (at, register) in (0..).step_by(8).zip(before.general) {
            self.set_word(STATE + at, register);
        }
        self.set_word(STATE + FLAGS, before.flags);
        let behind = self.base + INSN + u64::try_from(text.len()).unwrap();
        self.set_word(STATE + CAME_OUT, behind);
        // SAFETY: The code there keeps what a function keeps, and uses the stack as one. The
        // instruction has access to the data pages only, as the interpreter has found.
        unsafe { asm!("call {}", in(reg) self.base + ENTRY, clobber_abi("C")) };
        let mut after = Registers {
            ip: self.word(STATE + CAME_OUT),
            flags: self.word(STATE + FLAGS),
            ..Registers::default()
        };
        for (at, register) in (0..).step_by(8).zip(&mut after.general) {
            *register = self.word(STATE + at);
        }
        after
    }
}

/// The branch that was executed, and the text that was reported.
#[derive(Default)]
struct Once(Option<(Branch, u64)>, Vec<u8>);

impl Observer for Once {
    fn code(&mut self, _first: u64, text: &[u8], _executed: u64) -> ControlFlow<()> {
        self.1 = text.to_vec();
        ControlFlow::Continue(())
    }

    fn branches(
        &mut self,
        branch: Branch,
        _from: u64,
        _next: u64,
        to: u64,
        _executed: u64,
    ) -> ControlFlow<()> {
        self.0 = Some((branch, to));
        ControlFlow::Continue(())
    }
}

/// A generator of numbers that are often near a border.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn value(&mut self) -> u64 {
        let word = self.next();
        match self.below(6) {
            0 => word,
            1 => word & 0xff,
            2 => u64::MAX - (word & 0xff),
            3 => 1 << (word & 63),
            4 => (1_u64 << (word & 63)).wrapping_sub(1),
            _ => [
                0,
                1,
                2,
                0x7f,
                0x80,
                0x7fff,
                0x8000,
                0x7fff_ffff,
                0x8000_0000,
            ][index(word % 9)],
        }
    }

    /// Bytes that are often an instruction.
    fn text(&mut self) -> [u8; 15] {
        let mut text = [0; 15];
        for byte in &mut text {
            *byte = self.next().to_le_bytes()[0];
        }
        let mut at = 0;
        let mut put = |byte| {
            text[at] = byte;
            at += 1;
        };
        let choice = self.next();
        let mut second = false;
        let three = if choice >> 60 & 1 == 0 { 0x78 } else { 0 };
        if choice & 7 == 0 {
            put(0x66);
        }
        if choice >> 50 & 7 == 0 {
            put(0xf0);
        }
        match choice >> 8 & 31 {
            0..3 => put(0xf3),
            3..5 => put(0xf2),
            _ => {}
        }
        if choice >> 3 & 1 == 0 {
            put(0x40 | choice.to_le_bytes()[2] & 15);
        }
        match choice >> 4 & 15 {
            0..3 => put(0x0f),
            3 => {
                put(0x0f);
                put(0x38);
                second = true;
            }
            // VEX, often without a third operand.
            4 => {
                put(0xc5);
                put(choice.to_le_bytes()[3] | three);
            }
            5 => {
                put(0xc4);
                let map = 1 << (choice >> 40 & 1);
                put(choice.to_le_bytes()[3] & 0xe0 | map);
                put(choice.to_le_bytes()[4] | three);
                second = map == 2;
            }
            _ => {}
        }
        // Most opcodes behind 0F 38 are not interpreted, so known opcodes are preferred.
        if second && choice >> 41 & 3 != 0 {
            let known = [0x58, 0x59, 0x78, 0x79, 0xf0, 0xf1, 0xf2, 0xf3, 0xf5, 0xf7];
            text[at] = known[index(choice >> 43) % known.len()];
        }
        // ModRM often has two registers, or a base without a displacement.
        let modrm = self.next().to_le_bytes();
        text[at + 1] = match modrm[0] & 3 {
            0 => text[at + 1],
            1 => text[at + 1] & 0x3f,
            _ => text[at + 1] | 0xc0,
        };
        text
    }
}

#[derive(Default)]
struct Counts {
    executed: u64,
    locked: u64,
    left: u64,
    forms: std::collections::HashMap<iced_x86::Code, u64>,
}

fn one(pages: &Pages, numbers: &mut Numbers, counts: &mut Counts, distrusted: &[Form]) {
    let mut text = numbers.text();
    let decoded =
        iced_x86::Decoder::with_ip(64, &text, pages.base + INSN, iced_x86::DecoderOptions::NONE)
            .decode();
    // Direct branches lead to a place that stores the registers.
    if decoded.is_jcc_short_or_near()
        || decoded.is_jcx_short()
        || decoded.is_jmp_short_or_near()
        || decoded.is_call_near()
    {
        let len = decoded.len();
        let distance = ELSEWHERE - INSN - u64::try_from(len).unwrap();
        let bytes = distance.to_le_bytes();
        if matches!(text[len - 2], 0x70..=0x7f | 0xe3 | 0xeb) && decoded.near_branch_target() != 0 {
            text[len - 1] = bytes[0];
        } else if len >= 5 {
            text[len - 4..len].copy_from_slice(&bytes[..4]);
        }
    }

    let mut before = Registers {
        ip: pages.base + INSN,
        flags: numbers.next() & (ARITHMETIC | DIRECTION) | 0x202,
        ..Registers::default()
    };
    for register in &mut before.general {
        *register = match numbers.below(3) {
            0 => numbers.value(),
            _ => pages.base + DATA + numbers.below(DATA_LEN),
        };
    }
    // Aligned addresses, as SSE requires.
    if numbers.below(4) == 0 {
        before
            .general
            .iter_mut()
            .for_each(|register| *register &= !15);
    }
    // The stack pointer mostly points to the data.
    if numbers.below(8) != 0 {
        before.general[4] = pages.base + DATA + numbers.below(DATA_LEN);
    }
    if numbers.below(2) == 0 {
        before.general[1] = numbers.below(100);
    }
    let data = pages.bytes(DATA, index(DATA_LEN));
    for _ in 0..8 {
        let at = index(numbers.below(DATA_LEN - 8));
        let word = match numbers.below(2) {
            0 => numbers.value(),
            _ => pages.base + ELSEWHERE,
        };
        data[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    // The same at the addresses in registers.
    for register in before.general {
        let offset = register.wrapping_sub(pages.base + DATA);
        if offset < DATA_LEN - 8 && numbers.below(2) == 0 {
            let word = pages.base + ELSEWHERE;
            data[index(offset)..index(offset) + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
    if numbers.below(4) == 0 {
        let at = index(numbers.below(16));
        before.general[at] = pages.base + ELSEWHERE;
    }

    let mut slot = vec![0x90; index(ELSEWHERE - INSN)];
    slot[..15].copy_from_slice(&text);
    // The instruction behind it is left to the processor.
    let len = decoded.len().max(1);
    slot[len..len + 2].copy_from_slice(&[0x0f, 0x0b]);
    let mut memory = Memory {
        base: pages.base,
        data: data.to_vec(),
        text: slot,
        vectors: std::array::from_fn(|_| std::array::from_fn(|_| numbers.value())),
        writes: numbers.next(),
        distrusted: distrusted.to_vec(),
    };
    for (at, word) in (0..).step_by(8).zip(memory.vectors.as_flattened()) {
        pages.set_word(STATE + YMM + at, *word);
    }
    let mut registers = before;
    let mut once = Once::default();
    let ran = run(
        &mut [Block::EMPTY],
        &mut registers,
        &mut memory,
        &mut once,
        1,
    );
    if ran.executed == 0 && ran.ended == Ended::Left {
        assert_eq!(registers, before, "left, and changed: {text:x?}");
        counts.left += 1;
        return;
    }
    assert!(!decoded.is_invalid(), "{text:x?}");
    // A string instruction is repeated until it is complete.
    while registers.ip == before.ip && once.0.is_none() {
        let ran = run(
            &mut [Block::EMPTY],
            &mut registers,
            &mut memory,
            &mut once,
            1,
        );
        if ran.executed == 0 && ran.ended == Ended::Left {
            // The next element would fault.
            counts.left += 1;
            return;
        }
    }
    if let Some((_, to)) = once.0 {
        let known = [
            before.ip + u64::try_from(len).unwrap(),
            pages.base + ELSEWHERE,
        ];
        if !known.contains(&to) {
            // The test could not regain control at any other target.
            counts.left += 1;
            return;
        }
    }
    assert_eq!(once.1, text[..len], "what was reported of it");
    *counts.forms.entry(decoded.code()).or_default() += 1;
    counts.executed += 1;
    counts.locked += u64::from(decoded.has_lock_prefix());

    let mut whole = text[..len].to_vec();
    // A jump from behind the instruction to the code that stores the registers.
    let distance = EXIT.wrapping_sub(INSN + u64::try_from(len).unwrap() + 5);
    whole.push(0xe9);
    whole.extend(&distance.to_le_bytes()[..4]);
    let mut after = pages.execute(&whole, &before);
    if after.ip == before.ip + u64::try_from(whole.len()).unwrap() {
        after.ip = before.ip + u64::try_from(len).unwrap();
    }
    if let Some(taken) = is_taken(&text[..len], &before) {
        let next = before.ip + u64::try_from(len).unwrap();
        assert_eq!(taken, after.ip != next, "{:x?} {before:x?}", &text[..len]);
    }
    let shown = |registers: &Registers| format!("{registers:x?}");
    assert_eq!(
        registers,
        after,
        "{:?} ({:x?})\nbefore      {}\ninterpreted {}\nprocessor   {}",
        decoded.code(),
        &text[..len],
        shown(&before),
        shown(&registers),
        shown(&after)
    );
    let vectors = (0..16 * 32)
        .step_by(8)
        .map(|at| pages.word(STATE + YMM + at));
    assert!(
        vectors.eq(memory.vectors.as_flattened().iter().copied()),
        "vectors: {:?} ({:x?}) {} {:x?}",
        decoded.code(),
        &text[..len],
        shown(&before),
        memory.vectors
    );
    assert!(
        memory.data == pages.bytes(DATA, index(DATA_LEN)),
        "memory: {:?} ({:x?}) {}",
        decoded.code(),
        &text[..len],
        shown(&before)
    );
}

#[test]
fn an_instruction_does_what_the_processor_does() {
    if !std::is_x86_feature_detected!("avx") {
        println!("a processor without AVX: not compared");
        return;
    }
    let cases = std::env::var("INTERPRETER_CASES");
    let cases = cases.map_or(200_000, |cases| cases.parse::<u64>().unwrap());
    let seed = std::env::var("INTERPRETER_SEED");
    let seed = seed.map_or(1, |seed| seed.parse::<u64>().unwrap());
    let pages = Pages::new();
    let mut numbers = Numbers(seed);
    let mut counts = Counts::default();
    // The forms that the module leaves to this processor.
    let distrusted = check::tests::distrusted();

    while counts.executed < cases {
        one(&pages, &mut numbers, &mut counts, &distrusted);
    }
    let Counts {
        executed,
        locked,
        left,
        forms,
    } = counts;
    let rare = forms.values().filter(|count| **count < 10).count();
    println!(
        "{executed} executed in {} forms, {rare} of them rare, {locked} with LOCK; {left} left",
        forms.len()
    );
    assert!(locked > 0 || cases < 100_000);
    if std::env::var("INTERPRETER_FORMS").is_ok() {
        let mut forms: Vec<_> = forms.into_iter().collect();
        forms.sort_by_key(|(_, count)| *count);
        for (form, count) in forms {
            println!("{count} {form:?}");
        }
    }
}

#[test]
fn a_distrusted_form_is_left_to_the_processor() {
    // OR, AND, and UD2, which no interpreter executes.
    let text = [0x09, 0xc8, 0x21, 0xc8, 0x0f, 0x0b];
    let executed = |distrusted: Option<Form>| {
        let mut slot = text.to_vec();
        slot.resize(index(ELSEWHERE - INSN), 0x90);
        let mut memory = Memory {
            base: 0,
            data: Vec::new(),
            text: slot,
            vectors: [[0; 4]; 16],
            writes: 0,
            distrusted: distrusted.into_iter().collect(),
        };
        let mut registers = Registers {
            ip: INSN,
            ..Registers::default()
        };
        let mut once = Once::default();
        let blocks = &mut [Block::EMPTY];
        run(blocks, &mut registers, &mut memory, &mut once, 100).executed
    };

    let [or, and] = [0, 2].map(|at| Form::of(&text[at..]));
    assert_ne!(or, and);
    assert_eq!([None, or, and].map(executed), [2, 0, 1]);
}
