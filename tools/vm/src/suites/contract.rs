// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that every case exists that the contract table, `Documentation/contract.md`, names.
//!
//! A row of the table is `| number | rule | how it is held | cases |`. The last column names cases, in one of these forms:
//!
//! - `compile-fail/NAME`: a file of `rust/compile-fail`;
//! - `SUITE.CASE`: a KUnit case;
//! - `PATH.rs::TEST`: a test that cargo runs;
//! - `litmus/NAME`: a file of `Documentation/litmus`;
//! - "NAME": a case of `auxe2e`.
//!
//! All but the last form are in backticks. A row without a case has `driver's word` or `recorder` in its third column.

use crate::results::ktap::Case;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The table, in the checkout.
const TABLE: &str = "Documentation/contract.md";

/// The headings of the tables, and how many rows each has.
const TABLES: [(&str, usize); 2] = [("## Rules", 37), ("## Pitfalls", 26)];

/// The texts of which a row without a case must have one.
const WITHOUT: [&str; 2] = ["driver's word", "recorder"];

/// Looks for each case that the table names in `files`, paths relative to `checkout`.
#[must_use]
pub fn check(checkout: &Path, files: &[PathBuf]) -> Case {
    const NAME: &str = "contract table";

    let text = match fs::read_to_string(checkout.join(TABLE)) {
        Ok(text) => text,
        Err(e) => return Case::fail(NAME, &format!("cannot read {TABLE}: {e}")),
    };
    let mut known = Known::default();
    for file in files {
        if let Ok(text) = fs::read_to_string(checkout.join(file)) {
            known.add(file, &text);
        }
    }
    let complaints = complaints(&text, &known);
    if complaints.is_empty() {
        return Case::pass(NAME);
    }
    Case::fail(NAME, &format!("{TABLE} has {} errors", complaints.len())).with_log(complaints)
}

/// The cases that exist, as the table names them.
#[derive(Debug, Default)]
struct Known {
    /// Names that stand in backticks.
    code: BTreeSet<String>,
    /// Names that stand in double quotes.
    quoted: BTreeSet<String>,
}

impl Known {
    /// Adds the cases of a file.
    fn add(&mut self, path: &Path, text: &str) {
        let name = path.to_string_lossy();
        let stem = || path.file_stem().unwrap_or_default().to_string_lossy();
        let is_rust = path.extension().is_some_and(|e| e == "rs");

        if path.parent() == Some(Path::new("rust/compile-fail")) && is_rust {
            self.code.insert(format!("compile-fail/{}", stem()));
        } else if path.extension().is_some_and(|e| e == "litmus") {
            self.code.insert(format!("litmus/{}", stem()));
        } else if path.starts_with("tools/e2e/src") && is_rust {
            // A name is a whole string literal in one line, without escapes.
            let literals = text.lines().flat_map(|l| l.split('"').skip(1).step_by(2));
            self.quoted.extend(literals.map(str::to_owned));
        } else if is_rust {
            self.tests(&name, text);
        }
    }

    /// Adds the tests of a Rust file, of KUnit or of cargo.
    fn tests(&mut self, path: &str, text: &str) {
        let mut suite = None;
        let mut marked = false;

        for line in text.lines().map(str::trim) {
            if line.starts_with("//") {
                continue;
            }
            if let Some((_, rest)) = line.split_once("kunit_tests(") {
                suite = rest.split_once(')').map(|(name, _)| name);
            }
            if line.starts_with("#[test]") {
                marked = true;
            }
            let name = line
                .strip_prefix("fn ")
                .and_then(|rest| rest.split_once('('))
                .map(|(name, _)| name);
            if let (true, Some(name)) = (marked, name) {
                marked = false;
                self.code.insert(match suite {
                    Some(suite) => format!("{suite}.{name}"),
                    None => format!("{path}::{name}"),
                });
            }
        }
    }
}

/// The errors of the table.
fn complaints(text: &str, known: &Known) -> Vec<String> {
    let mut complaints = Vec::new();

    for (heading, rows) in TABLES {
        let section: Vec<_> = text
            .lines()
            .skip_while(|l| *l != heading)
            .skip(1)
            .take_while(|l| !l.starts_with("## "))
            .collect();
        let mut seen = BTreeSet::new();

        for cells in section.iter().filter_map(|l| cells(l)) {
            let Some(number) = cells[0].parse::<usize>().ok() else {
                continue;
            };
            let row = format!("{}, row {number}", heading.trim_start_matches(['#', ' ']));

            if !(1..=rows).contains(&number) {
                complaints.push(format!("{row}: there are {rows} rows, by this check"));
            }
            if !seen.insert(number) {
                complaints.push(format!("{row}: it is there twice"));
            }
            let [_, _, held, cases] = cells[..] else {
                complaints.push(format!("{row}: it has {} columns, not 4", cells.len()));
                continue;
            };
            let code = named(cases, '`');
            let quoted = named(cases, '"');

            if code.is_empty() && quoted.is_empty() && !WITHOUT.iter().any(|w| held.contains(w)) {
                complaints.push(format!("{row}: it names no case, and not who holds it"));
            }
            for (names, known) in [(code, &known.code), (quoted, &known.quoted)] {
                complaints.extend(
                    names
                        .iter()
                        .filter(|name| !known.contains(**name))
                        .map(|name| format!("{row}: there is no case {name}")),
                );
            }
        }
        complaints.extend(
            (1..=rows)
                .filter(|number| !seen.contains(number))
                .map(|number| {
                    format!(
                        "{}: row {number} is missing",
                        heading.trim_start_matches(['#', ' '])
                    )
                }),
        );
    }
    complaints
}

