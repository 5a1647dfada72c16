// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of what is done when an area was full: `--on-truncate`.

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

/// The cases, by their names.
pub const ALL: [(&str, Steps); 3] = [
    ("a full area, resume", |name| full(name, "resume")),
    ("a full area, stop", |name| full(name, "stop")),
    ("a full area, fail", |name| full(name, "fail")),
];

/// How often an AUX record says that there was no room, and how many follow the first such of their ring.
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

/// A recorder that is stopped while a ring fills that takes no more than 30 ms to; by one thread, and by one for each ring and one
/// for the file.
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
        // It may have been stopped before it began the file.
        let before = trace_in(file.path()).unwrap_or_default();
        recorder.signal(Signal::CONT)?;
        let ended = if policy == "resume" {
            ready?;
            // Both rings once, and more than that: it goes on.
            wait_for_trace(file.path(), before + 6 * 16 * PAGE)?;
            end(recorder)?
        } else {
            // Nothing tells it to end.
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
