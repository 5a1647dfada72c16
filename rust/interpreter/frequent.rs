// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The most frequent forms of instructions have functions of their own. The decoder chooses the
//! function.

use crate::{
    flags::{Flags, Source, ARITHMETIC},
    op::{How, Native, Op, Place, Vector, What, Width},
    task::{to, Done, Stop, Task},
    Branch, Machine, Observer,
};

mod table;

use table::Functions;

type Function<M, O> = for<'a, 'b, 'c> fn(&'b mut Task<'a, M, O>, &'c Op) -> Done;

/// Executes an instruction of the block that the task is in.
#[inline]
pub(crate) fn run<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    match Functions::<M, O>::TABLE.get(usize::from(op.run)) {
        Some(function) => function(task, op),
        None => Err(Stop::Left),
    }
}

/// A width as a type, so that the compiler knows it.
trait Wide {
    const WIDTH: Width;
}

struct W1;
struct W2;
struct W4;
struct W8;

impl Wide for W1 {
    const WIDTH: Width = Width::B1;
}

impl Wide for W2 {
    const WIDTH: Width = Width::B2;
}

impl Wide for W4 {
    const WIDTH: Width = Width::B4;
}

impl Wide for W8 {
    const WIDTH: Width = Width::B8;
}

/// A part of a vector register as a type, so that the compiler knows it.
trait Part {
    const HOW: How;
}

struct Legacy;
struct Low;
struct Whole;

impl Part for Legacy {
    const HOW: How = How::Legacy;
}

impl Part for Low {
    const HOW: How = How::Low;
}

impl Part for Whole {
    const HOW: How = How::Whole;
}

/// A shift as a type, so that the compiler knows it.
trait Shift {
    const NATIVE: Native;
}

struct Shl;
struct Shr;
struct Sar;

impl Shift for Shl {
    const NATIVE: Native = Native::Shl;
}

impl Shift for Shr {
    const NATIVE: Native = Native::Shr;
}

impl Shift for Sar {
    const NATIVE: Native = Native::Sar;
}

/// An operation on two operands, as a type.
trait Compute {
    /// Whether the first operand is read.
    const READS: bool = true;
    /// Whether the first operand is written.
    const WRITES: bool = true;

    /// The result. Its bits above the width are ignored.
    fn result(a: u64, b: u64) -> u64;

    fn flags(flags: &mut Flags, width: Width, a: u64, b: u64, result: u64);
}

macro_rules! bitwise {
    ($name:ident, $writes:literal, $result:expr) => {
        struct $name;

        impl Compute for $name {
            const WRITES: bool = $writes;

            #[inline]
            fn result(a: u64, b: u64) -> u64 {
                let result: fn(u64, u64) -> u64 = $result;

                result(a, b)
            }

            #[inline]
            fn flags(flags: &mut Flags, width: Width, _a: u64, _b: u64, result: u64) {
                flags.logic(width, result);
            }
        }
    };
}

bitwise!(And, true, |a, b| a & b);
bitwise!(Or, true, |a, b| a | b);
bitwise!(Xor, true, |a, b| a ^ b);
bitwise!(Test, false, |a, b| a & b);

macro_rules! arithmetic {
    ($name:ident, $writes:literal, $source:expr, $result:expr) => {
        struct $name;

        impl Compute for $name {
            const WRITES: bool = $writes;

            #[inline]
            fn result(a: u64, b: u64) -> u64 {
                $result(a, b)
            }

            #[inline]
            fn flags(flags: &mut Flags, width: Width, a: u64, b: u64, _result: u64) {
                flags.lazy($source, width, a, b);
            }
        }
    };
}

arithmetic!(Add, true, Source::Add, u64::wrapping_add);
arithmetic!(Sub, true, Source::Sub, u64::wrapping_sub);
arithmetic!(Cmp, false, Source::Sub, u64::wrapping_sub);

struct Mov;

impl Compute for Mov {
    const READS: bool = false;

    #[inline]
    fn result(_a: u64, b: u64) -> u64 {
        b
    }

    #[inline]
    fn flags(_flags: &mut Flags, _width: Width, _a: u64, _b: u64, _result: u64) {}
}

/// Writes a register. A value of 1 or 2 bytes keeps the bits above it; a value of 4 bytes clears
/// them.
#[inline]
fn put<W: Wide, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, place: Place, value: u64) {
    let mask = W::WIDTH.mask();
    let kept = if W::WIDTH.bytes() < 4 {
        task.at(place) & !mask
    } else {
        0
    };

    task.set(place, kept | value & mask);
}

