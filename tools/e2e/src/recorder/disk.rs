// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings to a disk of the guest. The disk is slow, or fails, or loses its power together with the machine.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxview::trace::Trace;
use perfdata::File;

use crate::module;
use crate::recorder::{end, pieces, size, with, Commander};
use crate::recording::{
    auxrec, recover, released, wait_for_trace, Reader, Recorder, Seen, TraceFile, PAGE,
};
use crate::wait::wait_for;

/// The part of a test that runs in one boot of the guest.
#[derive(clap::Subcommand, Debug)]
pub enum Part {
    /// Record until the power goes, and say what is safe: `safe STREAM SNAPSHOTS`.
    Record {
        /// One recorder whose threads have a file each: `safe FIRST SECOND`, in bytes.
        #[arg(long)]
        split_files: bool,
    },
    /// See that what was said to be safe is there after it, and readable.
    Verify {
        /// The recorder was one whose threads have a file each.
        #[arg(long)]
        split_files: bool,
        /// Bytes of the stream's file, or the first thread's.
        stream: u64,
        /// Snapshots, or bytes of the second thread's file.
        second: u64,
    },
    /// Record more than a slow disk can take.
    Slow,
    /// Record until the disk fails.
    Failing,
}

const DISK: &str = "/disk";
const STREAM: &str = "/disk/stream.data";
const SNAPSHOTS: &str = "/disk/snapshots.data";

/// Records and the headers of pieces of trace are shorter than this. The last one may be cut off at the end.
const RECORD: u64 = 1 << 16;

/// Runs one part of a test, and prints a note about the result.
pub fn run(part: &Part) -> Result<ExitCode> {
    std::fs::create_dir_all(DISK)?;
    let options = match part {
        // Each write waits until the data is on the disk.
        Part::Slow => "sync",
        Part::Record { .. } | Part::Verify { .. } | Part::Failing => "defaults",
    };
    let status = Command::new("mount")
        .args(["-t", "ext4", "-o", options, "/dev/vda", DISK])
        .status()?;
    ensure!(status.success(), "cannot mount the disk: {status}");
    module::load_all()?;
    let seen = match part {
        Part::Record { split_files: false } => record(),
        Part::Record { split_files: true } => record_split(),
        Part::Verify {
            split_files,
            stream,
            second,
        } => {
            if *split_files {
                verify_split([*stream, *second])
            } else {
                verify(*stream, usize::try_from(*second)?)
            }
        }
        Part::Slow => slow(),
        Part::Failing => failing(),
    }?;
    println!("{seen}");
    let status = Command::new("umount").arg(DISK).status()?;
    ensure!(status.success(), "cannot unmount the disk: {status}");
    Ok(ExitCode::SUCCESS)
}

/// Starts a recorder that writes all trace and runs until it is dropped. Returns an iterator over its messages about data on the disk: the
/// name of a file, empty for a single file, and the number of its bytes.
fn stream(target: &[&str]) -> Result<impl Iterator<Item = (String, u64)>> {
    let more = [target, &["-v", "-o", STREAM]].concat();
    let mut recorder = Recorder::spawn(
        auxrec(["record"])
            .args(with("rate=2048", 64, &more))
            .stdin(Stdio::null())
            .stderr(Stdio::piped()),
    )?;
    let lines = BufReader::new(recorder.errors()?).lines();
    Ok(lines.map_while(Result::ok).filter_map(move |line| {
        // Dropping the recorder ends it: it must live as long as this iterator.
        let _ = &recorder;
        let line = line.strip_prefix("auxrec: ")?;
        let line = line.strip_suffix(" bytes are on the disk")?;
        let (name, bytes) = line.rsplit_once(": ").unwrap_or(("", line));
        Some((name.to_owned(), bytes.parse().ok()?))
    }))
}

/// The names of the two threads' files.
fn parts() -> [String; 2] {
    [0, 1].map(|thread| format!("{STREAM}.t{thread}"))
}

fn record_split() -> Result<String> {
    let mut safe = [0; 2];
    for (name, bytes) in stream(&["-a", "--split-files"])? {
        if let Some(thread) = parts().iter().position(|part| *part == name) {
            safe[thread] = bytes;
        }
        if !safe.contains(&0) {
            println!("safe {} {}", safe[0], safe[1]);
        }
    }
    bail!("it ended")
}

/// Checks that each file has the bytes that were reported to be on the disk, and that the joined file has the trace of both.
fn verify_split(safe: [u64; 2]) -> Result<String> {
    let mut sum = 0;
    for (part, safe) in parts().iter().zip(safe) {
        let (seen, end) = recovered(part)?;
        ensure!(
            end + RECORD >= safe,
            "{part}: records to {end:#x}, and {safe:#x} were said to be on the disk: {seen}"
        );
        sum += seen.content.recorded;
    }
    let (seen, _) = recovered(STREAM)?;
    ensure!(
        seen.content.recorded == sum && seen.cpus.len() == 2,
        "{sum} bytes of both threads: {seen}"
    );
    let left = parts().into_iter().find(|part| Path::new(part).exists());
    ensure!(left.is_none(), "{left:?} is still there");
    std::fs::remove_file(STREAM)?;
    Ok(format!("of two threads {safe:?} were safe; {seen}"))
}

