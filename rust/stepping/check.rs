// SPDX-License-Identifier: GPL-2.0

//! Compares the interpreter with the processor that this runs on: each form of instruction on a
//! table of values.
//!
//! Manuals leave flags undefined, and processors have errata. A form that differs is left to the
//! processor.

// Tests on the host include this file under another module.
#[path = "check/cases.rs"]
mod cases;

use crate::processor;
use cases::{
    Case,
    State,
    GENERAL,
    VECTORS, //
};
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

/// Values at the borders of each width, counts, and floating-point numbers.
const VALUES: [u64; 7] = [
    0,
    1,
    5,
    0x21,
    0x8000_0000_8000_8080,
    0x3fff_7fff_7fc0_7f7f,
    u64::MAX,
];

/// Calls `each` with each state that the table of values gives.
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

/// The address of the instruction for the interpreter.
const ADDRESS: u64 = 0x1000;

/// The number of words that hold an instruction.
const TEXT: usize = 2;

/// A byte that is no instruction in 64-bit code.
const INVALID: u8 = 0x06;

/// A machine with the instruction's text and registers, and without memory.
struct Registered<'a, P> {
    text: [u64; TEXT],
    vectors: [[u64; 2]; 2],
    processor: &'a P,
}

/// The processor that computes instructions for the interpreter.
///
/// # Safety
///
/// - The processor must have the instructions for which [`knows()`](Self::knows) returns true.
/// - While [`with_vectors()`](Self::with_vectors) calls its argument, the vector registers must be
///   the caller's, with all floating-point exceptions masked.
pub(crate) unsafe trait Processor {
    /// Whether the processor has the instruction.
    fn knows(&self, native: Native) -> bool;

    /// Calls `f` while the vector registers can be used. `f` does not sleep.
    fn with_vectors(&self, f: impl FnOnce() -> Outcome) -> Outcome;

    /// The processor's result for `a`, `b` and `c`; see [`processor::compute()`].
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
        // SAFETY: By the safety requirements a quotient fits, and the processor knows the
        // instruction.
        unsafe { processor::compute(native, width, a, b, c, flags) }
    }
}

// The default methods trust every form. Only the comparison can tell which forms differ.
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

    // No block is kept from one run to the next, so no text is compared.
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
        // SAFETY: The interpreter has found that a quotient fits. The processor knows the
        // instruction, by the trait's contract.
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
        // SAFETY: Only instructions of `VECTORS` come here, which are interpreted in
        // `with_vectors()`: by the trait's contract the vector registers are the caller's.
        unsafe { processor::float(float, double, width, a, b) }
    }
}

/// The words of an instruction, filled up with bytes that are no instruction.
fn words(text: &[u8]) -> [u64; TEXT] {
    let mut rest = text.iter();

    [INVALID; TEXT].map(|invalid| {
        let bytes = [invalid; 8].map(|invalid| rest.next().copied().unwrap_or(invalid));

        u64::from_le_bytes(bytes)
    })
}

impl State {
    /// The state after the interpreter has executed an instruction; [`None`] if it leaves the
    /// instruction to the processor.
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

/// The result of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The interpreter and the processor agree.
    Agrees,
    /// The interpreter and the processor differ for this form.
    Differs(Form),
    /// The interpreter leaves the instruction to the processor, with any operands.
    Left,
}

/// Compares the interpreter with the processor for the instruction of a case. Flags in `ignored`
/// may differ.
fn outcome(case: &Case, processor: &impl Processor, ignored: u64) -> Outcome {
    let text = (case.text)();
    let words = words(text);
    let mut outcome = Outcome::Left;

    states(|before| {
        let Some(interpreted) = before.interpreted(words, processor) else {
            return;
        };
        let mut executed = before;

        // SAFETY: The interpreter has executed the instruction, so the processor knows it, and a
        // quotient fits. One of `VECTORS` is executed in `with_vectors()`: by the trait's contract
        // the vector registers are the caller's.
        unsafe { (case.execute)(&mut executed) };
        let defined = |state: State| State {
            flags: state.flags & !ignored,
            ..state
        };

        if defined(executed) != defined(interpreted) {
            outcome = Form::of(text).map_or(Outcome::Left, Outcome::Differs);
        } else if outcome == Outcome::Left {
            outcome = Outcome::Agrees;
        }
    });
    outcome
}

