// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the tests: a line of the tree is changed to a wrong one, and then a case of the suite that tests it must fail.
//!
//! `mutants.txt` lists these mutants. Each is built and run in a copy of the checkout, below `build/mutants`. These suites need no mutants:
//! - `litmus` (which leaves out each barrier), `break`, `conform`, and the code that must not compile: they have defects of their own.
//! - `selftests`, which runs tests of the kernel, and `aarch64`, which compares two builds of one source.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::kernel::Kind;
use crate::results::ktap::{self, Case, Counts};
use crate::step::{Log, Progress};
use crate::suites::{self, Plan, Suite};
use std::fs;
use std::path::Path;
use std::process::Command;

const TABLE: &str = include_str!("mutants.txt");

/// A line of the tree, and the wrong line that replaces it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mutant<'a> {
    /// A description of the defect.
    name: &'a str,
    suite: &'a str,
    kernel: Option<&'a str>,
    /// The cases that are run. Empty: all.
    cases: Vec<&'a str>,
    file: &'a str,
    right: &'a str,
    wrong: &'a str,
    /// A text in the path or reason of a case that must fail.
    finds: &'a str,
    /// A text that must not be in the path or reason of a failed case, if other cases have to pass.
    spares: Option<&'a str>,
}

impl<'a> Mutant<'a> {
    /// Parses a paragraph of the table.
    fn parse(text: &'a str) -> Option<Self> {
        let mut lines = text.lines();
        let mut mutant = Self {
            name: lines.next()?.strip_prefix("# ")?,
            ..Self::default()
        };
        for line in lines {
            let (key, value) = line.split_once(": ")?;
            match key {
                "suite" => mutant.suite = value,
                "kernel" => mutant.kernel = Some(value),
                "cases" => mutant.cases = value.split('|').collect(),
                "file" => mutant.file = value,
                "right" => mutant.right = value,
                "wrong" => mutant.wrong = value,
                "finds" => mutant.finds = value,
                "spares" => mutant.spares = Some(value),
                _ => return None,
            }
        }
        let all = [
            mutant.suite,
            mutant.file,
            mutant.right,
            mutant.wrong,
            mutant.finds,
        ];
        all.iter().all(|part| !part.is_empty()).then_some(mutant)
    }

    /// The text with the wrong line. [`None`] if the right line is not there exactly once.
    fn apply(&self, text: &str) -> Option<String> {
        let (before, after) = text.split_once(self.right)?;

        (!after.contains(self.right)).then(|| [before, self.wrong, after].concat())
    }

    fn plan(&self) -> Result<Plan> {
        let other = |what: String| Error::Other(format!("mutant \"{}\": {what}", self.name));
        let suite: Suite = self.suite.parse().map_err(other)?;
        let kinds = match self.kernel {
            Some(kernel) => vec![kernel.parse::<Kind>().map_err(other)?],
            None => vec![Kind::Lean, Kind::Stock],
        };
        Ok(Plan {
            suites: vec![suite],
            kernels: kinds,
            cases: self.cases.iter().copied().map(str::to_owned).collect(),
        })
    }

    /// Runs the suite on the mutant. The returned case passes if the suite has found the mutant.
    fn run(&self, cache: &Cache, copy: &Cache) -> Result<Case> {
        renew(cache, copy)?;
        let path = copy.checkout().join(self.file);
        let text = fs::read_to_string(&path).on("read", &path)?;
        let Some(text) = self.apply(&text) else {
            return Ok(Case::fail(
                self.name,
                &format!("{} does not have the line once", self.file),
            ));
        };
        fs::write(&path, text).on("write", &path)?;
        suites::run(copy, &self.plan()?)?;
        let results = copy.build().join("test/all.ktap");
        let results = fs::read_to_string(&results).on("read", &results)?;
        let mut failed = Vec::new();
        for case in ktap::parse(&results) {
            case.for_each_failure(&mut |path, case| {
                failed.push(format!("{path}: {}", case.reason));
            });
        }
        // A suite that could not start has not found the mutant.
        let has = |text: &str| failed.iter().any(|path| path.contains(text));
        let found = has(self.finds) && !has("/start: ") && !self.spares.is_some_and(has);
        let case = match found {
            true => Case::pass(self.name),
            false => Case::fail(
                self.name,
                &format!("{} cases fail, none is \"{}\"", failed.len(), self.finds),
            ),
        };
        Ok(case.with_log(failed))
    }
}

