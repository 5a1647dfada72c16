// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interprets x86-64 user code: it executes instructions on a copy of the registers, and on memory
//! that a [`Machine`] provides.
//!
//! [`run`] executes instructions until it finds one that it leaves to the processor. An instruction
//! is executed completely or not at all. An instruction that faults changes nothing here: the
//! processor executes it and raises the fault. These instructions are left to the processor:
//!
//! - floating-point instructions on whole vectors, and most other computations on vectors;
//! - instructions with `gs` or with 32-bit addresses;
//! - locked instructions whose operand is not aligned;
//! - instructions that read or change the state of the processor.
//!
//! Each access to memory is one access of the instruction's width, in program order.
//!
//! Code may change. So the text of a block is compared with memory each time before the block is
//! executed, unless [`Machine::is_settled`] holds for it. A store to the block that is being
//! executed is left to the processor.
//!
//! The crate is `no_std`, calls no kernel function, allocates nothing and has no `unsafe`. No
//! function panics. Kbuild builds it into each module that uses it, and cargo builds it for tools.
//!
//! Reference: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.

// Kbuild passes `no_std` itself and sets `MODULE`.
#![cfg_attr(not(any(MODULE, test)), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod block;
mod decode;
mod execute;
mod flags;
mod form;
mod frequent;
mod locked;
mod op;
mod place;
mod rare;
mod task;
mod vector;

use core::{hint::black_box, ops::ControlFlow};
use flags::Flags;
use op::{Op, What};
use task::{Stop, Task};

pub use block::Block;
pub use flags::{ADJUST, ARITHMETIC, CARRY, DIRECTION, OVERFLOW, PARITY, SIGN, ZERO};
pub use form::Form;
pub use op::{Float, How, Native, Width};

/// The registers of user code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// In the order of their numbers: `rax`, `rcx`, `rdx`, `rbx`, `rsp`, `rbp`, `rsi`, `rdi`, `r8`
    /// to `r15`.
    pub general: [u64; 16],
    /// The address of the next instruction.
    pub ip: u64,
    /// All flags. Only [`ARITHMETIC`] and [`DIRECTION`] change.
    pub flags: u64,
}

/// The result of an instruction that the processor computes on numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Values {
    /// The result, or its lower half, or the quotient.
    pub low: u64,
    /// The upper half of the result, or the remainder.
    pub high: u64,
    /// The arithmetic flags.
    pub flags: u64,
}

/// The memory of user code, and the processor.
///
/// By default no code is generated, every form is trusted, and there are neither vector registers
/// nor a known base of `fs`: instructions that need these are left to the processor.
pub trait Machine {
    /// Reads a number by one access. [`None`] if the access faults; then nothing has changed.
    fn load(&mut self, address: u64, width: Width) -> Option<u64>;

    /// Writes the lowest bytes of a number by one access. [`None`] if the access faults; then
    /// nothing has changed.
    fn store(&mut self, address: u64, width: Width, value: u64) -> Option<()>;

    /// Writes the lowest bytes of `new` by one locked access, if memory holds `old`. The address is
    /// a multiple of the width. Returns whether memory held `old`. [`None`] if the access faults;
    /// then nothing has changed.
    fn replace(&mut self, address: u64, width: Width, old: u64, new: u64) -> Option<bool>;

    /// Reads text from an address that is a multiple of 8. False if the access faults.
    fn text(&mut self, address: u64, words: &mut [u64]) -> bool;

    /// Whether the text at `address` is `words`. In the first and in the last word only the bits of
    /// the masks are compared.
    fn has_text(&mut self, address: u64, words: &[u64], masks: [u64; 2]) -> bool;

    /// A number for this call of [`run`] that no earlier call with the same blocks has.
    fn pass(&self) -> u64 {
        0
    }

    /// Whether the text from `first` to `last` is executable, and cannot have changed since this
    /// call of [`run`] began. This includes changes by another CPU or by the task itself, and
    /// changes through another mapping.
    fn is_settled(&mut self, first: u64, last: u64) -> bool {
        let _ = (first, last);
        false
    }

