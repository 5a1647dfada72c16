// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs a program in the interpreter, in memory that it can write: in blocks, and again instruction by instruction, each decoded anew.
//! Registers, memory and branches must be the same.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{ControlFlow, Range};

use iced_x86::{Decoder, DecoderOptions};
use interpreter::{
    run, Block, Branch, Ended, Float, How, Machine, Native, Observer, Registers, Values, Width,
    ARITHMETIC, DIRECTION,
};

/// Address and length of its memory.
const BASE: u64 = 0x10_0000;
const LEN: usize = 1024;

/// Number of bytes at the beginning of an input that set the registers. The rest is the beginning of the memory.
const HEAD: usize = 16;

/// Maximum number of instructions.
const LIMIT: u32 = 300;

/// A store that is at least this far from the beginning of a block does not change it.
const NEAR: u64 = 256;

/// An invalid instruction.
const UD2: [u8; 2] = [0x0f, 0x0b];

/// Memory and vectors of a program. The numbers that the processor would compute are arbitrary, but the same each time.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Program {
    memory: Vec<u8>,
    vectors: [[u64; 4]; 16],
    /// If set, the code is in this range, and all other memory has none.
    only: Option<Range<usize>>,
    /// The addresses of all stores.
    stores: Vec<u64>,
}

impl Program {
    fn place(&self, address: u64, len: u64) -> Option<Range<usize>> {
        let from = usize::try_from(address.checked_sub(BASE)?).ok()?;
        let to = from.checked_add(usize::try_from(len).ok()?)?;
        (to <= self.memory.len()).then_some(from..to)
    }

    fn code(&self, at: usize) -> u8 {
        match &self.only {
            Some(only) if !only.contains(&at) => UD2[at.wrapping_sub(only.end) % 2],
            _ => self.memory[at],
        }
    }

    fn word(&self, address: u64) -> Option<u64> {
        let place = self.place(address, 8)?;
        let mut bytes = [0; 8];
        for (byte, at) in bytes.iter_mut().zip(place) {
            *byte = self.code(at);
        }
        Some(u64::from_le_bytes(bytes))
    }
}

impl Machine for Program {
    fn load(&mut self, address: u64, width: Width) -> Option<u64> {
        let place = self.place(address, width.bytes())?;
        let mut bytes = [0; 8];
        bytes[..place.len()].copy_from_slice(&self.memory[place]);
        Some(u64::from_le_bytes(bytes))
    }

    fn store(&mut self, address: u64, width: Width, value: u64) -> Option<()> {
        let place = self.place(address, width.bytes())?;
        let len = place.len();
        self.memory[place].copy_from_slice(&value.to_le_bytes()[..len]);
        self.stores.push(address);
        Some(())
    }

    fn replace(&mut self, address: u64, width: Width, old: u64, new: u64) -> Option<bool> {
        let is_there = self.load(address, width)? == old;
        if is_there {
            self.store(address, width, new)?;
        }
        Some(is_there)
    }

    fn text(&mut self, address: u64, words: &mut [u64]) -> bool {
        assert_eq!(address % 8, 0);
        words.iter_mut().zip((0..).step_by(8)).all(|(word, at)| {
            match self.word(address.wrapping_add(at)) {
                Some(now) => {
                    *word = now;
                    true
                }
                None => false,
            }
        })
    }

    fn has_text(&mut self, address: u64, words: &[u64], masks: [u64; 2]) -> bool {
        let last = words.len() - 1;
        words.iter().enumerate().all(|(at, word)| {
            let first = if at == 0 { masks[0] } else { u64::MAX };
            let mask = first & if at == last { masks[1] } else { u64::MAX };
            let place = u64::try_from(8 * at).unwrap_or(0);
            self.word(address.wrapping_add(place))
                .is_some_and(|now| (now ^ word) & mask == 0)
        })
    }

    fn is_generated(&mut self, first: u64, _last: u64) -> bool {
        first & 32 != 0
    }

