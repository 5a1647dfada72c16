// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes x86-64 user code without the processor that it is for: on a copy of its registers, and on
//! memory that a [`Machine`] gives.
//!
//! [`run`] executes instructions until there is one that it leaves to the processor, which then executes
//! that one. An instruction is executed whole or left: one that faults changes nothing here, and faults on
//! the processor. What is left: all but integer code on general registers, and moves and comparisons of
//! vectors; instructions with LOCK, `gs` or 32-bit addresses; exchanges with memory; what asks for or changes
//! the state of the processor.
//!
//! Each access to memory is one access of the instruction's width, in the order of the program. Code is
//! compared with the memory each time before it is executed, block by block, so that code may change.
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
mod op;
mod vector;

use core::ops::ControlFlow;
use execute::{Leave, Task, Then};
use op::{Op, What};

pub use block::Block;
pub use flags::{ADJUST, ARITHMETIC, CARRY, DIRECTION, OVERFLOW, PARITY, SIGN, ZERO};
pub use op::{How, Native, Width};

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
pub trait Machine {
    /// Reads a number by one access. [`None`] if that faults; nothing has happened then.
    fn load(&mut self, address: u64, width: Width) -> Option<u64>;

    /// Writes the lowest bytes of a number by one access. [`None`] if that faults; nothing has happened
    /// then.
    fn store(&mut self, address: u64, width: Width, value: u64) -> Option<()>;

    /// Reads text from an address that is a multiple of 8; false if that faults.
    fn text(&mut self, address: u64, words: &mut [u64]) -> bool;

    /// Whether the text there is these words, but for bits that are not in the first and in the last mask.
    fn has_text(&mut self, address: u64, words: &[u64], masks: [u64; 2]) -> bool;

    /// Reads a vector register from memory by one access. [`None`] if that faults, or if the registers cannot
    /// be had; nothing has happened then.
    fn load_vector(&mut self, number: u8, address: u64, how: How) -> Option<()>;

    /// Writes a vector register to memory by one access. [`None`] as above.
    fn store_vector(&mut self, number: u8, address: u64, how: How) -> Option<()>;

    /// A vector register, the lowest bits first. Where registers have 128 bits, the others do not matter.
    fn vector(&mut self, number: u8) -> Option<[u64; 4]>;

    /// Writes a vector register.
    fn set_vector(&mut self, number: u8, value: [u64; 4], how: How) -> Option<()>;

    /// Clears all but the lowest 128 bits of all of them.
    fn zero_upper(&mut self) -> Option<()>;

    /// The base of `fs`. [`None`] if it is not known.
    fn fs_base(&mut self) -> Option<u64>;

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
}

/// A branch that was executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Branch {
    /// Jcc or JRCXZ.
    Conditional {
        /// Whether it led to its target; true where that is the next instruction.
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

/// Who watches the code.
pub trait Observer {
    /// Instructions from `first` to in front of `end` are next. On [`ControlFlow::Break`] they are not
    /// executed.
    fn enters(&mut self, first: u64, end: u64) -> ControlFlow<()>;

    /// The branch at `from`, in front of `next`, was executed and has led to `to`. After
    /// [`ControlFlow::Break`] nothing more is executed.
    fn branches(&mut self, branch: Branch, from: u64, next: u64, to: u64) -> ControlFlow<()>;
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

/// Executes from `registers` on, about `limit` instructions at most. `blocks` are kept from one call to
/// the next, for the same program or another; their number is best a power of 2.
pub fn run(
    blocks: &mut [Block],
    registers: &mut Registers,
    machine: &mut impl Machine,
    observer: &mut impl Observer,
    limit: u32,
) -> Ran {
    let mut task = Task::new(registers, machine);
    let limit = u64::from(limit);
    let mut executed = 0_u64;
    // Rounds of strings, which are executed many times.
    let mut rounds = 0_u64;

    let ended = loop {
        if executed.wrapping_add(rounds) >= limit {
            break Ended::Limit;
        }
        let Some(block) = place(blocks, task.ip) else {
            break Ended::Left;
        };

        if !block.is_at(task.ip, task.machine) {
            block.fill(task.ip, task.machine);
        }
        if block.ops().is_empty() {
            break Ended::Left;
        }
        if observer
            .enters(task.ip, task.ip.wrapping_add(block.len))
            .is_break()
        {
            break Ended::Refused;
        }
        let after = run_block(block, &mut task, observer, &mut executed);

        match after {
            After::Next => {}
            After::Again => rounds = rounds.wrapping_add(execute::STRING_MAX),
            After::Left => break Ended::Left,
            After::Stopped { from } => break Ended::Stopped { from },
        }
    };

    *registers = task.registers();
    Ran { executed, ended }
}

/// What follows a block.
enum After {
    /// Another one.
    Next,
    /// It once more, as more of a string is left.
    Again,
    /// An instruction in it that is left to the processor.
    Left,
    /// Nothing, after the branch at this address.
    Stopped { from: u64 },
}

#[inline]
fn run_block<M: Machine>(
    block: &Block,
    task: &mut Task<'_, M>,
    observer: &mut impl Observer,
    executed: &mut u64,
) -> After {
    let mut ip = task.ip;
    let mut count = 0_u64;
    let mut after = After::Next;

    task.code = (block.first, block.len);
    task.rewritten = false;
    for op in block.ops() {
        let next = ip.wrapping_add(u64::from(op.len));

        match task.execute(op, next) {
            Ok(Then::Next) => {
                ip = next;
                count = count.wrapping_add(1);
            }
            Ok(Then::To(to)) => {
                let from = ip;

                ip = to;
                count = count.wrapping_add(1);
                if let Some(branch) = branch(op, to) {
                    if observer.branches(branch, from, next, to).is_break() {
                        after = After::Stopped { from };
                        break;
                    }
                }
                // A conditional one leads to the next instruction of the block, or away.
                if to != next {
                    break;
                }
            }
            Ok(Then::Again) => after = After::Again,
            Err(Leave) => {
                after = After::Left;
                break;
            }
        }
        if task.rewritten {
            break;
        }
    }
    task.ip = ip;
    *executed = executed.wrapping_add(count);
    after
}

/// Where a block at `ip` is kept.
#[inline]
fn place(blocks: &mut [Block], ip: u64) -> Option<&mut Block> {
    let len = u64::try_from(blocks.len()).ok()?;
    let hash = ip ^ ip >> 11;
    let at = if len.is_power_of_two() {
        hash & len.wrapping_sub(1)
    } else {
        hash.checked_rem(len)?
    };

    blocks.get_mut(usize::try_from(at).ok()?)
}

fn branch(op: &Op, to: u64) -> Option<Branch> {
    Some(match op.what {
        // One whose target is the next instruction is taken in any case.
        What::JumpIf(_) | What::JumpIfCx => Branch::Conditional {
            taken: to == op.imm,
        },
        What::Jump => Branch::Jump,
        What::Call => Branch::Call,
        What::IndirectJump => Branch::IndirectJump,
        What::IndirectCall => Branch::IndirectCall,
        What::Return => Branch::Return,
        _ => return None,
    })
}
