// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Views of a buffer without reading, wakeups of its readers, and refusals.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use tracering::{Map, Tracefs};

use super::{accounted, number, How, Instance, Log, ROOM};
use crate::ktap::Skip;
use crate::workload::pin;

/// A view shows all sub-buffers in order, repeatedly. A read afterwards returns the same events.
pub fn viewed() -> Result<String> {
    let mut said = Vec::new();
    for (read, events) in [(0, 0), (0, 50), (30, 400), (0, 5000), (500, 900)] {
        let instance = Instance::new(4, ROOM)?;
        let mut map = instance.map(0)?;
        let mut log = Log::default();
        instance.write(0, 0..read)?;
        instance.drain_map(&mut map, &mut log)?;
        instance.write(0, read..read + events)?;
        instance.tracefs.write("tracing_on", "0")?;
        let before = instance.tracefs.stats(0)?;
        let seen = || -> Result<Vec<u64>> {
            let mut numbers = Vec::new();
            for sub in map.view()? {
                for event in sub.events {
                    numbers.push(number(&instance.format, event?.data)?);
                }
            }
            Ok(numbers)
        };
        let (first, second) = (seen()?, seen()?);
        ensure!(first == second, "a second look sees something else");
        ensure!(
            instance.tracefs.stats(0)? == before,
            "looking changes the counters"
        );
        log.numbers.clear();
        instance.drain_map(&mut map, &mut log)?;
        ensure!(
            first == log.numbers,
            "{} events are seen, and {} then read",
            first.len(),
            log.numbers.len()
        );
        ensure!(
            u64::try_from(first.len())? == before.entries,
            "{} of {} events are seen",
            first.len(),
            before.entries
        );
        said.push(first.len().to_string());
    }
    Ok(format!(
        "{} events, each twice, and then read",
        said.join(", ")
    ))
}

/// Maps a buffer again and again while a writer writes. No event may come twice, and no loss may be unreported.
pub fn mapped_again() -> Result<String> {
    const TIMES: u32 = 200;
    let instance = Instance::new(4, ROOM)?;
    let mut log = Log::default();
    let end = AtomicBool::new(false);
    let written = thread::scope(|scope| -> Result<u64> {
        let writer = scope.spawn(|| -> Result<u64> {
            let mut written = 0;
            while !end.load(Ordering::Relaxed) {
                instance.write(1, written..written + 100)?;
                written += 100;
            }
            Ok(written)
        });
        let read = || -> Result<()> {
            pin(0)?;
            for _ in 0..TIMES {
                // Reads up to the writer, which is mostly in the middle of a sub-buffer.
                let mut map = instance.map(1)?;
                instance.drain_map(&mut map, &mut log)?;
            }
            Ok(())
        }();
        end.store(true, Ordering::Relaxed);
        let written = writer.join();
        read?;
        written.unwrap_or_else(|_| bail!("the writer panicked"))
    })?;
    let mut map = instance.map(1)?;
    instance.drain_map(&mut map, &mut log)?;
    let lost = accounted(&instance, 1, &log, written, true)?;
    ensure!(
        !log.numbers.is_empty(),
        "nothing was read of {written} events"
    );
    Ok(format!(
        "{written} written, {lost} lost, mapped {} times",
        TIMES + 1
    ))
}

/// While a buffer is mapped, splice must copy sub-buffers. If the kernel swapped them out of the ring, the mapping would not see later
/// events.
pub fn spliced() -> Result<String> {
    let instance = Instance::new(4, ROOM)?;
    let mut map = instance.map(0)?;
    let mut ring = instance.open(0, How::Spliced)?;
    let (mut log, mut written) = (Log::default(), 0);
    for burst in [300, 5000, 2, 700] {
        instance.write(0, written..written + burst)?;
        written += burst;
        instance.drain(&mut ring, &mut log)?;
    }
    let spliced = log.numbers.len();
    // The meta-page is not updated by the splice, so the mapping shows the last events again.
    let mut again = Log::default();
    instance.drain_map(&mut map, &mut again)?;
    ensure!(
        log.numbers.ends_with(&again.numbers),
        "{:?} are shown again",
        again.numbers
    );
    for burst in [5000, 1, 600] {
        instance.write(0, written..written + burst)?;
        written += burst;
        instance.drain_map(&mut map, &mut log)?;
    }
    let lost = accounted(&instance, 0, &log, written, true)?;
    let mapped = log.numbers.len() - spliced;
    ensure!(
        spliced > 1000 && mapped > 1000,
        "{spliced} spliced and {mapped} mapped of {written}"
    );
    Ok(format!(
        "{written} written, {lost} lost, {spliced} spliced, then {mapped} mapped"
    ))
}

