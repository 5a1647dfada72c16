// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of tracefs events beside the trace, which stock perf and trace-cmd read.
//!
//! The events are numbered, and are written by `trace_marker` of the recorder's instance. The framework's tracepoints must agree with the
//! AUX records and with the counters in debugfs.

mod switched;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use auxview::trace::Trace;
use rustix::process::Signal;

use crate::beside::Case;
use crate::ktap::Skip;
use crate::module::{self, counter};
use crate::recording::{auxrec, run, said, Reader, Recorder, TraceFile};
use crate::soft_pt;
use crate::wait::wait_for;
use crate::workload::pin;

/// All cases.
pub const CASES: &[Case] = &[
    Case {
        name: "events of tracefs, as perf reads them",
        run: events,
    },
    Case {
        name: "events of tracefs that are lost",
        run: losses,
    },
    Case {
        name: "events of tracefs, among instructions",
        run: among_instructions,
    },
    Case {
        name: "events of tracefs, in a trace.dat",
        run: trace_dat,
    },
    Case {
        name: "events of tracefs, while the trace is off",
        run: switched::paused,
    },
    Case {
        name: "events of tracefs, of a recorder that is killed",
        run: switched::killed,
    },
];

/// Waits for the recorder's tracing instance, until its events are enabled.
fn instance(recorder: &Recorder, system: &str) -> Result<PathBuf> {
    let Ok(top) = tracering::Tracefs::find() else {
        bail!(Skip("this kernel has no tracefs"));
    };
    let name = format!("instances/auxrec.{}", recorder.id());
    let dir = top.path().join(name);
    // The recorder enables tracefs events after all other events.
    let enable = dir.join(format!("events/{system}/enable"));
    wait_for("the instance of the recorder", || {
        Ok(fs::read_to_string(&enable).is_ok_and(|text| text.trim() != "0"))
    })?;
    Ok(dir)
}

/// Writes `each` numbered events on CPU 0 and as many on CPU 1, alternately.
fn write(instance: &Path, each: u64) -> Result<()> {
    write_numbers(instance, 0..each)
}

/// Writes events with these numbers on CPU 0 and on CPU 1, alternately.
fn write_numbers(instance: &Path, numbers: Range<u64>) -> Result<()> {
    let marker = instance.join("trace_marker");
    let mut marker = File::options().append(true).open(marker)?;
    for start in numbers.clone().step_by(100) {
        for cpu in [0, 1] {
            pin(cpu)?;
            for n in start..(start + 100).min(numbers.end) {
                marker.write_all(format!("number {n}\n").as_bytes())?;
            }
        }
    }
    Ok(())
}

/// A line of `perf script`.
struct Line {
    cpu: u32,
    /// In ns.
    time: u64,
    /// Name and fields of the event.
    text: String,
}

/// The lines that `perf script` prints for a file. Their times must be in order.
fn script(file: &Path, options: &[&str]) -> Result<Vec<Line>> {
    let mut script = Command::new("perf");
    script.arg("script").args(options).arg("-i").arg(file);
    let mut lines: Vec<Line> = Vec::new();
    for line in said(&mut script)?
        .lines()
        .filter(|line| !line.trim().is_empty())
    {
        let parsed = line.split_once(']').and_then(|(cpu, rest)| {
            let (time, text) = rest.split_once(": ")?;
            let (s, ns) = time.trim().split_once('.')?;
            Some(Line {
                cpu: cpu.rsplit('[').next()?.parse().ok()?,
                time: s.parse::<u64>().ok()? * 1_000_000_000 + ns.parse::<u64>().ok()?,
                text: text.trim().to_owned(),
            })
        });
        let parsed = parsed.with_context(|| format!("what does perf mean? {line}"))?;
        if let Some(last) = lines.last() {
            ensure!(last.time <= parsed.time, "time goes back: {line}");
        }
        lines.push(parsed);
    }
    Ok(lines)
}

const FIELDS: [&str; 4] = ["--ns", "--no-itrace", "-F", "cpu,time,event,trace"];

/// The numbers of the events of a CPU.
fn numbers(lines: &[Line], cpu: u32) -> Result<Vec<u64>> {
    let ours = lines.iter().filter(|line| line.cpu == cpu);
    let numbers = ours
        .filter_map(|line| line.text.split_once("number "))
        .map(|(_, number)| {
            let number = number.trim_matches(|c: char| !c.is_ascii_digit());
            number
                .parse()
                .with_context(|| format!("no number: {number}"))
        });
    numbers.collect()
}

/// The number that follows a word.
fn after(text: &str, word: &str) -> Result<u64> {
    let number = text.split_once(word).map(|(_, rest)| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric());
        rest.get(..end.unwrap_or(rest.len())).unwrap_or_default()
    });
    let parsed = number.and_then(|number| match number.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => number.parse().ok(),
    });
    parsed.with_context(|| format!("no number behind {word}: {text}"))
}

