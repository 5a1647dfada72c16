// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Turns the output of `cargo test` into cases.

use crate::results::ktap::{Case, Status};
use std::collections::BTreeMap;

/// One test program: its name and what it printed.
struct Program {
    name: String,
    cases: Vec<Case>,
    logs: BTreeMap<String, Vec<String>>,
    /// The counts in the line with the sums: passed, failed, ignored.
    sum: Option<[usize; 3]>,
    noise: Vec<String>,
}

/// Parses the joined standard output and standard error of `cargo test`. `success` is whether cargo has succeeded. If it has not, and no
/// case has failed, the end of the output becomes a failing case.
#[must_use]
pub fn parse(output: &str, success: bool) -> Case {
    let mut programs: Vec<Program> = Vec::new();
    let mut section: Option<String> = None;
    let mut tail: Vec<&str> = Vec::new();
    for line in output.lines() {
        if tail.len() == 60 {
            tail.remove(0);
        }
        tail.push(line);
        let trimmed = line.trim();
        if let Some(name) = program_name(trimmed) {
            programs.push(Program {
                name,
                cases: Vec::new(),
                logs: BTreeMap::new(),
                sum: None,
                noise: Vec::new(),
            });
            section = None;
            continue;
        }
        let Some(program) = programs.last_mut() else {
            continue;
        };
        if let Some(sum) = sum_line(line) {
            program.sum = Some(sum);
            section = None;
        } else if let Some(case) = result_line(line) {
            program.cases.push(case);
        } else if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|l| l.strip_suffix(" stdout ----"))
        {
            section = Some(name.to_owned());
        } else if line == "failures:" {
            section = None;
        } else if let Some(name) = &section {
            program
                .logs
                .entry(name.clone())
                .or_default()
                .push(line.to_owned());
        } else {
            program.noise.push(line.to_owned());
        }
    }
    let mut suites: Vec<Case> = programs.into_iter().filter_map(Program::finish).collect();
    if !success && suites.iter().all(|s| s.counts().failed == 0) {
        let log = tail.into_iter().map(str::to_owned).collect();
        suites.push(
            Case::fail("cargo", "cargo test ended badly; its last lines say why").with_log(log),
        );
    }
    Case::suite("cargo test", suites)
}

impl Program {
    /// The suite of the program, or [`None`] if it has no tests.
    fn finish(mut self) -> Option<Case> {
        for case in &mut self.cases {
            if let Some(log) = self.logs.remove(&case.name) {
                case.log = log;
            }
        }
        let count = |status| self.cases.iter().filter(|c| c.status == status).count();
        let seen = [
            count(Status::Pass),
            count(Status::Fail),
            count(Status::Skip),
        ];
        match self.sum {
            Some(sum) if sum == seen => {}
            Some(_) => self.cases.push(
                Case::fail("sum", "the sum line and the results above it disagree")
                    .with_log(self.noise),
            ),
            None => self.cases.push(
                Case::fail("sum", "the program ended before it had run all its tests")
                    .with_log(self.noise),
            ),
        }
        (!self.cases.is_empty()).then(|| Case::suite(&self.name, self.cases))
    }
}

/// Parses `Running unittests src/lib.rs (build/target/debug/deps/vm-0123)` or `Doc-tests vm`.
fn program_name(line: &str) -> Option<String> {
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{name} (documentation)"));
    }
    let (what, path) = line.strip_prefix("Running ")?.rsplit_once(" (")?;
    let file = path.strip_suffix(')')?.rsplit('/').next()?;
    let stem = file.rsplit_once('-').map_or(file, |(stem, _)| stem);
    Some(if what.starts_with("unittests ") {
        stem.to_owned()
    } else {
        format!("{stem} ({what})")
    })
}

/// Parses `test a::b ... ok`.
fn result_line(line: &str) -> Option<Case> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let name = name.trim_end_matches(" - should panic");
    match result.split_once(", ").map_or(result, |(r, _)| r) {
        "ok" => Some(Case::pass(name)),
        "FAILED" | "failed" => Some(Case::fail(name, "")),
        "ignored" => Some(Case::skip(
            name,
            result.split_once(", ").map_or("ignored", |(_, why)| why),
        )),
        _ => None,
    }
}

/// Parses `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn sum_line(line: &str) -> Option<[usize; 3]> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut numbers = counts
        .split("; ")
        .map(|part| part.split(' ').next()?.parse::<usize>().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::ktap::Counts;

    const GOOD: &str = "   Compiling vm v0.1.0\n     Running unittests src/lib.rs (build/target/debug/deps/vm-0a1b)\n\nrunning 3 tests\ntest a::b ... ok\ntest a::c ... ignored, slow\ntest d - should panic ... ok\n\ntest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n   Doc-tests vm\n\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";

    fn counts(passed: usize, failed: usize, skipped: usize) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
        }
    }

    #[test]
    fn table() {
        let bad = GOOD
            .replace("test a::b ... ok", "test a::b ... FAILED")
            .replace("test result: ok. 2 passed; 0 failed", "failures:\n\n---- a::b stdout ----\nassertion failed\n\nfailures:\n    a::b\n\ntest result: FAILED. 1 passed; 1 failed");
        let cases: &[(&str, &str, bool, Counts)] = &[
            ("good", GOOD, true, counts(2, 0, 1)),
            ("bad", &bad, false, counts(1, 1, 1)),
            (
                "does not compile",
                "error: expected `;`\n",
                false,
                counts(0, 1, 0),
            ),
            ("nothing ran", "", true, counts(0, 1, 0)),
            (
                "aborted",
                GOOD.split("test d").next().unwrap_or(""),
                false,
                counts(1, 1, 1),
            ),
            (
                "a result is missing",
                &GOOD.replace("test a::b ... ok\n", "test a::b ... oops\nok\n"),
                true,
                counts(1, 1, 1),
            ),
            ("bad end without a reason", GOOD, false, counts(2, 1, 1)),
        ];
        for (name, text, success, want) in cases {
            assert_eq!(parse(text, *success).counts(), *want, "{name}");
        }
        let mut log = Vec::new();
        parse(&bad, false)
            .for_each_failure(&mut |path, case| log.push((path.to_owned(), case.log.join("\n"))));
        assert_eq!(
            log,
            [(
                "cargo test/vm/a::b".to_owned(),
                "assertion failed\n".to_owned()
            )]
        );
    }
}
