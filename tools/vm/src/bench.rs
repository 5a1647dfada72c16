// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The costs of the framework, the drivers and the recorder.
//!
//! With QEMU's `-icount shift=0`, the guest's clock advances by 1 ns an instruction. So `auxe2e bench` measures instructions, which hardly
//! differ from run to run. A figure with a target is reported as met or missed. All figures are saved by [`figures`].

pub mod bounce;
pub mod reading;
pub mod recorders;
pub mod restarts;
pub mod ring;
pub mod slowdown;
pub mod steps;
pub mod twins;
pub mod windows;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::results::figures::{self, Figure};
use crate::step::Progress;
use crate::tools;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// What the framework and the drivers cost.
    Driver,
    /// What the recorder costs, and stock perf.
    Recorder,
    /// Of that only how much faster two CPUs are drained than one.
    Parallel,
    /// Of that only how soon many CPUs are traced.
    Starts,
    /// What it costs to step through programs.
    Steps,
    /// What it costs to trace a guest with the trace unit.
    Tracing,
    /// What an event of tracefs costs that is read.
    Ring,
    /// How much memory it takes to read much trace.
    Reading,
    /// What drivers execute from an interrupt until the unit runs again.
    Restart,
}

/// The results of the measurements.
#[derive(Debug, Default)]
pub struct Report {
    lines: Vec<String>,
    figures: Vec<Figure>,
}

impl Report {
    fn add(&mut self, lines: Vec<String>, figures: Vec<Figure>) {
        self.lines.extend(lines);
        self.figures.extend(figures);
    }

    /// The lines to print: the results, and which targets are met or missed.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let verdicts: Vec<String> = self.figures.iter().filter_map(Figure::verdict).collect();
        let missed = self.figures.iter().filter(|f| f.is_missed()).count();
        let met = verdicts.len() - missed;
        let mut lines = self.lines.clone();
        if !verdicts.is_empty() {
            lines.extend(verdicts);
            lines.push(format!("{met} targets met, {missed} missed"));
        }
        lines
    }

    /// Whether a target was missed.
    #[must_use]
    pub fn misses(&self) -> bool {
        self.figures.iter().any(Figure::is_missed)
    }
}

/// Measures one part, or all parts, and saves the figures.
///
/// # Errors
///
/// When a build or a guest fails, or a guest does not print its results.
pub fn run(cache: &Cache, part: Option<Part>) -> Result<Report> {
    let mut report = Report::default();
    let wanted = |one| part.is_none_or(|part| part == one);
    if wanted(Part::Driver) {
        driver(cache, &mut report)?;
    }
    if wanted(Part::Steps) {
        let progress = Progress::begin("counting instructions of single steps");
        let figures = steps::run(cache)?;
        progress.end("done");
        report.add(figures.lines(), figures.figures());
    }
    if wanted(Part::Tracing) {
        let progress = Progress::begin("timing guests that are traced");
        let figures = slowdown::run(cache)?;
        progress.end("done");
        report.add(figures.lines(), figures.figures());
    }
    if wanted(Part::Restart) {
        let progress = Progress::begin("counting instructions of restarts");
        let figures = restarts::run(cache)?;
        progress.end("done");
        report.add(figures.lines(), figures.figures());
    }
    if wanted(Part::Reading) {
        let progress = Progress::begin("reading 1 GiB of trace");
        let figures = reading::run(cache)?;
        progress.end("done");
        report.add(figures.lines(), figures.figures());
    }
    if wanted(Part::Ring) {
        ring(cache, &mut report)?;
    }
    if wanted(Part::Recorder) {
        recorder(cache, &mut report)?;
    }
    if wanted(Part::Recorder) || wanted(Part::Parallel) {
        parallel(cache, &mut report)?;
    }
    if wanted(Part::Recorder) || wanted(Part::Starts) {
        starts(cache, &mut report)?;
    }
    figures::save(cache, &report.figures)?;
    Ok(report)
}

fn ring(cache: &Cache, report: &mut Report) -> Result<()> {
    let kernel = Kernel::prepare(cache, Kind::Lean)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let progress = Progress::begin("counting instructions of events that are read");
    let guest = Guest::new(&kernel, &built.files)?.installed(Path::new("/usr/bin/trace-cmd"))?;
    let said = count(cache, guest, &programs, ring::Figures::COMMAND)?;
    let figures = ring::Figures::parse(&said);
    let figures = figures.ok_or_else(|| unclear(&cache.build().join("bench/guest")))?;
    progress.end("done");
    report.add(figures.lines(), figures.figures());
    Ok(())
}

fn recorder(cache: &Cache, report: &mut Report) -> Result<()> {
    let kernel = Kernel::prepare(cache, Kind::Lean)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let progress = Progress::begin("counting instructions of recorders");
    let guest = Guest::new(&kernel, &built.files)?
        .intel()
        .installed(Path::new("/usr/bin/perf"))?;
    let said = count(cache, guest, &programs, "auxe2e bench record")?;
    let figures = recorders::Figures::parse(&said);
    let figures = figures.ok_or_else(|| unclear(&cache.build().join("bench/guest")))?;
    progress.end("done");
    report.add(figures.lines(), figures.figures());
    Ok(())
}

