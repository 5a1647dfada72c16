// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes x86-64 user code without the processor that it is for: on a copy of its registers, and on
//! memory that a [`Machine`] gives.
//!
//! [`run`] executes instructions until there is one that it leaves to the processor, which then executes
//! that one. An instruction is executed whole or left: one that faults changes nothing here, and faults on
//! the processor. What is left: floating point of whole vectors, and most of what computes on vectors;
//! instructions with `gs` or 32-bit addresses; locked ones whose operand is not aligned; what asks for or changes
//! the state of the processor.
//!
//! Each access to memory is one access of the instruction's width, in the order of the program. Code is
//! compared with the memory each time before it is executed, block by block, so that code may change; but for
//! code of which the [`Machine`] says that it has not changed. A store to the block that is executed is left
//! to the processor.
//!
//! The crate is `no_std`, calls no kernel function, allocates nothing and has no `unsafe`. No function
//! panics. It is built by kbuild into each module that uses it, and by cargo for tools.
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
    /// In the order of their numbers: `rax`, `rcx`, `rdx`, `rbx`, `rsp`, `rbp`, `rsi`, `rdi`, `r8` to `r15`.
    pub general: [u64; 16],
    /// The address of the next instruction.
    pub ip: u64,
    /// All flags. Only [`ARITHMETIC`] and [`DIRECTION`] change.
    pub flags: u64,
}

/// What the processor makes of numbers.
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
/// By default no code is generated, every form is trusted, and there are neither vector registers nor a known
/// base of `fs`: instructions that need these are left to the processor.
pub trait Machine {
    /// Reads a number by one access. [`None`] if that faults; nothing has happened then.
    fn load(&mut self, address: u64, width: Width) -> Option<u64>;

    /// Writes the lowest bytes of a number by one access. [`None`] if that faults; nothing has happened
    /// then.
    fn store(&mut self, address: u64, width: Width, value: u64) -> Option<()>;

    /// Writes the lowest bytes of `new` to an address that is a multiple of the width, if `old` is there, by one
    /// locked access; whether it was. [`None`] if that faults; nothing has happened then.
    fn replace(&mut self, address: u64, width: Width, old: u64, new: u64) -> Option<bool>;

    /// Reads text from an address that is a multiple of 8; false if that faults.
    fn text(&mut self, address: u64, words: &mut [u64]) -> bool;

    /// Whether the text there is these words, but for bits that are not in the first and in the last mask.
    fn has_text(&mut self, address: u64, words: &[u64], masks: [u64; 2]) -> bool;

    /// A number that this call of [`run`] has, and no call before with the same blocks.
    fn pass(&self) -> u64 {
        0
    }

    /// Whether the text between these addresses can be executed, and cannot have changed since this call of [`run`] began,
    /// by another CPU or by the task itself, at these addresses or at others.
    fn is_settled(&mut self, first: u64, last: u64) -> bool {
        let _ = (first, last);
        false
    }

    /// Whether a decoder needs the text of the code there because no file has it.
    fn is_generated(&mut self, first: u64, last: u64) -> bool {
        let _ = (first, last);
        false
    }

    /// Whether there are forms of instructions that the interpreter executes otherwise than the processor.
    fn distrusts(&self) -> bool {
        false
    }

    /// Whether this is such a form. The interpreter leaves such instructions to the processor.
    fn is_distrusted(&self, form: Form) -> bool {
        let _ = form;
        false
    }

    /// Reads a vector register from memory by one access. [`None`] if that faults, or if the registers cannot
    /// be had; nothing has happened then.
    fn load_vector(&mut self, number: u8, address: u64, how: How) -> Option<()> {
        let _ = (number, address, how);
        None
    }

    /// Writes a vector register to memory by one access. [`None`] as above.
    fn store_vector(&mut self, number: u8, address: u64, how: How) -> Option<()> {
        let _ = (number, address, how);
        None
    }

    /// A vector register, the lowest bits first. Where registers have 128 bits, the others do not matter.
    fn vector(&mut self, number: u8) -> Option<[u64; 4]> {
        let _ = number;
        None
    }

    /// Writes a vector register.
    fn set_vector(&mut self, number: u8, value: [u64; 4], how: How) -> Option<()> {
        let _ = (number, value, how);
        None
    }

