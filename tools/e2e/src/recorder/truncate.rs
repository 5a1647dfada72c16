// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of `--on-truncate`: the recorder's reaction to a full area.

use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use auxview::trace::Trace;
use perfdata::AuxFlags;
use rustix::process::Signal;

use crate::recorder::{end, with, Commander, Steps};
use crate::recording::{
    released, trace_in, wait_for_trace, Reader, Recorder, Seen, TraceFile, PAGE,
};

/// The cases, with their names.
pub const ALL: [(&str, Steps); 3] = [
    ("a full area, resume", |name| full(name, "resume")),
    ("a full area, stop", |name| full(name, "stop")),
    ("a full area, fail", |name| full(name, "fail")),
];

/// The number of AUX records with TRUNCATED, and the number of records after the first of them in its ring.
fn truncations(file: &TraceFile) -> Result<(usize, usize)> {
    let bytes = std::fs::read(file.path())?;
    let trace = Trace::read(&bytes)?;
    let mut sum = (0, 0);
    for ring in trace.rings.values() {
        let cut = |record: &&auxview::trace::AuxAt| record.aux.flags.contains(AuxFlags::TRUNCATED);
        sum.0 += ring.records.iter().filter(cut).count();
        let first = ring.records.iter().position(|record| cut(&record));
        sum.1 += first.map_or(0, |first| ring.records.len() - first - 1);
    }
    Ok(sum)
}

/// Stops the recorder for 300 ms, while a ring gets full in 30 ms. With one thread, and with a thread for each ring and one for the file.
fn full(name: &str, policy: &str) -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let mut commander = Commander::new(name)?;
        let more = ["-a", "--threads", threads, "--on-truncate", policy];
        let mut arguments = with("rate=2048", 16, &more);
        arguments.extend(commander.arguments());
        let recorder = Recorder::start(file.path(), &arguments)?;
        let ready = commander.ask("ping");
        recorder.signal(Signal::STOP)?;
        thread::sleep(Duration::from_millis(300));
        // The recorder may be stopped before it begins the file.
        let before = trace_in(file.path()).unwrap_or_default();
        recorder.signal(Signal::CONT)?;
        let ended = if policy == "resume" {
            ready?;
            // More than both rings: tracing continues.
            wait_for_trace(file.path(), before + 6 * 16 * PAGE)?;
            end(recorder)?
        } else {
            // The recorder must end by itself.
            recorder.wait(Reader::KeepsUp)?
        };
        let status = if policy == "fail" { 1 } else { 3 };
        ensure!(
            ended.status == status,
            "exit status {} and not {status}: {}",
            ended.status,
            ended.errors
        );
        if policy == "fail" {
            for says in ["trace was lost (", "--on-truncate fail", "-m"] {
                ensure!(
                    ended.errors.contains(says),
                    "not {says:?}: {}",
                    ended.errors
                );
            }
        }
        let seen = Seen::of(&file)?;
        seen.is_right().with_context(|| ended.errors.clone())?;
        let (cut, after) = truncations(&file)?;
        ensure!(cut > 0, "no record says so: {seen}");
        ensure!(
            (policy == "resume") == (after > 0),
            "{after} records after the first that was cut: {seen}"
        );
        released()?;
        out = seen.to_string();
    }
    Ok(out)
}
