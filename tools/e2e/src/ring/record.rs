// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the files of `tracering record` with Debian's trace-cmd.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
use rustix::process::{kill_process, Pid, Signal};

use super::{Instance, ROOM};
use crate::ktap::Skip;
use crate::wait::wait_for;

const TRACE_CMD: &str = "/usr/bin/trace-cmd";
const FILE: &str = "/tmp/trace.dat";

/// A recording of the case's instance.
pub struct Recording {
    /// Numbers of the events, in the order of the file, by CPU.
    pub numbers: [Vec<u64>; 2],
    /// The time of each event, by CPU, in ns.
    times: [Vec<u64>; 2],
    /// The losses that trace-cmd reports: the number of events, or [`None`] if it is unknown.
    lost: Vec<Option<u64>>,
    /// The counters, as trace-cmd prints them.
    stat: String,
}

/// Runs a program, which must succeed. Returns its output.
pub fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{program} {arguments:?}: {}: {said}",
        output.status
    );
    Ok(text)
}

/// Skips the case if the guest has no trace-cmd.
fn reads() -> Result<()> {
    if !Path::new(TRACE_CMD).exists() {
        bail!(Skip("this guest has no trace-cmd"));
    }
    Ok(())
}

/// Reads a file with trace-cmd.
pub fn report(path: &str) -> Result<Recording> {
    let text = output(TRACE_CMD, &["report", "-t", "-N", "-i", path])?;
    let mut recording = Recording {
        numbers: Default::default(),
        times: Default::default(),
        lost: Vec::new(),
        stat: output(TRACE_CMD, &["report", "--stat", "-N", "-i", path])?,
    };
    for line in text.lines() {
        if let Some((before, _)) = line.split_once(" EVENTS DROPPED]") {
            let number = before.rsplit('[').next().unwrap_or_default();
            recording.lost.push(number.trim().parse().ok());
            continue;
        }
        let Some((before, number)) = line.split_once("number ") else {
            ensure!(!line.contains("print"), "an event without a number: {line}");
            continue;
        };
        let number = number.trim_end_matches('.').parse();
        let cpu = usize::from(before.contains("[001]"));
        ensure!(
            before.contains("[000]") || before.contains("[001]"),
            "of which CPU? {line}"
        );
        let time = before
            .split_whitespace()
            .find_map(|word| word.strip_suffix(':')?.split_once('.'))
            .and_then(|(s, ns)| {
                Some(s.parse::<u64>().ok()? * 1_000_000_000 + ns.parse::<u64>().ok()?)
            });
        recording.numbers[cpu].push(number.with_context(|| line.to_owned())?);
        recording.times[cpu].push(time.with_context(|| format!("no time: {line}"))?);
    }
    Ok(recording)
}

/// The number before a word of a summary.
fn before(text: &str, word: &str) -> Result<u64> {
    let number = text
        .split_once(word)
        .and_then(|(before, _)| before.rsplit([' ', ',']).find(|word| !word.is_empty()));
    let number = number.and_then(|number| number.parse().ok());
    number.with_context(|| format!("no number before {word:?}: {text}"))
}

/// Checks that all numbers are there, in order.
fn complete(numbers: &[u64], end: u64) -> Result<()> {
    ensure!(
        numbers.iter().copied().eq(0..end),
        "{} of {end} events; the first that is not there is {:?}",
        numbers.len(),
        (0..end).zip(numbers).find(|(n, number)| n != *number)
    );
    Ok(())
}

