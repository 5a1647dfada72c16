// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `Documentation/intel-pt-coverage.md`: the features of Intel PT that perf's man page and an LWN article promise, and the cases that prove
//! them for each unit.
//!
//! A line of `coverage/promises.tsv` has a section, a promise, and a proof for `soft_pt` and for `trace_unit`. A proof is one of these:
//! - cases, as the ends of their paths, with `; ` between them;
//! - `cannot: REASON` if software cannot do it;
//! - `open: WHAT` if nothing proves it yet.
//!
//! The results are those of the last run of the tests. The document keeps the results of cases that have not run.
//!
//! The last part of the document lists perf's own tests, with their results, or the reasons why they cannot pass.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::results::ktap::{self, Case, Status};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const PROMISES: &str = include_str!("coverage/promises.tsv");

/// The document, in the checkout.
const DOCUMENT: &str = "Documentation/intel-pt-coverage.md";

const UNITS: [&str; 2] = ["soft_pt", "trace_unit"];

const HEAD: &str = "<!-- SPDX-License-Identifier: GPL-2.0 OR MIT -->

# What perf promises for Intel PT

`make coverage` writes this file from `tools/vm/src/results/coverage/promises.tsv` and the last run of the tests. Do not
edit it. The promises are those of perf's page `perf-intel-pt(1)`, and of the article _Adding Processor Trace support
to Linux_ (Andi Kleen, LWN.net, July 1, 2015). A case is named by the end of its path:
[testing.md](testing.md) says how to run it.

| result | |
|---|---|
| passed | each of the cases passed when it last ran |
| cannot | software cannot, or this machine's |
| open | nothing shows it yet |
";

/// The name of the suite of perf's own tests.
const OTHERS: &str = "perf's own tests";

/// The head of the part about perf's own tests. A row for each test follows.
const HEAD_OF_OTHERS: &str = "
## Others' tests

