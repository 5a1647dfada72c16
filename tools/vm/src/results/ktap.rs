// SPDX-License-Identifier: GPL-2.0 OR MIT

//! KTAP, the format in which every suite reports its results: a tree of cases, a parser, a writer.
//!
//! The kernel's own `kunit.py parse` reads one document and stops. It silently ignores what modules report later. This parser reads a whole
//! stream, and turns each format error into a failing case.
//! Reference: <https://docs.kernel.org/dev-tools/ktap.html>

use std::fmt::Write as _;

/// The result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It ran and succeeded.
    Pass,
    /// It ran and failed, or it did not run to its end.
    Fail,
    /// It did not run, for a reason.
    Skip,
}

/// One result, with the cases below it if it is a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name within its suite.
    pub name: String,
    /// The status in the result line. [`Case::counts`] takes the cases below it into account, too.
    pub status: Status,
    /// Why it was skipped or failed, in a few words; may be empty.
    pub reason: String,
    /// Its output, line by line.
    pub log: Vec<String>,
    /// The cases of a suite; empty for a single case.
    pub children: Vec<Case>,
}

/// How many single cases passed, failed and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases that were skipped.
    pub skipped: usize,
}

impl Counts {
    /// The sum line that ends a test run.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut line = format!("{} passed, {} failed", self.passed, self.failed);
        if self.skipped > 0 {
            line += &format!(", {} skipped", self.skipped);
        }
        line
    }

    /// Whether the run as a whole is good: something ran, and nothing failed.
    #[must_use]
    pub fn good(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl Case {
    /// A single case that passed.
    #[must_use]
    pub fn pass(name: &str) -> Self {
        Self::new(name, Status::Pass, "")
    }

    /// A single case that failed, and why.
    #[must_use]
    pub fn fail(name: &str, reason: &str) -> Self {
        Self::new(name, Status::Fail, reason)
    }

    /// A single case that did not run, and why.
    #[must_use]
    pub fn skip(name: &str, reason: &str) -> Self {
        Self::new(name, Status::Skip, reason)
    }

    /// A single case that passed, with a note, or failed, and why.
    #[must_use]
    pub fn judged(name: &str, verdict: Result<String, String>) -> Self {
        match verdict {
            Ok(note) => Self::pass(name).with_log(vec![note]),
            Err(why) => Self::fail(name, &why),
        }
    }

    /// A suite. A suite without any case is a failure: it was meant to run, and ran nothing.
    #[must_use]
    pub fn suite(name: &str, mut children: Vec<Case>) -> Self {
        if children.is_empty() {
            children.push(Case::fail("plan", "no case ran"));
        }
        let failed = children.iter().any(|c| c.counts().failed > 0);
        let all_skipped = children.iter().all(|c| c.status == Status::Skip);
        let status = match (failed, all_skipped) {
            (true, _) => Status::Fail,
            (false, true) => Status::Skip,
            (false, false) => Status::Pass,
        };
        Self {
            children,
            ..Self::new(name, status, "")
        }
    }

    /// The same case with this log.
    #[must_use]
    pub fn with_log(mut self, log: Vec<String>) -> Self {
        self.log = log;
        self
    }

    fn new(name: &str, status: Status, reason: &str) -> Self {
        // A line break would end the result line, and the rest would be another line of KTAP.
        let one_line = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
        Self {
            name: one_line(name),
            status,
            reason: one_line(reason),
            log: Vec::new(),
            children: Vec::new(),
        }
    }

    /// Counts the single cases. A suite that is "not ok" although none of its cases failed counts as one failure.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        if self.children.is_empty() {
            match self.status {
                Status::Pass => counts.passed = 1,
                Status::Fail => counts.failed = 1,
                Status::Skip => counts.skipped = 1,
            }
            return counts;
        }
        for child in &self.children {
            let c = child.counts();
            counts.passed += c.passed;
            counts.failed += c.failed;
            counts.skipped += c.skipped;
        }
        if self.status == Status::Fail && counts.failed == 0 {
            counts.failed = 1;
        }
        counts
    }

    /// Calls `f` for each case that counts as failed, with the path of names and the case.
    pub fn for_each_failure(&self, f: &mut impl FnMut(&str, &Case)) {
        self.walk_failures("", f);
    }

    fn walk_failures(&self, above: &str, f: &mut impl FnMut(&str, &Case)) {
        let path = if above.is_empty() {
            self.name.clone()
        } else {
            format!("{above}/{}", self.name)
        };
        let below: usize = self.children.iter().map(|c| c.counts().failed).sum();
        if self.status == Status::Fail && below == 0 {
            f(&path, self);
        }
        for child in &self.children {
            child.walk_failures(&path, f);
        }
    }
}

/// Writes cases as one KTAP document with a plan.
#[must_use]
pub fn write(cases: &[Case]) -> String {
    let mut out = String::new();
    write_level(&mut out, cases, 0);
    out
}

