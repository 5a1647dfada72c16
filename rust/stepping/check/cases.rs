// SPDX-License-Identifier: GPL-2.0

//! The instructions that are compared, each as its text and as a function that executes it.

use crate::processor;
use core::arch::asm;
use interpreter::ARITHMETIC;

/// The values that instructions compute on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    /// `rax`, `rcx`, `rdx`.
    pub(super) general: [u64; 3],
    /// The arithmetic flags.
    pub(super) flags: u64,
    /// `xmm0`, `xmm1`.
    pub(super) vectors: [[u64; 2]; 2],
}

/// An instruction on the registers of [`State`], which changes no others.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) text: fn() -> &'static [u8],
    pub(super) execute: Execute,
}

/// Has the processor execute the instruction.
///
/// # Safety
///
/// The instruction must not fault on this state, and the processor must know it. If it has vectors,
/// the vector registers must be the caller's.
pub(super) type Execute = unsafe fn(&mut State);

/// The text of an instruction.
macro_rules! text {
    ($name:expr) => {
        || {
            let start: *const u8;
            let len: usize;

            // SAFETY: Two addresses are computed; the instruction between them is not executed.
            unsafe {
                asm!(
                    ".pushsection .rodata.stepping, \"a\"",
                    "2:",
                    $name,
                    "3:",
                    ".popsection",
                    "lea {start}, [rip + 2b]",
                    "lea {len}, [rip + 3b]",
                    "sub {len}, {start}",
                    start = out(reg) start,
                    len = out(reg) len,
                    options(nomem, nostack),
                )
            };
            // SAFETY: These bytes are constants of this module, which nothing changes.
            unsafe { core::slice::from_raw_parts(start, len) }
        }
    };
}

// The cases are constants. Hundreds of temporary cases would overflow the stack with KASAN, which
// gives each of them a place of its own.

/// Cases on general registers.
macro_rules! general {
    ($($name:expr,)*) => {
        &[$(Case {
            name: $name,
            text: text!($name),
            execute: |state| {
                let State { general: [mut a, mut b, mut c], flags, .. } = *state;
                let after: u64;

                // SAFETY: The instruction changes operands only, and does not fault, as the caller
                // grants. The stack is as before.
                unsafe {
                    asm!(
                        // Sets OF if `al` is 1. The next instruction sets the other flags.
                        "add al, 0x7f",
                        "sahf",
                        "mov rax, {a}",
                        $name,
                        "mov {a}, rax",
                        "pushfq",
                        "pop {after}",
                        a = inout(reg) a,
                        after = lateout(reg) after,
                        inout("rcx") b,
                        inout("rdx") c,
                        inout("rax") processor::packed(flags) => _,
                    )
                };
                state.general = [a, b, c];
                state.flags = after & ARITHMETIC;
            },
        },)*]
    };
}

/// Cases on vector registers, and on `rax` and `rcx`.
macro_rules! vectors {
    ($($name:expr,)*) => {
        &[$(Case {
            name: $name,
            text: text!($name),
            execute: |state| {
                let State { general: [mut a, mut b, _], flags, .. } = *state;
                let after: u64;
                let mut saved = [[0_u64; 2]; 2];

                // SAFETY: The instruction changes operands only, and does not fault, as the caller
                // grants. Both vector registers are as before afterwards: `saved` has space for
                // them, as `vectors` has. The stack is as before.
                unsafe {
                    asm!(
                        "movups [{saved}], xmm0",
                        "movups [{saved} + 16], xmm1",
                        "movups xmm0, [{vectors}]",
                        "movups xmm1, [{vectors} + 16]",
                        "add al, 0x7f",
                        "sahf",
                        "mov rax, {a}",
                        $name,
                        "mov {a}, rax",
                        "pushfq",
                        "pop {after}",
                        "movups [{vectors}], xmm0",
                        "movups [{vectors} + 16], xmm1",
                        "movups xmm0, [{saved}]",
                        "movups xmm1, [{saved} + 16]",
                        saved = in(reg) saved.as_mut_ptr(),
                        vectors = in(reg) state.vectors.as_mut_ptr(),
                        a = inout(reg) a,
                        after = out(reg) after,
                        inout("rcx") b,
                        inout("rax") processor::packed(flags) => _,
                    )
                };
                state.general[0] = a;
                state.general[1] = b;
                state.flags = after & ARITHMETIC;
            },
        },)*]
    };
}

