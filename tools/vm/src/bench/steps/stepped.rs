// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The instructions of a program that `soft_pt` single-steps, with the names that iced-x86 gives them.

use iced_x86::{Decoder, DecoderOptions, Register};
use std::collections::BTreeMap;

/// The reasons for a single step, in the order of their numbers in the tracepoint `rust_stepping_step`.
const REASONS: [&str; 6] = ["first", "left", "limit", "refused", "state", "off"];

/// How many kinds of steps are listed at most.
const MAX: usize = 10;

/// A number of single steps, and the number of instructions that the event counts for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Number {
    steps: u64,
    instructions: u64,
}

/// The single steps of a program, and how many of its instructions were interpreted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stepped {
    pub(super) name: String,
    pub(super) counted: u64,
    pub(super) interpreted: u64,
    /// The steps by instruction and reason, the most frequent first.
    kinds: Vec<((String, &'static str), Number)>,
}

impl Stepped {
    /// Parses the file that the guest has written. [`None`] if its sum does not match the counts.
    pub(super) fn parse(name: &str, counted: u64, interpreted: u64, file: &str) -> Option<Self> {
        let mut kinds = BTreeMap::<_, Number>::new();
        for line in file.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [reason, steps, instructions, text] = words.try_into().ok()?;
            let reason = *REASONS.get(reason.parse::<usize>().ok()?)?;
            let number = kinds.entry((mnemonic(&bytes(text)?), reason)).or_default();
            number.steps += steps.parse::<u64>().ok()?;
            number.instructions += instructions.parse::<u64>().ok()?;
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, number)| std::cmp::Reverse(number.steps));
        let stepped: u64 = kinds.iter().map(|(_, number)| number.instructions).sum();
        (counted > 0 && stepped + interpreted == counted).then(|| Self {
            name: name.to_owned(),
            counted,
            interpreted,
            kinds,
        })
    }

    /// The share of interpreted instructions in hundredths of a percent, rounded down.
    pub(super) fn share(&self) -> u64 {
        self.interpreted * 10_000 / self.counted
    }

    /// The lines to print.
    pub(super) fn lines(&self) -> Vec<String> {
        let steps: u64 = self.kinds.iter().map(|(_, number)| number.steps).sum();
        let percent = |part: u64| {
            let hundredths = part * 10_000 / steps.max(1);
            format!("{}.{:02} %", hundredths / 100, hundredths % 100)
        };
        let because = REASONS.map(|reason| {
            let of = self.kinds.iter().filter(|((_, why), _)| *why == reason);
            (reason, of.map(|(_, number)| number.steps).sum::<u64>())
        });
        let because = because.iter().filter(|(_, steps)| *steps != 0);
        let because: Vec<_> = because
            .map(|(reason, steps)| format!("{reason} {}", percent(*steps)))
            .collect();
        let (whole, rest) = (self.share() / 100, self.share() % 100);
        let mut lines = vec![format!(
            "{}: {whole}.{rest:02} % of {} instructions are interpreted; {steps} single steps: {}",
            self.name,
            self.counted,
            because.join(", ")
        )];
        let kinds = self.kinds.iter().take(MAX);
        lines.extend(kinds.map(|((insn, reason), number)| {
            format!(
                "{:>10} {:>8} {insn} ({reason})",
                number.steps,
                percent(number.steps)
            )
        }));
        lines
    }
}

/// Parses hexadecimal digits.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

/// The name of the first instruction in `text`, with the prefixes because of which the interpreter may refuse it.
fn mnemonic(text: &[u8]) -> String {
    let insn = Decoder::new(64, text, DecoderOptions::NONE).decode();
    if insn.is_invalid() {
        return "(no instruction)".to_owned();
    }
    let mut name = String::new();
    if insn.has_lock_prefix() {
        name += "lock ";
    }
    if insn.has_rep_prefix() {
        name += "rep ";
    }
    if insn.has_repne_prefix() {
        name += "repne ";
    }
    name += &format!("{:?}", insn.mnemonic()).to_lowercase();
    if insn.segment_prefix() == Register::GS {
        name += " gs:";
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_names_and_reasons() {
        let file = "0 1 1 0f05c3\n1 2 2 f00fb10f90\n1 3 3 f04887039090\n1 10 2 f348ab\n2 5 5 4889c3\n2 1 1 89c3\n1 1 0 \n";
        let stepped = Stepped::parse("x", 1000, 986, file).unwrap();
        assert_eq!(stepped.share(), 9860);
        assert_eq!(
            stepped.lines(),
            [
                "x: 98.60 % of 1000 instructions are interpreted; 23 single steps: first 4.34 %, left 69.56 %, limit 26.08 %",
                "        10  43.47 % rep stosq (left)",
                "         6  26.08 % mov (limit)",
                "         3  13.04 % lock xchg (left)",
                "         2   8.69 % lock cmpxchg (left)",
                "         1   4.34 % (no instruction) (left)",
                "         1   4.34 % syscall (first)",
            ]
        );
    }

    #[test]
    fn a_sum_that_is_wrong_is_refused() {
        let file = "0 1 1 0f05\n";
        assert!(Stepped::parse("x", 10, 9, file).is_some());
        for (counted, interpreted, file) in [
            (10, 8, file),
            (11, 9, file),
            (0, 0, ""),
            (10, 9, "6 1 1 0f05\n"),
            (10, 9, "0 1 1 0f0\n"),
            (10, 9, "0 1 1\n"),
        ] {
            assert_eq!(
                Stepped::parse("x", counted, interpreted, file),
                None,
                "{file}"
            );
        }
    }
}