    fn load_vector(&mut self, number: u8, address: u64, how: How) -> Option<()> {
        let place = self.place(address, how.bytes())?;
        let mut value = [0; 4];
        for (word, bytes) in value.iter_mut().zip(self.memory[place].chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().ok()?);
        }
        self.set_vector(number, value, how)
    }

    fn store_vector(&mut self, number: u8, address: u64, how: How) -> Option<()> {
        let place = self.place(address, how.bytes())?;
        let value = self.vectors[usize::from(number)];
        self.stores.push(address);
        for (bytes, word) in self.memory[place].chunks_exact_mut(8).zip(value) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Some(())
    }

    fn vector(&mut self, number: u8) -> Option<[u64; 4]> {
        Some(self.vectors[usize::from(number)])
    }

    fn set_vector(&mut self, number: u8, value: [u64; 4], how: How) -> Option<()> {
        let vector = &mut self.vectors[usize::from(number)];
        *vector = match how {
            How::Legacy => [value[0], value[1], vector[2], vector[3]],
            How::Low => [value[0], value[1], 0, 0],
            How::Whole => value,
        };
        Some(())
    }

    fn zero_upper(&mut self) -> Option<()> {
        self.vectors.iter_mut().for_each(|v| v[2..].fill(0));
        Some(())
    }

    fn fs_base(&mut self) -> Option<u64> {
        Some(BASE)
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
        let mask = u64::MAX >> (64 - 8 * width.bytes());
        let what = format!("{native:?}");
        let any = any((what, a & mask, b & mask, c & mask, flags & ARITHMETIC));
        Some(Values {
            low: any & mask,
            high: any.rotate_left(24) & mask,
            flags: any.rotate_left(40) & ARITHMETIC,
        })
    }

    fn float(
        &mut self,
        float: Float,
        double: bool,
        width: Width,
        a: u64,
        b: u64,
    ) -> Option<Values> {
        let any = any((format!("{float:?} {double} {width:?}"), a, b));
        // Some operations could fault.
        (any % 8 != 0).then_some(Values {
            low: any,
            high: any.rotate_left(24),
            flags: any.rotate_left(40) & ARITHMETIC,
        })
    }
}

