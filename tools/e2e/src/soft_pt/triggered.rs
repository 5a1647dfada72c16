// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Snapshots that a function of the traced program triggers (`auxrec record --trigger`).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{ensure, Context, Result};
use object::{Object, ObjectSymbol};
use perfdata::Event;
use serde_json::Value;

use super::{place, Victim, NOBODY, PROGRAM};
use crate::recorder::pieces;
use crate::recording::{auxrec, said, Ended, Reader, Recorder, TraceFile, PAGE};
use crate::wait::wait_for;
use crate::workload::CALLS;

const PROBES: &str = "/sys/kernel/tracing/uprobe_events";

/// The symbol of one of this program's workload functions.
fn symbol(name: &str) -> Result<String> {
    let bytes = fs::read(PROGRAM).context("cannot read the program")?;
    let file = object::File::parse(bytes.as_slice()).context("no program")?;
    let mut names = file.symbols().filter_map(|symbol| symbol.name().ok());
    let found = names.find(|text| text.contains("8workload") && text.contains(name));
    Ok(found
        .with_context(|| format!("no symbol {name}"))?
        .to_owned())
}

/// The recorder's JSON report.
struct Counts {
    hits: u64,
    snapshots: u64,
}

impl Counts {
    fn read(path: &str) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {path}"))?;
        let value: Value = serde_json::from_slice(&text)?;
        let number = |name: &str| {
            let found = value.pointer(name).and_then(Value::as_u64);
            found.with_context(|| format!("no {name} in {value}"))
        };
        Ok(Self {
            hits: number("/trigger_hits")?,
            snapshots: number("/snapshots/times")?,
        })
    }
}

/// The number of samples of the event with this name in a file.
fn samples(file: &TraceFile, name: &str) -> Result<u64> {
    let bytes = fs::read(file.path()).context("cannot read the recording")?;
    let parsed = perfdata::File::parse(&bytes)?;
    let events = parsed.feature(perfdata::Feature::EVENT_DESC);
    let events = events.context("no names of events")?.events()?;
    let event = events.iter().find(|event| event.name == name);
    let ids = &event.with_context(|| format!("no event {name}"))?.ids;
    let mut sum = 0;
    for record in parsed.records() {
        let record = record?;
        let id = record.body.first_chunk().map(|id| u64::from_le_bytes(*id));
        let is_sample = record.kind == perfdata::RecordType::SAMPLE;
        sum += u64::from(is_sample && id.is_some_and(|id| ids.contains(&id)));
    }
    Ok(sum)
}

fn arguments(trigger: &str, more: &[&str]) -> Vec<String> {
    // Each call causes a record, and the recorder may have to wait for a CPU. So the data ring is large.
    let all = ["-e", "soft_pt//u", "-m", "4M,256K", "-S", "--json", JSON];
    let all = [&all[..], &["--trigger", trigger], more].concat();
    all.into_iter().map(str::to_owned).collect()
}

const JSON: &str = "/tmp/triggered.json";

/// Checks that no uprobe of a recorder is left.
fn no_probe() -> Result<()> {
    let probes = fs::read_to_string(PROBES).context("cannot read the uprobes")?;
    ensure!(probes.is_empty(), "a uprobe is left: {probes}");
    Ok(())
}

/// Records with this trigger. Returns the recorder's JSON report and messages.
fn record(file: &TraceFile, trigger: &str, more: &[&str]) -> Result<(Counts, Ended)> {
    let recorder = Recorder::start(file.path(), &arguments(trigger, more))?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    ensure!(
        ended.status == 0,
        "status {}: {}",
        ended.status,
        ended.errors
    );
    no_probe()?;
    Ok((Counts::read(JSON)?, ended))
}

/// Each call must be counted and be in the file, also in children. At least one snapshot must be taken.
pub(super) fn hits() -> Result<String> {
    let called = symbol("6called")?;
    let file = TraceFile::new("triggered");
    let workload = format!("{PROGRAM} workload calls");
    let both = format!("{workload} & {workload}; wait");
    let of_file = format!("{called}@{PROGRAM}");
    let mut outcome = Vec::new();
    for (trigger, more, expected) in [
        (&called, &["--", PROGRAM, "workload", "calls"][..], CALLS),
        (&of_file, &["--", "sh", "-c", &both], 2 * CALLS),
        (&of_file, &["-a", "--", "sh", "-c", &both], 2 * CALLS),
        (
            &of_file,
            &["--per-thread", "--", PROGRAM, "workload", "calls"],
            CALLS,
        ),
    ] {
        let (counts, ended) = record(&file, trigger, more)?;
        let seen = samples(&file, &format!("trigger:{trigger}"))?;
        ensure!(
            counts.hits == expected && seen == expected,
            "{more:?}: {} hits and {seen} samples, not {expected}: {}",
            counts.hits,
            ended.errors
        );
        ensure!(
            (1..=expected).contains(&counts.snapshots),
            "{more:?}: {} snapshots",
            counts.snapshots
        );
        let said = format!(
            "reached {expected} times, and {} snapshots were taken",
            counts.snapshots
        );
        ensure!(ended.errors.contains(&said), "no {said}: {}", ended.errors);
        outcome.push(format!("{expected} hits, {} snapshots", counts.snapshots));
    }
    Ok(outcome.join("; "))
}