fn parallel(cache: &Cache, report: &mut Report) -> Result<()> {
    let kernel = Kernel::prepare(cache, Kind::Lean)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let dir = cache.build().join("bench/parallel");
    let progress = Progress::begin("draining two processors");
    // If the copy is twice as fast, all costs other than the copy have twice the weight.
    for (by_words, how) in [
        (false, "memory copied as the processor likes best:"),
        (
            true,
            "memory copied by words, which costs an emulator half:",
        ),
    ] {
        let mut guest = Guest::new(&kernel, &built.files)?
            .append("kunit.enable=0")
            .timeout(Duration::from_secs(600));
        if by_words {
            guest = guest.by_words();
        }
        for (name, path) in &programs {
            guest = guest.program(name, path)?;
        }
        let outcome = guest.run(cache, &dir, recorders::Rates::COMMAND, |_| {})?;
        let rates = recorders::Rates::parse(&outcome.said).ok_or_else(|| unclear(&dir))?;
        let mut lines = vec![how.to_owned()];
        lines.extend(rates.lines());
        report.add(
            lines,
            rates.figures(if by_words { "words" } else { "bytes" }),
        );
    }
    progress.end("done");
    Ok(())
}

/// The number of processors of the guest in which recorders start.
const MANY: u32 = 64;

fn starts(cache: &Cache, report: &mut Report) -> Result<()> {
    let kernel = Kernel::prepare(cache, Kind::Stock)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let dir = cache.build().join("bench/starts");
    let progress = Progress::begin(&format!("starting recorders of {MANY} processors"));
    let mut guest = Guest::new(&kernel, &built.files)?
        .intel()
        .installed(Path::new("/usr/bin/perf"))?
        .processors(MANY)
        .timeout(Duration::from_secs(900));
    for (name, path) in &programs {
        guest = guest.program(name, path)?;
    }
    let outcome = guest.run(cache, &dir, recorders::Starts::COMMAND, |_| {})?;
    let starts = recorders::Starts::parse(&outcome.said).ok_or_else(|| unclear(&dir))?;
    progress.end("done");
    report.add(starts.lines(), starts.figures());
    Ok(())
}

fn driver(cache: &Cache, report: &mut Report) -> Result<()> {
    let programs = tools::build(cache)?;
    let dir = cache.build().join("bench");
    for kind in [Kind::Lean, Kind::Stock] {
        let kernel = Kernel::prepare(cache, kind)?;
        let name = kind.to_string();
        let mut files = modules::build(cache, &kernel, Mode::Plain)?.files;
        files.extend(twins::build(cache, &kernel)?);

        let progress = Progress::begin(&format!("counting instructions in the {name} kernel"));
        let guest = Guest::new(&kernel, &files)?;
        let said = count(cache, guest, &programs, twins::Costs::COMMAND)?;
        let costs = twins::Costs::parse(&said).ok_or_else(|| unclear(&dir.join("guest")))?;
        progress.end("done");
        report.add(costs.lines(&name), costs.figures(&name));

        let windows = windows::run(cache, &kernel, &files, &programs)?;
        let path = dir.join(format!("functions-{name}.md"));
        windows.save(&path, &name)?;
        let mut lines = windows.shared();
        lines.push(format!(
            "{name} kernel: the instructions of each function are in {}",
            path.display()
        ));
        report.add(lines, windows.figures(&name));
    }

    let kernel = Kernel::prepare(cache, Kind::Lean)?;
    let files = modules::build(cache, &kernel, Mode::Plain)?.files;
    let progress = Progress::begin("counting instructions of commits and of losses");
    let command = "auxe2e bench commit && auxe2e bench loss";
    let guest = Guest::new(&kernel, &files)?;
    let said = count(cache, guest, &programs, command)?;
    let copies = bounce::Figures::parse(&said).ok_or_else(|| unclear(&dir.join("guest")))?;
    let picture = dir.join("commit.svg");
    copies.draw(&picture)?;
    progress.end("done");
    let mut lines = copies.lines();
    lines.push(format!("the picture of it is {}", picture.display()));
    report.add(lines, copies.figures());
    Ok(())
}

/// Runs a command in a guest whose clock counts instructions. Returns its output.
fn count(
    cache: &Cache,
    guest: Guest<'_>,
    programs: &[(String, PathBuf)],
    command: &str,
) -> Result<String> {
    let mut guest = guest
        .counting()
        .append("kunit.enable=0")
        .timeout(Duration::from_secs(900));
    for (name, path) in programs {
        guest = guest.program(name, path)?;
    }
    let outcome = guest.run(cache, &cache.build().join("bench/guest"), command, |_| {})?;
    match outcome.faults().first() {
        Some(fault) => Err(Error::Other(format!("{}: {}", fault.name, fault.reason))),
        None => Ok(outcome.said),
    }
}

fn unclear(dir: &Path) -> Error {
    Error::Other(format!(
        "auxe2e bench did not say what it measured; see {}",
        dir.join("said.log").display()
    ))
}

/// The number after `name` at the beginning of a line.
pub(crate) fn number(said: &str, name: &str) -> Option<u64> {
    let text = said.lines().find_map(|l| l.strip_prefix(name))?.trim();
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_their_names() {
        assert_eq!(number("a b 12\na c 0x1f\n", "a b"), Some(12));
        assert_eq!(number("a b 12\na c 0x1f\n", "a c"), Some(0x1f));
        assert_eq!(number("a b 12\n", "a d"), None);
        assert_eq!(number("a b c\n", "a b"), None);
    }

    #[test]
    fn targets_are_told_behind_the_lines() {
        let mut report = Report::default();
        report.add(
            vec!["one".to_owned()],
            vec![Figure::count("driver.a", 1, "lines")],
        );
        assert_eq!(report.lines(), ["one"]);
        report.add(
            Vec::new(),
            vec![Figure::count("driver.b", 1, "lines").at_most(1)],
        );
        assert!(!report.misses());
        report.add(
            Vec::new(),
            vec![Figure::count("driver.c", 2, "lines").at_most(1)],
        );
        assert!(report.misses());
        assert_eq!(report.lines().last().unwrap(), "1 targets met, 1 missed");
    }
}
