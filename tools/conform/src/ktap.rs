// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints the results as KTAP with one level of subtests, a line at a time. So the output of a machine that dies shows how far it came.

use std::fmt::Display;
use std::io::Write;

use crate::cases::Rule;

/// A KTAP document with a plan.
pub struct Report {
    done: usize,
    failed: usize,
}

/// A subtest of a document.
pub struct Sub<'a> {
    of: &'a mut Report,
    name: String,
    done: usize,
    failed: usize,
    passed: usize,
}

impl Report {
    /// Begins a document with this number of subtests.
    pub fn begin(count: usize) -> Self {
        say("KTAP version 1");
        say(format_args!("1..{count}"));
        Self { done: 0, failed: 0 }
    }

    /// Prints a document without subtests, and why there are none.
    pub fn skip(reason: &str) {
        say("KTAP version 1");
        say(format_args!("1..0 # SKIP {reason}"));
    }

    /// Begins a subtest with this number of cases.
    pub fn sub(&mut self, name: &str, cases: usize) -> Sub<'_> {
        say("    KTAP version 1");
        say(format_args!("    # Subtest: {name}"));
        say(format_args!("    1..{cases}"));
        Sub {
            of: self,
            name: name.to_owned(),
            done: 0,
            failed: 0,
            passed: 0,
        }
    }

    /// Whether nothing failed.
    pub fn is_good(&self) -> bool {
        self.failed == 0
    }
}

impl Sub<'_> {
    /// Prints lines that are no result.
    pub fn note(&self, text: &str) {
        for line in text.lines() {
            say(format_args!("    # {line}"));
        }
    }

    /// Prints that a case has passed. `note` says what was seen.
    pub fn pass(&mut self, name: &str, note: &str) {
        self.done += 1;
        self.passed += 1;
        self.note(note);
        say(format_args!("    ok {} {name}", self.done));
    }

    /// Prints that a case has failed, why, and which rule the driver breaks.
    pub fn fail(&mut self, name: &str, rule: &Rule, reason: &str) {
        self.done += 1;
        self.failed += 1;
        self.note(reason);
        self.note(&format!("rule: {rule}"));
        say(format_args!("    not ok {} {name}", self.done));
    }

    /// Prints that a case does not apply to this PMU, and why.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.done += 1;
        say(format_args!("    ok {} {name} # SKIP {reason}", self.done));
    }

    /// Ends the subtest.
    pub fn end(self) {
        let skipped = self.done - self.passed - self.failed;
        self.note(&format!(
            "{} passed, {} failed, {skipped} skipped",
            self.passed, self.failed
        ));
        self.of.done += 1;
        let word = match self.failed {
            0 => "ok",
            _ => {
                self.of.failed += 1;
                "not ok"
            }
        };
        say(format_args!("{word} {} {}", self.of.done, self.name));
    }
}

/// Writes a line. A closed output is no error: the cases continue.
fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
