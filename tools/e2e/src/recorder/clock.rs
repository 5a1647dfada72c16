// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings in a guest with `tsc=unstable`: perf's clock does not use the processor's cycle counter there. Compares `auxrec` with stock
//! `perf record`.

use std::path::Path;
use std::process::Command;

use anyhow::{ensure, Context, Result};
use auxview::trace::Trace;

use crate::beside::differences::Tool::{self, Auxrec, Perf};
use crate::beside::{one_cpu, Case};
use crate::pattern;
use crate::recording::{said, TraceFile};
use crate::soft_pt::{self, Followed, PROGRAM};

/// All cases.
pub const CASES: &[Case] = &[
    Case {
        name: "no cycle counter, the same bytes",
        run: one_cpu,
    },
    Case {
        name: "no cycle counter, as intel_pt",
        run: pattern,
    },
    Case {
        name: "no cycle counter, soft_pt",
        run: || soft_pt::run(stamped),
    },
];

const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// The clock source of the kernel, which must not be the cycle counter.
fn clock() -> Result<String> {
    let clock = std::fs::read_to_string(CLOCK).context("cannot read which clock is used")?;
    ensure!(clock.trim() != "tsc", "the guest goes by its cycle counter");
    Ok(clock.trim().to_owned())
}

/// The time conversion in a file, as perf shows it: whether there are TIME_CONV records, and shift, multiplier, zero and capability of
/// AUXTRACE_INFO.
fn conversion(file: &TraceFile) -> Result<(bool, Option<[u64; 4]>)> {
    const NAMES: [&str; 4] = [
        "Time Shift",
        "Time Multiplier",
        "Time Zero",
        "Cap Time Zero",
    ];
    let mut dump = Command::new("perf");
    dump.args(["script", "-D", "--no-itrace", "-i"])
        .arg(file.path());
    let text = said(&mut dump)?;
    let word = |name: &str| {
        let rest = text.lines().find_map(|l| l.trim().strip_prefix(name))?;
        rest.trim().parse().ok()
    };
    let info = text.contains("PERF_RECORD_AUXTRACE_INFO");
    let words = if info {
        let mut words = [0; 4];
        for (to, name) in words.iter_mut().zip(NAMES) {
            *to = word(name).with_context(|| format!("AUXTRACE_INFO has no {name:?}"))?;
        }
        Some(words)
    } else {
        None
    };
    Ok((text.contains("PERF_RECORD_TIME_CONV"), words))
}

/// perf warns, and still records the same bytes. auxrec uses CLOCK_MONOTONIC in this case.
fn pattern() -> Result<String> {
    let clock = clock()?;
    let record = |tool: Tool| -> Result<String> {
        let file = tool.file();
        let arguments = ["-e", "intel_pt/rate=2048/", "-C", "1", "-m", "64,64", "--"];
        let workload = ["auxe2e", "workload", "sleep", "--ms", "1000"];
        let ended = tool.record(&file, &[&arguments[..], &workload].concat())?;
        let warned = ended.errors.contains("TSC not available");
        let (records, info) = conversion(&file)?;
        let mut header = Command::new("perf");
        header
            .args(["report", "--header-only", "-i"])
            .arg(file.path());
        let own = said(&mut header)?.contains("clockid: monotonic");
        let seen = format!(
            "{}: status {}, warned {warned}, TIME_CONV {records}, AUXTRACE_INFO {info:?}, CLOCK_MONOTONIC {own}",
            tool.name(),
            ended.status
        );
        let wanted = match tool {
            Perf => warned && info == Some([0; 4]) && !own,
            Auxrec => !warned && info.is_none() && own,
        };
        ensure!(ended.status == 0 && !records && wanted, "{seen}");
        let findings = pattern::check(&std::fs::read(file.path())?)?;
        ensure!(
            tool == Perf || findings.problems.is_empty(),
            "check: {:?}",
            findings.problems
        );
        Ok(seen)
    };
    Ok(format!("{clock}; {}; {}", record(Perf)?, record(Auxrec)?))
}

/// Trace with time stamps of the cycle counter. The decoder cannot assign the trace of CPUs to tasks then, and the recorder warns about
/// that before it records. The trace of a thread needs no time stamps.
fn stamped() -> Result<String> {
    let clock = clock()?;
    let file = Auxrec.file();
    let workload = ["-e", "soft_pt//u", "--", PROGRAM, "workload", "calls"];
    let ended = Auxrec.record(&file, &workload)?;
    ensure!(
        ended.status == 0 && ended.errors.contains("--per-thread"),
        "auxrec: exit status {}: {}",
        ended.status,
        ended.errors
    );
    let words = conversion(&file)?;
    ensure!(
        words == (false, Some([0; 4])),
        "TIME_CONV and AUXTRACE_INFO: {words:?}"
    );
    let bytes = std::fs::read(file.path())?;
    let trace = Trace::read(&bytes)?;
    let counts = trace.rings.values().flat_map(|ring| &ring.counts);
    let counted: u64 = counts.map(|count| count.value).sum();
    let mut script = Command::new("perf");
    script
        .args(["script", "--itrace=i0ns", "-F", "ip", "-i"])
        .arg(file.path());
    let shown = said(&mut script)?.lines().count();
    // The trace of a task that migrates is in two rings, which cannot be put in order.
    let rings = trace.rings.values().filter(|ring| !ring.pieces.is_empty());
    let alone = rings.count() == 1;
    ensure!(
        u64::try_from(shown)? == counted || !alone && shown != 0,
        "perf shows {shown} of {counted} instructions"
    );
    let drawn = auxview::flamegraph::calls(&bytes, Path::new("/"));
    let refused = drawn.err().context("a flame graph of it is drawn")?;
    ensure!(refused.to_string().contains("--per-thread"), "{refused}");

    let followed = Followed::record(&["--per-thread"])?;
    Ok(format!(
        "{clock}; {counted} instructions of CPUs, perf shows {shown}; {} of a thread, all followed",
        followed.counted
    ))
}