    /// Whether the code from `first` to `last` is generated: no file contains it, so a decoder
    /// needs its text.
    fn is_generated(&mut self, first: u64, last: u64) -> bool {
        let _ = (first, last);
        false
    }

    /// Reports `text`, at address `first`, which is generated code. Called before the code is
    /// executed for the first time, if the observer [wants](Observer::wants_code()) it. Returns a
    /// number for [`is_replaced()`](Self::is_replaced).
    fn report(&mut self, first: u64, text: &[u8]) -> u64 {
        let _ = (first, text);
        u64::MAX
    }

    /// Whether other code for these addresses was reported later than `report`: on another CPU, or
    /// for a single step. `report` is a result of [`report()`](Self::report). Called after the text
    /// was compared.
    fn is_replaced(&mut self, first: u64, last: u64, report: u64) -> bool {
        let _ = (first, last, report);
        false
    }

    /// Whether there are forms of instructions for which the interpreter and the processor differ.
    fn distrusts(&self) -> bool {
        false
    }

    /// Whether this is such a form. The interpreter leaves its instructions to the processor.
    fn is_distrusted(&self, form: Form) -> bool {
        let _ = form;
        false
    }

    /// Reads a vector register from memory by one access. [`None`] if the access faults, or if the
    /// registers are not available; then nothing has changed.
    fn load_vector(&mut self, number: u8, address: u64, how: How) -> Option<()> {
        let _ = (number, address, how);
        None
    }

    /// Writes a vector register to memory by one access. [`None`] if the access faults, or if the
    /// registers are not available; then nothing has changed.
    fn store_vector(&mut self, number: u8, address: u64, how: How) -> Option<()> {
        let _ = (number, address, how);
        None
    }

    /// A vector register, the lowest word first. If registers have 128 bits, the upper two words
    /// are ignored.
    fn vector(&mut self, number: u8) -> Option<[u64; 4]> {
        let _ = number;
        None
    }

    /// Writes a vector register.
    fn set_vector(&mut self, number: u8, value: [u64; 4], how: How) -> Option<()> {
        let _ = (number, value, how);
        None
    }

    /// Clears all bits of all vector registers above the lowest 128.
    fn zero_upper(&mut self) -> Option<()> {
        None
    }

    /// The base of `fs`. [`None`] if it is not known.
    fn fs_base(&mut self) -> Option<u64> {
        None
    }

    /// Has the processor compute an instruction on numbers of this width. `flags` are the
    /// arithmetic flags before the instruction. Bits above the width are ignored. [`None`] if the
    /// machine does not support the instruction.
    fn compute(
        &mut self,
        native: Native,
        width: Width,
        a: u64,
        b: u64,
        c: u64,
        flags: u64,
    ) -> Option<Values>;

    /// Has the processor compute a scalar floating-point instruction. The operands are the lowest
    /// 64 bits of two vectors, of which 4 or 8 bytes are used, or such a vector and an integer of
    /// this width. Sets the exception flags in MXCSR of all conditions that occur. [`None`] if the
    /// instruction could fault.
    fn float(&mut self, float: Float, double: bool, width: Width, a: u64, b: u64)
        -> Option<Values>;
}

/// A branch that was executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Branch {
    /// Jcc or JRCXZ.
    Conditional {
        /// Whether its condition held.
        taken: bool,
    },
    /// Direct JMP.
    Jump,
    /// Direct CALL.
    Call,
    /// JMP to an address in a register or in memory.
    IndirectJump,
    /// CALL of an address in a register or in memory.
    IndirectCall,
    /// RET.
    Return,
}

/// Receives the executed instructions. The default methods record nothing and refuse only PTWRITE.
///
/// `executed` is the number of instructions that this call of [`run`] has executed. It includes the
/// reported branch, but not the reported PTWRITE.
pub trait Observer {
    /// The instructions in `first..end` are to be executed next. On [`ControlFlow::Break`] they are
    /// not executed. Otherwise this call of [`run`] may execute them again without another call of
    /// this method.
    fn enters(&mut self, first: u64, end: u64) -> ControlFlow<()> {
        let _ = (first, end);
        ControlFlow::Continue(())
    }

    /// Whether generated code is to be reported.
    fn wants_code(&self) -> bool {
        true
    }

