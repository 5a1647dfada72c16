// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Differences between the recorder and stock perf, tested with both on the same driver.
//!
//! `make coverage` writes the results into `Documentation/recorder-and-perf.md`. A case describes what perf does. It requires of perf only
//! what both can do, and never a defect.

mod files;
mod loss;
mod options;

use std::path::Path;
use std::process::Command;

use anyhow::{bail, ensure, Result};

use crate::beside::Case;
use crate::module;
use crate::recording::{trace_in, Ended, Reader, Recorder, TraceFile};

use files::{aio, compressed, other_readers, several_files};
use loss::{full_area, full_disk, killed, offline, overwritten};
use options::{
    answered, commands, locked_memory, meanwhile, modes, requests, targets, threads, two_events,
    unknown_pmu, watermark,
};

/// All cases.
pub const CASES: &[Case] = &[
    case("a PMU that perf does not know", unknown_pmu),
    case("a thread for each ring", threads),
    case("an area that was full", full_area),
    case("a CPU that goes offline", offline),
    case("a full disk", full_disk),
    case("an answered snapshot", answered),
    case("twenty requests for snapshots", requests),
    case("a killed recorder", killed),
    case("several files", several_files),
    case("writing behind the recorder's back", aio),
    case("modes", modes),
    case("targets", targets),
    case("commands", commands),
    case("two events that write trace", two_events),
    case("locked memory that is not allowed", locked_memory),
    case("compressed trace, of both", compressed),
    case("when they wake", watermark),
    case("what they say meanwhile", meanwhile),
    case("records that are overwritten", overwritten),
    case("files for other readers", other_readers),
];

const fn case(name: &'static str, run: fn() -> Result<String>) -> Case {
    Case { name, run }
}

/// One of the two recorders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `perf record`.
    Perf,
    /// `auxrec record`.
    Auxrec,
}

use Tool::{Auxrec, Perf};

impl Tool {
    /// The name of its program.
    pub fn name(self) -> &'static str {
        match self {
            Perf => "perf",
            Auxrec => "auxrec",
        }
    }

    /// A file for its recording.
    pub fn file(self) -> TraceFile {
        TraceFile::new(&format!("row-{}", self.name()))
    }

    /// Starts it on `pattern`, under the name `intel_pt`.
    fn start(self, file: &TraceFile, arguments: &[&str]) -> Result<Recorder> {
        if !Path::new("/sys/bus/event_source/devices/intel_pt").exists() {
            module::alias(1)?;
        }
        let mut all: Vec<String> = Vec::new();
        if self == Perf {
            // Build IDs are not compared, and perf needs much time to collect them.
            all.extend(["-N", "-B"].map(String::from));
        }
        all.extend(arguments.iter().map(ToString::to_string));
        Recorder::of(self.name(), file.path(), &all)
    }

    /// Records until the recorder ends.
    pub fn record(self, file: &TraceFile, arguments: &[&str]) -> Result<Ended> {
        self.start(file, arguments)?.wait(Reader::KeepsUp)
    }

    /// Does the same. The recorder must succeed, and the file must have trace.
    fn records(self, arguments: &[&str]) -> Result<u64> {
        let file = self.file();
        let ended = self.record(&file, arguments)?;
        let bytes = trace_in(file.path())?;
        ensure!(
            ended.status == 0 && bytes != 0,
            "{} {arguments:?}: {bytes} bytes of trace, exit status {}: {}",
            self.name(),
            ended.status,
            ended.errors
        );
        Ok(bytes)
    }
}

/// Formats both results for the table in the document.
fn both(perf: &str, auxrec: &str) -> String {
    format!("perf: {perf} | auxrec: {auxrec}")
}

/// Formats the results of perf and auxrec, in this order.
fn of_each(seen: &[String]) -> Result<String> {
    match seen {
        [perf, auxrec] => Ok(both(perf, auxrec)),
        _ => bail!("two recorders, and {} results", seen.len()),
    }
}

/// The number of pieces of trace that perf finds in a file, or `None` if perf cannot read it. perf's decoder is off, because it does not
/// know this trace.
fn perf_reads(file: &Path) -> Result<Option<usize>> {
    let output = Command::new("perf")
        .args(["script", "-D", "--no-itrace", "-i"])
        .arg(file)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let pieces = text.matches("PERF_RECORD_AUXTRACE ").count();
    Ok(output.status.success().then_some(pieces))
}

/// Describes the number of pieces that perf finds in a file.
fn of_pieces(read: Option<usize>) -> String {
    match read {
        Some(1) => "perf reads 1 piece of trace".to_owned(),
        Some(pieces) => format!("perf reads {pieces} pieces of trace"),
        None => "perf cannot read the file".to_owned(),
    }
}

/// Describes how a recording has ended: the exit status, and what perf finds in the file; or the line of the errors that has `message`, or
/// their last line.
fn outcome(ended: &Ended, file: &Path, message: &str) -> Result<String> {
    let mut lines = ended.errors.lines().rev();
    let what = match ended.status {
        0 => of_pieces(perf_reads(file)?),
        _ => {
            let last = lines.clone().find(|line| !line.trim().is_empty());
            let line = lines.find(|line| line.contains(message)).or(last);
            line.unwrap_or("without a message").trim().to_owned()
        }
    };
    Ok(format!("status {}, {what}", ended.status))
}

/// An event of CPU 1. Its AUX area holds the trace of a second, so that a recorder that gets no processor for a while loses none.
const CPU: [&str; 6] = ["-e", "intel_pt/rate=2048/", "-C", "1", "-m", "64,512"];

/// A command that sleeps for two seconds.
const SLEEP: [&str; 6] = ["--", "auxe2e", "workload", "sleep", "--ms", "2000"];
