// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reports the results as KTAP, line by line: if the guest dies, the report shows how far it got.

use std::fmt::{self, Display};
use std::io::Write;

/// A KTAP document with a plan.
pub struct Report {
    done: usize,
    failed: usize,
}

impl Report {
    /// Begins a document of `cases` cases.
    pub fn begin(cases: usize) -> Self {
        say("KTAP version 1");
        say(format_args!("1..{cases}"));
        Self { done: 0, failed: 0 }
    }

    /// Reports a case that passed; `note` describes the result.
    pub fn pass(&mut self, name: &str, note: &str) {
        self.done += 1;
        say(format_args!("# {note}"));
        say(format_args!("ok {} {name}", self.done));
    }

    /// Reports a case that failed, and why.
    pub fn fail(&mut self, name: &str, reason: &str) {
        self.done += 1;
        self.failed += 1;
        for line in reason.lines() {
            say(format_args!("# {line}"));
        }
        say(format_args!("not ok {} {name}", self.done));
    }

    /// Reports a case that cannot run here, and why.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.done += 1;
        say(format_args!("ok {} {name} # SKIP {reason}", self.done));
    }

    /// Whether no case has failed.
    pub fn good(&self) -> bool {
        self.failed == 0
    }
}

/// Writes a line. Ignores an error: there is no other way to report it.
fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Why a case cannot run here. As an error, it makes the runner report SKIP.
#[derive(Debug)]
pub struct Skip(pub &'static str);

impl Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Skip {}