    /// `text`, at address `first`, is to be executed next, is generated code, and was
    /// [reported](Machine::report()). On [`ControlFlow::Break`] it is not executed.
    fn code(&mut self, first: u64, text: &[u8], executed: u64) -> ControlFlow<()> {
        let _ = (first, text, executed);
        ControlFlow::Continue(())
    }

    /// The branch at `from` was executed. `next` is the address behind the branch, and `to` is the
    /// address of the instruction that is next. On [`ControlFlow::Break`] nothing more is executed.
    fn branches(
        &mut self,
        branch: Branch,
        from: u64,
        next: u64,
        to: u64,
        executed: u64,
    ) -> ControlFlow<()> {
        let _ = (branch, from, next, to, executed);
        ControlFlow::Continue(())
    }

    /// The PTWRITE at `from` has this operand. If the method returns true, the interpreter executes
    /// the instruction. If it returns false, the instruction is left to the processor.
    fn ptwrite(&mut self, from: u64, operand: u64, width: Width, executed: u64) -> bool {
        let _ = (from, operand, width, executed);
        false
    }
}

impl Observer for () {}

/// A PTWRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PtWrite {
    /// Its operand.
    pub operand: u64,
    /// The width of the operand: 4 or 8 bytes.
    pub width: Width,
    /// The address of the next instruction.
    pub next: u64,
}

impl PtWrite {
    /// The PTWRITE that `text` begins with, for a task with these registers. [`None`] if `text`
    /// begins with another instruction, if the interpreter leaves it to the processor, or if the
    /// operand cannot be read.
    pub fn of(text: &[u8], registers: &Registers, machine: &mut impl Machine) -> Option<Self> {
        let mut op = Op::EMPTY;

        op.decode(text, registers.ip)?;
        if op.what != What::PtWrite {
            return None;
        }
        let mut observer = ();
        let mut task = Task::new(registers, machine, &mut observer);

        Some(Self {
            operand: task.source(&op, op.width).ok()?,
            width: op.width,
            next: registers.ip.wrapping_add(op.len.into()),
        })
    }
}

/// Whether a task with these registers takes the Jcc or JRCXZ that `text` begins with. Neither
/// instruction changes a register. [`None`] if `text` begins with another instruction, or if the
/// interpreter leaves it to the processor.
pub fn is_taken(text: &[u8], registers: &Registers) -> Option<bool> {
    let mut op = Op::EMPTY;
    let [_, cx, ..] = registers.general;

    op.decode(text, registers.ip)?;
    match op.what {
        What::JumpIf(condition) => Some(Flags::new(registers.flags).has(condition)),
        What::JumpIfCx => Some(cx == 0),
        _ => None,
    }
}

/// Why [`run`] has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The next instruction is left to the processor.
    Left,
    /// The limit is reached.
    Limit,
    /// The observer refuses the next instructions.
    Refused,
    /// The observer has stopped it after the branch at this address.
    Stopped {
        /// The address of the branch.
        from: u64,
    },
}

/// The result of [`run`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// The number of executed instructions. An instruction with a REP prefix counts once, when it
    /// is complete.
    pub executed: u64,
    /// Why [`run`] has returned.
    pub ended: Ended,
}

/// The number of decoded instructions at which a call of [`run`] stops to decode. It may decode as
/// many more as one block has. To decode an instruction takes as long as to execute several.
const DECODED_MAX: usize = 192;