/// Executes `C` on a register and `b`.
#[inline]
fn to_register<C: Compute, W: Wide, M: Machine, O: Observer>(
    task: &mut Task<'_, M, O>,
    op: &Op,
    b: u64,
) -> Done {
    let a = if C::READS { task.at(op.target) } else { 0 };
    let result = C::result(a, b);

    if C::WRITES {
        put::<W, M, O>(task, op.target, result);
    }
    C::flags(&mut task.flags, W::WIDTH, a, b, result);
    Ok(())
}

/// Executes `C` on memory and `b`.
#[inline]
fn to_memory<C: Compute, W: Wide, M: Machine, O: Observer>(
    task: &mut Task<'_, M, O>,
    op: &Op,
    b: u64,
) -> Done {
    let address = task.effective(op);
    let a = if C::READS {
        task.load(address, W::WIDTH)?
    } else {
        0
    };
    let result = C::result(a, b);

    if C::WRITES {
        task.store(address, W::WIDTH, result)?;
    }
    C::flags(&mut task.flags, W::WIDTH, a, b, result);
    Ok(())
}

fn reg_reg<C: Compute, W: Wide, M: Machine, O: Observer>(
    task: &mut Task<'_, M, O>,
    op: &Op,
) -> Done {
    let b = task.at(op.source);

    to_register::<C, W, M, O>(task, op, b)
}

fn reg_imm<C: Compute, W: Wide, M: Machine, O: Observer>(
    task: &mut Task<'_, M, O>,
    op: &Op,
) -> Done {
    to_register::<C, W, M, O>(task, op, op.imm)
}

fn reg_mem<C: Compute, W: Wide, M: Machine, O: Observer>(
    task: &mut Task<'_, M, O>,
    op: &Op,
) -> Done {
    let b = task.load(task.effective(op), W::WIDTH)?;

    to_register::<C, W, M, O>(task, op, b)
}

fn mem_reg<C: Compute, W: Wide, M: Machine, O: Observer>(
    task: &mut Task<'_, M, O>,
    op: &Op,
) -> Done {
    let b = task.at(op.source);

    to_memory::<C, W, M, O>(task, op, b)
}

fn mem_imm<C: Compute, W: Wide, M: Machine, O: Observer>(
    task: &mut Task<'_, M, O>,
    op: &Op,
) -> Done {
    to_memory::<C, W, M, O>(task, op, op.imm)
}

/// MOVZX from width `F` to 4 bytes or more.
fn zero_reg<F: Wide, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    task.set(op.target, task.at(op.source) & F::WIDTH.mask());
    Ok(())
}

fn zero_mem<F: Wide, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    task.load_to(op.target, task.effective(op), F::WIDTH)
}

/// MOVSXD to 8 bytes.
fn sign_reg<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    task.set(op.target, Width::B4.extend(task.at(op.source)));
    Ok(())
}

fn sign_mem<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let value = task.load(task.effective(op), Width::B4)?;

    task.set(op.target, Width::B4.extend(value));
    Ok(())
}

fn lea<W: Wide, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    task.set(op.target, task.effective(op) & W::WIDTH.mask());
    Ok(())
}

fn cmov_reg<W: Wide, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let What::Cmov(condition) = op.what else {
        return Err(Stop::Left);
    };
    let from = if task.flags.has(condition) {
        op.source
    } else {
        op.target
    };

    // The upper half becomes 0, whether the condition holds or not.
    task.set(op.target, task.at(from) & W::WIDTH.mask());
    Ok(())
}

/// The address of the vector in memory. [`Err`] if it must be aligned and is not.
#[inline]
fn vector_address<M: Machine, O: Observer>(task: &Task<'_, M, O>, op: &Op) -> Result<u64, Stop> {
    let address = task.effective(op);

    // `imm` is the mask of the address bits that must be 0.
    if address & op.imm != 0 {
        return Err(Stop::Left);
    }
    Ok(address)
}

fn vector_load<P: Part, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let address = vector_address(task, op)?;

    task.machine
        .load_vector(op.target.number(), address, P::HOW)
        .ok_or(Stop::Left)
}

fn vector_store<P: Part, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let address = vector_address(task, op)?;

    task.store_to(address)?;
    task.machine
        .store_vector(op.source.number(), address, P::HOW)
        .ok_or(Stop::Left)
}

/// A shift of a register by an immediate or `cl`.
fn shift<N: Shift, W: Wide, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let count = if op.source.is_immediate() {
        op.imm
    } else {
        task.at(op.source)
    };
    let a = task.at(op.target) & W::WIDTH.mask();
    let low = native::<W, M, O>(task, N::NATIVE, a, count)?;

    task.set(op.target, low);
    Ok(())
}