/// `poll` must report a buffer exactly when it is as full as `buffer_percent` demands.
pub fn percent() -> Result<String> {
    let mut said = Vec::new();
    for percent in [0, 25, 50, 100] {
        let instance = Instance::new(4, ROOM)?;
        instance
            .tracefs
            .write("buffer_percent", &percent.to_string())?;
        let map = instance.map(0)?;
        // The reader's sub-buffer does not count.
        let subbufs = u64::from(map.meta()?.nr_subbufs) - 1;
        let ready = || Ok::<_, anyhow::Error>(map.wait(Some(Duration::ZERO))?);
        ensure!(!ready()?, "{percent} %: an empty buffer is reported");
        let mut events = 0;
        while !ready()? {
            ensure!(events < 2000, "{percent} %: a full buffer is not reported");
            instance.write(0, events..events + 1)?;
            events += 1;
        }
        // The writer's current sub-buffer counts, too.
        let touched = u64::try_from(map.view()?.len())?;
        let least = (subbufs * percent).div_ceil(100).max(1);
        ensure!(
            touched == least,
            "{percent} % of {subbufs}: reported with the sub-buffer {touched}, and not {least}"
        );
        said.push(format!("{percent} %: {events}"));
    }
    Ok(format!("events until it is reported: {}", said.join(", ")))
}

/// The kernel refuses tracers that swap buffers while a buffer is mapped.
pub fn tracers() -> Result<String> {
    let Ok(top) = Tracefs::find() else {
        bail!(Skip("this kernel has no tracefs"));
    };
    let available = top.read("available_tracers")?;
    let latency: Vec<_> = ["irqsoff", "preemptoff", "wakeup", "wakeup_rt"]
        .into_iter()
        .filter(|tracer| available.split_whitespace().any(|other| other == *tracer))
        .collect();
    if latency.is_empty() {
        bail!(Skip("this kernel has no latency tracer"));
    }
    let map = Map::open(top.cpu_file(0, "trace_pipe_raw"), top.page_header()?)?;
    for tracer in &latency {
        let error = top.write("current_tracer", tracer).err();
        let error = error.with_context(|| format!("{tracer} is allowed while it is mapped"))?;
        ensure!(error.to_string().contains("busy"), "{tracer}: {error}");
    }
    drop(map);
    for tracer in &latency {
        top.write("current_tracer", tracer)?;
        top.write("current_tracer", "nop")?;
    }
    Ok(format!("{latency:?} refused, and then allowed"))
}

/// The error messages for an unprivileged user and for wrong names: each must say what to do.
pub fn sentences() -> Result<String> {
    let instance = Instance::new(4, ROOM)?;
    let dir = instance.tracefs.path().display().to_string();
    let tracering = fs::canonicalize("/bin/tracering")?;
    let mut said = Vec::new();
    for (user, arguments, expected) in [
        (
            65534,
            &["stat"][..],
            "run this as root, or give your group the mount",
        ),
        (
            65534,
            &["--tracefs", &dir, "cat", "--drain"],
            "run this as root",
        ),
        (
            65534,
            &["record", "-e", "sched:sched_switch"],
            "run this as root",
        ),
        (0, &["-C", "99", "stat"], "no CPU 99 in"),
        (
            0,
            &["cat", "-e", "sched:nothing"],
            "available_events lists those that there are",
        ),
        (0, &["--tracefs", "/tmp", "stat"], "is this tracefs"),
    ] {
        let mut command = Command::new(&tracering);
        let output = command
            .args(arguments)
            .current_dir("/tmp")
            .uid(user)
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(1) && text.contains(expected) && text.lines().count() == 1,
            "{arguments:?} of user {user}: {}: {text}",
            output.status
        );
        said.push(expected);
    }
    Ok(format!("{} sentences", said.len()))
}