/// Executes at most `limit` instructions, from `registers` on.
///
/// The rounds of a string instruction count towards the limit too. The call ends early if it has
/// decoded 192 instructions; the next call continues. The caller keeps `blocks` from one call to
/// the next, for the same program or another. The number of blocks in use is the largest power of 2
/// that is available.
#[inline(never)]
pub fn run(
    blocks: &mut [Block],
    registers: &mut Registers,
    machine: &mut impl Machine,
    observer: &mut impl Observer,
    limit: u32,
) -> Ran {
    let mut task = Task::new(registers, machine, observer);
    let mut left = u64::from(limit);
    let mut decoded = 0;
    let mask = mask(blocks.len());

    let ended = loop {
        let ip = task.ip;
        let Some(block) = blocks.get_mut(place(ip) & mask) else {
            break Ended::Left;
        };

        if !block.is_still_at(ip, task.pass, task.machine) {
            if block.is_at(ip, task.pass, task.machine) {
                if let Err(ended) = enter(block, &mut task) {
                    break ended;
                }
            } else if left == 0 {
                break Ended::Limit;
            } else if let Err(ended) = decode(block, &mut task, &mut decoded) {
                break ended;
            }
        }
        let mut stopped = loop {
            // `black_box` keeps the compiler from computing the addresses of all instructions in
            // front of the loop.
            let stopped = task.execute(black_box(&*block), &mut left);

            // Most loops of a program are one block.
            if stopped.0 != Stop::Branched || !block.is_still_at(task.ip, task.pass, task.machine) {
                break stopped;
            }
        };
        if stopped.0 == Stop::Branched {
            continue;
        }
        while stopped.0 == Stop::More && left != 0 && decoded < DECODED_MAX {
            stopped = more(block, &mut task, &mut left, &mut decoded);
        }
        match stopped {
            (Stop::End | Stop::More | Stop::Branched, _) => {}
            (Stop::Limit, _) => break Ended::Limit,
            (Stop::Refused, _) => break Ended::Refused,
            (Stop::Again, _) => left = left.saturating_sub(rare::STRING_MAX),
            (Stop::Left, _) => break Ended::Left,
            (Stop::Enough | Stop::Passed, from) => break Ended::Stopped { from },
        }
    };

    *registers = task.registers();
    Ran {
        executed: task.executed,
        ended,
    }
}

/// Checks whether the block at the task's address may be executed.
#[inline]
fn enter<M: Machine, O: Observer>(block: &Block, task: &mut Task<'_, M, O>) -> Result<(), Ended> {
    if block.count == 0 {
        return Err(Ended::Left);
    }
    let end = task.ip.wrapping_add(block.len);

    if task.observer.enters(task.ip, end).is_break() {
        return Err(Ended::Refused);
    }
    Ok(())
}

/// Decodes the block at the task's address, and checks whether it may be executed. Decodes nothing
/// if [`DECODED_MAX`] instructions were decoded.
#[cold]
fn decode<M: Machine, O: Observer>(
    block: &mut Block,
    task: &mut Task<'_, M, O>,
    decoded: &mut usize,
) -> Result<(), Ended> {
    if *decoded >= DECODED_MAX {
        return Err(Ended::Limit);
    }
    let is_generated = block.fill(task.ip, task.pass, task.machine);

    *decoded = decoded.wrapping_add(block.count);
    enter(block, task)?;
    if is_generated && block.report(0, task).is_break() {
        return Err(Ended::Refused);
    }
    Ok(())
}

/// Decodes more of a block that was executed up to its end, and executes that part.
#[cold]
fn more<M: Machine, O: Observer>(
    block: &mut Block,
    task: &mut Task<'_, M, O>,
    left: &mut u64,
    decoded: &mut usize,
) -> (Stop, u64) {
    let (start, len) = (block.count, block.len);

    let Some(is_generated) = block.grow(task.pass, task.machine) else {
        return (Stop::End, task.ip);
    };
    let end = block.first.wrapping_add(block.len);

    *decoded = decoded.wrapping_add(block.count.saturating_sub(start));
    // The next instruction is left to the processor.
    if block.count == start {
        return (Stop::End, task.ip);
    }
    if task.observer.enters(task.ip, end).is_break()
        || is_generated && block.report(len, task).is_break()
    {
        return (Stop::Refused, task.ip);
    }
    task.resume(block, start, left)
}

/// The mask for indices of blocks: the largest power of 2 that is not above `blocks`, minus 1.
fn mask(blocks: usize) -> usize {
    1_usize
        .wrapping_shl(blocks.checked_ilog2().unwrap_or(0))
        .wrapping_sub(1)
}

/// The index of the block at `ip`, in the lowest bits of the result.
#[inline]
fn place(ip: u64) -> usize {
    let hash = ip ^ ip >> 11;

    // CAST: An address fits.
    #[allow(clippy::as_conversions, clippy::cast_possible_truncation)]
    let place = hash as usize;

    place
}
