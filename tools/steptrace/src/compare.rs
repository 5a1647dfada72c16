// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares a decoder's output with the instructions that were executed.

use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;

use anyhow::{Context, Result};

use crate::log::Threads;

/// Number of instructions that are shown before and after a difference.
const AROUND: usize = 6;

/// The output of a decoder.
#[derive(Debug, Default)]
pub struct Decoded {
    /// The instructions of each thread.
    pub threads: Threads,
    /// Its error messages.
    pub errors: Vec<String>,
}

/// Reads the output of `perf script --itrace=i1i -F tid,ip`, or of ptwalk. A line is a thread's number and an address, or an address alone.
/// Lines that begin with `event` are events of ptwalk. The others are error messages, or samples of a thread that the decoder does not know.
///
/// # Errors
///
/// If the output cannot be read.
pub fn read(from: impl BufRead) -> Result<Decoded> {
    let mut decoded = Decoded::default();

    for line in from.lines() {
        let line = line.context("cannot read the decoder's output")?;
        let mut words = line.split_whitespace();
        let parsed = match (words.next(), words.next(), words.next()) {
            (Some(ip), None, None) => address(ip).map(|ip| (0, ip)),
            (Some(tid), Some(ip), None) => tid.parse().ok().zip(address(ip)),
            _ => None,
        };
        if let Some((tid, ip)) = parsed {
            decoded.threads.entry(tid).or_default().push(ip);
        } else if !line.trim().is_empty() && !line.starts_with("event ") {
            decoded.errors.push(line.trim().to_owned());
        }
    }
    Ok(decoded)
}

fn address(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
}

/// The result of a comparison.
#[derive(Debug)]
pub struct Outcome {
    /// One verdict for each thread, in the order in which the threads were created.
    pub threads: Vec<Verdict>,
    /// Errors of the decoder.
    pub errors: Vec<String>,
}

/// The result of the comparison of one thread.
#[derive(Debug)]
pub struct Verdict {
    /// Its number in the log, if it is there.
    pub logged: Option<u32>,
    /// Its number in the trace, if it is there.
    pub traced: Option<u32>,
    /// Number of instructions in the log.
    pub len: usize,
    /// The first difference.
    pub difference: Option<Difference>,
}

/// A difference.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of instructions before it, which are the same.
    pub at: usize,
    /// The instructions around it: number, address in the log, and address in the trace.
    pub around: Vec<(usize, Option<u64>, Option<u64>)>,
}

impl Outcome {
    /// Whether all instructions are the same, and the decoder had no errors.
    pub fn is_equal(&self) -> bool {
        self.errors.is_empty()
            && self
                .threads
                .iter()
                .all(|thread| thread.difference.is_none())
    }
}

/// Compares a log with a decoder's output. Threads have other numbers in another run, but come in the same order.
pub fn compare(logged: &Threads, decoded: Decoded) -> Outcome {
    let mut left = logged.iter();
    let mut right = decoded.threads.iter();
    let mut threads = Vec::new();

    loop {
        let (left, right) = (left.next(), right.next());
        if left.is_none() && right.is_none() {
            break;
        }
        let ips = |side: Option<(&u32, &Vec<u64>)>| side.map_or(&[][..], |(_, ips)| ips).to_vec();
        threads.push(Verdict {
            logged: left.map(|(&tid, _)| tid),
            traced: right.map(|(&tid, _)| tid),
            len: left.map_or(0, |(_, ips)| ips.len()),
            difference: difference(&ips(left), &ips(right)),
        });
    }
    Outcome {
        threads,
        errors: decoded.errors,
    }
}

fn difference(left: &[u64], right: &[u64]) -> Option<Difference> {
    let at = (0..left.len().max(right.len())).find(|&i| left.get(i) != right.get(i))?;
    let around = (at.saturating_sub(AROUND)..at + AROUND)
        .map(|i| (i, left.get(i).copied(), right.get(i).copied()))
        .filter(|(_, left, right)| left.is_some() || right.is_some())
        .collect();

    Some(Difference { at, around })
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for thread in &self.threads {
            writeln!(f, "{thread}")?;
        }
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for error in &self.errors {
            *kinds.entry(error).or_default() += 1;
        }
        for (error, count) in kinds.iter().take(20) {
            writeln!(f, "{count} times the decoder said: {error}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |tid: Option<u32>| tid.map_or("none".to_owned(), |tid| tid.to_string());
        write!(
            f,
            "thread {} (traced: {}): {} instructions, ",
            number(self.logged),
            number(self.traced),
            self.len
        )?;
        let Some(difference) = &self.difference else {
            return f.write_str("equal");
        };
        write!(
            f,
            "differ after {}:\n{:>12} {:>18} {:>18}",
            difference.at, "", "executed", "decoded"
        )?;
        for &(i, left, right) in &difference.around {
            let ip = |ip: Option<u64>| ip.map_or("-".to_owned(), |ip| format!("{ip:x}"));
            let mark = if left == right { "" } else { "  <" };
            write!(f, "\n{i:>12} {:>18} {:>18}{mark}", ip(left), ip(right))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged() -> Threads {
        Threads::from([(10, vec![0x1000, 0x1001, 0x1004]), (12, vec![0x2000])])
    }

    fn outcome(text: &str) -> Outcome {
        compare(&logged(), read(text.as_bytes()).unwrap())
    }

    #[test]
    fn equal() {
        let outcome = outcome("  77     1000 \n 78 2000\n 77 1001\n  77 0x1004\n");
        assert!(outcome.is_equal(), "{outcome}");
        assert_eq!(outcome.threads.len(), 2);
    }

    #[test]
    fn differences_are_found() {
        // The decoder's output, and the position of the first difference.
        let table = [
            ("7 1000\n7 1001\n8 2000\n", 2),
            ("7 1000\n7 1001\n7 1004\n7 1005\n8 2000\n", 3),
            ("7 1000\n7 1002\n7 1004\n8 2000\n", 1),
            ("7 1000\n7 1001\n7 1004\n", 0),
            ("7 1000\n7 1001\n7 1004\n8 2000\n9 1\n", 0),
            ("", 0),
        ];
        for (text, at) in table {
            let outcome = outcome(text);
            assert!(!outcome.is_equal(), "{text:?}");
            let found = outcome.threads.iter().find_map(|t| t.difference.as_ref());
            assert_eq!(found.unwrap().at, at, "{text:?}");
        }
    }

    #[test]
    fn errors_count() {
        for line in [" instruction trace error type 1 time 1 cpu 0", "   -1 1002"] {
            let text = format!("7 1000\n{line}\n7 1001\n\n7 1004\n8 2000\n");
            let outcome = outcome(&text);
            assert!(outcome.threads.iter().all(|t| t.difference.is_none()));
            assert_eq!(outcome.errors, [line.trim()]);
        }
    }
}
