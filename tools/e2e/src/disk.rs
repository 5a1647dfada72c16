// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings onto a disk of the guest's: one that is slow, and one whose machine loses its power.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxrec::trace::Trace;
use perfdata::File;

use crate::cases::{released, Seen, PAGE};
use crate::module;
use crate::recorder::{end, pieces, size, wait_for, with, Commander};
use crate::recording::{Recorder, TraceFile};

/// The part of a test that runs in one boot of the guest.
#[derive(clap::Subcommand, Debug)]
pub enum Part {
    /// Record until the power goes, and say what is safe: `safe STREAM SNAPSHOTS`.
    Record,
    /// See that what was said to be safe is there after it, and readable.
    Verify {
        /// Bytes of the stream's file.
        stream: u64,
        /// Snapshots.
        snapshots: usize,
    },
    /// Record more than a slow disk can take.
    Slow,
}

const DISK: &str = "/disk";
const STREAM: &str = "/disk/stream.data";
const SNAPSHOTS: &str = "/disk/snapshots.data";

/// No record, and no header of a piece of trace, is as long: so much may be cut off at the end.
const RECORD: u64 = 1 << 16;

/// Runs a part, and says what was seen.
pub fn run(part: &Part) -> Result<ExitCode> {
    std::fs::create_dir_all(DISK)?;
    let options = match part {
        // Each write waits for the disk.
        Part::Slow => "sync",
        Part::Record | Part::Verify { .. } => "defaults",
    };
    let status = Command::new("mount")
        .args(["-t", "ext4", "-o", options, "/dev/vda", DISK])
        .status()?;
    ensure!(status.success(), "cannot mount the disk: {status}");
    module::load_all()?;
    let seen = match part {
        Part::Record => record(),
        Part::Verify { stream, snapshots } => verify(*stream, *snapshots),
        Part::Slow => slow(),
    }?;
    println!("{seen}");
    let status = Command::new("umount").arg(DISK).status()?;
    ensure!(status.success(), "cannot unmount the disk: {status}");
    Ok(ExitCode::SUCCESS)
}

/// One recorder that writes all trace, and says with `-v` how much of it is on the disk; and one that takes snapshots, and
/// answers when they are. Neither ends.
fn record() -> Result<String> {
    let arguments = with("rate=2048", 64, &["-C", "0", "-v", "-o", STREAM]);
    let mut stream = Command::new("auxrec")
        .arg("record")
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start auxrec")?;
    let said = stream.stderr.take().context("no standard error")?;
    let mut commander = Commander::new("snapshots")?;
    let mut arguments = with("rate=2048", 16, &["-C", "1", "-S"]);
    arguments.extend(commander.arguments());
    let _recorder = Recorder::start(Path::new(SNAPSHOTS), &arguments)?;
    let (to, safe) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            let bytes = line.strip_prefix("auxrec: ");
            let bytes = bytes.and_then(|line| line.strip_suffix(" bytes are on the disk"));
            if let Some(bytes) = bytes.and_then(|bytes| bytes.parse::<u64>().ok()) {
                let _ = to.send(bytes);
            }
        }
    });
    let mut bytes = 0;
    for snapshots in 1.. {
        thread::sleep(Duration::from_millis(30));
        commander.ask("snapshot")?;
        bytes = safe.try_iter().last().unwrap_or(bytes);
        println!("safe {bytes} {snapshots}");
    }
    bail!("it ended")
}

/// The recording after `auxrec recover`, and the position behind its last record.
fn recovered(path: &str) -> Result<(Seen, u64)> {
    let output = Command::new("auxrec").args(["recover", path]).output()?;
    ensure!(output.status.success(), "auxrec recover {path}: {output:?}");
    let bytes = std::fs::read(path)?;
    let mut last = 0;
    for record in File::parse(&bytes)?.records() {
        last = record?.offset;
    }
    let trace = Trace::read(&bytes)?;
    let ends = trace.rings.values().flat_map(|ring| &ring.pieces);
    let ends = ends.map(|piece| piece.at + piece.aux.size);
    let seen = Seen::of_parts(&[path.into()])?;
    seen.is_right().with_context(|| path.to_owned())?;
    Ok((seen, ends.max().unwrap_or(0).max(last)))
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
    let there: usize = pieces(Path::new(SNAPSHOTS))?.iter().map(Vec::len).sum();
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

/// The recorder waits for its disk, the rings fill, and what is lost is counted to the byte.
fn slow() -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::within(Path::new(DISK));
        let arguments = with("rate=4096,packet=32", 16, &["-a", "--threads", threads]);
        let recorder = Recorder::start(file.path(), &arguments)?;
        wait_for("trace", || Ok(size(file.path()) > 10 * 16 * PAGE))?;
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
