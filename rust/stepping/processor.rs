// SPDX-License-Identifier: GPL-2.0

//! Has the processor compute instructions on numbers.
//!
//! Manuals leave some flags undefined. So the processor on which a program runs is asked.

use core::arch::asm;
use interpreter::{
    Native,
    Values,
    Width,
    OVERFLOW, //
};

/// `rax` from which [`flags_in!`] sets the arithmetic flags.
fn packed(flags: u64) -> u64 {
    (flags & 0xff) << 8 | u64::from(flags & OVERFLOW != 0)
}

/// An instruction, between loading and storing the flags, on `a` in `rax`, `b` in `rcx`, and `c` in `rdx`.
macro_rules! computed {
    ($operands:expr, $a:ident, $b:ident, $c:ident, $flags:ident) => {{
        let mut low = $a;
        let mut high = $c;
        let after: u64;

        // SAFETY: The instruction computes on registers that are operands; it does not fault: the
        // caller has excluded quotients that do not fit, and instructions that are not known. The stack is
        // as before.
        unsafe {
            asm!(
                // OF if `al` is 1, then the others.
                "add al, 0x7f",
                "sahf",
                "mov rax, {a}",
                $operands,
                "mov {a}, rax",
                "pushfq",
                "pop {after}",
                a = inout(reg) low,
                after = lateout(reg) after,
                inout("rdx") high,
                inout("rcx") $b => _,
                inout("rax") packed($flags) => _,
            )
        };
        Values { low, high, flags: after }
    }};
}

/// [`computed!`] for 16, 32 and 64 bits: `$operands` are those of each.
macro_rules! wide {
    ($width:ident, $ops:tt, $op:literal, $o2:literal, $o4:literal, $o8:literal) => {
        match $width {
            Width::B1 => None,
            Width::B2 => Some(apply!($ops, concat!($op, $o2))),
            Width::B4 => Some(apply!($ops, concat!($op, $o4))),
            Width::B8 => Some(apply!($ops, concat!($op, $o8))),
        }
    };
}

/// [`computed!`] with its names in a group.
macro_rules! apply {
    (($a:ident, $b:ident, $c:ident, $flags:ident), $operands:expr) => {
        computed!($operands, $a, $b, $c, $flags)
    };
}

/// The accumulator by `cl`.
macro_rules! shift {
    ($width:ident, $ops:tt, $op:literal) => {
        match $width {
            Width::B1 => Some(apply!($ops, concat!($op, " al, cl"))),
            _ => wide!($width, $ops, $op, " ax, cl", " eax, cl", " rax, cl"),
        }
    };
}

/// The accumulator and `rcx`.
macro_rules! two {
    ($width:ident, $ops:tt, $op:literal) => {
        wide!($width, $ops, $op, " ax, cx", " eax, ecx", " rax, rcx")
    };
}

/// The accumulator and `rdx` implied, and `rcx`.
macro_rules! one {
    ($width:ident, $ops:tt, $op:literal) => {
        wide!($width, $ops, $op, " cx", " ecx", " rcx")
    };
}

/// The accumulator from `rdx` by `cl`.
macro_rules! double {
    ($width:ident, $ops:tt, $op:literal) => {
        wide!(
            $width,
            $ops,
            $op,
            " ax, dx, cl",
            " eax, edx, cl",
            " rax, rdx, cl"
        )
    };
}

/// What the processor makes of these operands, with these arithmetic flags before. [`None`] for a width
/// that the instruction has not, and a source of 0 that leaves the result undefined.
///
/// # Safety
///
/// - A quotient must fit into the width.
/// - The processor must know POPCNT if that is asked for.
pub(crate) unsafe fn compute(
    native: Native,
    width: Width,
    a: u64,
    b: u64,
    c: u64,
    flags: u64,
) -> Option<Values> {
    match native {
        Native::Rol => shift!(width, (a, b, c, flags), "rol"),
        Native::Ror => shift!(width, (a, b, c, flags), "ror"),
        Native::Rcl => shift!(width, (a, b, c, flags), "rcl"),
        Native::Rcr => shift!(width, (a, b, c, flags), "rcr"),
        Native::Shl => shift!(width, (a, b, c, flags), "shl"),
        Native::Shr => shift!(width, (a, b, c, flags), "shr"),
        Native::Sar => shift!(width, (a, b, c, flags), "sar"),
        Native::Shld => double!(width, (a, b, c, flags), "shld"),
        Native::Shrd => double!(width, (a, b, c, flags), "shrd"),
        Native::Mul => one!(width, (a, b, c, flags), "mul"),
        Native::Imul => one!(width, (a, b, c, flags), "imul"),
        Native::ImulTwo => two!(width, (a, b, c, flags), "imul"),
        Native::Div => one!(width, (a, b, c, flags), "div"),
        Native::Idiv => one!(width, (a, b, c, flags), "idiv"),
        Native::Bt => two!(width, (a, b, c, flags), "bt"),
        Native::Bts => two!(width, (a, b, c, flags), "bts"),
        Native::Btr => two!(width, (a, b, c, flags), "btr"),
        Native::Btc => two!(width, (a, b, c, flags), "btc"),
        Native::Bsf | Native::Bsr | Native::Tzcnt | Native::Lzcnt if b & width.mask() == 0 => None,
        Native::Bsf => two!(width, (a, b, c, flags), "bsf"),
        Native::Bsr => two!(width, (a, b, c, flags), "bsr"),
        Native::Tzcnt => two!(width, (a, b, c, flags), "tzcnt"),
        Native::Lzcnt => two!(width, (a, b, c, flags), "lzcnt"),
        Native::Popcnt => two!(width, (a, b, c, flags), "popcnt"),
    }
}