/// Whether a trace with these last bytes stops at this offset in a page: by `FUP` and `TIP.PGD`.
fn stops_at(end: &[u8], offset: u64) -> bool {
    const PGD: u8 = 0x01;
    const FUP: u8 = 0x1d;
    let Some((&PGD, before)) = end.split_last() else {
        return false;
    };
    // The upper bits of the first byte encode how many bytes of the address follow.
    [(1, 2), (2, 4), (3, 6), (4, 6), (6, 8)]
        .iter()
        .any(|&(size, len): &(u8, usize)| {
            let at = before.len().checked_sub(len + 1);
            matches!(
                at.and_then(|at| before.get(at..)),
                Some([first, low, high, ..]) if *first == size << 5 | FUP
                    && u64::from(u16::from_le_bytes([*low, *high])) % PAGE == offset % PAGE
            )
        })
}

/// A snapshot must end where the program reached the function, even if the recorder reads it later.
pub(super) fn end() -> Result<String> {
    let caller = symbol("6caller")?;
    let (offset, _) = place("6caller")?;
    let file = TraceFile::new("triggered");
    let workload = ["--", PROGRAM, "workload", "calls"];
    let (counts, ended) = record(&file, &caller, &workload)?;
    ensure!(
        (counts.hits, counts.snapshots) == (1, 1),
        "not one call and one snapshot: {}",
        ended.errors
    );
    ensure!(
        samples(&file, &format!("trigger:{caller} pauses"))? == 1,
        "it was not paused: {}",
        ended.errors
    );
    let bytes = fs::read(file.path()).context("cannot read the recording")?;
    let parsed = perfdata::File::parse(&bytes)?;
    let mut ends = Vec::new();
    for record in parsed.records() {
        if let Event::Auxtrace(_, trace) = parsed.decode(&record?)?.0 {
            let zeros = trace.iter().rev().take_while(|&&byte| byte == 0).count();
            let trace = &trace[..trace.len() - zeros];
            ends.push(trace[trace.len().saturating_sub(10)..].to_vec());
        }
    }
    ensure!(
        ends.iter().any(|end| stops_at(end, offset)),
        "no piece ends at {offset:#x}: {ends:x?}"
    );
    // The trace must reach the function, without any of its instructions.
    let calls = auxview::flamegraph::calls(&bytes, Path::new("/"))?;
    ensure!(calls.losses() == 0, "{}", calls.summary());
    let mut folded = Vec::new();
    calls.fold(&mut folded)?;
    let folded = String::from_utf8(folded).context("not UTF-8")?;
    ensure!(
        folded.contains("auxe2e::main") && !folded.contains("auxe2e::workload::call"),
        "it did not end at {offset:#x}: {folded}"
    );
    Ok(format!("{} instructions up to it", calls.count()))
}

/// Stock perf must read such a recording: each hit is a sample, and the trace ends where the function is reached.
pub(crate) fn by_perf() -> Result<String> {
    let [caller, called] = [symbol("6caller")?, symbol("6called")?];
    let file = TraceFile::new("triggered");
    let workload = ["--", PROGRAM, "workload", "calls"];
    let script = |options: &[&str]| {
        let mut perf = Command::new("perf");
        said(perf.arg("script").args(options).arg("-i").arg(file.path()))
    };
    // The addresses of the hits that perf shows.
    let hits = |trigger: &str| -> Result<Vec<String>> {
        let shown = script(&["--no-itrace", "-F", "event,ip"])?;
        let name = format!("trigger:{trigger}:");
        let hits = shown.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            words.next().filter(|word| *word == name)?;
            words.next().map(str::to_owned)
        });
        Ok(hits.collect())
    };
    let (counts, _) = record(&file, &called, &workload)?;
    let all = hits(&called)?;
    ensure!(
        u64::try_from(all.len())? == counts.hits && all.iter().all(|hit| *hit == all[0]),
        "perf shows other samples of {} hits: {all:?}",
        counts.hits
    );
    record(&file, &caller, &workload)?;
    let one = hits(&caller)?;
    let shown = script(&["--itrace=i1ie", "-F", "ip,sym"])?;
    // Where trace ends by an interrupt, perf also shows the next instruction, which was not executed.
    let beyond = shown.lines().find(|line| {
        let is_hit = one.iter().any(|hit| line.trim_start().starts_with(hit));
        line.contains("workload::call") && !is_hit
    });
    ensure!(
        one.len() == 1 && shown.contains("auxe2e::main") && beyond.is_none(),
        "perf shows hits at {one:?}, and of the trace, {} instructions, {beyond:?}",
        shown.lines().count()
    );
    Ok(format!(
        "{} samples; {} instructions up to a hit",
        all.len(),
        shown.lines().count()
    ))
}

