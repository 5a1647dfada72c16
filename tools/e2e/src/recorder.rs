// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of the recorder's features beyond recording one event to its end.

pub mod clock;
pub mod compress;
pub mod disk;
mod events;
mod files;
pub mod live;
pub mod share;
mod snapshots;
pub mod split_files;
pub mod target;
pub mod tasks;
pub mod tracepoints;
pub mod truncate;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxview::trace::Trace;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{mknodat, FileType, Mode, CWD};
use rustix::process::Signal;

use events::{aux_sample, other_events, pause_and_resume, sideband, two_events};
use files::{files_and_max_size, files_by_signal, files_by_size};
use snapshots::{
    snapshot_of_a_size, snapshots_by_command, snapshots_by_signal, snapshots_of_offsets,
    snapshots_of_threads,
};

use crate::recording::{
    event, released, trace_in, wait_for_trace, Ended, Reader, Recorder, Seen, TraceFile, PAGE,
};
use crate::wait::wait_for;

/// The code of a case. It gets the case's name, and returns a note about the result.
pub type Steps = fn(&str) -> Result<String>;

/// The cases, with their names.
pub const ALL: [(&str, Steps); 17] = [
    ("snapshots by signal", snapshots_by_signal),
    ("snapshots by command, queued", snapshots_by_command),
    (
        "snapshot of a size, and none at the end",
        snapshot_of_a_size,
    ),
    ("snapshots of threads", snapshots_of_threads),
    (
        "snapshots of a head that is an offset",
        snapshots_of_offsets,
    ),
    ("commands", commands),
    ("real-time priority", realtime),
    ("delay", delay),
    ("ranges of time", ranges),
    ("files by size", files_by_size),
    ("files by signal, the last kept", files_by_signal),
    ("files and the largest size", files_and_max_size),
    ("two events that write trace", two_events),
    ("events in a group and beside it", other_events),
    ("trace that other events pause and resume", pause_and_resume),
    ("trace in samples", aux_sample),
    ("sideband records", sideband),
];

/// All threads of the recorder must have the requested real-time priority. The command must keep that of its caller.
fn realtime(case: &str) -> Result<String> {
    let file = TraceFile::new(case);
    let stat = file.path().with_extension("stat");
    let command = format!(
        "cat /proc/self/stat >{}; exec auxe2e workload spin --ms 600000",
        stat.display()
    );
    let more = ["-r", "7", "-a", "--", "sh", "-c", &command];
    let recorder = Recorder::start(file.path(), &with("rate=512", 16, &more))?;
    wait_for_trace(file.path(), 16 * PAGE)?;
    let tasks = std::fs::read_dir(format!("/proc/{}/task", recorder.id()))?;
    let recorders = tasks
        .map(|task| scheduled(&task?.path().join("stat")))
        .collect::<Result<Vec<_>>>()?;
    let ended = end(recorder)?;
    let commands = scheduled(&stat);
    std::fs::remove_file(&stat)?;
    accounted(&ended, &Seen::of(&file)?)?;
    released()?;
    // SCHED_FIFO.
    ensure!(
        recorders.len() > 1 && recorders.iter().all(|thread| thread == &["7", "1"]),
        "priorities and policies of the recorder's threads: {recorders:?}"
    );
    // SCHED_OTHER.
    let commands = commands?;
    ensure!(
        commands == ["0", "0"],
        "priority and policy of the command: {commands:?}"
    );
    Ok(format!("{} threads", recorders.len()))
}

/// Real-time priority and policy of a thread, from its `/proc/.../stat`.
fn scheduled(stat: &Path) -> Result<[String; 2]> {
    let text = std::fs::read_to_string(stat).context("a thread has no stat")?;
    // The name, in parentheses, may contain spaces. The third word follows it.
    let (_, words) = text.rsplit_once(')').context("no name")?;
    let mut words = words.split_whitespace().skip(40 - 3);
    let mut word = || words.next().map(str::to_owned).context("too few words");

    Ok([word()?, word()?])
}

/// A time limit that no response reaches, even on a busy machine.
const ANSWER: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// The other end of the FIFOs of `--control`.
pub struct Commander {
    ctl: File,
    ack: File,
    paths: [PathBuf; 2],
}

