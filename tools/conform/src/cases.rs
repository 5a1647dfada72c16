// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requirements that a PMU must meet, with a file for each subject.

use std::fmt;

use anyhow::Result;

use crate::pmu::{Place, Pmu};
use crate::skip::skip;

mod control;
mod end;
mod full;
mod groups;
mod hostile;
mod map;
mod open;
mod output;
mod overwrite;
mod pause;
mod programs;
mod records;
mod samples;
mod tasks;
mod user;
mod watermark;

/// A requirement.
pub struct Case {
    /// Its name.
    pub name: String,
    /// The rule of the kernel that requires it.
    pub rule: Rule,
    /// Tests it, and returns what was seen.
    pub run: Run,
}

/// Tests a requirement.
pub type Run = Box<dyn Fn(&Pmu) -> Result<String>>;

/// A line of `kernel/events` in Linux 7.3.4: a rule that it implements, or that it relies on a driver to keep.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The file.
    pub file: &'static str,
    /// The number of the line.
    pub line: u32,
    /// A part of the line.
    pub text: &'static str,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "kernel/events/{}:{}: {}",
            self.file, self.line, self.text
        )
    }
}

/// A rule of `core.c`.
const fn core(line: u32, text: &'static str) -> Rule {
    let file = "core.c";
    Rule { file, line, text }
}

/// A rule of `ring_buffer.c`.
const fn ring(line: u32, text: &'static str) -> Rule {
    let file = "ring_buffer.c";
    Rule { file, line, text }
}

/// Makes a case.
fn case(
    name: impl Into<String>,
    rule: Rule,
    run: impl Fn(&Pmu) -> Result<String> + 'static,
) -> Case {
    Case {
        name: name.into(),
        rule,
        run: Box::new(run),
    }
}

/// Makes a case for a CPU and one for a thread.
fn at_both(name: &str, rule: Rule, run: fn(&Pmu, Place) -> Result<String>) -> [Case; 2] {
    [
        case(format!("{name}, CPU"), rule, move |pmu| {
            run(pmu, pmu.cpu()?)
        }),
        case(format!("{name}, thread"), rule, move |pmu| {
            run(pmu, pmu.task()?)
        }),
    ]
}

/// All cases.
pub fn all() -> Vec<Case> {
    [
        open::cases(),
        map::cases(),
        records::cases(),
        full::cases(),
        watermark::cases(),
        overwrite::cases(),
        pause::cases(),
        samples::cases(),
        tasks::cases(),
        groups::cases(),
        output::cases(),
        control::cases(),
        hostile::cases(),
        user::cases(),
        programs::cases(),
        end::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Skips the case if the kernel is older than this version.
fn since(major: u32, minor: u32, what: &str) -> Result<()> {
    match crate::kernel::version() >= (major, minor) {
        true => Ok(()),
        false => Err(skip(format!("{what} since Linux {major}.{minor}"))),
    }
}

/// Checks that a call has failed with this error.
fn refused<T>(what: &str, result: std::io::Result<T>, error: rustix::io::Errno) -> Result<()> {
    let right = error.raw_os_error();
    match result {
        Ok(_) => anyhow::bail!("{what} was not refused; {error:?} is right"),
        Err(seen) if seen.raw_os_error() == Some(right) => Ok(()),
        Err(seen) => anyhow::bail!("{what}: {seen}; {error:?} is right"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_case_has_a_name_of_its_own_and_a_rule() {
        let cases = all();
        let names: BTreeSet<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        for case in &cases {
            assert!(
                case.rule.line > 0 && !case.rule.text.is_empty(),
                "{}",
                case.name
            );
        }
        assert!(cases.len() >= 120, "{} cases", cases.len());
    }
}