/// The cells of a table's line; [`None`] for other lines.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

/// The texts between pairs of `mark`.
fn named(text: &str, mark: char) -> Vec<&str> {
    text.split(mark).skip(1).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table in which every row names `cases`, except row 7 of the rules, which is `seventh`.
    fn table(cases: &str, seventh: &str) -> String {
        let mut text = String::new();

        for (heading, rows) in TABLES {
            text += heading;
            text += "\n\n| | rule | held | cases |\n|---|---|---|---|\n";
            for number in 1..=rows {
                if number == 7 && heading == "## Rules" {
                    text += &format!("{seventh}\n");
                } else {
                    text += &format!("| {number} | rule | by test | {cases} |\n");
                }
            }
        }
        text
    }

    fn known() -> Known {
        let mut known = Known::default();
        let files = [
            ("rust/compile-fail/kept.rs", "//! error: x\n"),
            ("Documentation/litmus/normal.litmus", "C normal\n"),
            ("tools/e2e/src/a.rs", "    attack(\"two, at once\", f),\n"),
            (
                "rust/perf/a.rs",
                "#[kunit_tests(suite_a)]\nmod tests {\n    #[test]\n    fn works() {}\n    fn helps() {}\n}\n#[kunit_tests(suite_b)]\nmod more {\n    #[test]\n    fn works_too() -> Result {}\n}\n// #[kunit_tests(suite_c)]\n",
            ),
            ("rust/auxcore/a.rs", "#[test]\nfn adds() {}\n"),
        ];
        for (path, text) in files {
            known.add(Path::new(path), text);
        }
        known
    }

    #[test]
    fn names_are_looked_up() {
        // A row, and a part of the complaint about it, if there must be one.
        let table_of_rows = [
            ("| 7 | r | type | `compile-fail/kept` |", None),
            (
                "| 7 | r | test | `suite_a.works`, `suite_b.works_too` |",
                None,
            ),
            ("| 7 | r | test | `rust/auxcore/a.rs::adds` |", None),
            ("| 7 | r | test | `litmus/normal` |", None),
            ("| 7 | r | test | \"two, at once\" |", None),
            ("| 7 | r | driver's word | – |", None),
            ("| 7 | r | recorder | – |", None),
            (
                "| 7 | r | type | `compile-fail/lost` |",
                Some("compile-fail/lost"),
            ),
            (
                "| 7 | r | test | `suite_a.works_too` |",
                Some("suite_a.works_too"),
            ),
            ("| 7 | r | test | `suite_a.helps` |", Some("suite_a.helps")),
            (
                "| 7 | r | test | `suite_a.works`, `works` |",
                Some("case works"),
            ),
            (
                "| 7 | r | test | `rust/auxcore/a.rs::works` |",
                Some("a.rs::works"),
            ),
            ("| 7 | r | test | \"two\" |", Some("case two")),
            ("| 7 | r | test | `two, at once` |", Some("two, at once")),
            ("| 7 | r | test | – |", Some("names no case")),
            ("| 7 | r | test |", Some("3 columns")),
            ("| 8 | r | driver's word | – |", Some("twice")),
            ("", Some("row 7 is missing")),
        ];
        let known = known();

        for (row, wanted) in table_of_rows {
            let found = complaints(&table("`suite_a.works`", row), &known);
            match wanted {
                None => assert_eq!(found, [""; 0], "{row}"),
                Some(text) => {
                    assert!(found.iter().any(|c| c.contains(text)), "{row}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn every_row_is_wanted() {
        let found = complaints("## Rules\n\n## Pitfalls\n", &known());
        assert_eq!(found.len(), 37 + 26);
    }

    #[test]
    fn no_row_is_above_the_count() {
        let text = table("`suite_a.works`", "| 7 | r | driver's word | – |");
        let more = text + "| 27 | rule | by test | `suite_a.works` |\n";
        let found = complaints(&more, &known());
        assert!(
            matches!(found.as_slice(), [one] if one.contains("row 27")),
            "{found:?}"
        );
    }
}