/// Cases of one or two operands, of each width.
macro_rules! widths {
    ($operands:ident, $($op:literal)*) => {
        general! {$(
            $operands!($op, "al", "cl"),
            $operands!($op, "ax", "cx"),
            $operands!($op, "eax", "ecx"),
            $operands!($op, "rax", "rcx"),
        )*}
    };
}

/// As [`widths!`], without bytes.
macro_rules! wide {
    ($operands:ident, $($op:literal)*) => {
        general! {$(
            $operands!($op, "ax", "cx"),
            $operands!($op, "eax", "ecx"),
            $operands!($op, "rax", "rcx"),
        )*}
    };
}

macro_rules! two {
    ($op:literal, $a:literal, $b:literal) => {
        concat!($op, " ", $a, ", ", $b)
    };
}

macro_rules! one {
    ($op:literal, $a:literal, $_:literal) => {
        concat!($op, " ", $a)
    };
}

macro_rules! second {
    ($op:literal, $_:literal, $b:literal) => {
        concat!($op, " ", $b)
    };
}

macro_rules! by_count {
    ($op:literal, $a:literal, $_:literal) => {
        concat!($op, " ", $a, ", cl")
    };
}

macro_rules! by_one {
    ($op:literal, $a:literal, $_:literal) => {
        concat!($op, " ", $a, ", 1")
    };
}

macro_rules! by_five {
    ($op:literal, $a:literal, $_:literal) => {
        concat!($op, " ", $a, ", 5")
    };
}

macro_rules! three {
    ($op:literal, $a:literal, $b:literal) => {
        concat!($op, " ", $a, ", ", $b, ", -77")
    };
}

/// All cases on general registers.
pub(super) const GENERAL: &[&[Case]] = &[
    widths!(two, "add" "or" "adc" "sbb" "and" "sub" "xor" "cmp" "test"),
    widths!(by_five, "add" "or" "adc" "sbb" "and" "sub" "xor" "cmp" "test"),
    widths!(one, "not" "neg" "inc" "dec"),
    widths!(by_count, "rol" "ror" "rcl" "rcr" "shl" "shr" "sar"),
    widths!(by_one, "rol" "ror" "rcl" "rcr" "shl" "shr" "sar"),
    widths!(by_five, "rol" "ror" "rcl" "rcr" "shl" "shr" "sar"),
    wide!(second, "mul" "imul" "div" "idiv"),
    wide!(two, "imul" "bt" "bts" "btr" "btc" "bsf" "bsr" "tzcnt" "lzcnt" "popcnt"),
    wide!(by_five, "bt" "bts" "btr" "btc"),
    wide!(three, "imul"),
    wide!(two, "cmovo" "cmovno" "cmovb" "cmovae" "cmove" "cmovne" "cmovbe" "cmova"),
    wide!(two, "cmovs" "cmovns" "cmovp" "cmovnp" "cmovl" "cmovge" "cmovle" "cmovg"),
    general! {
        "seto al", "setno al", "setb al", "setae al", "sete al", "setne al", "setbe al", "seta al",
        "sets al", "setns al", "setp al", "setnp al", "setl al", "setge al", "setle al", "setg al",
        "add ah, cl", "cmp ah, ch", "add al, ch",
        "shld eax, edx, 5", "shrd eax, edx, 5", "shld rax, rdx, 33", "shrd rax, rdx, 33",
        "shld eax, edx, 1", "shrd rax, rdx, 1",
        "movzx ax, cl", "movzx eax, cl", "movzx eax, cx", "movzx rax, cx",
        "movsx ax, cl", "movsx eax, cl", "movsx rax, cl", "movsx eax, cx", "movsx rax, cx",
        "movsxd rax, ecx",
        "cbw", "cwde", "cdqe", "cwd", "cdq", "cqo",
        "bswap eax", "bswap rax",
        "lea eax, [rax + 4 * rcx - 9]", "lea rax, [rax + 8 * rcx + 77]",
        "clc", "stc", "cmc",
        "andn eax, eax, ecx", "andn rax, rax, rcx", "blsr eax, ecx", "blsr rax, rcx",
        "blsmsk eax, ecx", "blsmsk rax, rcx", "blsi eax, ecx", "blsi rax, rcx",
        "bzhi eax, ecx, edx", "bzhi rax, rcx, rdx", "shlx eax, ecx, edx", "shlx rax, rcx, rdx",
        "shrx eax, ecx, edx", "shrx rax, rcx, rdx", "sarx eax, ecx, edx", "sarx rax, rcx, rdx",
    },
];

