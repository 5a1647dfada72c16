// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracefs events of a recorder whose trace begins later, or pauses; and of one that is killed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use perfdata::Event;
use rustix::process::Signal;

use super::{instance, numbers, record, script, write, write_numbers, Line, FIELDS};
use crate::module::{self, counter};
use crate::recorder::Commander;
use crate::recording::{recover, Reader, Recorder, TraceFile};
use crate::wait::wait_for;

/// The times of the AUX records that have trace, in ns.
fn aux_times(file: &Path) -> Result<Vec<u64>> {
    let bytes = fs::read(file)?;
    let file = perfdata::File::parse(&bytes)?;
    let mut times = Vec::new();
    for record in file.records() {
        let (event, who) = file.decode(&record?)?;
        if matches!(event, Event::Aux(aux) if aux.size != 0) {
            times.push(
                who.and_then(|who| who.time)
                    .context("an AUX record of no time")?,
            );
        }
    }
    Ok(times)
}

/// The trace is disabled at first (`-D -1`), and commands of `--control` switch it. The tracefs events are enabled all the time.
pub fn paused() -> Result<String> {
    /// At these numbers, on each CPU, the trace is enabled, disabled, enabled and disabled.
    const SWITCHES: [u64; 4] = [200, 400, 600, 800];
    const EVENTS: u64 = 1000;
    module::alias(0)?;
    let mut commander = Commander::new("tracefs, paused")?;
    let file = TraceFile::new("tracepoints paused");
    let control = commander.arguments();
    let recorder = Recorder::start(
        file.path(),
        &record(&[
            "--trace",
            "rust_perf:*,ftrace:print",
            "--trace-buffer",
            "4M",
            "--quiet",
            "-D",
            "-1",
            &control[0],
            &control[1],
        ]),
    )?;
    let instance = instance(&recorder, "rust_perf")?;
    let mut from = 0;
    for (n, to) in SWITCHES.into_iter().enumerate() {
        write_numbers(&instance, from..to)?;
        from = to;
        let on = n % 2 == 0;
        commander.ask(if on { "enable" } else { "disable" })?;
        if on {
            let before = counter("pattern", "commits")?;
            wait_for("trace", || Ok(counter("pattern", "commits")? > before + 4))?;
        }
    }
    write_numbers(&instance, from..EVENTS)?;
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    ensure!(ended.status == 0, "{}: {}", ended.status, ended.errors);

    let lines = script(file.path(), &FIELDS)?;
    for cpu in [0, 1] {
        let numbers = numbers(&lines, cpu)?;
        ensure!(
            numbers.iter().copied().eq(0..EVENTS),
            "CPU {cpu}: {} of {EVENTS} events",
            numbers.len()
        );
    }
    // The time of the first or last event with this number, on any CPU.
    let at = |number: u64, last: bool| -> Result<u64> {
        let is = |line: &&Line| {
            line.text.split_once("number ").is_some_and(|(_, text)| {
                text.trim_matches(|c: char| !c.is_ascii_digit()) == number.to_string()
            })
        };
        let times = lines.iter().filter(is).map(|line| line.time);
        let time = if last { times.max() } else { times.min() };
        time.with_context(|| format!("no event {number}"))
    };
    // The trace is enabled only between the last event before the enabling and the first event after the disabling.
    let on = [
        (at(199, true)?, at(400, false)?),
        (at(599, true)?, at(800, false)?),
    ];
    let part = |time: u64, what: &str| {
        let part = on
            .iter()
            .position(|(from, to)| (*from..*to).contains(&time));
        part.with_context(|| format!("{what} at {time}; the trace was on in {on:?}"))
    };
    let mut begins = 0;
    for line in lines
        .iter()
        .filter(|line| line.text.contains("rust_perf_begin:"))
    {
        part(line.time, &line.text)?;
        begins += 1;
    }
    ensure!(begins > 4, "{begins} transactions");
    let mut counts = [0, 0];
    for time in aux_times(file.path())? {
        counts[part(time, "an AUX record")?] += 1;
    }
    ensure!(
        counts.iter().all(|count| *count > 4),
        "AUX records: {counts:?}"
    );
    Ok(format!(
        "{EVENTS} events of each CPU, AUX records in {counts:?} of two parts"
    ))
}

/// The files in which the recorder keeps the events of each CPU until it ends. They are beside the recording.
fn beside(file: &Path) -> Result<Vec<PathBuf>> {
    let dir = file.parent().context("no directory")?;
    let name = file.file_name().context("no name")?.to_string_lossy();
    let prefix = format!("{name}.cpu");
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// A killed recorder leaves three things. `recover` completes the recording, without events. The files of events have whole sub-buffers.
/// The tracing instance exists until the next recorder starts.
pub fn killed() -> Result<String> {
    module::alias(0)?;
    let file = TraceFile::new("tracepoints killed");
    let traced = ["--trace", "rust_perf:*,ftrace:print", "--quiet"];
    let recorder = Recorder::start(file.path(), &record(&traced))?;
    let left = instance(&recorder, "rust_perf")?;
    write(&left, 1000)?;
    wait_for("sub-buffers in files", || {
        let files = beside(file.path())?;
        let lens = files.iter().map(|file| Ok(fs::metadata(file)?.len()));
        let lens = lens.collect::<Result<Vec<_>>>()?;
        Ok(lens.len() == 2 && lens.iter().all(|len| *len >= 4096))
    })?;
    wait_for("trace in the file", || {
        Ok(aux_times(file.path()).is_ok_and(|times| times.len() > 4))
    })?;
    recorder.kill()?;
    let files = beside(file.path())?;
    ensure!(
        left.exists() && files.len() == 2,
        "left: {left:?} and {files:?}"
    );
    recover(file.path())?;
    let lines = script(
        file.path(),
        &["--ns", "--no-itrace", "-F", "cpu,time,event"],
    )?;
    ensure!(lines.is_empty(), "{} samples", lines.len());
    let times = aux_times(file.path())?.len();
    ensure!(times > 4, "{times} AUX records are recovered");
    for file in &files {
        fs::remove_file(file)?;
    }

    let next = Recorder::start(file.path(), &record(&traced))?;
    let instance = instance(&next, "rust_perf")?;
    ensure!(!left.exists(), "{} is left", left.display());
    next.signal(Signal::INT)?;
    let ended = next.wait(Reader::KeepsUp)?;
    ensure!(
        ended.status == 0 && !instance.exists() && beside(file.path())?.is_empty(),
        "{}: {}",
        ended.status,
        ended.errors
    );
    Ok(format!("{times} AUX records; the instance is removed"))
}
