// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the tests: `pattern` is built with a defect that real drivers have, and rows of the matrix must report it.
//!
//! The defects are in `samples/pattern/broken.rs`. A build contains only the defect that it is given, if any.

use crate::cache::Cache;
use crate::error::Result;
use crate::guest::Guest;
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::results::ktap::{self, Case, Status};
use crate::step::Progress;
use crate::tools;
use std::path::Path;
use std::time::Duration;

/// A defect, and the rows that must find it.
struct Defect {
    /// The value of `AUXPMU_BREAK`.
    name: &'static str,
    /// The rows that must fail, each with texts that its reason or log must contain.
    rows: &'static [(&'static str, &'static [&'static str])],
}

const DEFECTS: [Defect; 4] = [
    Defect {
        name: "barrier",
        rows: &[
            (
                "direct, CPU, 16 pages, reader stops",
                &["payload at position", "must be"],
            ),
            (
                "direct, CPU, 1024 pages, reader keeps up",
                &["payload at position", "must be"],
            ),
            (
                "direct, CPU, 16 pages, overwrite",
                &["payload at position", "must be"],
            ),
        ],
    },
    Defect {
        name: "size",
        // The model predicts 33600 bytes: as many whole ticks as are needed to fill half the ring.
        rows: &[
            (
                "direct, CPU, 16 pages, reader stops",
                &["AUX record 0", "is 0x0+33601", "must be 0x0+33600"],
            ),
            (
                "sg, CPU, 16 pages, reader slow",
                &["AUX record 0", "is 0x0+33601", "must be 0x0+33600"],
            ),
            ("flat, CPU, 1024 pages, reader keeps up", &["AUX record 0"]),
        ],
    },
    Defect {
        name: "wrap",
        rows: &[
            (
                "direct, CPU, 16 pages, overwrite",
                &["AUX record 0", "is 0x5500+21760", "must be 0x55500+349440"],
            ),
            ("sg, all CPUs, 16 pages, overwrite", &["AUX record 0"]),
            ("flat, CPU, 16 pages, overwrite", &["AUX record 0"]),
        ],
    },
    Defect {
        name: "truncated",
        rows: &[
            (
                "direct, CPU, 16 pages, reader stops",
                &["AUX record 2", "must be", "TRUNCATED"],
            ),
            (
                "sg, CPU, 16 pages, reader stops",
                &["AUX record 1", "must be", "TRUNCATED"],
            ),
            (
                "flat, CPU, 16 pages, reader slow",
                &["AUX record 1", "must be", "TRUNCATED"],
            ),
        ],
    },
];

/// Builds `pattern` with each defect, and runs the rows that must find it. The case of a row passes if the row has found the defect.
///
/// # Errors
///
/// When there is no kernel or no tools.
pub fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let programs = tools::build(cache)?;
    let mut suites = Vec::new();
    for defect in &DEFECTS {
        let cases = found(cache, dir, kernel, &programs, defect)
            .unwrap_or_else(|e| vec![Case::fail("start", &e.to_string())]);
        suites.push(Case::suite(defect.name, cases));
    }
    Ok(Case::suite("break", suites))
}

fn found(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    programs: &[(String, std::path::PathBuf)],
    defect: &Defect,
) -> Result<Vec<Case>> {
    debug_assert_eq!(kernel.kind, Kind::Lean);
    let built = modules::build(cache, kernel, Mode::Broken(defect.name))?;
    let progress = Progress::begin(&format!("rows that must find the defect {}", defect.name));
    let mut guest = Guest::new(kernel, &built.files)?
        // The KUnit suites of the modules would find the defect, too.
        .append("kunit.enable=0")
        .timeout(Duration::from_secs(180));
    for (name, path) in programs {
        guest = guest.program(name, path)?;
    }
    let rows: Vec<String> = defect.rows.iter().map(|(r, _)| format!("'={r}'")).collect();
    let command = format!("auxe2e matrix {}", rows.join(" "));
    let dir = dir.join(format!("break-{}", defect.name));
    let outcome = guest.run(cache, &dir, &command, |_| {})?;
    let mut cases = verdicts(defect, &ktap::parse(&outcome.said));
    // A defect of a driver must not crash the kernel.
    cases.extend(outcome.faults());
    progress.end(&Case::suite("", cases.clone()).counts().summary());
    Ok(cases)
}

/// A case for each row that must find the defect: whether it has done so.
fn verdicts(defect: &Defect, ran: &[Case]) -> Vec<Case> {
    let verdict = |row: &str, says: &[&str]| {
        let Some(case) = ran.iter().find(|case| case.name == row) else {
            return Case::fail(row, "it did not run");
        };
        if case.status == Status::Pass {
            return Case::fail(row, "it passed, although the driver is broken")
                .with_log(case.log.clone());
        }
        let said = format!("{}\n{}", case.reason, case.log.join("\n"));
        match says.iter().find(|word| !said.contains(**word)) {
            Some(word) => Case::fail(row, &format!("it failed, and does not say \"{word}\""))
                .with_log(said.lines().map(str::to_owned).collect()),
            None => Case::pass(row),
        }
    };
    defect
        .rows
        .iter()
        .map(|(row, says)| verdict(row, says))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_must_fail_and_say_why() {
        let defect = Defect {
            name: "size",
            rows: &[
                ("a", &["one", "two"]),
                ("b", &["one"]),
                ("c", &["one"]),
                ("d", &[]),
            ],
        };
        let said = "KTAP version 1\n1..3\n# two and one\nnot ok 1 a\n# other\nnot ok 2 b\nok 3 c\n";
        let verdicts = verdicts(&defect, &ktap::parse(said));
        let good: Vec<bool> = verdicts.iter().map(|c| c.status == Status::Pass).collect();
        assert_eq!(good, [true, false, false, false]);
        assert!(verdicts[1].reason.contains("does not say"));
        assert!(verdicts[2].reason.contains("it passed"));
        assert!(verdicts[3].reason.contains("did not run"));
    }
}
