// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The demonstration. It records the trace of a workload on a stock kernel, checks every byte and draws a picture. It also records the
//! instructions of a real program, and decodes them with stock perf.

pub mod traced;

use crate::cache::Cache;
use crate::demo::traced::{Traced, PROGRAM};
use crate::error::{Error, OnFile, Result};
use crate::guest::Guest;
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::step::Progress;
use crate::tools;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The demonstration needs at least this many wraps of the ring.
const WRAPS: u64 = 10;

/// The result of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    recorded: u64,
    generated: u64,
    lost: u64,
    wraps: u64,
    truncations: u64,
    mismatches: u64,
}

impl Summary {
    /// Parses the two lines of sums at the end of `auxe2e check`'s output. Each number stands before its name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let sums: Vec<&str> = text
            .lines()
            .filter(|l| l.starts_with("file: ") || l.starts_with("pattern: "))
            .collect();
        let number = |name: &str| {
            sums.iter()
                .flat_map(|l| l.split([',', ':']))
                .find_map(|part| {
                    let (number, rest) = part.trim().split_once(' ')?;
                    (rest == name).then(|| number.parse().ok())?
                })
        };
        Some(Self {
            recorded: number("bytes recorded")?,
            generated: number("generated")?,
            lost: number("lost")?,
            wraps: number("wraps")?,
            truncations: number("truncations")?,
            mismatches: number("mismatches")?,
        })
    }

    /// The first expectation that the recording does not meet, if there is one.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let unaccounted = self.generated != self.recorded + self.lost;
        [
            (
                self.mismatches > 0,
                "bytes differ from what the unit generated",
            ),
            (
                unaccounted,
                "the bytes recorded and lost are not those generated",
            ),
            (self.wraps < WRAPS, "the ring did not wrap often enough"),
            (
                self.truncations == 0,
                "no truncation happened, though the recorder was stopped",
            ),
        ]
        .into_iter()
        .find_map(|(wrong, text)| wrong.then(|| text.to_owned()))
    }

    /// The line that ends the demonstration.
    #[must_use]
    pub fn line(&self) -> String {
        let accounted = if self.generated == self.recorded + self.lost {
            "all accounted for"
        } else {
            "NOT accounted for"
        };
        format!(
            "{} bytes recorded, {} wraps, {} truncations, {} bytes lost ({accounted}), {} mismatches",
            self.recorded, self.wraps, self.truncations, self.lost, self.mismatches
        )
    }
}

/// Runs the demonstration. The files are in `build/demo`.
///
/// # Errors
///
/// When a build or the guest fails, or an output cannot be read. A wrong result is no error: [`Summary::complaint`] reports it.
pub fn run(cache: &Cache, kind: Kind) -> Result<(Summary, Traced)> {
    let kernel = Kernel::prepare(cache, kind)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let mut guest = Guest::new(&kernel, &built.files)?
        .script("demo", include_str!("../guest/demo.sh"))
        .installed(Path::new(PROGRAM))?
        // No vDSO: its code is part of the guest's kernel, but perf here would take it from this machine's kernel.
        .append("vdso=0")
        .timeout(Duration::from_secs(120));
    let programs = tools::build(cache)?;
    for (name, path) in &programs {
        guest = guest.program(name, path)?;
    }
    let dir = cache.build().join("demo");
    let progress = Progress::begin(&format!("recording in a guest with the {kind} kernel"));
    let outcome = guest.run(cache, &dir.join("guest"), "demo", |line| {
        crate::err!("  {line}");
    })?;
    progress.end(&format!("guest of {} MiB", outcome.peak_kib / 1024));
    if let Some(fault) = outcome.faults().first() {
        return Err(Error::Other(format!(
            "the guest failed ({}): {}",
            fault.name, fault.reason
        )));
    }
    let files = ["perf.data", "report.txt", "timeline.svg", "perl.data"];
    for name in files {
        let from = outcome.files.join(name);
        if from.is_file() {
            fs::copy(&from, dir.join(name)).on("copy", &from)?;
        }
    }
    if outcome.status != Some(0) {
        return Err(Error::Other(format!(
            "the demonstration failed in the guest with status {}; what it said is above, its console is {}",
            outcome.status.unwrap_or(-1),
            outcome.console.display()
        )));
    }
    let check = outcome.files.join("check.txt");
    let check = fs::read_to_string(&check).on("read", &check)?;
    let summary = Summary::parse(&check).ok_or_else(|| {
        Error::Other(
            "auxe2e check did not say how many bytes there were; what it said is above".to_owned(),
        )
    })?;
    let progress = Progress::begin("decoding the trace of a program with stock perf");
    let auxrec = programs.iter().find(|(name, _)| name == "auxrec");
    let (_, auxrec) = auxrec.ok_or_else(|| Error::Other("auxrec was not built".to_owned()))?;
    let traced = Traced::decode(&dir, auxrec)?;
    progress.end("done");
    for name in files.iter().chain(&["perl-calls.txt", "perl.svg"]) {
        crate::out!("{}", dir.join(name).display());
    }
    Ok((summary, traced))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "cpu 0: 7 lost, 9 truncations\nfile: 90 records, 40 AUX records, 1000 bytes of trace, 12 wraps, 2 truncations, 0 problems\n\
                        pattern: 900 bytes recorded, 100 lost, 0 overwritten, 1000 generated, 2 gaps, 9 packets, 2 streams, 0 mismatches\n";

    #[test]
    fn check_is_read() {
        let summary = Summary::parse(TEXT).unwrap();
        assert_eq!(summary.complaint(), None);
        assert_eq!(
            summary.line(),
            "900 bytes recorded, 12 wraps, 2 truncations, 100 bytes lost (all accounted for), 0 mismatches"
        );
        assert_eq!(Summary::parse("pattern: 1 bytes recorded\n"), None);
    }

    #[test]
    fn nothing_is_hidden() {
        let cases = [
            ("12 wraps", "9 wraps", "wrap"),
            ("2 truncations", "0 truncations", "truncation"),
            ("0 mismatches", "1 mismatches", "differ"),
            ("100 lost", "99 lost", "not those generated"),
        ];
        for (from, to, want) in cases {
            let complaint = Summary::parse(&TEXT.replace(from, to)).unwrap().complaint();
            assert!(
                complaint.as_deref().is_some_and(|c| c.contains(want)),
                "{to}: {complaint:?}"
            );
        }
    }
}
