// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Snapshots of AUX areas in overwrite mode.

use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use rustix::process::Signal;

use super::{accounted, end, pieces, with, Commander};
use crate::module;
use crate::recording::{recover, released, Reader, Recorder, Seen, TraceFile, PAGE};
use crate::wait::wait_for;

pub(super) fn snapshots_by_signal(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    let mut arguments = with("rate=4096", 16, &["-a", "-S", "e"]);
    arguments.extend(commander.arguments());
    let recorder = Recorder::start(file.path(), &arguments)?;
    let ring = 16 * PAGE;
    // The response means that the recording has begun.
    commander.ask("ping")?;
    let count = || -> usize {
        let rings = pieces(file.path()).unwrap_or_default();
        rings.iter().map(Vec::len).sum()
    };
    for time in 1..=3 {
        // Long enough that the rings wrap between some snapshots.
        thread::sleep(Duration::from_millis(40 * time));
        let before = count();
        recorder.signal(Signal::USR2)?;
        // The number of pieces is checked, not the file's size: sideband records make the file larger, too.
        wait_for("a snapshot", || Ok(count() > before))?;
    }
    let ended = end(recorder)?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    let rings = pieces(file.path())?;
    ensure!(rings.len() == 2, "{} rings", rings.len());
    for pieces in &rings {
        // A CPU that did not run has no new trace, and so no piece, for a snapshot.
        ensure!(
            (2..=4).contains(&pieces.len()),
            "three snapshots and the last: {pieces:x?}"
        );
        for (at, len) in pieces {
            // A piece has the whole ring once it has wrapped, and all trace before that.
            let end = at + len;
            ensure!(
                *len == end.min(ring),
                "{len} bytes to {end:#x}: {pieces:x?}"
            );
        }
    }
    ensure!(
        ended.errors.contains("4 snapshots, nothing traced for"),
        "it does not say for how long nothing was traced: {}",
        ended.errors
    );
    released()?;
    Ok(format!(
        "{seen}; {}",
        ended.errors.trim().replace('\n', " ")
    ))
}

/// Many requests at once: each gets a response after its snapshot is in the file.
pub(super) fn snapshots_by_command(name: &str) -> Result<String> {
    const TIMES: usize = 20;
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    let mut arguments = with("rate=2048", 16, &["-C", "0,1", "-S"]);
    arguments.extend(commander.arguments());
    let recorder = Recorder::start(file.path(), &arguments)?;
    commander.ask("ping")?;
    for time in 1..=3 {
        thread::sleep(Duration::from_millis(15));
        commander.ask("snapshot")?;
        // After the response, the snapshot must be in the file.
        let rings = pieces(file.path())?;
        ensure!(
            rings.iter().all(|pieces| pieces.len() == time),
            "answer {time} came when the file had {rings:x?}"
        );
    }
    commander.send(&"snapshot\n".repeat(TIMES))?;
    commander.answers(TIMES)?;
    recorder.kill()?;
    released()?;
    recover(file.path())?;
    let rings = pieces(file.path())?;
    ensure!(
        rings.iter().all(|pieces| pieces.len() == TIMES + 3),
        "{TIMES} requests and 3, all answered, and then killed: {rings:x?}"
    );
    let seen = Seen::of(&file)?;
    seen.is_right()?;
    Ok(seen.to_string())
}

pub(super) fn snapshot_of_a_size(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    let mut arguments = with("rate=4096,packet=3", 16, &["-C", "1", "-S8K"]);
    arguments.extend(commander.arguments());
    let recorder = Recorder::start(file.path(), &arguments)?;
    // The response to the first command means that the events are enabled.
    commander.ask("ping")?;
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(100));
        commander.ask("snapshot")?;
    }
    commander.ask("stop")?;
    // The response to `stop` comes when the file is complete.
    let seen = Seen::of(&file)?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    accounted(&ended, &seen)?;
    let rings = pieces(file.path())?;
    ensure!(
        matches!(rings.as_slice(), [pieces] if matches!(pieces.as_slice(), [(_, 8192), (_, 8192)])),
        "two snapshots of 8192 bytes, and none at the end: {rings:x?}"
    );
    Ok(seen.to_string())
}

