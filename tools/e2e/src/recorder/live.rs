// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of the state that the recorder displays while it records.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use auxview::trace::Trace;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};
use rustix::termios::{tcgetattr, tcsetwinsize, Winsize};

use crate::recorder::{accounted, end, with, Steps};
use crate::recording::{auxrec, released, wait_for_trace, Ended, Recorder, Seen, TraceFile, PAGE};
use crate::wait::PATIENCE;

/// The cases, with their names.
pub const ALL: [(&str, Steps); 4] = [
    ("live on a terminal", on_a_terminal),
    ("live off a terminal", off_a_terminal),
    ("live as JSON", as_json),
    ("live of areas that are overwritten", overwritten),
];

/// The recorder displays the rings on a terminal, and must restore the terminal's settings.
fn on_a_terminal(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&terminal)?;
    unlockpt(&terminal)?;
    tcsetwinsize(
        &terminal,
        Winsize {
            ws_row: 24,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    )?;
    let other = ptsname(&terminal, Vec::new())?;
    let other = File::options()
        .read(true)
        .write(true)
        .open(other.to_str()?)?;
    let before = format!("{:?}", tcgetattr(&terminal)?);

    let recorder = Recorder::spawn(
        auxrec(["record", "-o"])
            .arg(file.path())
            .args(with("rate=512", 16, &["-a"]))
            .env("TERM", "xterm")
            .stdin(other.try_clone()?)
            .stdout(Stdio::null())
            .stderr(other),
    )?;
    let mut master = File::from(terminal);
    let mut text = String::new();
    let mut read = |until: &[&str]| -> Result<()> {
        let mut bytes = [0; 4096];
        // The time limit holds even if other text comes continuously.
        let end = Instant::now() + PATIENCE;
        while !until.iter().all(|says| text.contains(says)) {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now()))?;
            let mut wait_for = [PollFd::new(&master, PollFlags::IN)];
            ensure!(
                poll(&mut wait_for, Some(&left))? != 0 && Instant::now() < end,
                "not {until:?}: {text:?}"
            );
            let n = master.read(&mut bytes)?;
            text.push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
        Ok(())
    };
    let shown = read(&["CPU 0", "CPU 1", "MB/s, woken in"]);
    recorder.signal(Signal::INT)?;
    let reported = read(&["bytes of trace in", " wakeups; ", " bytes\r\n"]);
    let status = recorder.ended()?.code().context("it was killed")?;
    shown?;
    reported?;
    ensure!(
        before == format!("{:?}", tcgetattr(&master)?),
        "the terminal is not as it was"
    );
    let seen = Seen::of(&file)?;
    let ended = Ended {
        status,
        errors: text,
    };
    accounted(&ended, &seen)?;
    // The display is removed at the end, and the final summary has lines of its own.
    let mut lines = ended.errors.rsplit('\n');
    let reported = lines.find(|line| line.contains("bytes of trace in"));
    ensure!(
        reported
            .is_some_and(|line| line.contains("auxrec: ") && line.trim_end().ends_with("bytes")),
        "at the end it says {reported:?}"
    );
    released()?;
    Ok(seen.to_string())
}

/// If standard error is no terminal, the display must not be written to it.
fn off_a_terminal(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let arguments = with("rate=512", 16, &["-a", "--live", "terminal"]);
    let recorder = Recorder::start(file.path(), &arguments)?;
    wait_for_trace(file.path(), 6 * 16 * PAGE)?;
    let ended = end(recorder)?;
    ensure!(
        !ended.errors.contains('\x1b') && !ended.errors.contains("MB/s"),
        "it shows its rings to no terminal: {:?}",
        ended.errors
    );
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok(seen.to_string())
}

/// The total in the JSON lines must grow, and never exceed the bytes in the file.
fn as_json(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut recorder = started(&file, &["-a", "--live", "json"])?;
    let mut before = 0;
    for _ in 0..2 {
        let line = line(&mut recorder)?;
        let rings = line["rings"].as_array().context("no rings")?;
        ensure!(rings.len() == 2, "{line}");
        let bytes = |ring: &serde_json::Value| ring["bytes"].as_u64();
        let sum: u64 = rings.iter().filter_map(bytes).sum();
        ensure!(sum > before, "{sum} bytes after {before}: {line}");
        let full = |ring: &serde_json::Value| ring["fill"].as_u64().is_none_or(|n| n > 16 * PAGE);
        ensure!(!rings.iter().any(full), "more than an area holds: {line}");
        before = sum;
    }
    recorder.signal(Signal::INT)?;
    recorder.ended()?;
    let seen = Seen::of(&file)?;
    seen.is_right()?;
    ensure!(
        seen.content.recorded >= before,
        "{before} bytes were reported: {seen}"
    );
    released()?;
    Ok(seen.to_string())
}

/// In overwrite mode, the totals come from the heads, which perf updates at a snapshot. An area that has wrapped counts as full.
fn overwritten(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut recorder = started(&file, &["-a", "-S", "--live", "json"])?;
    let mut before = vec![0; 2];
    let end = Instant::now() + PATIENCE;
    let shown = loop {
        let line = line(&mut recorder)?;
        let rings = line["rings"].as_array().context("no rings")?;
        ensure!(rings.len() == 2, "{line}");
        for (ring, before) in rings.iter().zip(&mut before) {
            let number = |key: &str| ring[key].as_u64().context("no number");
            let (bytes, fill) = (number("bytes")?, number("fill")?);
            ensure!(
                bytes >= *before && fill <= bytes && fill <= 16 * PAGE,
                "{bytes} bytes after {before}: {line}"
            );
            *before = bytes;
        }
        let full = |ring: &serde_json::Value| ring["fill"].as_u64() == Some(16 * PAGE);
        if rings.iter().all(full) && before.iter().all(|bytes| *bytes > 2 * 16 * PAGE) {
            break line.to_string();
        }
        ensure!(Instant::now() < end, "not both full: {line}");
        recorder.signal(Signal::USR2)?;
    };
    recorder.signal(Signal::INT)?;
    recorder.ended()?;
    let seen = Seen::of(&file)?;
    seen.is_right()?;
    // perf updates the heads when a snapshot stops the unit, and reports each head in an AUX record.
    let bytes = std::fs::read(file.path())?;
    for (reported, ring) in before.iter().zip(Trace::read(&bytes)?.rings.values()) {
        let heads: Vec<_> = ring.records.iter().map(|at| at.aux.offset).collect();
        ensure!(
            heads.contains(reported),
            "{reported} bytes were reported, and heads are {heads:x?}"
        );
    }
    released()?;
    Ok(shown)
}

/// Starts a recorder whose standard output is a pipe.
fn started(file: &TraceFile, more: &[&str]) -> Result<Recorder> {
    Recorder::spawn(
        auxrec(["record", "-o"])
            .arg(file.path())
            .args(with("rate=512", 16, more))
            .stdout(Stdio::piped())
            .stderr(Stdio::null()),
    )
}

/// The next line of the recorder's output.
fn line(recorder: &mut Recorder) -> Result<serde_json::Value> {
    let end = Instant::now() + PATIENCE;
    let out = recorder.output()?;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now()))?;
        let mut wait = [PollFd::new(&*out, PollFlags::IN)];
        ensure!(
            poll(&mut wait, Some(&left))? != 0,
            "no line in {} s",
            PATIENCE.as_secs()
        );
        let mut byte = [0];
        ensure!(out.read(&mut byte)? == 1, "it has said all");
        line.extend(byte);
    }
    Ok(serde_json::from_slice(&line)?)
}
