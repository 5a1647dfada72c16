// SPDX-License-Identifier: GPL-2.0

//! Compares the interpreter with the processor that this runs on: each form of instruction on a table of values.
//!
//! Manuals leave flags undefined, and processors have errata. A form that differs is left to the processor.

use crate::processor;
use core::arch::asm;
use interpreter::{
    Block,
    Float,
    Form,
    How,
    Machine,
    Native,
    Registers,
    Values,
    Width,
    ARITHMETIC, //
};

/// What instructions compute on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    /// `rax`, `rcx`, `rdx`.
    general: [u64; 3],
    /// The arithmetic flags.
    flags: u64,
    /// `xmm0`, `xmm1`.
    vectors: [[u64; 2]; 2],
}

/// An instruction on the registers of [`State`], which changes no others.
struct Case {
    name: &'static str,
    text: fn() -> &'static [u8],
    execute: Execute,
}

/// Has the processor execute the instruction.
///
/// # Safety
///
/// The instruction must not fault on this state, and the processor must know it. If it has vectors, the vector
/// registers must be the caller's.
type Execute = unsafe fn(&mut State);

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

/// Cases on general registers.
macro_rules! general {
    ($each:ident, $($name:expr,)*) => {
        $($each(Case {
            name: $name,
            text: text!($name),
            execute: |state| {
                let State { general: [mut a, mut b, mut c], flags, .. } = *state;
                let after: u64;

                // SAFETY: The instruction changes operands only, and does not fault, as the caller grants. The
                // stack is as before.
                unsafe {
                    asm!(
                        // OF if `al` is 1, then the others.
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
        });)*
    };
}

/// Cases on vector registers, and on `rax` and `rcx`.
macro_rules! vectors {
    ($each:ident, $($name:expr,)*) => {
        $($each(Case {
            name: $name,
            text: text!($name),
            execute: |state| {
                let State { general: [mut a, mut b, _], flags, .. } = *state;
                let after: u64;
                let mut saved = [[0_u64; 2]; 2];

                // SAFETY: The instruction changes operands only, and does not fault, as the caller grants. Both
                // vector registers are as before afterwards: `saved` has room for them, as `vectors` has. The
                // stack is as before.
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
        });)*
    };
}

/// Cases of one or two operands, of each width.
macro_rules! widths {
    ($each:ident, $operands:ident, $($op:literal)*) => {
        $(general! {
            $each,
            $operands!($op, "al", "cl"),
            $operands!($op, "ax", "cx"),
            $operands!($op, "eax", "ecx"),
            $operands!($op, "rax", "rcx"),
        })*
    };
}

/// As [`widths!`], without bytes.
macro_rules! wide {
    ($each:ident, $operands:ident, $($op:literal)*) => {
        $(general! {
            $each,
            $operands!($op, "ax", "cx"),
            $operands!($op, "eax", "ecx"),
            $operands!($op, "rax", "rcx"),
        })*
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

/// Calls `each` with all cases on general registers.
fn on_general(mut each: impl FnMut(Case)) {
    widths!(each, two, "add" "or" "adc" "sbb" "and" "sub" "xor" "cmp" "test");
    widths!(each, by_five, "add" "or" "adc" "sbb" "and" "sub" "xor" "cmp" "test");
    widths!(each, one, "not" "neg" "inc" "dec");
    widths!(each, by_count, "rol" "ror" "rcl" "rcr" "shl" "shr" "sar");
    widths!(each, by_one, "rol" "ror" "rcl" "rcr" "shl" "shr" "sar");
    widths!(each, by_five, "rol" "ror" "rcl" "rcr" "shl" "shr" "sar");
    wide!(each, second, "mul" "imul" "div" "idiv");
    wide!(each, two, "imul" "bt" "bts" "btr" "btc" "bsf" "bsr" "tzcnt" "lzcnt" "popcnt");
    wide!(each, by_five, "bt" "bts" "btr" "btc");
    wide!(each, three, "imul");
    wide!(each, two, "cmovo" "cmovno" "cmovb" "cmovae" "cmove" "cmovne" "cmovbe" "cmova");
    wide!(each, two, "cmovs" "cmovns" "cmovp" "cmovnp" "cmovl" "cmovge" "cmovle" "cmovg");
    general! {
        each,
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
    }
}

/// Calls `each` with all cases on vector registers.
fn on_vectors(mut each: impl FnMut(Case)) {
    vectors! {
        each,
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
    }
}

/// Borders of each width, counts, and floating-point numbers.
const VALUES: [u64; 7] = [
    0,
    1,
    5,
    0x21,
    0x8000_0000_8000_8080,
    0x3fff_7fff_7fc0_7f7f,
    u64::MAX,
];

/// Calls `each` with the table of values.
fn states(mut each: impl FnMut(State)) {
    for a in VALUES {
        for b in VALUES {
            for (c, flags) in [(0, 0), (u64::MAX, ARITHMETIC)] {
                each(State {
                    general: [a, b, c],
                    flags,
                    vectors: [[a, b], [b, a ^ c]],
                });
            }
        }
    }
}

/// Where the interpreter finds the instruction.
const ADDRESS: u64 = 0x1000;

/// Words that hold an instruction.
const TEXT: usize = 2;

/// No instruction of 64-bit code.
const INVALID: u8 = 0x06;

/// The instruction's text and registers, and no memory.
struct Registered<'a, P> {
    text: [u64; TEXT],
    vectors: [[u64; 2]; 2],
    processor: &'a P,
}

/// The processor that the interpreter asks.
///
/// # Safety
///
/// - The processor must know the instructions of which [`knows()`](Self::knows) says so.
/// - While [`with_vectors()`](Self::with_vectors) calls its argument, the vector registers must be the caller's, with
///   all floating-point exceptions masked.
pub(crate) unsafe trait Processor {
    /// Whether it knows the instruction.
    fn knows(&self, native: Native) -> bool;

    /// Calls `f` while the vector registers can be used. `f` does not sleep.
    fn with_vectors(&self, f: impl FnOnce() -> Outcome) -> Outcome;

    /// What it makes of `a`, `b` and `c`; see [`processor::compute()`].
    ///
    /// # Safety
    ///
    /// - A quotient must fit into the width.
    /// - The processor must know the instruction.
    unsafe fn compute(
        &self,
        native: Native,
        width: Width,
        [a, b, c]: [u64; 3],
        flags: u64,
    ) -> Option<Values> {
        // SAFETY: The caller grants both.
        unsafe { processor::compute(native, width, a, b, c, flags) }
    }
}

// By default every form is trusted: whether that is right is not known yet.
impl<P: Processor> Machine for Registered<'_, P> {
    fn load(&mut self, _address: u64, _width: Width) -> Option<u64> {
        None
    }

    fn store(&mut self, _address: u64, _width: Width, _value: u64) -> Option<()> {
        None
    }

    fn replace(&mut self, _address: u64, _width: Width, _old: u64, _new: u64) -> Option<bool> {
        None
    }

    fn text(&mut self, address: u64, words: &mut [u64]) -> bool {
        let start = usize::try_from(address.wrapping_sub(ADDRESS) / 8);
        let rest = start.ok().and_then(|start| self.text.get(start..));

        match rest.and_then(|rest| rest.get(..words.len())) {
            Some(text) => {
                words.copy_from_slice(text);
                true
            }
            None => false,
        }
    }

    // No block is kept.
    fn has_text(&mut self, _address: u64, _words: &[u64], _masks: [u64; 2]) -> bool {
        false
    }

    fn vector(&mut self, number: u8) -> Option<[u64; 4]> {
        let [low, high] = *self.vectors.get(usize::from(number))?;

        Some([low, high, 0, 0])
    }

    fn set_vector(&mut self, number: u8, [low, high, ..]: [u64; 4], _how: How) -> Option<()> {
        *self.vectors.get_mut(usize::from(number))? = [low, high];
        Some(())
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
        if !self.processor.knows(native) {
            return None;
        }
        // SAFETY: The interpreter has found that a quotient fits. The processor knows the instruction, by the
        // trait's contract.
        unsafe { self.processor.compute(native, width, [a, b, c], flags) }
    }

    fn float(
        &mut self,
        float: Float,
        double: bool,
        width: Width,
        a: u64,
        b: u64,
    ) -> Option<Values> {
        // SAFETY: Only instructions of `on_vectors()` come here, which are interpreted in `with_vectors()`: by the
        // trait's contract the vector registers are the caller's.
        unsafe { processor::float(float, double, width, a, b) }
    }
}

/// The words of an instruction, and no other behind it.
fn words(text: &[u8]) -> [u64; TEXT] {
    let mut rest = text.iter();

    [INVALID; TEXT].map(|invalid| {
        let bytes = [invalid; 8].map(|invalid| rest.next().copied().unwrap_or(invalid));

        u64::from_le_bytes(bytes)
    })
}

impl State {
    /// What the interpreter makes of an instruction; [`None`] if it leaves it to the processor.
    fn interpreted(&self, text: [u64; TEXT], processor: &impl Processor) -> Option<Self> {
        let mut machine = Registered {
            text,
            vectors: self.vectors,
            processor,
        };
        let mut registers = Registers {
            ip: ADDRESS,
            flags: self.flags,
            ..Registers::default()
        };
        let [a, b, c, ..] = &mut registers.general;

        [*a, *b, *c] = self.general;
        let mut block = [Block::EMPTY];
        let ran = interpreter::run(&mut block, &mut registers, &mut machine, &mut (), 1);
        let [a, b, c, ..] = registers.general;

        (ran.executed == 1).then_some(Self {
            general: [a, b, c],
            flags: registers.flags & ARITHMETIC,
            vectors: machine.vectors,
        })
    }
}

/// What came out of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The interpreter does as the processor does.
    Agrees,
    /// It does not.
    Differs(Form),
    /// The interpreter leaves the instruction to the processor whatever its operands are.
    Left,
}

/// Compares the instruction of a case.
fn outcome(case: &Case, processor: &impl Processor) -> Outcome {
    let text = (case.text)();
    let words = words(text);
    let mut outcome = Outcome::Left;

    states(|before| {
        let Some(interpreted) = before.interpreted(words, processor) else {
            return;
        };
        let mut executed = before;

        // SAFETY: The interpreter has taken the instruction, so the processor knows it, and a quotient fits. One
        // of `on_vectors()` is executed in `with_vectors()`: by the trait's contract the vector registers are the
        // caller's.
        unsafe { (case.execute)(&mut executed) };
        if executed != interpreted {
            outcome = Form::of(text).map_or(Outcome::Left, Outcome::Differs);
        } else if outcome == Outcome::Left {
            outcome = Outcome::Agrees;
        }
    });
    outcome
}

/// Compares each instruction, and passes its name and what came out to `each`.
pub(crate) fn all(processor: &impl Processor, mut each: impl FnMut(&'static str, Outcome)) {
    on_general(|case| each(case.name, outcome(&case, processor)));
    on_vectors(|case| {
        let outcome = processor.with_vectors(|| outcome(&case, processor));

        each(case.name, outcome);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use interpreter::OVERFLOW;

    /// The processor that runs this, but for an instruction whose flags it has otherwise.
    struct But(Option<Native>);

    // SAFETY: The processor is asked what it knows. A test has the vector registers, which are as before
    // afterwards, with all exceptions masked.
    unsafe impl Processor for But {
        fn knows(&self, native: Native) -> bool {
            crate::knows(native)
        }

        fn with_vectors(&self, f: impl FnOnce() -> Outcome) -> Outcome {
            f()
        }

        unsafe fn compute(
            &self,
            native: Native,
            width: Width,
            [a, b, c]: [u64; 3],
            flags: u64,
        ) -> Option<Values> {
            // SAFETY: The caller grants what it needs.
            let mut values = unsafe { processor::compute(native, width, a, b, c, flags) }?;

            if self.0 == Some(native) {
                values.flags ^= OVERFLOW;
            }
            Some(values)
        }
    }

    fn differing(processor: &But) -> Vec<&'static str> {
        let mut names = Vec::new();
        let mut count = 0;

        all(processor, |name, outcome| {
            assert!(
                outcome != Outcome::Left || !crate::knows(Native::Andn),
                "`{name}` is never interpreted"
            );
            count += 1;
            if let Outcome::Differs(_) = outcome {
                names.push(name);
            }
        });
        assert!(count > 300, "{count} instructions");
        names
    }

    #[test]
    fn each_form_is_as_the_processor_has_it() {
        assert_eq!(differing(&But(None)), [""; 0]);
    }

    #[test]
    fn a_flag_that_differs_is_found() {
        let names = differing(&But(Some(Native::Shrd)));

        assert_eq!(
            names,
            ["shrd eax, edx, 5", "shrd rax, rdx, 33", "shrd rax, rdx, 1"]
        );
    }

    #[test]
    fn what_the_interpreter_computes_itself_is_compared() {
        let mut cases = Vec::new();
        let mut add = |case: Case| cases.push(case);
        general! { add, "and eax, ecx", "or eax, ecx", }
        let [and, or] = cases.try_into().map_err(drop).unwrap();
        let and_as_or = Case {
            execute: or.execute,
            ..and
        };

        let form = Form::of(&[0x21, 0xc8]).unwrap();
        assert_eq!(outcome(&and_as_or, &But(None)), Outcome::Differs(form));
        assert_eq!(outcome(&or, &But(None)), Outcome::Agrees);
    }
}