perf's own shell tests, unmodified, from Debian's package, with each unit under the name `intel_pt`
([exact-traces.md](exact-traces.md#perfs-own-tests)). What has a reason instead of a result cannot pass here.
Two that pass show nothing, as that page says.

| test | soft_pt | trace_unit |
|---|---|---|
";

/// How a promise is proved for a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Proof<'a> {
    By(Vec<&'a str>),
    Cannot(&'a str),
    Open(&'a str),
}

struct Promise<'a> {
    section: &'a str,
    text: &'a str,
    proofs: [Proof<'a>; 2],
}

impl<'a> Proof<'a> {
    fn parse(cell: &'a str) -> Self {
        if let Some(reason) = cell.strip_prefix("cannot: ") {
            return Self::Cannot(reason);
        }
        match cell.strip_prefix("open: ") {
            Some(what) => Self::Open(what),
            None => Self::By(cell.split("; ").collect()),
        }
    }
}

fn promises(text: &str) -> std::result::Result<Vec<Promise<'_>>, String> {
    let promise = |line| -> std::result::Result<Promise<'_>, String> {
        let cells: Vec<_> = str::split(line, '\t').collect();
        match cells.as_slice() {
            &[section, text, soft_pt, trace_unit] => Ok(Promise {
                section,
                text,
                proofs: [soft_pt, trace_unit].map(Proof::parse),
            }),
            _ => Err(format!("`{line}` is no promise")),
        }
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(promise).collect()
}

/// The results of cases, by the ends of their paths.
type Results = BTreeMap<String, Status>;

/// The results of all cases that the promises name. A case that ran on several kernels has passed if it has passed on one and failed on
/// none.
fn results(promises: &[Promise<'_>], run: &[Case]) -> Results {
    let mut results = Results::new();
    for case in run {
        collect(&case.name, case, promises, &mut results);
    }
    results
}

fn collect(path: &str, case: &Case, promises: &[Promise<'_>], results: &mut Results) {
    let proofs = promises.iter().flat_map(|promise| &promise.proofs);
    for proof in proofs {
        let Proof::By(names) = proof else { continue };
        for name in names.iter().filter(|name| is_end(path, name)) {
            let now = case.status;
            let both = |before: &mut Status| {
                *before = match (*before, now) {
                    (Status::Fail, _) | (_, Status::Fail) => Status::Fail,
                    (Status::Pass, _) | (_, Status::Pass) => Status::Pass,
                    (Status::Skip, Status::Skip) => Status::Skip,
                };
            };
            let name = (*name).to_owned();
            results.entry(name).and_modify(both).or_insert(now);
        }
    }
    for child in &case.children {
        collect(&format!("{path}/{}", child.name), child, promises, results);
    }
}

/// Whether a path ends with the parts of `end`.
fn is_end(path: &str, end: &str) -> bool {
    path.strip_suffix(end)
        .is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// How the result in a row lists cases that have not passed, by status. `None`: the case has not run.
const SHORT_OF: [(&str, Option<Status>); 3] = [
    ("failed: ", Some(Status::Fail)),
    ("skipped: ", Some(Status::Skip)),
    ("not run: ", None),
];

/// Parses the results of cases in the document.
fn said(document: &str) -> Results {
    let mut results = Results::new();
    for line in document.lines() {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
        let &[_, _, names, result] = cells.as_slice() else {
            continue;
        };
        let result = result.trim();
        let groups = groups(result);
        if result != "passed" && !groups.iter().all(|group| short(group).is_some()) {
            continue;
        }
        for name in names.split("; ") {
            results.insert(name.trim().to_owned(), Status::Pass);
        }
        for (status, names) in groups.into_iter().filter_map(short) {
            for name in names.split("; ") {
                match status {
                    Some(status) => results.insert(name.to_owned(), status),
                    None => results.remove(name),
                };
            }
        }
    }
    results
}

/// Splits the result in a row into its parts, at commas. The names of cases have commas, too.
fn groups(result: &str) -> Vec<&str> {
    let mut groups = Vec::new();
    let mut rest = result;
    loop {
        let is_next = |at: &usize| rest.get(at + 2..).is_some_and(|next| short(next).is_some());
        let end = rest.match_indices(", ").map(|(at, _)| at).find(is_next);
        let Some((group, next)) =
            end.and_then(|end| Some((rest.get(..end)?, rest.get(end + 2..)?)))
        else {
            groups.push(rest);
            return groups;
        };
        groups.push(group);
        rest = next;
    }
}

/// Parses a part of a result: the status of its cases, and their names.
fn short(group: &str) -> Option<(Option<Status>, &str)> {
    let mut all = SHORT_OF.iter();
    all.find_map(|(word, status)| Some((*status, group.strip_prefix(word)?)))
}

fn result(names: &[&str], results: &Results) -> String {
    let groups = SHORT_OF.iter().filter_map(|(word, status)| {
        let is = |name: &&&str| results.get(**name) == status.as_ref();
        let names: Vec<_> = names.iter().filter(is).copied().collect();
        (!names.is_empty()).then(|| format!("{word}{}", names.join("; ")))
    });
    let groups: Vec<_> = groups.collect();
    match groups.is_empty() {
        true => "passed".to_owned(),
        false => groups.join(", "),
    }
}

fn document(promises: &[Promise<'_>], results: &Results) -> String {
    let mut text = HEAD.to_owned();
    let mut section = "";
    for promise in promises {
        if promise.section != section {
            section = promise.section;
            let _ = write!(
                text,
                "\n## {section}\n\n| promise | unit | shown by | result |\n|---|---|---|---|\n"
            );
        }
        for (unit, proof) in UNITS.iter().zip(&promise.proofs) {
            let (how, result) = match proof {
                Proof::By(names) => (names.join("; "), result(names, results)),
                Proof::Cannot(reason) => ((*reason).to_owned(), "cannot".to_owned()),
                Proof::Open(what) => ((*what).to_owned(), "open".to_owned()),
            };
            let text_of = match *unit == UNITS[0] {
                true => promise.text,
                false => "",
            };
            let _ = writeln!(text, "| {text_of} | {unit} | {how} | {result} |");
        }
    }
    text
}

/// The part about perf's own tests, if they have run. A test that does not run with a unit has a `-`.
fn others(run: &[Case]) -> Option<String> {
    let suite = run.iter().find_map(|case| match case.name == OTHERS {
        true => Some(case),
        false => case
            .children
            .iter()
            .find(|child| child.name == OTHERS && !child.children.is_empty()),
    })?;
    let units: Vec<_> = UNITS
        .iter()
        .map(|unit| suite.children.iter().find(|case| case.name == *unit))
        .collect();
    let mut names: Vec<&str> = Vec::new();
    for test in units.iter().flatten().flat_map(|unit| &unit.children) {
        if !names.contains(&test.name.as_str()) {
            names.push(&test.name);
        }
    }
    let mut text = HEAD_OF_OTHERS.to_owned();
    for name in names {
        let _ = write!(text, "| {name} ");
        for unit in &units {
            let test = unit.and_then(|unit| unit.children.iter().find(|test| test.name == name));
            let result = match test.map(|test| (test.status, test.reason.as_str())) {
                Some((Status::Pass, _)) => "passed",
                Some((Status::Skip, reason)) => reason,
                Some((Status::Fail, _)) => FAILED,
                None => "-",
            };
            let _ = write!(text, "| {result} ");
        }
        text.push_str("|\n");
    }
    Some(text)
}

/// The result of a failed test in a row.
const FAILED: &str = "**failed**";

/// The part of a document about perf's own tests.
fn said_of_others(document: &str) -> &str {
    let at = document.find(HEAD_OF_OTHERS).unwrap_or(document.len());
    document.get(at..).unwrap_or_default()
}

/// Writes the document.
///
/// # Errors
///
/// When no tests have run, a file cannot be read or written, or a line is not a promise.
pub fn write(cache: &Cache) -> Result<PathBuf> {
    let promises = promises(PROMISES).map_err(Error::Other)?;
    let run = cache.build().join("test/all.ktap");
    let run = fs::read_to_string(&run).on("read", &run)?;
    let place = cache.checkout().join(DOCUMENT);
    let before = fs::read_to_string(&place).unwrap_or_default();
    let run = ktap::parse(&run);
    let mut known = said(&before);
    known.extend(results(&promises, &run));
    let others = others(&run).unwrap_or_else(|| said_of_others(&before).to_owned());
    fs::write(&place, document(&promises, &known) + &others).on("write", &place)?;
    Ok(place)
}

/// Checks that the document has each promise, and that each case in it has passed.
#[must_use]
pub fn check(checkout: &Path) -> Case {
    const NAME: &str = "coverage of Intel PT";

    let text = match fs::read_to_string(checkout.join(DOCUMENT)) {
        Ok(text) => text,
        Err(error) => return Case::fail(NAME, &format!("cannot read {DOCUMENT}: {error}")),
    };
    let promises = match promises(PROMISES) {
        Ok(promises) => promises,
        Err(error) => return Case::fail(NAME, &error),
    };
    let results = said(&text);
    let others = said_of_others(&text);
    if document(&promises, &results) + others != text {
        return Case::fail(NAME, "it is not what `make coverage` writes");
    }
    if others.is_empty() || others.contains(FAILED) {
        return Case::fail(NAME, "a test that others wrote fails, or none has run");
    }
    match results.iter().find(|(_, status)| **status != Status::Pass) {
        Some((name, status)) => Case::fail(NAME, &format!("{name}: {status:?}")),
        None if text.contains("| not run: ") => Case::fail(NAME, "a case has not run"),
        None => Case::pass(NAME),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "One\t`a`\tsuite/case 1; other\tcannot: no\nTwo\t`b`\topen: nothing\tcase 1\n\
                        Two\t`c`\talone; a case, with a comma\tcase 1\n";

    fn run(first: Case, other: Case) -> Vec<Case> {
        vec![Case::suite(
            "all",
            vec![
                Case::suite("suite", vec![first]),
                other,
                Case::pass("alone"),
            ],
        )]
    }

    #[test]
    fn the_document_has_the_results() {
        let promises = promises(TEXT).unwrap();
        let table = [
            (
                Case::pass("case 1"),
                Case::pass("other"),
                "passed",
                "passed",
            ),
            (
                Case::pass("case 1"),
                Case::skip("other", ""),
                "skipped: other",
                "passed",
            ),
            (
                Case::fail("case 1", ""),
                Case::pass("another"),
                "failed: suite/case 1, not run: other",
                "failed: case 1",
            ),
        ];
        for (first, other, one, two) in table {
            let results = results(&promises, &run(first, other));
            let text = document(&promises, &results);
            let rows = [
                format!("| `a` | soft_pt | suite/case 1; other | {one} |"),
                "|  | trace_unit | no | cannot |".to_owned(),
                "| `b` | soft_pt | nothing | open |".to_owned(),
                format!("|  | trace_unit | case 1 | {two} |"),
            ];
            for row in rows {
                assert!(text.contains(&row), "{row}\n{text}");
            }
        }
    }

    #[test]
    fn the_tests_of_others_have_reasons() {
        let unit = |name: &str, cases| Case::suite(name, cases);
        let suite = |one, other| {
            let units = vec![unit("soft_pt", one), unit("trace_unit", other)];
            vec![Case::suite("exact", vec![Case::suite(OTHERS, units)])]
        };
        let run = suite(
            vec![Case::pass("a.sh"), Case::skip("b.sh", "no BPF")],
            vec![Case::fail("a.sh", "status 1")],
        );
        let text = others(&run).unwrap();
        let rows = text.strip_prefix(HEAD_OF_OTHERS).unwrap();
        assert_eq!(
            rows,
            "| a.sh | passed | **failed** |\n| b.sh | no BPF | - |\n"
        );
        assert_eq!(others(&[Case::pass("exact")]), None);
        assert_eq!(said_of_others(&format!("| x | y |\n{text}")), text);
        assert!(said(&text).is_empty());
    }

    #[test]
    fn what_did_not_run_is_kept() {
        let promises = promises(TEXT).unwrap();
        let table = [
            (Case::pass("case 1"), Case::pass("other")),
            (Case::pass("case 1"), Case::skip("other", "")),
            (Case::fail("case 1", ""), Case::pass("another")),
            (Case::pass("case"), Case::pass("another")),
        ];
        for (first, other) in table {
            let results = results(&promises, &run(first, other));
            let text = document(&promises, &results);
            assert_eq!(said(&text), results, "{text}");
        }
    }

    #[test]
    fn a_line_that_is_no_promise_is_found() {
        for line in ["One\ttwo\tthree", "", "a\tb\tc\td\te"] {
            assert!(promises(&format!("{line}\n")).is_err(), "{line}");
        }
    }
}