    /// Clears all but the lowest 128 bits of all of them.
    fn zero_upper(&mut self) -> Option<()> {
        None
    }

    /// The base of `fs`. [`None`] if it is not known.
    fn fs_base(&mut self) -> Option<u64> {
        None
    }

    /// Has the processor compute an instruction on numbers that are not wider than `width`, with these
    /// arithmetic flags before. Bits above the width do not matter. [`None`] if it does not know the
    /// instruction.
    fn compute(
        &mut self,
        native: Native,
        width: Width,
        a: u64,
        b: u64,
        c: u64,
        flags: u64,
    ) -> Option<Values>;

    /// Has the processor compute a floating-point instruction on the lowest 64 bits of two vectors, of which 4
    /// or 8 bytes are used, or on a vector and an integer of this width. Sets the flags of all conditions that
    /// occur. [`None`] if the instruction could fault.
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

/// Gets the executed instructions. By default it records nothing and refuses only PTWRITE.
///
/// `executed` is how many instructions this call of [`run`] has executed. It includes a branch, and not a PTWRITE.
pub trait Observer {
    /// Instructions from `first` to in front of `end` are next. On [`ControlFlow::Break`] they are not
    /// executed; else the observer may not be asked again when this call of [`run`] comes back to them.
    fn enters(&mut self, first: u64, end: u64) -> ControlFlow<()> {
        let _ = (first, end);
        ControlFlow::Continue(())
    }

    /// `text`, at `first`, is next, and is generated: see [`Machine::is_generated()`]. Called before
    /// instructions are executed that were decoded anew. On [`ControlFlow::Break`] they are not executed.
    fn code(&mut self, first: u64, text: &[u8], executed: u64) -> ControlFlow<()> {
        let _ = (first, text, executed);
        ControlFlow::Continue(())
    }

    /// The branch at `from`, in front of `next`, was executed and has led to `to`. After
    /// [`ControlFlow::Break`] nothing more is executed.
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

    /// The PTWRITE at `from` has this operand. If true, the interpreter executes the instruction; if false, it
    /// leaves the instruction to the processor.
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
    /// The PTWRITE that `text` begins with, for a task with these registers. [`None`] if `text` begins with another
    /// instruction, if the interpreter leaves it to the processor, or if the operand cannot be read.
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

/// Whether a task with these registers takes the Jcc or JRCXZ that `text` begins with: neither changes a register.
/// [`None`] if `text` begins with another instruction, or if the interpreter leaves it to the processor.
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
    /// It has done as much as it was to do.
    Limit,
    /// The observer does not want what is next.
    Refused,
    /// The observer has stopped it after the branch at this address.
    Stopped {
        /// Of the branch.
        from: u64,
    },
}

/// What [`run`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Instructions that it has executed. One with a REP prefix counts when it is left.
    pub executed: u64,
    /// Why it has returned.
    pub ended: Ended,
}

/// Instructions that a call of [`run`] decodes, with at most those of a block more: one takes as long as several that
/// are executed.
const DECODED_MAX: usize = 192;

/// Executes from `registers` on, `limit` instructions at most; rounds of a string instruction count too. It executes
/// fewer if it has decoded 192: the next call continues. `blocks` are kept from one call to the next, for the same
/// program or another; so many are used as are a power of 2.
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
            // Else the compiler computes the addresses of all instructions in front of this loop.
            let stopped = task.execute(black_box(&*block), &mut left);

            // Most often a loop of the program is a block.
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

/// Whether the block that the task is at may be executed.
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

/// The block becomes the one that the task is at, if no more than [`DECODED_MAX`] instructions were decoded.
/// Whether it may be executed.
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

/// Decodes more of a block, of which all was executed, and executes that.
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
    // What is next is left to the processor.
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

/// The places for blocks that are used: a power of 2, less 1.
fn mask(blocks: usize) -> usize {
    1_usize
        .wrapping_shl(blocks.checked_ilog2().unwrap_or(0))
        .wrapping_sub(1)
}

/// Where a block at `ip` is kept, in its lowest bits.
#[inline]
fn place(ip: u64) -> usize {
    let hash = ip ^ ip >> 11;

    // CAST: An address fits.
    #[allow(clippy::as_conversions, clippy::cast_possible_truncation)]
    let place = hash as usize;

    place
}