pub(super) fn snapshots_of_threads(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    let mut arguments = with("rate=4096", 16, &["--per-thread", "-Se"]);
    arguments.extend(commander.arguments());
    let workload = ["--", "auxe2e", "workload", "migrate", "--ms", "1500"];
    arguments.extend(workload.map(String::from));
    let recorder = Recorder::start(file.path(), &arguments)?;
    for _ in 0..5 {
        thread::sleep(Duration::from_millis(100));
        commander.ask("snapshot")?;
    }
    let ended = recorder.wait(Reader::KeepsUp)?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    let rings = pieces(file.path())?;
    ensure!(
        // The first snapshot has no piece if it came before the first byte of trace.
        matches!(rings.as_slice(), [pieces] if (5..=6).contains(&pieces.len())),
        "five snapshots and the last: {rings:x?}"
    );
    released()?;
    Ok(seen.to_string())
}

/// Tests a unit whose head is an offset in the area, like hardware `intel_pt`. A snapshot must have all trace that the area holds, before
/// and after the unit wraps.
pub(super) fn snapshots_of_offsets(name: &str) -> Result<String> {
    module::again("offset=1")?;
    let seen = silent_units(name).and_then(|silent| {
        let busy = busy_unit(name)?;
        Ok(format!("{silent}; {busy}"))
    });
    module::again("offset=0")?;
    seen
}

/// Tests units that stop generating after a known number of bytes.
fn silent_units(name: &str) -> Result<String> {
    let ring = 16 * PAGE;
    let lengths = [ring / 4, ring, ring + 192, 2 * ring, 5 * ring / 2 + 64];
    for wrote in lengths {
        let file = TraceFile::new(name);
        let mut commander = Commander::new(name)?;
        let terms = format!("rate=16384,limit={wrote}");
        let mut arguments = with(&terms, 16, &["-C", "1", "-S"]);
        arguments.extend(commander.arguments());
        let recorder = Recorder::start(file.path(), &arguments)?;
        commander.ask("ping")?;
        wait_for("silence", || {
            thread::sleep(Duration::from_millis(200));
            commander.ask("snapshot")?;
            let rings = pieces(file.path())?;
            Ok(
                matches!(rings.as_slice(), [pieces] if matches!(pieces.as_slice(), [.., one, next] if one == next)),
            )
        })?;
        commander.ask("stop")?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        let rings = pieces(file.path())?;
        let last = rings.first().and_then(|pieces| pieces.last());
        let (at, len) = *last.context("no snapshot")?;
        ensure!(
            len == wrote.min(ring) && (at + len) % ring == wrote % ring,
            "a snapshot of {len} bytes at {at:#x} after {wrote}: {rings:x?}"
        );
        let seen = Seen::of(&file)?;
        accounted(&ended, &seen)?;
        // These are whole packets, but the oldest one may be cut.
        let recorded = seen.content.recorded;
        ensure!(
            seen.content.generated == wrote && recorded == wrote.min(ring),
            "{recorded} bytes after {wrote}: {seen}"
        );
        released()?;
    }
    Ok(format!("whole after {lengths:?} bytes"))
}

/// Tests a unit that generates without end. Between two snapshots it writes sometimes less and sometimes more than the area.
fn busy_unit(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    let mut arguments = with("rate=1024,packet=3", 16, &["-a", "-S", "e"]);
    arguments.extend(commander.arguments());
    let recorder = Recorder::start(file.path(), &arguments)?;
    commander.ask("ping")?;
    for ms in [100, 10, 20, 200, 5, 0, 100] {
        thread::sleep(Duration::from_millis(ms));
        commander.ask("snapshot")?;
    }
    let ended = end(recorder)?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok(seen.to_string())
}
