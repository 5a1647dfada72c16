// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The results as KTAP, a line at a time, so that a guest that dies has said how far it came.

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

    /// A case that passed; `note` says what was seen.
    pub fn pass(&mut self, name: &str, note: &str) {
        self.done += 1;
        say(format_args!("# {note}"));
        say(format_args!("ok {} {name}", self.done));
    }

    /// A case that failed, and why.
    pub fn fail(&mut self, name: &str, reason: &str) {
        self.done += 1;
        self.failed += 1;
        for line in reason.lines() {
            say(format_args!("# {line}"));
        }
        say(format_args!("not ok {} {name}", self.done));
    }

    /// A case that cannot be run here, and why.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.done += 1;
        say(format_args!("ok {} {name} # SKIP {reason}", self.done));
    }

    /// Whether all passed.
    pub fn good(&self) -> bool {
        self.failed == 0
    }
}

/// Writes a line. An error is ignored: there is no other way to report it.
fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Why a case cannot be run here.
#[derive(Debug)]
pub struct Skip(pub &'static str);

impl Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Skip {}
