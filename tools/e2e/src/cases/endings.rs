// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The ways in which a recording ends: by a signal, with its target, at a maximum size, on a full disk, or by SIGKILL.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use rustix::process::Signal;

use super::{event, released, Seen, PAGE};
use crate::recorder::accounted;
use crate::recording::{
    auxrec, random, said, wait_for_trace, Disk, Ended, Reader, Recorder, TraceFile,
};
use crate::wait::PATIENCE;

/// Starts a recorder that records until it is stopped, and waits until its file has `bytes` bytes of trace.
pub(super) fn until(file: &TraceFile, arguments: &[String], bytes: u64) -> Result<Recorder> {
    let recorder = Recorder::start(file.path(), arguments)?;
    if let Err(error) = wait_for_trace(file.path(), bytes) {
        recorder.signal(Signal::INT)?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        bail!("{error:#}: exit status {}: {}", ended.status, ended.errors);
    }
    Ok(recorder)
}

/// Checks a recording: every byte must be right or reported as lost, and no reference to the driver may be left.
fn whole(ended: &Ended, file: &TraceFile) -> Result<Seen> {
    let seen = Seen::of(file)?;
    accounted(ended, &seen)?;
    released()?;
    Ok(seen)
}

pub(super) fn attach(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut target = Command::new("auxe2e")
        .args(["workload", "spin", "--ms", "600000"])
        .spawn()
        .context("cannot start a process to attach to")?;
    let mut arguments = event("rate=512", 16);
    arguments.extend(["-p".into(), target.id().to_string()]);

    let recorded = until(&file, &arguments, 10 * 16 * PAGE).and_then(|recorder| {
        // The recording ends with its target.
        target.kill()?;
        recorder.wait(Reader::KeepsUp)
    });
    target.kill().or_else(|_| target.try_wait().map(|_| ()))?;
    target.wait()?;
    let ended = recorded?;
    Ok(whole(&ended, &file)?.to_string())
}

pub(super) fn interrupted(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut arguments = event("rate=512", 16);
    arguments.push("-a".into());

    let recorder = until(&file, &arguments, 10 * 16 * PAGE)?;
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(Reader::KeepsUp)?;
    Ok(whole(&ended, &file)?.to_string())
}

/// The recorder must stop when its file has reached the maximum size, and not much later.
pub(super) fn max_size(name: &str) -> Result<String> {
    const SIZE: u64 = 1 << 20;
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let mut arguments = event("rate=2048", 64);
        let more = ["-a", "--threads", threads, "--max-size", "1M"];
        arguments.extend(more.map(String::from));
        let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
        let seen = Seen::of(&file)?;
        seen.is_right()?;
        let expected = if seen.content.lost > 0 { 3 } else { 0 };
        ensure!(
            ended.status == expected,
            "auxrec record: exit status {}: {}",
            ended.status,
            ended.errors
        );
        let len = std::fs::metadata(file.path())?.len();
        // The recorder still writes the content of the two rings after that.
        ensure!(
            (SIZE..SIZE + 3 * 64 * PAGE).contains(&len),
            "the file has {len} bytes: {seen}"
        );
        out = seen.to_string();
    }
    Ok(out)
}

/// On a full disk, the recorder must end with an error message. The file has the trace that fitted, and every byte is accounted for.
pub(super) fn full_disk(name: &str) -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let disk = Disk::new(name, "1m")?;
        let file = TraceFile::within(disk.path());
        let mut arguments = event("rate=2048", 64);
        arguments.extend(["-a", "--threads", threads].map(String::from));
        let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
        ensure!(
            ended.status == 1 && ended.errors.contains("there is no space left for it"),
            "auxrec record: exit status {}: {}",
            ended.status,
            ended.errors
        );
        let seen = Seen::of(&file)?;
        seen.is_right()?;
        ensure!(
            seen.content.recorded > 1 << 19,
            "the disk has space for more: {seen}"
        );
        released()?;
        out = seen.to_string();
    }
    Ok(out)
}

/// Kills the recorder at random moments. After `recover`, its file must be a valid recording, in which every byte is right.
pub(super) fn killed(name: &str) -> Result<String> {
    const TIMES: u64 = 40;
    let mut random = random();
    let mut sum = 0;
    for time in 0..TIMES {
        let file = TraceFile::new(name);
        let mut arguments = event("rate=8192", 16);
        arguments.push("-a".into());

        // At a random point of the recorder's work and of the first wraps.
        let recorder = until(&file, &arguments, 4 * PAGE + random(30 * PAGE))?;
        thread::sleep(Duration::from_micros(random(16_000)));
        recorder.kill()?;
        released()?;
        let there = std::fs::metadata(file.path())?.len();
        // The command itself is tested in every tenth round only, because starting it takes long.
        let seen = if time % 10 == 0 {
            said(auxrec(["recover"]).arg(file.path()))?;
            std::fs::rename(auxview::recover::beside(file.path()), file.path())?;
            Seen::of(&file)?
        } else {
            auxview::recover::in_place(file.path())?;
            Seen::read(&[file.path().to_owned()])?.0
        };
        seen.is_right().with_context(|| format!("kill {time}"))?;
        // All trace of the file must be recovered, except a piece that was cut. The number of other records depends on the machine's load.
        let others = records(file.path())?;
        ensure!(
            seen.content.recorded + others + 40_000 > there,
            "{there} bytes were in the file, {others} of them records: {seen}"
        );
        sum += seen.content.recorded;
    }
    Ok(format!("{TIMES} times, {sum} bytes recovered in all"))
}

/// The bytes of a file's records, without trace.
fn records(path: &Path) -> Result<u64> {
    let bytes = std::fs::read(path)?;
    let mut sum = 0;
    for record in perfdata::File::parse(&bytes)?.records() {
        sum += 8 + u64::try_from(record?.body.len())?;
    }
    Ok(sum)
}

/// A unit stops generating after a number of bytes, and all of them must be recorded. The area has space for them.
pub(super) fn exact(name: &str) -> Result<String> {
    const LIMIT: u64 = 3 << 19;
    let end = Instant::now() + PATIENCE;
    loop {
        let file = TraceFile::new(name);
        let mut arguments = event(&format!("rate=2048,limit={LIMIT}"), 512);
        arguments.extend(["-C".into(), "1".into()]);

        // The commit at the end brings the last bytes.
        let recorder = until(&file, &arguments, LIMIT / 2)?;
        thread::sleep(Duration::from_millis(1000));
        recorder.signal(Signal::INT)?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        let seen = whole(&ended, &file)?;
        let content = &seen.content;
        ensure!(
            ended.status == 0
                && content.recorded == content.generated
                && content.generated <= LIMIT,
            "exit status {}, {seen}",
            ended.status
        );
        // The unit may have got too little time to reach its limit.
        if content.generated == LIMIT {
            return Ok(seen.to_string());
        }
        ensure!(Instant::now() < end, "not {LIMIT} bytes: {seen}");
    }
}
