// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the cost of reading an event: by a mapping, by other system calls, as text, and by recorders.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{pipe, splice, SpliceFlags};

use super::{How, Instance};

/// Length of the events' texts, with the newline.
const BYTES: [usize; 3] = [1, 10, 100];
/// How many events are written before they are read.
const EVENTS: u64 = 4000;
/// How many more events a recorder reads in the second measurement. The buffer has space for all of them.
const MORE: u64 = 20_000;
/// How many times a recorder is run. The median counts, because its start takes a varying time.
const TURNS: usize = 3;

/// Prints a line for each way of reading and each length: instructions and events. For readers of sub-buffers, also prints the number of
/// calls.
pub fn run() -> Result<()> {
    for bytes in BYTES {
        for how in [How::Mapped, How::Read, How::Spliced] {
            parsed(how, bytes)?;
        }
        taken(bytes)?;
        to_file(bytes)?;
        text(bytes)?;
        for (name, program, arguments) in [
            (
                "tracering",
                "tracering",
                &["-i", "auxe2e", "record", "--drain", "-o", FILE][..],
            ),
            (
                "trace-cmd",
                "/usr/bin/trace-cmd",
                &["extract", "-B", "auxe2e", "-o", FILE],
            ),
        ] {
            recorder(name, program, arguments, bytes)?;
        }
    }
    Ok(())
}

const FILE: &str = "/tmp/bench.dat";

/// Makes an instance with `events` events.
fn filled(bytes: usize, events: u64) -> Result<Instance> {
    let instance = Instance::new(4, "")?;
    instance.tracefs.write("buffer_size_kb", "4096")?;
    let text = format!("{}\n", "x".repeat(bytes - 1));
    let mut marker = instance.marker.as_ref().context("no marker")?;
    for _ in 0..events {
        std::io::Write::write_all(&mut marker, text.as_bytes())?;
    }
    Ok(instance)
}

fn say(how: &str, bytes: usize, start: Instant, events: u64) {
    let time = start.elapsed().as_nanos();
    println!("ring {how} {bytes} {time} {events}");
}

/// Reads each event: its time and its type.
fn parsed(how: How, bytes: usize) -> Result<()> {
    let instance = filled(bytes, EVENTS)?;
    let mut ring = instance.open(0, how)?;
    let (mut events, mut calls, mut sum) = (0, 0_u64, 0_u64);
    let start = Instant::now();
    loop {
        calls += 1;
        let Some(reader) = ring.reader()? else { break };
        for event in reader {
            let event = event?;
            events += 1;
            sum ^= event.time ^ u64::from(event.data.u16(0).unwrap_or_default());
        }
    }
    let name = match how {
        How::Mapped => "mapped",
        How::Read => "read",
        How::Spliced => "spliced",
    };
    say(name, bytes, start, events);
    ensure!(events == EVENTS, "{events} events, {sum}");
    println!("ring-calls {name} {bytes} {calls}");
    Ok(())
}

/// Only takes the sub-buffers from the kernel by a mapping, without reading events.
fn taken(bytes: usize) -> Result<()> {
    let instance = filled(bytes, EVENTS)?;
    let mut map = instance.map(0)?;
    let start = Instant::now();
    while map.reader()?.is_some() {}
    say("get-reader", bytes, start, EVENTS);
    let read = instance.tracefs.stats(0)?.read_events;
    ensure!(read == EVENTS, "{read} events");
    Ok(())
}

fn nonblocking(path: &std::path::Path) -> Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits())?;
    let file = File::options().read(true).custom_flags(flags).open(path);
    file.with_context(|| path.display().to_string())
}

/// Splices the sub-buffers to a pipe and from there to a file, without reading events.
fn to_file(bytes: usize) -> Result<()> {
    let instance = filled(bytes, EVENTS)?;
    let raw = nonblocking(&instance.raw(0))?;
    let (out, into) = pipe()?;
    let file = File::create("/tmp/spliced")?;
    let start = Instant::now();
    loop {
        match splice(&raw, None, &into, None, 4096, SpliceFlags::NONBLOCK) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(n) => {
                let moved = splice(&out, None, &file, None, n, SpliceFlags::empty())?;
                ensure!(moved == n, "{moved} of {n} bytes");
            }
            Err(e) => bail!(e),
        }
    }
    // An incomplete sub-buffer is left. It would have to be read.
    say("file", bytes, start, instance.tracefs.stats(0)?.read_events);
    fs::remove_file("/tmp/spliced")?;
    Ok(())
}

fn text(bytes: usize) -> Result<()> {
    let instance = filled(bytes, EVENTS)?;
    let mut pipe = nonblocking(&instance.tracefs.path().join("trace_pipe"))?;
    let mut page = vec![0; 64 << 10];
    let (mut lines, start) = (0, Instant::now());
    loop {
        match pipe.read(&mut page) {
            Ok(0) => break,
            Ok(n) => {
                let read = page.get(..n).unwrap_or_default();
                lines += read.iter().filter(|byte| **byte == b'\n').count();
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => return Err(e.into()),
        }
    }
    say("text", bytes, start, u64::try_from(lines)?);
    Ok(())
}

/// The cost of a recorder for many events, minus its cost for few events.
fn recorder(name: &str, program: &str, arguments: &[&str], bytes: usize) -> Result<()> {
    let run = |events| -> Result<u128> {
        let instance = filled(bytes, events)?;
        let start = Instant::now();
        let status = Command::new(program)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        let time = start.elapsed();
        ensure!(status.success(), "{program}: {status}");
        let left = instance.tracefs.stats(0)?.entries;
        ensure!(left == 0, "{program}: {left} events are left");
        Ok(time.as_nanos())
    };
    let median = |events| -> Result<u128> {
        let mut times = (0..TURNS)
            .map(|_| run(events))
            .collect::<Result<Vec<_>>>()?;
        times.sort_unstable();
        times.get(TURNS / 2).copied().context("no turns")
    };
    // One run before the measurement, so that the recorder's pages are in memory.
    run(1)?;
    let (few, many) = (median(EVENTS)?, median(EVENTS + MORE)?);
    println!("ring {name} {bytes} {} {}", many.saturating_sub(few), MORE);
    fs::remove_file(FILE)?;
    Ok(())
}