/// The trigger's function is that of the recorded process, whatever the name of its program.
pub(super) fn process() -> Result<String> {
    let spin = symbol("4spin")?;
    let victim = Victim::new()?;
    let pid = victim.id()?.to_string();
    let file = TraceFile::new("triggered");
    let recorder = Recorder::start(file.path(), &arguments(&spin, &["-p", &pid]))?;
    // The trace must be resumed after each snapshot. Otherwise it would not grow from one snapshot to the next.
    wait_for("trace behind a snapshot", || {
        let rings = pieces(file.path()).unwrap_or_default();
        Ok(rings.iter().any(|pieces| {
            let ends: BTreeSet<_> = pieces.iter().map(|(at, len)| at + len).collect();
            ends.len() > 3
        }))
    })?;
    victim.ends()?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    ensure!(
        ended.status == 0,
        "status {}: {}",
        ended.status,
        ended.errors
    );
    no_probe()?;
    let counts = Counts::read(JSON)?;
    ensure!(
        counts.hits >= counts.snapshots && counts.snapshots > 0,
        "{} hits, {} snapshots",
        counts.hits,
        counts.snapshots
    );
    Ok(format!(
        "{} hits, {} snapshots",
        counts.hits, counts.snapshots
    ))
}

/// An invalid trigger must be named in the error message. No uprobe may be left.
pub(super) fn refused() -> Result<String> {
    let file = TraceFile::new("triggered");
    let workload = ["--", PROGRAM, "workload", "calls"];
    let none = format!("none@{PROGRAM}");
    let behind = format!("0x7fffffff@{PROGRAM}");
    for (trigger, more, status, says) in [
        (
            "none",
            &workload[..],
            2,
            "/bin/auxe2e has no function `none`",
        ),
        (&none, &workload, 2, "/bin/auxe2e has no function `none`"),
        ("main", &["-a", "--", PROGRAM], 2, "give FUNCTION@FILE"),
        (
            "main",
            &["--", "no-such-program"],
            2,
            "no program `no-such-program`",
        ),
        (
            &behind,
            &["-a", "--", PROGRAM],
            1,
            "can put no uprobe there",
        ),
        (
            "main@/nowhere",
            &workload,
            2,
            "the trigger's file /nowhere: No such file",
        ),
    ] {
        let recorder = Recorder::start(file.path(), &arguments(trigger, more))?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        ensure!(
            ended.status == status && ended.errors.contains(says),
            "--trigger {trigger} {more:?}: status {}: {}",
            ended.status,
            ended.errors
        );
        no_probe()?;
    }
    let ends = |command: &mut Command, status: i32, says: &[&str]| {
        let output = command.output().context("cannot start auxrec")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(status) && says.iter().all(|say| errors.contains(say)),
            "{command:?}: {}: {errors}",
            output.status
        );
        no_probe()
    };
    let path = file.path().to_str().context("not UTF-8")?;
    let record = ["record", "-e", "soft_pt//u", "-o", path];
    let trigger = [&["--trigger", "main"], &workload[..]].concat();
    ends(
        auxrec(record)
            .arg("-S")
            .args(&trigger)
            .uid(NOBODY)
            .gid(NOBODY),
        1,
        &[
            "--trigger main: /sys/kernel/tracing: Permission denied",
            "run this as root",
        ],
    )?;
    // A mount namespace without tracefs.
    const HIDDEN: &str = "mount -t tmpfs none /sys/kernel/debug && mount -t tmpfs none /sys/kernel/tracing && exec auxrec \"$@\"";
    ends(
        Command::new("unshare")
            .args(["-m", "sh", "-c", HIDDEN, "sh"])
            .args(record)
            .arg("-S")
            .args(&trigger),
        1,
        &[
            "--trigger main: no tracefs at /sys/kernel/tracing or ",
            "mount -t tracefs",
        ],
    )?;
    Ok(String::new())
}