impl Commander {
    /// Makes FIFOs whose names no other case uses.
    pub fn new(case: &str) -> Result<Self> {
        let name = |end: &str| {
            let case = case.replace([' ', ','], "-");
            Path::new("/tmp").join(format!("{case}.{end}"))
        };
        let paths = [name("ctl"), name("ack")];
        for path in &paths {
            let _ = std::fs::remove_file(path);
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, path, FileType::Fifo, mode, 0).context("cannot make a FIFO")?;
        }
        let open = |path| OpenOptions::new().read(true).write(true).open(path);
        Ok(Self {
            ctl: open(&paths[0])?,
            ack: open(&paths[1])?,
            paths,
        })
    }

    /// The recorder's option for these FIFOs.
    pub fn arguments(&self) -> [String; 2] {
        let [ctl, ack] = &self.paths;
        let where_to = format!("fifo:{},{}", ctl.display(), ack.display());
        ["--control".into(), where_to]
    }

    pub fn send(&mut self, commands: &str) -> Result<()> {
        Ok(self.ctl.write_all(commands.as_bytes())?)
    }

    /// Waits for `times` responses, in perf's format.
    pub fn answers(&mut self, times: usize) -> Result<()> {
        for time in 0..times {
            // A recorder that has ended sends nothing, and this end of the FIFO stays open. So a read would never return.
            let mut wait = [PollFd::new(&self.ack, PollFlags::IN)];
            let answered = poll(&mut wait, Some(&ANSWER))?;
            ensure!(answered != 0, "no answer {time} in {} s", ANSWER.tv_sec);
            let mut answer = [0; 5];
            self.ack.read_exact(&mut answer)?;
            ensure!(&answer == b"ack\n\0", "answer {time} is {answer:?}");
        }
        Ok(())
    }

    /// Sends a command, and waits for its response.
    pub fn ask(&mut self, command: &str) -> Result<()> {
        self.send(&format!("{command}\n"))?;
        self.answers(1)
    }
}

impl Drop for Commander {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The arguments of an event with these terms and this ring, and further arguments.
pub fn with(terms: &str, ring: u64, more: &[&str]) -> Vec<String> {
    let mut arguments = event(terms, ring);
    arguments.extend(more.iter().map(ToString::to_string));
    arguments
}

/// Ends a recording by SIGINT.
pub fn end(recorder: Recorder) -> Result<Ended> {
    recorder.signal(Signal::INT)?;
    recorder.wait(Reader::KeepsUp)
}

/// The recorder's report of a loss that no record in the file shows: the kernel disables an event without a record if it finds no space.
const FULL: &str = "times found full without an AUX record";

/// Every byte must be right or reported as lost, because a busy machine may delay any reader. The exit status must be 3 if something is lost,
/// and only then.
pub fn accounted(ended: &Ended, seen: &Seen) -> Result<()> {
    accounted_or(ended, seen, FULL)
}

/// Does the same for a recording that may have lost something that the files do not show. Then the recorder's messages have `report`.
pub fn accounted_or(ended: &Ended, seen: &Seen, report: &str) -> Result<()> {
    seen.is_right()
        .with_context(|| format!("exit status {}: {}", ended.status, ended.errors))?;
    let lost = seen.lost || seen.content.lost != 0 || ended.errors.contains(report);
    ensure!(
        ended.status == if lost { 3 } else { 0 },
        "exit status {} for {seen}: {}",
        ended.status,
        ended.errors
    );
    Ok(())
}

/// The offset and length of each piece, ring by ring.
pub fn pieces(file: &Path) -> Result<Vec<Vec<(u64, u64)>>> {
    let bytes = std::fs::read(file)?;
    let trace = Trace::read(&bytes)?;
    let of = |ring: &auxview::trace::Ring| {
        let pieces = ring.pieces.iter();
        pieces.map(|piece| (piece.offset, piece.size)).collect()
    };
    Ok(trace.rings.values().map(of).collect())
}

/// Length of a file; 0 if it does not exist.
pub fn size(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |meta| meta.len())
}

