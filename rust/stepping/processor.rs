// SPDX-License-Identifier: GPL-2.0

//! Has the processor compute instructions on numbers.
//!
//! Manuals leave some flags undefined. So the processor on which the program runs computes them.

use core::arch::asm;
use interpreter::{
    Float,
    Native,
    Values,
    Width,
    OVERFLOW, //
};

/// The value of `rax` from which `add al, 0x7f` and `sahf` set the arithmetic flags.
pub(crate) const fn packed(flags: u64) -> u64 {
    (flags & 0xff) << 8 | flags / OVERFLOW & 1
}

/// Executes an instruction between loading and storing the flags, on `a` in `rax`, `b` in `rcx`,
/// and `c` in `rdx`.
macro_rules! computed {
    ($operands:expr, $a:ident, $b:ident, $c:ident, $flags:ident) => {{
        let mut low = $a;
        let mut high = $c;
        let after: u64;

        // SAFETY: The instruction computes on registers that are operands; it does not fault: the
        // caller has excluded quotients that do not fit, and instructions that are not known. The
        // stack is as before.
        unsafe {
            asm!(
                // Sets OF if `al` is 1. The next instruction sets the other flags.
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

/// [`computed!`] for 16, 32 and 64 bits, with the operands `$o2`, `$o4` and `$o8`.
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

/// [`computed!`] with its variables in parentheses.
macro_rules! apply {
    (($a:ident, $b:ident, $c:ident, $flags:ident), $operands:expr) => {
        computed!($operands, $a, $b, $c, $flags)
    };
}

/// An instruction on the accumulator, with the count in `cl`.
macro_rules! shift {
    ($width:ident, $ops:tt, $op:literal) => {
        match $width {
            Width::B1 => Some(apply!($ops, concat!($op, " al, cl"))),
            _ => wide!($width, $ops, $op, " ax, cl", " eax, cl", " rax, cl"),
        }
    };
}

/// An instruction on the accumulator and `rcx`.
macro_rules! two {
    ($width:ident, $ops:tt, $op:literal) => {
        wide!($width, $ops, $op, " ax, cx", " eax, ecx", " rax, rcx")
    };
}

/// An instruction on `rcx`, and on the accumulator and `rdx`, which are implied.
macro_rules! one {
    ($width:ident, $ops:tt, $op:literal) => {
        wide!($width, $ops, $op, " cx", " ecx", " rcx")
    };
}

/// An instruction with three operands, of 32 or 64 bits.
macro_rules! three {
    ($width:ident, $ops:tt, $o4:literal, $o8:literal) => {
        match $width {
            Width::B4 => Some(apply!($ops, $o4)),
            Width::B8 => Some(apply!($ops, $o8)),
            _ => None,
        }
    };
}

/// A shift of the accumulator, with bits from `rdx` and the count in `cl`.
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

/// Whether a rotation of a register by an immediate other than 1 keeps OF. A rotation by `cl` does
/// not.
fn keeps_overflow() -> bool {
    let after: u64;

    // SAFETY: The instructions change a register that is an operand, and flags, which assembly may
    // change. They touch neither memory nor the stack, and do not fault.
    unsafe {
        asm!(
            // These set OF. A rotation of 0 that changes OF clears it.
            "mov {x:e}, 0x7fffffff",
            "add {x:e}, 1",
            "mov {x:e}, 0",
            "rol {x:e}, 2",
            "seto {x:l}",
            x = out(reg) after,
            options(nomem, nostack),
        );
    }
    after != 0
}

/// The result of a rotation by `cl`, with the flags of a rotation by an immediate.
fn by_immediate(values: Values, width: Width, count: u64, flags: u64) -> Values {
    let mask = if width == Width::B8 { 63 } else { 31 };

    if count & mask == 1 || !keeps_overflow() {
        return values;
    }
    Values {
        flags: values.flags & !OVERFLOW | flags & OVERFLOW,
        ..values
    }
}

/// The processor's result for these operands. `flags` are the arithmetic flags before the
/// instruction. [`None`] for a width that the instruction does not have, and for a source of 0 that
/// leaves the result undefined.
///
/// # Safety
///
/// - A quotient must fit into the width.
/// - The processor must know POPCNT, BMI1 or BMI2 if such an instruction is asked for.
#[inline]
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
        Native::RolBy => shift!(width, (a, b, c, flags), "rol")
            .map(|values| by_immediate(values, width, b, flags)),
        Native::RorBy => shift!(width, (a, b, c, flags), "ror")
            .map(|values| by_immediate(values, width, b, flags)),
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
        Native::Movbe => Some(Values {
            low: a.swap_bytes() >> (64 - width.bits()),
            high: 0,
            flags,
        }),
        Native::Andn => three!(
            width,
            (a, b, c, flags),
            "andn eax, eax, ecx",
            "andn rax, rax, rcx"
        ),
        Native::Blsr => three!(width, (a, b, c, flags), "blsr eax, ecx", "blsr rax, rcx"),
        Native::Blsmsk => three!(
            width,
            (a, b, c, flags),
            "blsmsk eax, ecx",
            "blsmsk rax, rcx"
        ),
        Native::Blsi => three!(width, (a, b, c, flags), "blsi eax, ecx", "blsi rax, rcx"),
        Native::Bzhi => three!(
            width,
            (a, b, c, flags),
            "bzhi eax, ecx, eax",
            "bzhi rax, rcx, rax"
        ),
        Native::Shlx => three!(
            width,
            (a, b, c, flags),
            "shlx eax, ecx, eax",
            "shlx rax, rcx, rax"
        ),
        Native::Shrx => three!(
            width,
            (a, b, c, flags),
            "shrx eax, ecx, eax",
            "shrx rax, rcx, rax"
        ),
        Native::Sarx => three!(
            width,
            (a, b, c, flags),
            "sarx eax, ecx, eax",
            "sarx rax, rcx, rax"
        ),
    }
}

/// Executes an instruction on the lowest 64 bits of `xmm0` and `xmm1`, or on one of them and the
/// accumulator or `rcx`. `$result` moves the result to the accumulator.
macro_rules! float {
    ($a:ident, $b:ident, $operands:literal, $result:literal) => {{
        let mut saved = [0_u64; 4];
        let mut low = $a;
        let flags: u64;

        // SAFETY: The instruction computes on registers: general ones that are operands, and two
        // vector registers, which are as before afterwards: `saved` has space for both. It does not
        // fault: the caller has found all exceptions masked. The stack is as before.
        unsafe {
            asm!(
                "movups [{saved}], xmm0",
                "movups [{saved} + 16], xmm1",
                "movq xmm0, rax",
                "movq xmm1, rcx",
                $operands,
                "pushfq",
                "pop {flags}",
                $result,
                "movups xmm0, [{saved}]",
                "movups xmm1, [{saved} + 16]",
                saved = in(reg) saved.as_mut_ptr(),
                flags = out(reg) flags,
                inout("rax") low,
                in("rcx") $b,
            )
        };
        Values { low, high: 0, flags }
    }};
}

/// [`float!`] for elements of 4 and 8 bytes.
macro_rules! scalar {
    ($double:ident, $a:ident, $b:ident, $single:literal, $other:literal) => {
        if $double {
            float!($a, $b, $other, "movq rax, xmm0")
        } else {
            float!($a, $b, $single, "movq rax, xmm0")
        }
    };
}

/// The bits of MXCSR that mask all exceptions.
const MASKED: u32 = 0x1f80;

/// The processor's result for the lowest elements of two vectors, or of one vector and an integer
/// of this width. [`None`] if an exception is not masked.
///
/// # Safety
///
/// The vector registers, and MXCSR, must be those of the user code, and nothing else may use them
/// meanwhile.
pub(crate) unsafe fn float(
    float: Float,
    double: bool,
    width: Width,
    a: u64,
    b: u64,
) -> Option<Values> {
    let mut state = 0_u32;
    let is_wide = width == Width::B8;

    // SAFETY: The instruction writes to `state`.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut state) };
    if state & MASKED != MASKED {
        return None;
    }
    Some(match float {
        Float::Add => scalar!(double, a, b, "addss xmm0, xmm1", "addsd xmm0, xmm1"),
        Float::Mul => scalar!(double, a, b, "mulss xmm0, xmm1", "mulsd xmm0, xmm1"),
        Float::Sub => scalar!(double, a, b, "subss xmm0, xmm1", "subsd xmm0, xmm1"),
        Float::Min => scalar!(double, a, b, "minss xmm0, xmm1", "minsd xmm0, xmm1"),
        Float::Div => scalar!(double, a, b, "divss xmm0, xmm1", "divsd xmm0, xmm1"),
        Float::Max => scalar!(double, a, b, "maxss xmm0, xmm1", "maxsd xmm0, xmm1"),
        Float::Sqrt => scalar!(double, a, b, "sqrtss xmm0, xmm1", "sqrtsd xmm0, xmm1"),
        Float::Convert => scalar!(double, a, b, "cvtss2sd xmm0, xmm1", "cvtsd2ss xmm0, xmm1"),
        Float::FromInteger if is_wide => {
            scalar!(double, a, b, "cvtsi2ss xmm0, rcx", "cvtsi2sd xmm0, rcx")
        }
        Float::FromInteger => scalar!(double, a, b, "cvtsi2ss xmm0, ecx", "cvtsi2sd xmm0, ecx"),
        Float::Truncate => match (double, is_wide) {
            (false, false) => float!(a, b, "cvttss2si eax, xmm1", ""),
            (false, true) => float!(a, b, "cvttss2si rax, xmm1", ""),
            (true, false) => float!(a, b, "cvttsd2si eax, xmm1", ""),
            (true, true) => float!(a, b, "cvttsd2si rax, xmm1", ""),
        },
        Float::Round => match (double, is_wide) {
            (false, false) => float!(a, b, "cvtss2si eax, xmm1", ""),
            (false, true) => float!(a, b, "cvtss2si rax, xmm1", ""),
            (true, false) => float!(a, b, "cvtsd2si eax, xmm1", ""),
            (true, true) => float!(a, b, "cvtsd2si rax, xmm1", ""),
        },
        Float::Compare => scalar!(double, a, b, "ucomiss xmm0, xmm1", "ucomisd xmm0, xmm1"),
        Float::CompareOrdered => scalar!(double, a, b, "comiss xmm0, xmm1", "comisd xmm0, xmm1"),
    })
}
