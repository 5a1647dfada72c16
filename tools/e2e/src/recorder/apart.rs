// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of recordings whose threads each write a file of their own: `--apart`.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::recorder::compress::plain;
use crate::recorder::{accounted, end, size, with, Steps};
use crate::recording::{
    auxrec, outcome, random, recover, released, wait_for_trace, Disk, Ended, Reader, Recorder,
    Seen, TraceFile, PAGE,
};
use crate::wait::wait_for;

/// The cases, by their names.
pub const ALL: [(&str, Steps); 6] = [
    ("apart", whole),
    ("apart, compressed", compressed),
    ("apart, killed", killed),
    ("apart, full disk", full_disk),
    ("apart, no room to join", no_room),
    ("apart, what is refused", refused),
];

const CPUS: usize = 2;

/// The file of a thread.
fn part(file: &TraceFile, thread: usize) -> PathBuf {
    PathBuf::from(format!("{}.t{thread}", file.path().display()))
}

/// The files of all threads, which go when the case is over.
struct Parts<'a>(&'a TraceFile);

impl Parts<'_> {
    fn paths(&self) -> [PathBuf; CPUS] {
        std::array::from_fn(|thread| part(self.0, thread))
    }

    /// Waits until each has so much trace.
    fn wait_for_trace(&self, bytes: u64) -> Result<()> {
        self.paths()
            .iter()
            .try_for_each(|path| wait_for_trace(path, bytes))
    }

    fn none_left(&self) -> Result<()> {
        let left = self.paths().into_iter().find(|path| path.exists());
        ensure!(left.is_none(), "{left:?} is still there");
        Ok(())
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        for path in self.paths() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Joined: every byte, of both CPUs, and no other file left.
fn joined(file: &TraceFile) -> Result<Seen> {
    let seen = Seen::of(file)?;
    Parts(file).none_left()?;
    Ok(seen)
}

/// Of small areas, and of such that are written from where they are. More threads than that do nothing else.
fn whole(name: &str) -> Result<String> {
    let mut out = String::new();
    for (terms, ring, more) in [
        ("rate=1024,packet=3", 16, &["-a", "--apart"][..]),
        ("rate=8192", 512, &["-a", "--apart", "--threads", "7"]),
    ] {
        let file = TraceFile::new(name);
        let parts = Parts(&file);
        let recorder = Recorder::start(file.path(), &with(terms, ring, more))?;
        parts.wait_for_trace(4 * ring * PAGE)?;
        let ended = end(recorder)?;
        let seen = joined(&file)?;
        accounted(&ended, &seen)?;
        ensure!(seen.cpus.len() == CPUS, "{seen}");
        released()?;
        out = seen.to_string();
    }
    // The limit counts the files of all threads.
    const SIZE: u64 = 1 << 20;
    let file = TraceFile::new(name);
    let parts = Parts(&file);
    let arguments = with("rate=2048", 64, &["-a", "--apart", "--max-size", "1M"]);
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
    let seen = joined(&file)?;
    accounted(&ended, &seen)?;
    let len = size(file.path());
    // What the two rings hold comes after it, and the fronts of the files of threads are left out.
    ensure!(
        (SIZE - 16 * PAGE..SIZE + 3 * 64 * PAGE).contains(&len),
        "the file has {len} bytes: {seen}"
    );
    parts.none_left()?;
    Ok(out)
}

fn compressed(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let parts = Parts(&file);
    let recorder = Recorder::start(
        file.path(),
        &with("rate=1024", 16, &["-a", "--apart", "-z"]),
    )?;
    parts.wait_for_trace(10 * 16 * PAGE)?;
    let ended = end(recorder)?;
    parts.none_left()?;
    let seen = Seen::of(&plain(&file, name)?)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok(format!("{seen}; {} bytes compressed", size(file.path())))
}

/// Killed while it records, and while it joins: all that was written is in the file after `recover`.
fn killed(name: &str) -> Result<String> {
    const TIMES: u64 = 20;
    /// What a file begins with: its header, names, mappings and features.
    const FRONT: u64 = 60_000;
    let mut random = random();
    let mut sum = 0;
    let mut joins = 0;
    for time in 0..TIMES {
        let file = TraceFile::new(name);
        let parts = Parts(&file);
        let recorder = Recorder::start(file.path(), &with("rate=8192", 16, &["-a", "--apart"]))?;
        let least = 4 * PAGE + random(30 * PAGE);
        parts.wait_for_trace(least)?;
        let before = size(file.path());
        if time % 2 == 0 {
            thread::sleep(Duration::from_micros(random(16_000)));
        } else {
            // Somewhere in the middle of the end.
            recorder.signal(rustix::process::Signal::INT)?;
            wait_for("the join, or its end", || {
                Ok(size(file.path()) > before || !part(&file, 0).exists())
            })?;
            thread::sleep(Duration::from_micros(random(300)));
        }
        recorder.kill()?;
        released()?;
        let there: u64 = parts.paths().iter().map(|path| size(path)).sum();
        joins += u64::from(time % 2 == 1 && there != 0);
        // One by itself is a recording too.
        if time % 10 == 0 {
            let alone = part(&file, 1);
            recover(&alone)?;
            Seen::of_parts(&[alone])?.is_right()?;
        }
        recover(file.path())?;
        let seen = joined(&file)?;
        seen.is_right().with_context(|| format!("kill {time}"))?;
        // Records and trace of both; what stands before these in the second file is in the first already.
        ensure!(
            size(file.path()) + FRONT > there,
            "{there} bytes were in the files, and {} are in the one: {seen}",
            size(file.path())
        );
        sum += seen.content.recorded;
    }
    Ok(format!(
        "{TIMES} times, {joins} of them before a join was over, {sum} bytes recovered in all"
    ))
}

/// It failed for want of room, says what is where, and how to go on; and when there is room that is so.
fn says_and_recovers(ended: &Ended, file: &TraceFile, disk: &Disk) -> Result<Seen> {
    let name = file.path().display();
    let recover_it = format!("`auxrec recover --in-place {name}`");
    for says in [format!("{name}.t0"), recover_it, "No space left".to_owned()] {
        ensure!(
            ended.status == 1 && ended.errors.contains(&says),
            "exit status {}, not {says:?}: {}",
            ended.status,
            ended.errors
        );
    }
    disk.grow("8m")?;
    recover(file.path())?;
    let seen = joined(file)?;
    seen.is_right()?;
    released()?;
    Ok(seen)
}

fn full_disk(name: &str) -> Result<String> {
    let disk = Disk::new(name, "1m")?;
    let file = TraceFile::within(disk.path());
    let arguments = with("rate=2048", 64, &["-a", "--apart"]);
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
    let seen = says_and_recovers(&ended, &file, &disk)?;
    ensure!(
        seen.content.recorded > 1 << 19,
        "the disk has room for more: {seen}"
    );
    Ok(seen.to_string())
}

/// There is room for the recording, and not for twice as much: what was recorded is whole, and only not joined.
fn no_room(name: &str) -> Result<String> {
    let disk = Disk::new(name, "1m")?;
    let file = TraceFile::within(disk.path());
    let more = ["-a", "--apart", "--max-size", "600K"];
    let ended =
        Recorder::start(file.path(), &with("rate=512", 16, &more))?.wait(Reader::KeepsUp)?;
    // Each by itself is consistent, and its sum is right.
    for thread in 0..CPUS {
        Seen::of_parts(&[part(&file, thread)])?.is_right()?;
    }
    let again = outcome(auxrec(["recover", "--in-place"]).arg(file.path()))?;
    ensure!(
        again.0 == Some(1) && again.1.contains("No space left"),
        "{again:?}"
    );
    let seen = says_and_recovers(&ended, &file, &disk)?;
    // Nothing says that it was ever killed.
    let bytes = std::fs::read(file.path())?;
    let findings = auxview::check::check(&bytes)?;
    ensure!(!findings.recovered, "{findings}");
    Ok(seen.to_string())
}

/// What makes no sense with it; and a file of a thread that was never joined is not written over.
fn refused(name: &str) -> Result<String> {
    let run = |file: &Path, more: &[&str]| -> Result<Ended> {
        let all = ["--apart", "--", "auxe2e", "workload", "sleep", "--ms", "50"];
        let more = [more, &all].concat();
        Recorder::start(file, &with("rate=64", 16, &more))?.wait(Reader::KeepsUp)
    };
    let file = TraceFile::new(name);
    let parts = Parts(&file);
    let device = Path::new("/dev/null");
    for (path, more, says) in [
        (file.path(), &["-a", "-S"][..], "-S"),
        (file.path(), &["-a", "--switch-output"], "--switch-output"),
        (device, &["-a"], "/dev/null"),
    ] {
        let ended = run(path, more)?;
        ensure!(
            ended.status == 2 && ended.errors.contains("--apart") && ended.errors.contains(says),
            "{more:?}: exit status {}: {}",
            ended.status,
            ended.errors
        );
        ensure!(!file.path().exists(), "{more:?}: it left a file");
    }
    std::fs::write(file.path(), "older")?;
    std::fs::write(part(&file, 1), "never joined")?;
    let ended = run(file.path(), &["-a"])?;
    ensure!(
        ended.status == 1
            && ended
                .errors
                .contains("a part of a recording that was not joined"),
        "exit status {}: {}",
        ended.status,
        ended.errors
    );
    ensure!(
        std::fs::read(part(&file, 1))? == b"never joined"
            && std::fs::read(file.path())? == b"older"
            && !part(&file, 0).exists(),
        "not all is as it was"
    );
    std::fs::remove_file(part(&file, 1))?;
    // With one thread it is a recording as any other, and that is said.
    let ended = run(file.path(), &["-C", "0"])?;
    ensure!(
        matches!(ended.status, 0 | 3) && ended.errors.contains("nothing is --apart"),
        "exit status {}: {}",
        ended.status,
        ended.errors
    );
    let seen = Seen::of(&file)?;
    seen.is_right()?;
    parts.none_left()?;
    let _ = std::fs::remove_file(format!("{}.old", file.path().display()));
    released()?;
    Ok(seen.to_string())
}
