// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a session costs, with trace in it (see [`bounce`]) and when nothing is traced: guest instructions from the entry of `start` to the exit of `stop`.
//!
//! QEMU counts: with `-icount shift=0` the guest's clock goes by a nanosecond an instruction, so that `auxe2e bench` measures
//! instructions, which hardly differ from run to run. A second guest logs each block of code that is run in modules, and so
//! says how many of these instructions are in `rust_perf` and the driver.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::Guest;
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::step::{Log, Progress};
use crate::{bounce, recorders, steps, tools};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How many calls are measured, and how many are logged.
const TIMES: [u32; 2] = [2000, 30];

/// What `auxe2e bench` makes of each event before it measures.
const WARM_UP: usize = 10;

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// What the framework and the drivers cost.
    Driver,
    /// What the recorder costs, and stock perf.
    Recorder,
    /// Of that only how much faster two CPUs are drained than one.
    Parallel,
    /// What it costs to step through programs.
    Steps,
}

/// Measures, in the lean kernel; gives the lines to print.
///
/// # Errors
///
/// When a guest does not say what it measured.
pub fn run(cache: &Cache, part: Option<Part>) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let wanted = |one| part.is_none_or(|part| part == one);
    if wanted(Part::Driver) {
        lines.extend(driver(cache)?);
    }
    if wanted(Part::Steps) {
        lines.extend(steps(cache)?);
    }
    if wanted(Part::Recorder) {
        lines.extend(recorder(cache)?);
    }
    if wanted(Part::Recorder) || wanted(Part::Parallel) {
        lines.extend(parallel(cache)?);
    }
    Ok(lines)
}

fn steps(cache: &Cache) -> Result<Vec<String>> {
    let kernel = Kernel::prepare(cache, Kind::Lean)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let dir = cache.build().join("bench/steps");
    let progress = Progress::begin("counting instructions of single steps");
    let mut guest = Guest::new(&kernel, &built.files)?
        .counting(None)
        .append("kunit.enable=0")
        .installed(Path::new("/usr/bin/gdb"))?
        .timeout(Duration::from_secs(900));
    for (name, path) in &programs {
        guest = guest.program(name, path)?;
    }
    let outcome = guest.run(cache, &dir, steps::Figures::COMMAND, |_| {})?;
    let figures = steps::Figures::parse(&outcome.said).ok_or_else(|| unclear(&dir))?;
    progress.end("done");
    Ok(figures.lines())
}

fn recorder(cache: &Cache) -> Result<Vec<String>> {
    let kernel = Kernel::prepare(cache, Kind::Lean)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let progress = Progress::begin("counting instructions of recorders");
    let guest = Guest::new(&kernel, &built.files)?
        .intel()
        .installed(Path::new("/usr/bin/perf"))?;
    let said = count(cache, guest, &programs, "auxe2e bench record", "")?;
    let figures = recorders::Figures::parse(&said);
    let figures = figures.ok_or_else(|| unclear(&cache.build().join("bench/guest")))?;
    progress.end("done");
    Ok(figures.lines())
}

fn parallel(cache: &Cache) -> Result<Vec<String>> {
    let kernel = Kernel::prepare(cache, Kind::Lean)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let dir = cache.build().join("bench/parallel");
    let progress = Progress::begin("draining two processors");
    let mut lines = Vec::new();
    // What is not the copy counts for twice as much where that is twice as fast.
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
        lines.push(how.to_owned());
        lines.extend(rates.lines());
    }
    progress.end("done");
    Ok(lines)
}