/// Runs two recorders until the power fails. One writes all trace, and reports with `-v` how many bytes are on the disk. The other one
/// takes snapshots, and responds when they are on the disk.
fn record() -> Result<String> {
    let said = stream(&["-C", "0"])?;
    let mut commander = Commander::new("snapshots")?;
    let mut arguments = with("rate=2048", 16, &["-C", "1", "-S"]);
    arguments.extend(commander.arguments());
    let _recorder = Recorder::start(Path::new(SNAPSHOTS), &arguments)?;
    let (to, safe) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for (_, bytes) in said {
            let _ = to.send(bytes);
        }
    });
    let mut bytes = 0;
    // The first snapshots may come before any trace, and then are empty.
    let mut first = 0;
    wait_for("a snapshot with trace", || {
        commander.ask("snapshot")?;
        first = there(Path::new(SNAPSHOTS))?;
        Ok(first > 0)
    })?;
    for snapshots in first + 1.. {
        thread::sleep(Duration::from_millis(30));
        commander.ask("snapshot")?;
        bytes = safe.try_iter().last().unwrap_or(bytes);
        println!("safe {bytes} {snapshots}");
    }
    bail!("it ended")
}

/// Recovers a recording. Returns its content, and the end of its last record or piece of trace.
fn recovered(path: &str) -> Result<(Seen, u64)> {
    recover(Path::new(path))?;
    let bytes = std::fs::read(path)?;
    let mut last = 0;
    for record in File::parse(&bytes)?.records() {
        last = record?.offset;
    }
    let trace = Trace::read(&bytes)?;
    let ends = trace.rings.values().flat_map(|ring| &ring.pieces);
    let ends = ends.map(|piece| piece.at + piece.size);
    let seen = Seen::of_parts(&[path.into()])?;
    seen.is_right().with_context(|| path.to_owned())?;
    Ok((seen, ends.max().unwrap_or(0).max(last)))
}

/// The number of snapshots in a file.
fn there(file: &Path) -> Result<usize> {
    Ok(pieces(file)?.iter().map(Vec::len).sum())
}

fn verify(stream: u64, snapshots: usize) -> Result<String> {
    ensure!(
        size(Path::new(STREAM)) >= stream,
        "the file has {} bytes, and {stream} were said to be on the disk",
        size(Path::new(STREAM))
    );
    let (seen, end) = recovered(STREAM)?;
    ensure!(
        end + RECORD >= stream,
        "records to {end:#x}, and {stream:#x} were said to be on the disk: {seen}"
    );
    let (_, _) = recovered(SNAPSHOTS)?;
    let there = there(Path::new(SNAPSHOTS))?;
    ensure!(
        there >= snapshots,
        "{snapshots} snapshots were answered, and {there} are there"
    );
    for path in [STREAM, SNAPSHOTS] {
        std::fs::remove_file(path)?;
    }
    Ok(format!(
        "records to {end:#x}, {stream:#x} were safe; {there} snapshots, {snapshots} were; {seen}"
    ))
}

/// The recorder waits for its disk, so the rings get full. Every lost byte must be counted.
fn slow() -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::within(Path::new(DISK));
        let arguments = with("rate=4096,packet=32", 16, &["-a", "--threads", threads]);
        let recorder = Recorder::start(file.path(), &arguments)?;
        wait_for_trace(file.path(), 10 * 16 * PAGE)?;
        let ended = end(recorder)?;
        let seen = Seen::of(&file)?;
        seen.is_right()?;
        ensure!(
            ended.status == 3 && seen.content.lost > 0 && seen.truncations > 0,
            "nothing is lost, and the disk is slow: exit status {}, {seen}",
            ended.status
        );
        released()?;
        out = seen.to_string();
    }
    Ok(out)
}

/// Both recordings must end by themselves, and each must report which file it cannot write. The kernel reports the I/O error to only one of
/// them; then it makes the file system read-only.
fn failing() -> Result<String> {
    let paths = [STREAM, SNAPSHOTS];
    let mut recorders = Vec::new();
    for (cpu, path) in ["0", "1"].into_iter().zip(paths) {
        let arguments = with("rate=1024", 64, &["-C", cpu]);
        recorders.push(Recorder::start(Path::new(path), &arguments)?);
    }
    let mut out = Vec::new();
    for (recorder, path) in recorders.into_iter().zip(paths) {
        let ended = recorder.wait(Reader::KeepsUp)?;
        let said = ended.errors.trim();
        ensure!(
            ended.status == 1 && said.contains(&format!("cannot write {path}")),
            "exit status {}: {said}",
            ended.status
        );
        out.push(said.to_owned());
    }
    let cause = "to its disk: Input/output error";
    ensure!(
        out.iter().any(|said| said.contains(cause)),
        "no message says \"{cause}\": {out:?}"
    );
    released()?;
    Ok(out.join("\n"))
}