fn record(more: &[&str]) -> Vec<String> {
    let terms = "pattern/rate=2048,burst=11/";
    let mut all = vec![
        "-e",
        terms,
        "-m",
        "64,64",
        "--aux-watermark",
        "16K",
        "-C",
        "0,1",
    ];
    all.extend(more);
    all.into_iter().map(str::to_owned).collect()
}

/// Offset and size of each committed piece, by CPU.
type Written = BTreeMap<u32, Vec<(u64, u64)>>;

/// Every number must be in the file, in order. For each commit, the tracepoint, the AUX record and the counters must agree. Tracepoints and
/// trace must be on the same clock.
fn events() -> Result<String> {
    const EVENTS: u64 = 1500;
    module::alias(0)?;
    let counters = || -> Result<Vec<u64>> {
        let names = ["commits", "bytes", "lost_no_space", "lost_gap"];
        names.iter().map(|name| counter("pattern", name)).collect()
    };
    let before = counters()?;
    let file = TraceFile::new("tracepoints");
    let recorder = Recorder::start(
        file.path(),
        &record(&[
            "--trace",
            "rust_perf:*,ftrace:print",
            "--trace-buffer",
            "4M",
            "--quiet",
        ]),
    )?;
    let instance = instance(&recorder, "rust_perf")?;
    write(&instance, EVENTS)?;
    // The picture begins with the first AUX record, so the numbered events may all be before it. A commit is an event, too.
    wait_for("ten commits", || Ok(counters()?[0] >= before[0] + 10))?;
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    ensure!(ended.status == 0, "{}: {}", ended.status, ended.errors);
    ensure!(!instance.exists(), "the recorder leaves its instance");
    let counted: Vec<u64> = counters()?
        .iter()
        .zip(&before)
        .map(|(a, b)| a - b)
        .collect();

    let lines = script(file.path(), &FIELDS)?;
    for cpu in [0, 1] {
        let numbers = numbers(&lines, cpu)?;
        ensure!(
            numbers.iter().copied().eq(0..EVENTS),
            "CPU {cpu}: {} of {EVENTS} events in perf's order",
            numbers.len()
        );
    }
    let mut traced = Written::new();
    let mut times: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let (mut commits, mut sum) = (0, 0);
    for line in lines
        .iter()
        .filter(|line| line.text.contains("rust_perf_commit:"))
    {
        let (head, size) = (after(&line.text, "head=")?, after(&line.text, " size=")?);
        commits += 1;
        sum += size;
        if size != 0 {
            traced.entry(line.cpu).or_default().push((head, size));
            times.entry(line.cpu).or_default().push(line.time);
        }
    }
    let bytes = fs::read(file.path())?;
    let trace = Trace::read(&bytes)?;
    ensure!(trace.problems.is_empty(), "{:?}", trace.problems);
    let mut recorded = Written::new();
    let mut records: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for ring in trace.rings.values() {
        for record in ring.records.iter().filter(|record| record.aux.size != 0) {
            let cpu = record.cpu.context("an AUX record of no CPU")?;
            let all = recorded.entry(cpu).or_default();
            all.push((record.aux.offset, record.aux.size));
            records.entry(cpu).or_default().push(record.time);
        }
    }
    ensure!(
        traced == recorded,
        "{commits} commits by their tracepoints are not the {} AUX records",
        recorded.values().map(Vec::len).sum::<usize>()
    );
    let read: u64 = trace.rings.values().map(|ring| ring.loss.reported).sum();
    ensure!(
        counted == [commits, sum, 0, 0] && sum == read && sum != 0,
        "counters {counted:?}; {commits} commits of {sum} bytes by tracepoints, {read} by AUX records"
    );
    // Each commit is before its AUX record and after the previous one, so the clock is the same.
    for (cpu, times) in &times {
        let records = records.get(cpu).context("no records")?;
        let ordered = |a: &[u64], b: &[u64]| a.iter().zip(b.iter().skip(1)).all(|(a, b)| a < b);
        ensure!(
            ordered(times, records) && ordered(records, times),
            "CPU {cpu}: commits at {times:?}, AUX records at {records:?}"
        );
    }
    let check = said(auxrec(["check"]).arg(file.path()))?;
    ensure!(
        check.contains("tracefs, CPU 0: ") && check.contains("tracefs, CPU 1: "),
        "{check}"
    );
    ensure!(check.contains(" 0 problems"), "{check}");
    let svg = file.path().with_extension("svg");
    said(auxrec(["report"]).arg(file.path()).arg("--svg").arg(&svg))?;
    let drawn = fs::read_to_string(&svg)?;
    fs::remove_file(&svg)?;
    // The key of the picture has the colour once.
    ensure!(
        drawn.matches("#7A4FB0").count() > 1,
        "no events in the picture"
    );
    Ok(format!(
        "{} events of 2 CPUs, {commits} commits of {sum} bytes",
        2 * EVENTS
    ))
}

