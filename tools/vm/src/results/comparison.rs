// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table in `Documentation/recorder-and-perf.md`: what stock perf and the recorder did in each case when it last ran. The document
//! keeps the row of a case that has not run.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::results::ktap::{self, Case, Status};
use std::fs;
use std::path::PathBuf;

/// The document, in the checkout.
const DOCUMENT: &str = "Documentation/recorder-and-perf.md";

/// The head of the table. The table ends with the file.
const HEAD: &str = "| case | `perf record` | `auxrec record` |\n|---|---|---|\n";

/// A row: the name of the case, and what perf and the recorder did in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    name: String,
    perf: String,
    auxrec: String,
}

impl Row {
    /// Parses the log of a case. [`None`] if the case has not passed, or compares nothing.
    fn seen(case: &Case) -> Option<Self> {
        let said = case.log.iter().find_map(|line| {
            let (_, seen) = line.split_once("perf: ")?;
            seen.split_once(" | auxrec: ")
        });
        let (perf, auxrec) = said.filter(|_| case.status == Status::Pass)?;
        // Removes the duration at the end.
        let auxrec = auxrec.rsplit_once(" (").map_or(auxrec, |(seen, _)| seen);

        Some(Self {
            name: case.name.clone(),
            perf: perf.replace('|', "\\|"),
            auxrec: auxrec.replace('|', "\\|"),
        })
    }

    /// Parses a row of the document.
    fn parse(line: &str) -> Option<Self> {
        let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let [name, perf, auxrec] = line.split(" | ").collect::<Vec<_>>().try_into().ok()?;

        Some(Self {
            name: name.to_owned(),
            perf: perf.to_owned(),
            auxrec: auxrec.to_owned(),
        })
    }

    fn line(&self) -> String {
        format!("| {} | {} | {} |\n", self.name, self.perf, self.auxrec)
    }
}

/// Adds the rows of all cases in `case`, in their order. A row that exists already is replaced.
fn collect(case: &Case, rows: &mut Vec<Row>) {
    if let Some(row) = Row::seen(case) {
        match rows.iter_mut().find(|old| old.name == row.name) {
            Some(old) => *old = row,
            None => rows.push(row),
        }
    }
    for child in &case.children {
        collect(child, rows);
    }
}

/// The document with the rows of the cases in `run`; rows of other cases stay. [`None`] if the document has no such table.
fn document(text: &str, run: &[Case]) -> Option<String> {
    let (before, table) = text.split_once(HEAD)?;
    let mut rows: Vec<Row> = table.lines().map(Row::parse).collect::<Option<_>>()?;

    for case in run {
        collect(case, &mut rows);
    }
    let lines: String = rows.iter().map(Row::line).collect();
    Some(format!("{before}{HEAD}{lines}"))
}

/// Writes the document.
///
/// # Errors
///
/// When no tests have run, or a file cannot be read, used or written.
pub fn write(cache: &Cache) -> Result<PathBuf> {
    let run = cache.build().join("test/all.ktap");
    let run = fs::read_to_string(&run).on("read", &run)?;
    let place = cache.checkout().join(DOCUMENT);
    let text = fs::read_to_string(&place).on("read", &place)?;
    let text = document(&text, &ktap::parse(&run)).ok_or_else(|| {
        Error::Other(format!(
            "{DOCUMENT} does not end with the table of cases: restore it"
        ))
    })?;
    fs::write(&place, text).on("write", &place)?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_cases_that_ran_are_new() {
        let old = format!("# Title\n\n{HEAD}| a | 1 | 2 |\n| b | 3 | 4 |\n");
        let seen = |name: &str, note: &str| Case::pass(name).with_log(vec![note.to_owned()]);
        let cases = vec![
            seen("b", "# perf: x|y | auxrec: z (with all) (1.5 s)"),
            seen("c", "# perf: 5 | auxrec: 6 (0.1 s)"),
            seen("d", "# something else (0.1 s)"),
            Case::fail("a", "").with_log(vec!["# perf: 7 | auxrec: 8 (0.1 s)".to_owned()]),
        ];
        let run = [Case::suite("beside", vec![Case::suite("lean", cases)])];

        assert_eq!(
            document(&old, &run).unwrap(),
            format!(
                "# Title\n\n{HEAD}| a | 1 | 2 |\n| b | x\\|y | z (with all) |\n| c | 5 | 6 |\n"
            )
        );
        assert_eq!(document(&old, &[]).unwrap(), old);
        assert_eq!(document("# Title\n", &run), None);
        assert_eq!(document(&format!("{old}more\n"), &run), None);
    }
}