fn driver(cache: &Cache) -> Result<Vec<String>> {
    let kernel = Kernel::prepare(cache, Kind::Lean)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let dir = cache.build().join("bench");
    let log = cache.build().join("bench-exec.log");
    let boot = |times: u32, log: Option<&Path>| -> Result<String> {
        // The suites of the modules have nothing to do with it.
        let mut guest = Guest::new(&kernel, &built.files)?
            .counting(log)
            .append("kunit.enable=0")
            .timeout(Duration::from_secs(300));
        for (name, path) in &programs {
            guest = guest.program(name, path)?;
        }
        let command = format!(
            "auxe2e bench session --times {times} && echo text $(cat /sys/module/pmu_minimal/sections/.text)"
        );
        let outcome = guest.run(cache, &dir, &command, |_| {})?;
        match outcome.faults().first() {
            Some(fault) => Err(Error::Other(format!("{}: {}", fault.name, fault.reason))),
            None => Ok(outcome.said),
        }
    };

    let progress = Progress::begin("counting instructions");
    let said = boot(TIMES[0], None)?;
    let figures = Figures::parse(&said).ok_or_else(|| unclear(&dir))?;
    progress.end("done");
    let progress = Progress::begin("counting those in modules");
    let said = boot(TIMES[1], Some(&log))?;
    let text = number(&said, "text").ok_or_else(|| unclear(&dir))?;
    let stop = text + stop_offset(cache, &built.files)?;
    let file = File::open(&log).on("read", &log)?;
    let ours = between_stops(BufReader::new(file), stop)
        .ok_or_else(|| Error::Other(format!("{} shows no stop of an event", log.display())))?;
    progress.end("done");
    let mut lines = figures.lines(ours);

    let progress = Progress::begin("counting instructions of commits and of losses");
    let command = "auxe2e bench commit && auxe2e bench loss";
    let guest = Guest::new(&kernel, &built.files)?;
    let said = count(cache, guest, &programs, command, "")?;
    let copies = bounce::Figures::parse(&said).ok_or_else(|| unclear(&dir.join("guest")))?;
    let picture = dir.join("commit.svg");
    copies.draw(&picture)?;
    progress.end("done");
    lines.extend(copies.lines());
    lines.push(format!("the picture of it is {}", picture.display()));

    // Debian's kernel, as it is, and without what it does against speculation.
    let kernel = Kernel::prepare(cache, Kind::Stock)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    for append in ["", "mitigations=off"] {
        let progress = Progress::begin("counting instructions in the stock kernel");
        let said = count(
            cache,
            Guest::new(&kernel, &built.files)?,
            &programs,
            "auxe2e bench session --times 500",
            append,
        )?;
        let figures = Figures::parse(&said).ok_or_else(|| unclear(&dir.join("guest")))?;
        progress.end("done");
        lines.push(format!("stock kernel {append}: {}", figures.short()));
    }
    Ok(lines)
}

