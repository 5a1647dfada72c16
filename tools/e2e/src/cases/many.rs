// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases for a guest with many CPUs. Each CPU needs a file descriptor for each event.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::thread;

use anyhow::{ensure, Context, Result};
use auxview::trace::Trace as Recorded;

use super::released;
use super::traces::{Trace, TRACE};
use crate::events::siblings::Setting;
use crate::module;
use crate::recording::TraceFile;

/// A case: its name, and its code.
type Case = (&'static str, fn() -> Result<String>);

/// The cases.
pub const ALL: [Case; 3] = [
    ("many CPUs: all are recorded", all),
    ("many CPUs: a soft limit of open files is raised", raised),
    ("many CPUs: a hard limit of open files is named", named),
];

/// The guest must have this many CPUs, at least.
const CPUS: usize = 64;
/// A limit of open files that is too low for the events below on all CPUs.
const FILES: usize = 256;
const EVENTS: &str = "{pattern/rate=64/,cpu-clock/freq=10/},context-switches,page-faults";

fn all() -> Result<String> {
    ready()?;
    Trace {
        terms: "rate=64",
        // The 64 CPUs share those of the machine: each may wait for seconds.
        ring: 64,
        wraps: 1,
        target: &["-a"],
        cpus: CPUS,
        streams: CPUS,
        ..TRACE
    }
    .run("many")
}

fn ready() -> Result<()> {
    let cpus = thread::available_parallelism()?.get();

    ensure!(cpus >= CPUS, "the guest has {cpus} CPUs");
    module::load_all()
}

/// Records all CPUs under this limit.
fn record(file: &TraceFile, limit: &str, user: u32) -> Result<Output> {
    let _paranoid = Setting::change("/proc/sys/kernel/perf_event_paranoid", "-1")?;
    let script = format!("{limit}; exec auxrec record -o $0 -a -m 4,4 -e '{EVENTS}' -- sleep 1");

    Command::new("busybox")
        .args(["sh", "-c", &script])
        .arg(file.path())
        .uid(user)
        .gid(user)
        .output()
        .context("cannot start auxrec")
}

/// The recorder raises the soft limit, at most to the hard limit.
fn raised() -> Result<String> {
    ready()?;
    let file = TraceFile::new("many");
    let output = record(&file, &format!("ulimit -Sn {FILES}"), 0)?;
    // Exit status 3 reports a loss: a small ring may get full.
    ensure!(
        matches!(output.status.code(), Some(0 | 3)),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let bytes = std::fs::read(file.path())?;
    let rings = Recorded::read(&bytes)?.rings;
    let with_trace = rings.values().filter(|ring| ring.loss.read != 0).count();
    ensure!(with_trace >= CPUS, "{with_trace} of {CPUS} CPUs have trace");
    drop(file);
    released()?;
    Ok(format!("{with_trace} rings with trace"))
}

/// The recorder must name the limit before it opens events.
fn named() -> Result<String> {
    const USER: u32 = 65534;

    ready()?;
    let file = TraceFile::new("many-user");
    let output = record(&file, &format!("ulimit -n {FILES}"), USER)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.code() == Some(1)
            && said.contains("RLIMIT_NOFILE")
            && said.contains(&FILES.to_string()),
        "{}: {said}",
        output.status
    );
    released()?;
    Ok(said.trim().to_owned())
}