/// The recorder does not read for a while. Events that the kernel overwrites are missing in the numbers, and perf must see records of the
/// loss.
fn losses() -> Result<String> {
    const EVENTS: u64 = 3000;
    module::alias(0)?;
    let file = TraceFile::new("tracepoints lost");
    let recorder = Recorder::start(
        file.path(),
        &record(&[
            "--trace",
            // `oom:mark_victim` does not occur here. An event that occurs would be among the lost ones.
            "ftrace:print,oom:mark_victim",
            "--trace-buffer",
            "16K",
            "--quiet",
        ]),
    )?;
    let instance = instance(&recorder, "oom")?;
    recorder.signal(Signal::STOP)?;
    write(&instance, EVENTS)?;
    recorder.signal(Signal::CONT)?;
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    ensure!(ended.status == 3, "{}: {}", ended.status, ended.errors);
    let lines = script(file.path(), &FIELDS)?;
    let mut missing = 0;
    for cpu in [0, 1] {
        let numbers = numbers(&lines, cpu)?;
        ensure!(
            numbers.is_sorted() && numbers.last() == Some(&(EVENTS - 1)),
            "CPU {cpu}: {:?} is the last",
            numbers.last()
        );
        missing += EVENTS - u64::try_from(numbers.len())?;
    }
    let shown = [
        "--ns",
        "--no-itrace",
        "--show-lost-events",
        "-F",
        "cpu,time,event,trace",
    ];
    let mut script = Command::new("perf");
    let text = said(script.arg("script").args(shown).arg("-i").arg(file.path()))?;
    let mut lost = 0;
    for line in text
        .lines()
        .filter(|line| line.contains("PERF_RECORD_LOST"))
    {
        lost += after(line, "lost ")?;
    }
    ensure!(
        lost == missing && missing > EVENTS,
        "{missing} numbers are missing, and perf reports {lost}"
    );
    let output = run(auxrec(["check", "--json"]).arg(file.path()))?;
    let found: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(
        output.status.code() == Some(3) && found["lost"]["events"]["times"] == missing,
        "check: {}: {found}",
        output.status
    );
    Ok(format!("{missing} of {} lost", 2 * EVENTS))
}

/// Tracefs events and instructions are on perf's clock. So the exec event must come before the program's first instruction, and the exit
/// event after its last one.
fn among_instructions() -> Result<String> {
    soft_pt::run(|| {
        let file = TraceFile::new("tracepoints among instructions");
        let mut record = auxrec(["record", "-e", "soft_pt//u", "-m", "64,4096", "-o"]);
        record.arg(file.path());
        record.args([
            "--trace",
            "sched:sched_process_exec,sched:sched_process_exit,sched:sched_switch",
        ]);
        said(record.args(["--", soft_pt::PROGRAM, "workload", "calls"]))?;
        let fields = ["--ns", "--itrace=i0ns", "-F", "cpu,time,event"];
        let lines = script(file.path(), &fields)?;
        let is = |line: &Line, what: &str| line.text.starts_with(what);
        let instruction = |line: &Line| is(line, "instructions");
        let first = lines
            .iter()
            .position(instruction)
            .context("no instruction")?;
        let last = lines.iter().rposition(instruction).unwrap_or(0);
        let at = |what: &str| lines.iter().position(|line| is(line, what));
        let exec = at("sched:sched_process_exec").context("no exec")?;
        let exit = at("sched:sched_process_exit").context("no exit")?;
        ensure!(
            exec < first && last < exit,
            "exec {exec}, instructions {first} to {last}, exit {exit}"
        );
        let among = lines.get(first..last).unwrap_or_default();
        let switches = among.iter().filter(|line| is(line, "sched:sched_switch"));
        Ok(format!(
            "{} instructions between exec and exit, {} switches among them",
            among.len(),
            switches.count()
        ))
    })
}

/// With `--trace-dat`, trace-cmd must see the events, and the recording must have none.
fn trace_dat() -> Result<String> {
    const EVENTS: u64 = 500;
    const DAT: &str = "/tmp/beside.dat";
    module::alias(0)?;
    let file = TraceFile::new("tracepoints dat");
    let recorder = Recorder::start(
        file.path(),
        &record(&[
            "--trace",
            "rust_perf:*",
            "--trace",
            "ftrace:print",
            "--trace-dat",
            DAT,
            "--quiet",
        ]),
    )?;
    write(&instance(&recorder, "rust_perf")?, EVENTS)?;
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    ensure!(ended.status == 0, "{}: {}", ended.status, ended.errors);
    let mut report = Command::new("/usr/bin/trace-cmd");
    let text = said(report.args(["report", "-N", "-t", "-i", DAT]))?;
    fs::remove_file(DAT)?;
    let numbers = text.matches("number ").count();
    let commits = text.matches("rust_perf_commit:").count();
    ensure!(
        u64::try_from(numbers)? == 2 * EVENTS && commits != 0,
        "{numbers} numbers, {commits} commits"
    );
    let lines = script(
        file.path(),
        &["--ns", "--no-itrace", "-F", "cpu,time,event"],
    )?;
    ensure!(lines.is_empty(), "{} samples in the recording", lines.len());
    Ok(format!("{numbers} numbers, {commits} commits"))
}