fn write_level(out: &mut String, cases: &[Case], depth: usize) {
    let pad = "  ".repeat(depth);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{pad}KTAP version 1\n{pad}1..{}", cases.len());
    for (case, number) in cases.iter().zip(1..) {
        // An entry of several lines may itself have lines of KTAP.
        for line in case.log.iter().flat_map(|entry| entry.lines()) {
            let _ = writeln!(out, "{pad}# {line}");
        }
        if !case.children.is_empty() {
            let _ = writeln!(out, "{pad}  # Subtest: {}", case.name);
            write_level(out, &case.children, depth + 1);
        }
        let ok = if case.status == Status::Fail {
            "not ok"
        } else {
            "ok"
        };
        let _ = write!(
            out,
            "{pad}{ok} {number} - {}",
            case.name.replace('\\', "\\\\").replace('#', "\\#")
        );
        let reason = case.reason.replace('\n', " ");
        let _ = match (case.status, reason.is_empty()) {
            (Status::Skip, _) => writeln!(out, " # SKIP {reason}"),
            (Status::Fail, false) => writeln!(out, " # FAIL {reason}"),
            _ => writeln!(out),
        };
    }
}

/// One level of the tree while it is being read.
#[derive(Default)]
struct Level {
    /// The name from a "# Subtest:" line.
    name: String,
    plan: Option<usize>,
    cases: Vec<Case>,
    log: Vec<String>,
    /// The format errors of this level.
    faults: Vec<String>,
}

impl Level {
    /// The cases, with a failing one for each format error, and the log.
    fn finish(mut self) -> (Vec<Case>, Vec<String>) {
        match self.plan {
            None => self.faults.push("no plan (1..N)".to_owned()),
            Some(0) => self
                .faults
                .push("the plan is empty: no case ran".to_owned()),
            Some(n) if n != self.cases.len() => {
                self.faults
                    .push(format!("{n} cases planned, {} reported", self.cases.len()));
            }
            Some(_) => {}
        }
        for fault in &self.faults {
            self.cases.push(Case::fail("plan", fault));
        }
        (self.cases, self.log)
    }

    fn is_blank(&self) -> bool {
        self.plan.is_none() && self.cases.is_empty() && self.faults.is_empty()
    }
}

/// Parses a whole stream, which may contain several documents, one after the other, and text that is not KTAP. If cases were planned but
/// not reported, or if there is no plan, the result has a failing case.
#[must_use]
pub fn parse(text: &str) -> Vec<Case> {
    let mut done = Vec::new();
    // The indentation and content of each open level, outermost first.
    let mut open: Vec<(usize, Level)> = Vec::new();
    let mut subtest = String::new();
    for raw in text.lines() {
        let line = raw.trim_end_matches('\r');
        let body = line.trim_start_matches(' ');
        let indent = line.len() - body.len();
        let Some(token) = Token::of(body) else {
            if let Some(name) = body.strip_prefix("# Subtest: ") {
                // KUnit has this line within the suite, others before it.
                match open.last_mut() {
                    Some((at, level)) if *at == indent && level.is_blank() => {
                        name.clone_into(&mut level.name);
                    }
                    _ => name.clone_into(&mut subtest),
                }
                continue;
            }
            if let (Some((_, level)), false) = (open.last_mut(), body.is_empty()) {
                level
                    .log
                    .push(body.strip_prefix("# ").unwrap_or(body).to_owned());
            }
            continue;
        };
        match token {
            Token::Version => {
                let nested = open.last().is_some_and(|(at, _)| indent > *at);
                let repeated = open
                    .last()
                    .is_some_and(|(at, level)| indent == *at && level.is_blank());
                if !nested && !repeated {
                    if indent == 0 {
                        done.extend(close_all(&mut open));
                    } else {
                        close_to(&mut open, indent);
                    }
                }
                if !repeated {
                    let name = std::mem::take(&mut subtest);
                    open.push((
                        indent,
                        Level {
                            name,
                            ..Level::default()
                        },
                    ));
                }
            }
            Token::Plan(n) => {
                ensure(&mut open, indent);
                if let Some((_, level)) = open.last_mut() {
                    if level.plan.replace(n).is_some() {
                        level.faults.push("two plans".to_owned());
                    }
                }
            }
            Token::Result {
                status,
                number,
                name,
                reason,
            } => {
                let mut below = Vec::new();
                let mut log = Vec::new();
                // Levels that are open and deeper belong to this result.
                while open.last().is_some_and(|(at, _)| *at > indent) {
                    if let Some((_, level)) = open.pop() {
                        let (cases, said) = level.finish();
                        if below.is_empty() {
                            below = cases;
                        } else {
                            below.extend(cases);
                        }
                        log.extend(said);
                    }
                }
                ensure(&mut open, indent);
                let Some((_, level)) = open.last_mut() else {
                    continue;
                };
                let expected = level.cases.len() + 1;
                if number.is_some_and(|n| n != expected) {
                    level.faults.push(format!(
                        "result \"{name}\" has number {}, not {expected}",
                        number.unwrap_or(0)
                    ));
                }
                let mut said = std::mem::take(&mut level.log);
                said.extend(log);
                let case = Case {
                    children: below,
                    log: said,
                    ..Case::new(&name, status, &reason)
                };
                level.cases.push(case);
            }
            Token::BailOut(why) => {
                if open.is_empty() {
                    open.push((0, Level::default()));
                }
                if let Some((_, level)) = open.last_mut() {
                    level.faults.push(format!("bail out: {why}"));
                }
            }
        }
    }
    done.extend(close_all(&mut open));
    if done.is_empty() {
        done.push(Case::fail(
            "plan",
            "no KTAP at all: nothing reported a result",
        ));
    }
    done
}