/// All cases on vector registers.
pub(super) const VECTORS: &[Case] = vectors! {
    "pand xmm0, xmm1", "pandn xmm0, xmm1", "por xmm0, xmm1", "pxor xmm0, xmm1",
    "pcmpeqb xmm0, xmm1", "pcmpeqw xmm0, xmm1", "pcmpeqd xmm0, xmm1",
    "pcmpgtb xmm0, xmm1", "pcmpgtw xmm0, xmm1", "pcmpgtd xmm0, xmm1",
    "paddb xmm0, xmm1", "paddw xmm0, xmm1", "paddd xmm0, xmm1", "paddq xmm0, xmm1",
    "psubb xmm0, xmm1", "psubw xmm0, xmm1", "psubd xmm0, xmm1", "psubq xmm0, xmm1",
    "pminub xmm0, xmm1", "pmaxub xmm0, xmm1",
    "punpcklbw xmm0, xmm1", "punpcklwd xmm0, xmm1", "punpckldq xmm0, xmm1",
    "punpcklqdq xmm0, xmm1", "punpckhbw xmm0, xmm1", "punpckhwd xmm0, xmm1",
    "punpckhdq xmm0, xmm1", "punpckhqdq xmm0, xmm1",
    "pshufd xmm0, xmm1, 0x1b", "psrlw xmm0, 3", "psrld xmm0, 9", "psrlq xmm0, 33",
    "psllw xmm0, 3", "pslld xmm0, 9", "psllq xmm0, 64", "psrldq xmm0, 5", "pslldq xmm0, 5",
    "pmovmskb eax, xmm1", "movd xmm0, ecx", "movq xmm0, rcx", "movd eax, xmm1", "movq rax, xmm1",
    "movq xmm0, xmm1", "movss xmm0, xmm1", "movsd xmm0, xmm1", "movhlps xmm0, xmm1",
    "addss xmm0, xmm1", "addsd xmm0, xmm1", "subss xmm0, xmm1", "subsd xmm0, xmm1",
    "mulss xmm0, xmm1", "mulsd xmm0, xmm1", "divss xmm0, xmm1", "divsd xmm0, xmm1",
    "minss xmm0, xmm1", "minsd xmm0, xmm1", "maxss xmm0, xmm1", "maxsd xmm0, xmm1",
    "sqrtss xmm0, xmm1", "sqrtsd xmm0, xmm1", "cvtss2sd xmm0, xmm1", "cvtsd2ss xmm0, xmm1",
    "cvtsi2ss xmm0, ecx", "cvtsi2ss xmm0, rcx", "cvtsi2sd xmm0, ecx", "cvtsi2sd xmm0, rcx",
    "cvttss2si eax, xmm1", "cvttss2si rax, xmm1", "cvttsd2si eax, xmm1", "cvttsd2si rax, xmm1",
    "cvtss2si eax, xmm1", "cvtss2si rax, xmm1", "cvtsd2si eax, xmm1", "cvtsd2si rax, xmm1",
    "ucomiss xmm0, xmm1", "ucomisd xmm0, xmm1", "comiss xmm0, xmm1", "comisd xmm0, xmm1",
};

/// Two instructions whose results differ.
#[cfg(test)]
pub(super) const AND_OR: &[Case; 2] = general! { "and eax, ecx", "or eax, ecx", };