/// Records while events are written, with two sizes of sub-buffers and two clocks. All events must be in the file, in order.
pub fn complete_files() -> Result<String> {
    const EVENTS: u64 = 3000;
    reads()?;
    let mut said = Vec::new();
    // With 0 percent, an incomplete sub-buffer is ready and is read.
    for (subbuf, clock, percent) in [(4, "local", "50"), (16, "mono", "0")] {
        let instance = Instance::new(subbuf, ROOM)?;
        instance.tracefs.write("buffer_percent", percent)?;
        instance.tracefs.write("buffer_size_kb", "1024")?;
        instance.tracefs.write("trace_clock", clock)?;
        let mut child = Command::new("tracering")
            .args(["-i", "auxe2e", "record", "-o", FILE])
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start tracering")?;
        for start in (0..EVENTS).step_by(100) {
            for cpu in [0, 1] {
                instance.write(cpu, start..start + 100)?;
            }
            // The writer is still on the newest sub-buffer.
            if start % 500 == 0 {
                wait_for("reading", || {
                    Ok(instance.tracefs.stats(1)?.read_events >= start)
                })?;
            }
        }
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::INT)?;
        let mut said_by = String::new();
        let mut stderr = child.stderr.take().context("no standard error")?;
        std::io::Read::read_to_string(&mut stderr, &mut said_by)?;
        let status = child.wait()?;
        ensure!(status.success(), "{status}: {said_by}");
        ensure!(
            before(&said_by, " events of")? == 2 * EVENTS && before(&said_by, " lost")? == 0,
            "{said_by}"
        );
        let recording = report(FILE)?;
        for (numbers, times) in recording.numbers.iter().zip(&recording.times) {
            complete(numbers, EVENTS)?;
            ensure!(times.is_sorted(), "times go back");
        }
        ensure!(recording.lost.is_empty(), "{:?}", recording.lost);
        ensure!(
            recording.stat.matches("read events: 3000").count() == 2,
            "{}",
            recording.stat
        );
        let len = fs::metadata(FILE)?.len();
        said.push(format!(
            "{subbuf} KiB, {clock}: {} events, {len} bytes",
            2 * EVENTS
        ));
    }
    Ok(said.join("; "))
}

/// The file must count the overwritten events, at the right place. The command must report them, too.
pub fn losses() -> Result<String> {
    reads()?;
    let instance = Instance::new(4, ROOM)?;
    instance.write(0, 0..2500)?;
    let command = ["-i", "auxe2e", "record", "--drain", "-o", FILE];
    let first = stderr(&command)?;
    let recording = report(FILE)?;
    let numbers = &recording.numbers[0];
    let lost: u64 = recording.lost.iter().flatten().sum();
    let read = u64::try_from(numbers.len())?;
    ensure!(
        read + lost == 2500 && numbers.first() == Some(&lost) && numbers.is_sorted(),
        "{read} read and {lost} lost of 2500, from {:?} on",
        numbers.first()
    );
    ensure!(before(&first, " events of")? == read, "{first}");
    let stats = instance.tracefs.stats(0)?;
    ensure!(
        stats.read_events == read && stats.overrun == lost,
        "{stats:?}"
    );
    Ok(format!("{read} read, {lost} lost"))
}

fn stderr(arguments: &[&str]) -> Result<String> {
    let output = Command::new("tracering").args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(said)
}

/// To record a command, `tracering` makes its own instance. trace-cmd prints the events by their formats, and nothing is left behind.
pub fn command() -> Result<String> {
    reads()?;
    let said = stderr(&[
        "record",
        "-e",
        "sched:sched_process_exec",
        "-e",
        "sched:sched_switch",
        "-b",
        "1024",
        "--clock",
        "mono",
        "-o",
        FILE,
        "--",
        "sh",
        "-c",
        "for i in 1 2 3; do /bin/tracering --version; done; sleep 0.2",
    ])?;
    let text = output(TRACE_CMD, &["report", "-N", "-i", FILE])?;
    let execs = text.matches("filename=/bin/tracering").count();
    ensure!(execs == 3, "{execs} of 3 executions: {text}");
    let events = text
        .lines()
        .filter(|line| line.contains("sched_switch:") || line.contains("sched_process_exec:"))
        .count();
    ensure!(
        before(&said, " events of")? == u64::try_from(events)?,
        "{events} events, and {said}"
    );
    ensure!(before(&said, " lost")? == 0, "{said}");
    ensure!(!text.contains("UNKNOWN EVENT"), "{text}");
    // The file also has the names of tasks.
    ensure!(text.contains(" sleep-"), "{text}");
    let top = tracering::Tracefs::find()?;
    let left = fs::read_dir(top.path().join("instances"))?.count();
    ensure!(left == 0, "{left} instances are left");
    let beside = fs::read_dir("/tmp")?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.contains("trace.dat.cpu"))
        .count();
    ensure!(beside == 0, "{beside} files are left");
    Ok(format!("{events} events"))
}