/// What a command says in a guest whose clock counts instructions.
fn count(
    cache: &Cache,
    guest: Guest<'_>,
    programs: &[(String, PathBuf)],
    command: &str,
    append: &str,
) -> Result<String> {
    let mut guest = guest
        .counting(None)
        .append("kunit.enable=0")
        .append(append)
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

/// The number after these words at the beginning of a line.
pub(crate) fn number(said: &str, name: &str) -> Option<u64> {
    let text = said.lines().find_map(|l| l.strip_prefix(name))?.trim();
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Instructions of one call.
#[derive(Debug, PartialEq, Eq)]
struct Figures {
    period: [u64; 2],
    toggle: [u64; 2],
}

impl Figures {
    fn parse(said: &str) -> Option<Self> {
        let pair = |call: &str| {
            let of = |event: &str| number(said, &format!("{event} {call}"));
            Some([of("minimal")?, of("dummy")?])
        };
        Some(Self {
            period: pair("stop+start")?,
            toggle: pair("enable+disable")?,
        })
    }

    /// In a few words.
    fn short(&self) -> String {
        let [with, without] = self.period;
        format!(
            "start to stop, empty commit: {} instructions ({with} less {without}); enable and disable: {}, of the dummy event {}",
            with.saturating_sub(without),
            self.toggle[0],
            self.toggle[1],
        )
    }

    fn lines(&self, ours: u64) -> Vec<String> {
        let [with, without] = self.period;
        let session = with.saturating_sub(without);
        let percent = |part: u64, whole: u64| part * 100 / whole.max(1);
        vec![
            format!("start to stop, empty commit: {session} instructions ({with} in the call, less {without} in the same call on perf's dummy event)"),
            format!("in rust_perf and the driver: {ours} of them, {} %; the rest is what they call: perf_aux_output_begin() and end(), the timer", percent(ours, session)),
            format!("enable and disable: {} instructions, {} % of those of the dummy event ({})", self.toggle[0], percent(self.toggle[0], self.toggle[1]), self.toggle[1]),
        ]
    }
}

/// Where `stop` is in the driver's text.
fn stop_offset(cache: &Cache, files: &[PathBuf]) -> Result<u64> {
    let driver = files.iter().find(|f| f.ends_with("pmu_minimal.ko"));
    let driver = driver.ok_or_else(|| Error::Other("pmu_minimal.ko was not built".to_owned()))?;
    let log = Log::create(&cache.build().join("bench-nm.log"))?;
    let symbols = log.output("reading symbols", Command::new("llvm-nm").arg(driver))?;
    symbols
        .lines()
        .find(|l| l.contains("9Callbacks") && l.contains("4stopB"))
        .and_then(|l| u64::from_str_radix(l.split(' ').next()?, 16).ok())
        .ok_or_else(|| Error::Other(format!("{} has no stop()", driver.display())))
}

/// From QEMU's log of code that was translated ("IN:", then a line an instruction) and run ("Trace"): how many instructions
/// are run between one entry of `stop` and the next; the median, as an interrupt may come in between.
fn between_stops(log: impl BufRead, stop: u64) -> Option<u64> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    let mut block = None;
    let mut sums = Vec::new();
    let mut sum = 0;
    for line in log.lines() {
        let line = line.ok()?;
        if let Some(rest) = line.strip_prefix("0x") {
            let at = hex(rest.split(':').next()?)?;
            let start = *block.get_or_insert_with(|| {
                // It may have been translated before, in another length.
                sizes.insert(at, 0);
                at
            });
            *sizes.entry(start).or_default() += 1;
        } else if line.starts_with("IN:") {
            block = None;
        } else if line.starts_with("Trace") {
            block = None;
            let at = hex(line.split('/').nth(1)?)?;
            if at == stop {
                sums.push(sum);
                sum = 0;
            }
            sum += sizes.get(&at)?;
        }
    }
    let mut measured: Vec<u64> = sums.into_iter().skip(WARM_UP).take(20).collect();
    measured.sort_unstable();
    measured.get(measured.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_says_is_understood() {
        let said = "minimal stop+start 2300\ndummy stop+start 800\nminimal enable+disable 4400\ndummy enable+disable 3000\ntext 0xffffffffa001d000\n";
        let figures = Figures::parse(said).unwrap();
        assert_eq!(figures.period, [2300, 800]);
        assert!(figures.lines(500)[0].contains(" 1500 instructions"));
        assert!(figures.lines(500)[1].contains("500 of them, 33 %"));
        assert_eq!(number(said, "text"), Some(0xffff_ffff_a001_d000));
        assert_eq!(Figures::parse("minimal stop+start 1\n"), None);
    }

    #[test]
    fn instructions_are_counted_from_stop_to_stop() {
        let mut log =
            "IN: \n0x10:  90  nop\n0x11:  90  nop\n\nTrace 0: 0x7f [00000000/0010/1/ff] \n"
                .to_owned();
        log += "IN: \n0x20:  90  nop\n\nTrace 0: 0x7f [00000000/0020/1/ff] \n";
        for _ in 0..40 {
            log += "Trace 0: 0x7f [00000000/0010/1/ff] \nTrace 0: 0x7f [00000000/0020/1/ff] \nTrace 0: 0x7f [00000000/0020/1/ff] \n";
        }
        assert_eq!(between_stops(log.as_bytes(), 0x10), Some(4));
        assert_eq!(between_stops(log.as_bytes(), 0x30), None);
    }
}