fn any(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The branches, and the operands of PTWRITE.
#[derive(Default)]
struct Seen {
    branches: Vec<(Branch, u64, u64, u64)>,
    writes: Vec<(u64, u64)>,
}

impl Observer for Seen {
    fn enters(&mut self, first: u64, end: u64) -> ControlFlow<()> {
        assert!(first < end, "a block without code");
        ControlFlow::Continue(())
    }

    fn code(&mut self, _first: u64, text: &[u8], _executed: u64) -> ControlFlow<()> {
        assert!(!text.is_empty(), "nothing was reported");
        ControlFlow::Continue(())
    }

    fn branches(
        &mut self,
        branch: Branch,
        from: u64,
        next: u64,
        to: u64,
        _executed: u64,
    ) -> ControlFlow<()> {
        self.branches.push((branch, from, next, to));
        ControlFlow::Continue(())
    }

    fn ptwrite(&mut self, from: u64, operand: u64, _width: Width, _executed: u64) -> bool {
        self.writes.push((from, operand));
        true
    }
}

/// The state of a program, and what it has done.
struct State {
    program: Program,
    registers: Registers,
    seen: Seen,
    executed: u64,
}

impl State {
    fn new(program: &Program, registers: Registers) -> Self {
        Self {
            program: program.clone(),
            registers,
            seen: Seen::default(),
            executed: 0,
        }
    }

    fn run(&mut self, blocks: &mut [Block], limit: u32) -> (u64, Ended) {
        let ran = run(
            blocks,
            &mut self.registers,
            &mut self.program,
            &mut self.seen,
            limit,
        );
        assert!(
            ran.executed <= u64::from(limit),
            "executed {} instructions, {limit} at most",
            ran.executed
        );
        self.executed += ran.executed;
        (ran.executed, ran.ended)
    }

    /// Executes an instruction, unless the interpreter leaves it to the processor.
    fn step(&mut self) -> (u64, Ended) {
        let place = self.program.place(self.registers.ip, 1);
        let Some(at) = place.map(|place| place.start) else {
            return (0, Ended::Left);
        };
        let mut decoder = Decoder::with_ip(
            64,
            &self.program.memory[at..],
            self.registers.ip,
            DecoderOptions::NONE,
        );
        let insn = decoder.decode();
        let len = if insn.is_invalid() { 0 } else { insn.len() };
        self.program.only = Some(at..at + len);
        let ran = self.run(&mut [Block::EMPTY], 1);
        self.program.only = None;
        ran
    }

    fn is(&self, other: &Self) -> bool {
        self.executed == other.executed
            && self.registers == other.registers
            && self.program == other.program
            && self.seen.branches == other.seen.branches
            && self.seen.writes == other.seen.writes
    }
}

/// Whether an instruction's store to this address may change the block in which the instruction is. The interpreter leaves such a store to
/// the processor.
fn is_near(ip: u64, address: u64) -> bool {
    address.abs_diff(ip) < NEAR
}

/// Executes a program in both ways.
///
/// # Panics
/// If they differ.
pub fn program(input: &[u8]) {
    let Some((head, code)) = input.split_at_checked(HEAD) else {
        return;
    };
    let mut memory = vec![0x90; LEN];
    let len = code.len().min(LEN);
    memory[..len].copy_from_slice(&code[..len]);
    let mut registers = Registers {
        ip: BASE,
        flags: any(head) & (ARITHMETIC | DIRECTION) | 0x202,
        ..Registers::default()
    };
    for (register, byte) in registers.general.iter_mut().zip(head) {
        // A number, or a place in its memory.
        *register = match byte >> 6 {
            0 => u64::from(*byte),
            1 => u64::from(*byte).wrapping_neg(),
            _ => BASE + 8 * u64::from(byte & 0x7f),
        };
    }
    let program = Program {
        memory,
        vectors: std::array::from_fn(|i| [any(i), any((head, i)), any((i, 1)), any((i, 2))]),
        only: None,
        stores: Vec::new(),
    };

    let mut whole = State::new(&program, registers);
    let mut blocks = vec![Block::EMPTY; 16];
    let mut ended = Ended::Limit;
    // Blocks are kept between the calls, which may begin and end within a block.
    for limit in [1, 5, 2, 3, 17, LIMIT / 3, LIMIT / 3, LIMIT / 3] {
        if ended == Ended::Limit {
            ended = whole.run(&mut blocks, limit).1;
        }
    }
    let mut single = State::new(&program, registers);
    let mut steps = 0;
    while !single.is(&whole) {
        let next = whole.program.stores.get(single.program.stores.len());
        let (executed, why) = single.step();
        let ip = single.registers.ip;
        if (executed, why) == (0, Ended::Left) && next.is_some_and(|to| is_near(ip, *to)) {
            // In the first run, the block of this instruction began further away from the store.
            return;
        }
        steps += 1;
        let goes_on = executed != 0 || why == Ended::Limit;
        assert!(
            goes_on && single.executed <= whole.executed && steps < 100 * LIMIT,
            "executed {} of {} instructions, at {:x?} and at {:x?}",
            single.executed,
            whole.executed,
            single.registers,
            whole.registers
        );
    }
    if ended == Ended::Left {
        let (ip, stores) = (single.registers.ip, single.program.stores.len());
        let stepped = single.step();
        // In the first run, the block of this instruction may include the place of its store.
        let stores = &single.program.stores[stores..];
        assert!(
            stepped == (0, Ended::Left) || stores.iter().any(|to| is_near(ip, *to)),
            "one was left at {ip:x}, and here {stepped:x?}, with stores to {stores:x?}"
        );
    }
}

/// A loop that writes over itself, calls, and copies.
pub fn seed() -> Vec<u8> {
    let mut seed = vec![
        0x05, 0x03, 0x84, 0xa0, 0xf0, 0xb0, 0xc0, 0xd0, 0x01, 0x41, 0x90, 0xe0, 0x02, 0x82, 0x92,
        0xa2,
    ];
    seed.extend([
        0x48, 0x01, 0xc8, // add rax, rcx
        0x88, 0x05, 0x05, 0x00, 0x00, 0x00, // mov [rip+5], al
        0xe8, 0x06, 0x00, 0x00, 0x00, // call +6
        0x83, 0xc2, 0x01, // add edx, 1
        0xe2, 0xed, // loop: left
        0x90, 0xc5, 0xfe, 0x6f, 0x03, // nop; vmovdqu ymm0, [rbx]
        0xf3, 0xa4, // rep movsb
        0x75, 0x02, // jne +2
        0x0f, 0xaf, 0xc1, // imul eax, ecx
        0xc3, // ret
    ]);
    seed
}