/// Opens a level at `indent` if none is open there, so that a document without a version line is still parsed.
fn ensure(open: &mut Vec<(usize, Level)>, indent: usize) {
    close_to(open, indent);
    if open.last().is_none_or(|(at, _)| *at < indent) {
        open.push((indent, Level::default()));
    }
}

/// Closes the levels deeper than `indent` that no result line has closed, as their suites were cut off.
fn close_to(open: &mut Vec<(usize, Level)>, indent: usize) {
    while open.len() > 1 && open.last().is_some_and(|(at, _)| *at > indent) {
        let Some((_, level)) = open.pop() else { return };
        let name = if level.name.is_empty() {
            "unnamed suite".to_owned()
        } else {
            level.name.clone()
        };
        let (children, log) = level.finish();
        if let Some((_, parent)) = open.last_mut() {
            let cut = Case::new(&name, Status::Fail, "it has no result line: it was cut off");
            parent.cases.push(Case {
                log,
                children,
                ..cut
            });
        }
    }
}

fn close_all(open: &mut Vec<(usize, Level)>) -> Vec<Case> {
    close_to(open, 0);
    let mut cases = Vec::new();
    while let Some((_, level)) = open.pop() {
        cases.extend(level.finish().0);
    }
    cases
}

enum Token {
    Version,
    Plan(usize),
    Result {
        status: Status,
        number: Option<usize>,
        name: String,
        reason: String,
    },
    BailOut(String),
}

impl Token {
    fn of(body: &str) -> Option<Self> {
        if let Some(version) = body
            .strip_prefix("KTAP version ")
            .or_else(|| body.strip_prefix("TAP version "))
        {
            return version.trim().parse::<u32>().ok().map(|_| Self::Version);
        }
        if let Some(rest) = body.strip_prefix("1..") {
            let count = rest.split([' ', '#']).next().unwrap_or(rest);
            return count.parse().ok().map(Self::Plan);
        }
        if let Some(why) = body.strip_prefix("Bail out!") {
            return Some(Self::BailOut(why.trim().to_owned()));
        }
        let (ok, rest) = match body.strip_prefix("not ok") {
            Some(rest) => (false, rest),
            None => (true, body.strip_prefix("ok")?),
        };
        if !rest.is_empty() && !rest.starts_with(' ') {
            return None;
        }
        let rest = rest.trim();
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = rest.split_at(digits);
        let rest = rest.trim_start();
        let rest = rest
            .strip_prefix("- ")
            .unwrap_or(if rest == "-" { "" } else { rest });
        let (name, directive) = split_directive(rest);
        let (word, reason) = directive
            .split_once(' ')
            .unwrap_or((directive.as_str(), ""));
        // XFAIL and TODO: known not to work, so neither a success nor a failure.
        let skips = ["SKIP", "TODO", "XFAIL"]
            .iter()
            .any(|d| word.eq_ignore_ascii_case(d));
        let status = match (ok, skips) {
            (_, true) => Status::Skip,
            (true, false) if ["FAIL", "TIMEOUT", "ERROR"].contains(&word) => Status::Fail,
            (true, false) => Status::Pass,
            (false, false) => Status::Fail,
        };
        let reason = if skips || word == "FAIL" {
            reason
        } else {
            &directive
        };
        Some(Self::Result {
            status,
            number: number.parse().ok(),
            name,
            reason: reason.trim().to_owned(),
        })
    }
}

/// Splits `name # DIRECTIVE reason`, and undoes the escapes of the name.
fn split_directive(text: &str) -> (String, String) {
    let mut name = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => name.extend(chars.next()),
            '#' => return (name.trim_end().to_owned(), chars.as_str().trim().to_owned()),
            other => name.push(other),
        }
    }
    (name.trim_end().to_owned(), String::new())
}

#[cfg(test)]
mod tests;