/// Enables, disables and enables an event by commands. Nothing may be generated while it is disabled, and each command gets one response.
fn commands(name: &str) -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let mut commander = Commander::new(name)?;
        let mut arguments = with("rate=512", 16, &["-a", "-D", "-1", "--threads", threads]);
        arguments.extend(commander.arguments());
        let recorder = Recorder::start(file.path(), &arguments)?;
        commander.ask("ping")?;
        thread::sleep(Duration::from_millis(300));
        ensure!(
            pieces(file.path())?.iter().all(Vec::is_empty),
            "trace before it was enabled"
        );
        commander.ask("enable")?;
        wait_for_trace(file.path(), 10 * 16 * PAGE)?;
        commander.send("nonsense\nevlist\0")?;
        commander.answers(1)?;
        commander.ask("disable pattern/rate=512/")?;
        // The recorder drains the rest of the rings; then no more trace comes.
        let mut before = Vec::new();
        wait_for("the end of the trace of a disabled event", || {
            thread::sleep(Duration::from_millis(600));
            let now = pieces(file.path())?;
            Ok(now == std::mem::replace(&mut before, now.clone()))
        })?;
        let before = trace_in(file.path())?;
        commander.ask("enable pattern/rate=512/")?;
        wait_for_trace(file.path(), before + 4 * 16 * PAGE)?;
        commander.ask("stop")?;
        let seen = Seen::of(&file)?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        for says in ["pattern/rate=512/\ndummy:u", "`nonsense` is no command"] {
            ensure!(
                ended.errors.contains(says),
                "not {says:?}: {}",
                ended.errors
            );
        }
        accounted(&ended, &seen)?;
        released()?;
        out = seen.to_string();
    }
    Ok(out)
}

/// Times of the workload's exec and of the first AUX record.
fn times(file: &Path) -> Result<(u64, u64)> {
    let bytes = std::fs::read(file)?;
    let parsed = perfdata::File::parse(&bytes)?;
    let mut exec = None;
    let mut aux = None;
    for record in parsed.records() {
        let record = record?;
        let (what, id) = parsed.decode(&record)?;
        let time = id.and_then(|id| id.time);
        match what {
            perfdata::Event::Comm(comm) if comm.exec => exec = exec.or(time),
            perfdata::Event::Aux(_) => aux = aux.or(time),
            _ => {}
        }
    }
    Ok((
        exec.context("no exec in the file")?,
        aux.context("no trace in the file")?,
    ))
}

/// With `-D`, the trace begins later, but the file has the names and mappings of the command.
fn delay(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let arguments = with(
        "rate=512",
        16,
        &[
            "-D", "300", "--", "auxe2e", "workload", "spin", "--ms", "900",
        ],
    );
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    let (exec, aux) = times(file.path())?;
    // Both times are of the same clock, and the delay begins after the exec. So load cannot make the distance shorter.
    ensure!(
        aux > exec + 290_000_000,
        "trace {} ns after the exec",
        aux.saturating_sub(exec)
    );
    released()?;
    Ok(seen.to_string())
}

/// Trace may come only in the ranges of `-D`. A recorder that is delayed disables the event later, which makes the pause shorter, so it has
/// another try with a longer pause.
fn ranges(name: &str) -> Result<String> {
    let mut longest = 0;
    for pause in [1000, 10_000] {
        let file = TraceFile::new(name);
        let ranges = format!("100-300,{}-{}", 300 + pause, 500 + pause);
        let arguments = with("rate=512", 16, &["-a", "-D", &ranges]);
        let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
        let seen = Seen::of(&file)?;
        accounted(&ended, &seen)?;
        released()?;
        longest = silence(file.path())? / 1_000_000;
        if longest >= pause / 2 {
            return Ok(format!("{longest} ms without trace; {seen}"));
        }
    }
    bail!("no pause between two ranges: trace comes every {longest} ms")
}

/// The longest time between two AUX records, in ns.
fn silence(file: &Path) -> Result<u64> {
    let bytes = std::fs::read(file)?;
    let parsed = perfdata::File::parse(&bytes)?;
    let mut times = Vec::new();
    for record in parsed.records() {
        if let (perfdata::Event::Aux(_), id) = parsed.decode(&record?)? {
            times.push(id.and_then(|id| id.time).context("a record has no time")?);
        }
    }
    times.sort_unstable();
    let longest = times.windows(2).map(|pair| match pair {
        [one, next] => next - one,
        _ => 0,
    });
    Ok(longest.max().unwrap_or(0))
}
