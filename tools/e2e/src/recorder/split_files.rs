// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of `--split-files`: each thread of the recorder writes its own file.

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

/// The cases, with their names.
pub const ALL: [(&str, Steps); 6] = [
    ("split files", whole),
    ("split files, compressed", compressed),
    ("split files, killed", killed),
    ("split files, full disk", full_disk),
    ("split files, no space to join", no_space),
    ("split files, what is refused", refused),
];

const CPUS: usize = 2;

/// The path of a thread's file.
fn part(file: &TraceFile, thread: usize) -> PathBuf {
    PathBuf::from(format!("{}.t{thread}", file.path().display()))
}

/// The files of all threads, which are removed at the end of the case.
struct Parts<'a>(&'a TraceFile);

impl Parts<'_> {
    fn paths(&self) -> [PathBuf; CPUS] {
        std::array::from_fn(|thread| part(self.0, thread))
    }

    /// Waits until each file has `bytes` bytes of trace.
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

/// Checks the joined file, which must have every byte of all CPUs. No thread's file may be left.
fn joined(file: &TraceFile) -> Result<Seen> {
    let seen = Seen::of(file)?;
    Parts(file).none_left()?;
    Ok(seen)
}

/// Records with small areas, and with areas that the recorder writes straight from the ring. More threads than CPUs have no effect.
fn whole(name: &str) -> Result<String> {
    let mut out = String::new();
    for (terms, ring, more) in [
        ("rate=1024,packet=3", 16, &["-a", "--split-files"][..]),
        ("rate=8192", 512, &["-a", "--split-files", "--threads", "7"]),
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
    let arguments = with(
        "rate=2048",
        64,
        &["-a", "--split-files", "--max-size", "1M"],
    );
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
    let seen = joined(&file)?;
    accounted(&ended, &seen)?;
    let len = size(file.path());
    // The content of the two rings is written after the limit is reached. The joined file has the front of only one of the threads' files.
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
        &with("rate=1024", 16, &["-a", "--split-files", "-z"]),
    )?;
    parts.wait_for_trace(10 * 16 * PAGE)?;
    let ended = end(recorder)?;
    parts.none_left()?;
    let seen = Seen::of(&plain(&file, name)?)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok(format!("{seen}; {} bytes compressed", size(file.path())))
}

/// Kills the recorder while it records or while it joins. After `recover`, the file must have all that was written.
fn killed(name: &str) -> Result<String> {
    const TIMES: u64 = 20;
    /// The front of a file: header, names, mappings and features.
    const FRONT: u64 = 60_000;
    let mut random = random();
    let mut sum = 0;
    let mut joins = 0;
    for time in 0..TIMES {
        let file = TraceFile::new(name);
        let parts = Parts(&file);
        let recorder = Recorder::start(
            file.path(),
            &with("rate=8192", 16, &["-a", "--split-files"]),
        )?;
        let least = 4 * PAGE + random(30 * PAGE);
        parts.wait_for_trace(least)?;
        let before = size(file.path());
        if time % 2 == 0 {
            thread::sleep(Duration::from_micros(random(16_000)));
        } else {
            // Somewhere during the end of the recording.
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
        // The file of one thread is a recording by itself.
        if time % 10 == 0 {
            let alone = part(&file, 1);
            recover(&alone)?;
            Seen::of_parts(&[alone])?.is_right()?;
        }
        recover(file.path())?;
        let seen = joined(&file)?;
        seen.is_right().with_context(|| format!("kill {time}"))?;
        // The joined file has the records and the trace of both. Only the front of the second file is missing: the first one has the same.
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

/// The recorder failed because the disk is full. It must say which files exist and how to continue, and that must work on a larger disk.
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
    let arguments = with("rate=2048", 64, &["-a", "--split-files"]);
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
    let seen = says_and_recovers(&ended, &file, &disk)?;
    ensure!(
        seen.content.recorded > 1 << 19,
        "the disk has space for more: {seen}"
    );
    Ok(seen.to_string())
}

/// The disk has space for the recording, but not for joining it. The recording must be complete, in its threads' files.
fn no_space(name: &str) -> Result<String> {
    let disk = Disk::new(name, "1m")?;
    let file = TraceFile::within(disk.path());
    let more = ["-a", "--split-files", "--max-size", "600K"];
    let ended =
        Recorder::start(file.path(), &with("rate=512", 16, &more))?.wait(Reader::KeepsUp)?;
    // Each file is consistent by itself, and its sum is right.
    for thread in 0..CPUS {
        Seen::of_parts(&[part(&file, thread)])?.is_right()?;
    }
    let again = outcome(auxrec(["recover", "--in-place"]).arg(file.path()))?;
    ensure!(
        again.0 == Some(1) && again.1.contains("No space left"),
        "{again:?}"
    );
    let seen = says_and_recovers(&ended, &file, &disk)?;
    // Such a file does not count as that of a killed recorder.
    let bytes = std::fs::read(file.path())?;
    let findings = auxview::check::check(&bytes)?;
    ensure!(!findings.recovered, "{findings}");
    Ok(seen.to_string())
}

/// Options that conflict with `--split-files` are refused. The recorder must not overwrite a thread's file that was never joined.
fn refused(name: &str) -> Result<String> {
    let run = |file: &Path, more: &[&str]| -> Result<Ended> {
        let all = [
            "--split-files",
            "--",
            "auxe2e",
            "workload",
            "sleep",
            "--ms",
            "50",
        ];
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
            ended.status == 2
                && ended.errors.contains("--split-files")
                && ended.errors.contains(says),
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
    // With one thread, the recorder writes a usual recording, and reports that.
    let ended = run(file.path(), &["-C", "0"])?;
    ensure!(
        matches!(ended.status, 0 | 3) && ended.errors.contains("--split-files has no effect"),
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