/// Compares each instruction, and passes its name and the result to `each`.
pub(crate) fn all(processor: &impl Processor, mut each: impl FnMut(&'static str, Outcome)) {
    for case in GENERAL.iter().copied().flatten() {
        each(case.name, outcome(case, processor, 0));
    }
    for case in VECTORS {
        let outcome = processor.with_vectors(|| outcome(case, processor, 0));

        each(case.name, outcome);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use iced_x86::{
        Decoder,
        RflagsBits, //
    };
    use interpreter::OVERFLOW;

    /// The processor that runs the test, but with an inverted overflow flag for one instruction.
    pub(crate) struct But(pub(crate) Option<Native>);

    // SAFETY: `knows()` asks the processor. The vector registers are the test's. They have the same
    // values afterwards, and all exceptions are masked.
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
            // SAFETY: This function has the same safety requirements.
            let mut values = unsafe { processor::compute(native, width, a, b, c, flags) }?;

            if self.0 == Some(native) {
                values.flags ^= OVERFLOW;
            }
            Some(values)
        }
    }

    /// The forms that are left to the processor that runs the test.
    pub(crate) fn distrusted() -> Vec<Form> {
        let mut forms = Vec::new();

        all(&But(None), |_, outcome| {
            if let Outcome::Differs(form) = outcome {
                forms.push(form);
            }
        });
        forms
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

    /// The arithmetic flags that the manual leaves undefined.
    fn undefined(text: &[u8]) -> u64 {
        let bits = Decoder::new(64, text, 0).decode().rflags_undefined();
        let flags = [
            (RflagsBits::CF, 1 << 0),
            (RflagsBits::PF, 1 << 2),
            (RflagsBits::AF, 1 << 4),
            (RflagsBits::ZF, 1 << 6),
            (RflagsBits::SF, 1 << 7),
            (RflagsBits::OF, OVERFLOW),
        ];
        let is_undefined = flags.iter().filter(|(bit, _)| bits & bit != 0);

        is_undefined.map(|(_, flag)| flag).sum()
    }

    /// Each form agrees in the defined results. A form may differ in undefined flags, such as on a
    /// newer processor. Then it is stepped.
    #[test]
    fn each_form_is_as_the_processor_has_it() {
        let but = But(None);

        for case in GENERAL.iter().copied().flatten().chain(VECTORS) {
            let outcome = outcome(case, &but, undefined((case.text)()));

            assert!(
                !matches!(outcome, Outcome::Differs(_)),
                "`{}` differs in what is defined",
                case.name
            );
        }
        println!("stepped on this processor: {:?}", differing(&but));
    }

    #[test]
    fn a_flag_that_differs_is_found() {
        let here = differing(&But(None));
        let mut names = differing(&But(Some(Native::Shrd)));

        names.retain(|name| !here.contains(name));
        assert_eq!(
            names,
            ["shrd eax, edx, 5", "shrd rax, rdx, 33", "shrd rax, rdx, 1"]
        );
    }

    #[test]
    fn what_the_interpreter_computes_itself_is_compared() {
        let [and, or] = cases::AND_OR;
        let and_as_or = Case {
            execute: or.execute,
            ..*and
        };

        let form = Form::of(&[0x21, 0xc8]).unwrap();
        assert_eq!(outcome(&and_as_or, &But(None), 0), Outcome::Differs(form));
        assert_eq!(outcome(or, &But(None), 0), Outcome::Agrees);
    }
}