/// IMUL with two or three operands. The result is written to a register.
fn multiply<W: Wide, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let a = if op.target.is_immediate() {
        op.imm
    } else {
        task.at(op.target)
    };
    let b = if op.source.is_memory() {
        task.load(task.effective(op), W::WIDTH)?
    } else {
        task.at(op.source)
    };
    let low = native::<W, M, O>(task, Native::ImulTwo, a, b)?;

    task.set(op.reg, low);
    Ok(())
}

/// Has the processor compute an operation on two numbers, and sets the flags.
#[inline(always)]
fn native<W: Wide, M: Machine, O: Observer>(
    task: &mut Task<'_, M, O>,
    native: Native,
    a: u64,
    b: u64,
) -> Result<u64, Stop> {
    let flags = task.flags.get();
    let values = task
        .machine
        .compute(native, W::WIDTH, a, b, 0, flags & ARITHMETIC)
        .ok_or(Stop::Left)?;

    task.flags
        .set(flags & !ARITHMETIC | values.flags & ARITHMETIC);
    Ok(values.low & W::WIDTH.mask())
}

/// SETcc of a register.
fn set_if<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let What::Set(condition) = op.what else {
        return Err(Stop::Left);
    };
    let holds = task.flags.has(condition);

    put::<W1, M, O>(task, op.target, holds.into());
    Ok(())
}

/// INC and DEC of a register.
fn count<W: Wide, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let a = task.at(op.target) & W::WIDTH.mask();
    let result = if op.what == What::Inc {
        task.flags.inc(W::WIDTH, a)
    } else {
        task.flags.dec(W::WIDTH, a)
    };

    task.set(op.target, result);
    Ok(())
}

/// Ends a block: it is behind the last instruction.
fn end<M: Machine, O: Observer>(_task: &mut Task<'_, M, O>, _op: &Op) -> Done {
    Err(Stop::End)
}

/// Ends the decoded part of a block, behind a conditional branch.
fn more<M: Machine, O: Observer>(_task: &mut Task<'_, M, O>, _op: &Op) -> Done {
    Err(Stop::More)
}

fn any<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    task.any(op)
}

fn nop<M: Machine, O: Observer>(_task: &mut Task<'_, M, O>, _op: &Op) -> Done {
    Ok(())
}

/// MOV from memory, without an index.
fn load<W: Wide, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let address = op.displacement.wrapping_add(task.at(op.base));

    task.load_to(op.target, address, W::WIDTH)
}

/// MOV to memory, without an index.
fn store<W: Wide, M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let address = op.displacement.wrapping_add(task.at(op.base));
    let value = task.at(op.source) & W::WIDTH.mask();

    task.store(address, W::WIDTH, value)
}

fn push<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    task.push(task.at(op.source))
}

fn pop<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let sp = task.at(Place::Sp);
    let value = task.load(sp, Width::B8)?;

    task.set(Place::Sp, sp.wrapping_add(8));
    task.set(op.target, value);
    Ok(())
}

fn jump<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    task.branch(Branch::Jump, op, op.imm)
}

fn jump_if<const CONDITION: u8, M: Machine, O: Observer>(
    task: &mut Task<'_, M, O>,
    op: &Op,
) -> Done {
    if task.flags.is_comparison() {
        let holds = task.flags.has(CONDITION);

        task.jump_if(op, holds)
    } else {
        any(task, op)
    }
}

fn call<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    task.push(task.next(op))?;
    task.branch(Branch::Call, op, op.imm)
}

fn ret<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let sp = task.at(Place::Sp);
    let target = to(task.load(sp, Width::B8)?)?;

    task.set(Place::Sp, sp.wrapping_add(8));
    task.branch(Branch::Return, op, target)
}

fn jump_reg<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let target = to(task.at(op.source))?;

    task.branch(Branch::IndirectJump, op, target)
}

fn call_reg<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let target = to(task.at(op.source))?;

    task.push(task.next(op))?;
    task.branch(Branch::IndirectCall, op, target)
}

fn call_mem<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let target = to(task.load(task.effective(op), Width::B8)?)?;

    task.push(task.next(op))?;
    task.branch(Branch::IndirectCall, op, target)
}

fn jump_mem<M: Machine, O: Observer>(task: &mut Task<'_, M, O>, op: &Op) -> Done {
    let target = to(task.load(task.effective(op), Width::B8)?)?;

    task.branch(Branch::IndirectJump, op, target)
}