/// Makes the copy equal to the checkout, except for its folder `build`.
fn renew(cache: &Cache, copy: &Cache) -> Result<()> {
    let log = Log::create(&cache.build().join("mutants/copy.log"))?;
    let from = format!("{}/", cache.checkout().display());
    let mut rsync = Command::new("rsync");

    // Without file times: a restored file must be newer than the objects that were built from its mutant.
    rsync.args(["-rlp", "--delete", "--checksum", "--exclude=/build"]);
    log.run("copying the checkout", rsync.arg(from).arg(copy.checkout()))
}

/// Parses the table of mutants. The text before the first one is an introduction for readers.
fn table(text: &str) -> Result<Vec<Mutant<'_>>> {
    let parse = |text| {
        Mutant::parse(text)
            .ok_or_else(|| Error::Other(format!("mutants.txt: this is no mutant: {text}")))
    };
    let paragraphs = text.trim_end().split("\n\n");
    paragraphs
        .skip_while(|text| !text.starts_with("# "))
        .map(parse)
        .collect()
}

/// Runs the mutants whose names contain one of `names`, or all. Writes `build/test/all.ktap`.
///
/// # Errors
///
/// When a copy cannot be made, or a result cannot be written or read.
pub fn run(cache: &Cache, names: &[String]) -> Result<Counts> {
    let place = cache.build().join("mutants/tree");
    fs::create_dir_all(&place).on("make", &place)?;
    let copy = cache.elsewhere(&place);
    // cargo must build in the copy, too.
    std::env::set_var("CARGO_TARGET_DIR", copy.build().join("target"));
    let mut cases = Vec::new();
    for mutant in table(TABLE)? {
        let wanted = |name: &String| mutant.name.contains(name.as_str());
        if !names.is_empty() && !names.iter().any(wanted) {
            continue;
        }
        let progress = Progress::begin(&format!("mutant: {}", mutant.name));
        let case = mutant
            .run(cache, &copy)
            .unwrap_or_else(|error| Case::fail(mutant.name, &error.to_string()));
        progress.end(match case.counts().good() {
            true => "found",
            false => "NOT FOUND",
        });
        cases.push(case);
    }
    let suite = Case::suite("mutants", cases);
    let path = cache.build().join("test/all.ktap");
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).on("make", dir)?;
    }
    fs::write(&path, ktap::write(std::slice::from_ref(&suite))).on("write", &path)?;
    Ok(suite.counts())
}

/// Checks that the right line of each mutant is exactly once in its file.
#[must_use]
pub fn check(checkout: &Path) -> Case {
    const NAME: &str = "mutants";

    let mutants = match table(TABLE) {
        Ok(mutants) => mutants,
        Err(error) => return Case::fail(NAME, &error.to_string()),
    };
    for mutant in mutants {
        let text = fs::read_to_string(checkout.join(mutant.file)).unwrap_or_default();
        if mutant.apply(&text).is_none() || mutant.plan().is_err() {
            let why = format!(
                "\"{}\": {} does not have `{}` once, or there is no such suite or kernel",
                mutant.name, mutant.file, mutant.right
            );
            return Case::fail(NAME, &why);
        }
    }
    Case::pass(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "Some words.\n\n# a sum\nsuite: kunit\nkernel: lean\ncases: one|two\nfile: a.rs\nright: a + b\nwrong: a - b\nfinds: sums";

    #[test]
    fn a_mutant_is_a_paragraph() {
        let [mutant] = &table(ONE).unwrap()[..] else {
            panic!("not one");
        };

        assert_eq!((mutant.name, mutant.cases.len()), ("a sum", 2));
        assert_eq!(mutant.plan().unwrap().kernels, [Kind::Lean]);
        assert_eq!(mutant.apply("x = a + b;").unwrap(), "x = a - b;");
        for text in ["x = a * b;", "x = a + b + (a + b);"] {
            assert_eq!(mutant.apply(text), None, "{text}");
        }
        for bad in [
            ONE.replace("suite: kunit\n", ""),
            ONE.replace("finds: ", "finds "),
            format!("{ONE}\n\nmore: words"),
        ] {
            assert!(table(&bad).is_err(), "{bad}");
        }
        for bad in [
            ONE.replace(": kunit", ": nothing"),
            ONE.replace(": lean", ": thick"),
        ] {
            assert!(table(&bad).unwrap()[0].plan().is_err(), "{bad}");
        }
    }
}
