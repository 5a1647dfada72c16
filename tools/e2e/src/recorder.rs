// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of what the recorder can do beyond recording one event to its end.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::trace::Trace;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{mknodat, FileType, Mode, CWD};
use rustix::process::Signal;

use crate::cases::{event, released, Seen, PAGE};
use crate::module;
use crate::recording::{Ended, Reader, Recorder, TraceFile};

/// What a case does: its name comes in, what was seen goes out.
pub type Steps = fn(&str) -> Result<String>;

/// The cases, by their names.
pub const ALL: [(&str, Steps); 15] = [
    ("snapshots by signal", snapshots_by_signal),
    ("snapshots by command, queued", snapshots_by_command),
    (
        "snapshot of a size, and none at the end",
        snapshot_of_a_size,
    ),
    ("snapshots of threads", snapshots_of_threads),
    ("commands", commands),
    ("delay", delay),
    ("ranges of time", ranges),
    ("files by size", files_by_size),
    ("files by signal, the last kept", files_by_signal),
    ("files and the largest size", files_and_max_size),
    ("two events that write trace", two_events),
    ("events in a group and beside it", other_events),
    ("trace that other events pause and resume", pause_and_resume),
    ("trace in samples", aux_sample),
    ("what is told of beside the trace", sideband),
];

/// Waits for something to come true.
pub fn wait_for(what: &str, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    while !is()? {
        ensure!(Instant::now() < end, "{what} did not happen in 30 s");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// No answer takes as long, even on a busy machine.
const ANSWER: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// The other program of `--control`.
pub struct Commander {
    ctl: File,
    ack: File,
    paths: [PathBuf; 2],
}

impl Commander {
    /// FIFOs that no other case has.
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

    /// The recorder's option.
    pub fn arguments(&self) -> [String; 2] {
        let [ctl, ack] = &self.paths;
        let where_to = format!("fifo:{},{}", ctl.display(), ack.display());
        ["--control".into(), where_to]
    }

    pub fn send(&mut self, commands: &str) -> Result<()> {
        Ok(self.ctl.write_all(commands.as_bytes())?)
    }

    /// Waits for so many answers, as perf gives them.
    pub fn answers(&mut self, times: usize) -> Result<()> {
        for time in 0..times {
            // A recorder that has ended answers nothing, and this end of the FIFO stays open.
            let mut wait = [PollFd::new(&self.ack, PollFlags::IN)];
            let answered = poll(&mut wait, Some(&ANSWER))?;
            ensure!(answered != 0, "no answer {time} in {} s", ANSWER.tv_sec);
            let mut answer = [0; 5];
            self.ack.read_exact(&mut answer)?;
            ensure!(&answer == b"ack\n\0", "answer {time} is {answer:?}");
        }
        Ok(())
    }

    /// Sends a command, and waits for its answer.
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

/// The arguments of an event with these terms, and more.
pub fn with(terms: &str, ring: u64, more: &[&str]) -> Vec<String> {
    let mut arguments = event(terms, ring);
    arguments.extend(more.iter().map(ToString::to_string));
    arguments
}

/// Ends a recording.
pub fn end(recorder: Recorder) -> Result<Ended> {
    recorder.signal(Signal::INT)?;
    recorder.wait(Reader::KeepsUp)
}

/// Every byte is right, or reported lost: a busy machine may keep any reader from its rings. And the exit status says so.
pub fn accounted(ended: &Ended, seen: &Seen) -> Result<()> {
    seen.is_right()
        .with_context(|| format!("exit status {}: {}", ended.status, ended.errors))?;
    let lost = seen.content.lost != 0;
    ensure!(
        ended.status == 3 || ended.status == 0 && !lost,
        "exit status {} for {seen}: {}",
        ended.status,
        ended.errors
    );
    Ok(())
}

/// The pieces of each ring: where each begins, and its length.
pub fn pieces(file: &Path) -> Result<Vec<Vec<(u64, u64)>>> {
    let bytes = std::fs::read(file)?;
    let trace = Trace::read(&bytes)?;
    let of = |ring: &auxrec::trace::Ring<'_>| {
        let pieces = ring.pieces.iter();
        pieces
            .map(|piece| (piece.aux.offset, piece.aux.size))
            .collect()
    };
    Ok(trace.rings.values().map(of).collect())
}

/// Length of a file; 0 if there is none.
pub fn size(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |meta| meta.len())
}

fn snapshots_by_signal(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    let mut arguments = with("rate=4096", 16, &["-a", "-S", "e"]);
    arguments.extend(commander.arguments());
    let recorder = Recorder::start(file.path(), &arguments)?;
    let ring = 16 * PAGE;
    // From then on it records.
    commander.ask("ping")?;
    let count = || -> usize {
        let rings = pieces(file.path()).unwrap_or_default();
        rings.iter().map(Vec::len).sum()
    };
    for time in 1..=3 {
        // Long enough that the rings go round between some.
        thread::sleep(Duration::from_millis(40 * time));
        let before = count();
        recorder.signal(Signal::USR2)?;
        // What is told beside the trace makes the file grow, too.
        wait_for("a snapshot", || Ok(count() > before))?;
    }
    let ended = end(recorder)?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    let rings = pieces(file.path())?;
    ensure!(rings.len() == 2, "{} rings", rings.len());
    for pieces in &rings {
        // A CPU that was kept from running has nothing new for one.
        ensure!(
            (2..=4).contains(&pieces.len()),
            "three snapshots and the last: {pieces:x?}"
        );
        for (at, len) in pieces {
            // By arithmetic: a whole ring once it has gone round, and all there is before.
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

/// Many requests at once: each is answered, when its snapshot is in the file.
fn snapshots_by_command(name: &str) -> Result<String> {
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
        // What was answered is there, whatever comes now.
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
    let output = std::process::Command::new("auxrec")
        .arg("recover")
        .arg(file.path())
        .output()?;
    ensure!(output.status.success(), "auxrec recover: {output:?}");
    let rings = pieces(file.path())?;
    ensure!(
        rings.iter().all(|pieces| pieces.len() == TIMES + 3),
        "{TIMES} requests and 3, all answered, and then killed: {rings:x?}"
    );
    let seen = Seen::of(&file)?;
    seen.is_right()?;
    Ok(seen.to_string())
}

fn snapshot_of_a_size(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut commander = Commander::new(name)?;
    let mut arguments = with("rate=4096,packet=3", 16, &["-C", "1", "-S8K"]);
    arguments.extend(commander.arguments());
    let recorder = Recorder::start(file.path(), &arguments)?;
    // The events are on when the first command is answered.
    commander.ask("ping")?;
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(100));
        commander.ask("snapshot")?;
    }
    commander.ask("stop")?;
    // `stop` is answered when the file is finished.
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

fn snapshots_of_threads(name: &str) -> Result<String> {
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
        // The first may have come before the first byte: then it has no piece.
        matches!(rings.as_slice(), [pieces] if (5..=6).contains(&pieces.len())),
        "five snapshots and the last: {rings:x?}"
    );
    released()?;
    Ok(seen.to_string())
}

/// Off, on, off again: nothing is generated while it is off, and each command is answered once.
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
        wait_for("trace", || Ok(size(file.path()) > 10 * 16 * PAGE))?;
        commander.send("nonsense\nevlist\0")?;
        commander.answers(1)?;
        commander.ask("disable pattern/rate=512/")?;
        // What is in the rings now comes to the file, and then nothing.
        thread::sleep(Duration::from_millis(600));
        let at = size(file.path());
        let before = pieces(file.path())?;
        thread::sleep(Duration::from_millis(600));
        ensure!(
            pieces(file.path())? == before,
            "trace after it was disabled"
        );
        commander.ask("enable pattern/rate=512/")?;
        wait_for("trace", || Ok(size(file.path()) > at + 4 * 16 * PAGE))?;
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

/// Time of the workload's first record, and of its first AUX record.
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

/// The names and mappings of the command are there, though its trace begins later.
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
    // From the exec on, and both clocks are the same: no load makes it shorter.
    ensure!(
        aux > exec + 290_000_000,
        "trace {} ns after the exec",
        aux.saturating_sub(exec)
    );
    released()?;
    Ok(seen.to_string())
}

fn ranges(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let ended = Recorder::start(
        file.path(),
        &with("rate=512", 16, &["-a", "-D", "100-300,500-700"]),
    )?
    .wait(Reader::KeepsUp)?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok(seen.to_string())
}

/// The files of a recording that are there, in their order.
fn parts(file: &Path) -> Vec<PathBuf> {
    let name = |n: u32| PathBuf::from(format!("{}.{n:04}", file.display()));
    (1..10_000).map(name).filter(|path| path.exists()).collect()
}

/// Files that go when the case is over.
struct Parts<'a>(&'a TraceFile);

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        for path in parts(self.0.path()) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Every part is consistent by itself.
fn each_alone(parts: &[PathBuf]) -> Result<()> {
    for path in parts {
        let bytes = std::fs::read(path)?;
        let findings = auxrec::check::check(&bytes)?;
        ensure!(
            findings.problems.is_empty(),
            "{}: {findings}",
            path.display()
        );
    }
    Ok(())
}

fn files_by_size(name: &str) -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let _parts = Parts(&file);
        let recorder = Recorder::start(
            file.path(),
            &with(
                "rate=512,packet=3",
                16,
                &["-a", "--threads", threads, "--switch-output", "256K"],
            ),
        )?;
        wait_for("the fourth file", || Ok(parts(file.path()).len() >= 4))?;
        let ended = end(recorder)?;
        let all = parts(file.path());
        let seen = Seen::of_parts(&all)?;
        accounted(&ended, &seen)?;
        each_alone(&all)?;
        released()?;
        out = format!("{} files: {seen}", all.len());
    }
    Ok(out)
}

fn files_by_signal(name: &str) -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let _parts = Parts(&file);
        let more = [
            "-a",
            "--threads",
            threads,
            "--switch-output",
            "--switch-max-files",
            "2",
        ];
        let recorder = Recorder::start(file.path(), &with("rate=512", 16, &more))?;
        for part in 1..=4 {
            let path = PathBuf::from(format!("{}.{part:04}", file.path().display()));
            wait_for("trace", || Ok(size(&path) > 2 * 16 * PAGE))?;
            recorder.signal(Signal::USR2)?;
            let next = PathBuf::from(format!("{}.{:04}", file.path().display(), part + 1));
            wait_for("the next file", || Ok(next.exists()))?;
        }
        let ended = end(recorder)?;
        let all = parts(file.path());
        let names: Vec<_> = all.iter().filter_map(|path| path.extension()).collect();
        ensure!(
            names == ["0004", "0005"],
            "the last two are kept: {names:?}"
        );
        each_alone(&all)?;
        let seen = Seen::of_parts(&all)?;
        accounted(&ended, &seen)?;
        released()?;
        out = seen.to_string();
    }
    Ok(out)
}

/// The limit counts all files.
fn files_and_max_size(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let _parts = Parts(&file);
    let more = ["-a", "--switch-output", "256K", "--max-size", "1M"];
    let ended =
        Recorder::start(file.path(), &with("rate=512", 16, &more))?.wait(Reader::KeepsUp)?;
    let all = parts(file.path());
    let sum: u64 = all.iter().map(|path| size(path)).sum();
    if !((1 << 20)..(1 << 20) + 512 * 1024).contains(&sum) {
        bail!("{} files have {sum} bytes", all.len());
    }
    let seen = Seen::of_parts(&all)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok(format!("{} files: {seen}", all.len()))
}

/// Records until the file has so much, and ends it.
fn record(file: &TraceFile, arguments: &[String], bytes: u64) -> Result<(Ended, Seen)> {
    let recorder = Recorder::start(file.path(), arguments)?;
    let mut waited = wait_for("trace", || Ok(size(file.path()) > bytes));
    let ended = end(recorder)?;
    if let Err(error) = &mut waited {
        bail!("{error}: exit status {}: {}", ended.status, ended.errors);
    }
    let seen = Seen::of(file)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok((ended, seen))
}

/// The records of each kind in a file, with the names of their events.
fn kinds(file: &Path) -> Result<BTreeMap<(String, String), usize>> {
    let bytes = std::fs::read(file)?;
    let parsed = perfdata::File::parse(&bytes)?;
    let section = parsed.feature(perfdata::Feature::EVENT_DESC);
    let names = section.context("no names of events")?.events()?;
    let mut out = BTreeMap::new();
    for record in parsed.records() {
        let record = record?;
        // A sample begins with what other records end with.
        let id = if record.kind == perfdata::RecordType::SAMPLE {
            record
                .body
                .first_chunk::<8>()
                .map(|id| u64::from_le_bytes(*id))
        } else {
            parsed.decode(&record)?.1.and_then(|id| id.id)
        };
        let event = names
            .iter()
            .find(|event| id.is_some_and(|id| event.ids.contains(&id)));
        let event = event.map_or(String::new(), |event| event.name.clone());
        *out.entry((format!("{:?}", record.kind), event))
            .or_default() += 1;
    }
    Ok(out)
}

fn has(kinds: &BTreeMap<(String, String), usize>, kind: &str, event: &str) -> Result<()> {
    ensure!(
        kinds.contains_key(&(kind.to_owned(), event.to_owned())),
        "no {kind} of {event}: {kinds:?}"
    );
    Ok(())
}

/// Of two PMUs, on the same CPUs, each with rings of its own.
fn two_events(name: &str) -> Result<String> {
    let Some((pmu, second)) = module::load_second()? else {
        bail!(crate::Skip("there is no second driver"));
    };
    let file = TraceFile::new(name);
    let list = format!("pattern/rate=512/,{pmu}//");
    let result = record(
        &file,
        &["-a", "-m", "64,16", "-e", &list].map(String::from),
        12 * 16 * PAGE,
    )
    .and_then(|(_, seen)| {
        let bytes = std::fs::read(file.path())?;
        let trace = Trace::read(&bytes)?;
        let written: Vec<(&str, u64)> = trace
            .rings
            .values()
            .map(|ring| (ring.pmu.as_str(), ring.loss.read))
            .collect();
        ensure!(
            matches!(written.as_slice(), [("pattern", 1..), ("pattern", 1..), (a, 1..), (b, 1..)] if [*a, *b] == [pmu; 2]),
            "not two rings of each: {written:?}"
        );
        Ok(format!("{written:?}; {seen}"))
    });
    module::unload(second)?;
    result
}

/// A member of the group, and an event beside it: both are sampled into the data ring, and no byte of trace is lost for it.
fn other_events(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let events = "{pattern/rate=512/,cpu-clock/freq=100/},context-switches";
    let (_, seen) = record(
        &file,
        &["-a", "-m", "64,16", "-e", events].map(String::from),
        10 * 16 * PAGE,
    )?;
    let kinds = kinds(file.path())?;
    has(&kinds, "AUX", "pattern/rate=512/")?;
    has(&kinds, "SAMPLE", "cpu-clock/freq=100/")?;
    has(&kinds, "SAMPLE", "context-switches")?;
    Ok(seen.to_string())
}

/// Nothing is traced but what comes between an event that resumes and one that pauses.
fn pause_and_resume(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let paused = "pattern/rate=512,aux-action=start-paused/";
    let arguments = |events: &str| {
        let all = ["-C", "0", "-m", "64,16", "-e", events, "--"];
        let workload = ["auxe2e", "workload", "sleep", "--ms", "500"];
        all.into_iter()
            .chain(workload)
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let ended = Recorder::start(file.path(), &arguments(paused))?.wait(Reader::KeepsUp)?;
    ensure!(
        ended.status == 0,
        "exit status {}: {}",
        ended.status,
        ended.errors
    );
    let rings = pieces(file.path())?;
    ensure!(
        rings.iter().all(Vec::is_empty),
        "trace though nothing resumed it: {rings:x?}"
    );
    // A sample of the clock resumes it, within the first half second.
    let resumed = format!("{paused},cpu-clock/freq=50,aux-action=resume/");
    let ended = Recorder::start(file.path(), &arguments(&resumed))?.wait(Reader::KeepsUp)?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    ensure!(seen.content.recorded > 0, "no trace: {seen}");
    released()?;
    Ok(seen.to_string())
}

/// Where the kernel and the driver can do it; elsewhere the recorder says what is missing.
fn aux_sample(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let sampled = "{pattern/rate=2048/,cpu-clock/freq=100/}";
    let all = [
        "-C",
        "0",
        "-m",
        "64,16",
        "-e",
        sampled,
        "--aux-sample=1024",
        "--",
    ];
    let workload = ["auxe2e", "workload", "spin", "--ms", "500"];
    let arguments: Vec<_> = all.into_iter().chain(workload).map(String::from).collect();
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
    if ended.status == 1 {
        for says in [
            "cannot put trace into samples",
            "perf_output_copy_aux",
            "-S",
        ] {
            ensure!(
                ended.errors.contains(says),
                "not {says:?}: {}",
                ended.errors
            );
        }
        ensure!(!file.path().exists(), "it left a file");
        released()?;
        return Ok(format!("refused: {}", ended.errors.trim()));
    }
    ensure!(
        ended.status == 0,
        "exit status {}: {}",
        ended.status,
        ended.errors
    );
    // Packets of the driver stand in the samples.
    let bytes = std::fs::read(file.path())?;
    let parsed = perfdata::File::parse(&bytes)?;
    let mut packets = 0;
    for record in parsed.records() {
        let record = record?;
        if record.kind == perfdata::RecordType::SAMPLE {
            let mut rest = record.body;
            while let Some(at) = pattern_codec::find_sync(rest) {
                let (_, packet) = rest.split_at(at);
                if pattern_codec::Header::decode(packet).is_ok() {
                    packets += 1;
                }
                rest = packet.get(8..).unwrap_or_default();
            }
        }
    }
    ensure!(packets > 10, "{packets} packets in all samples");
    released()?;
    Ok(format!("{packets} packets in samples"))
}

/// What ran already, what the kernel and its modules are, what begins, ends and is switched to meanwhile.
fn sideband(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut before = std::process::Command::new("auxe2e")
        .args(["workload", "sleep", "--ms", "20000"])
        .spawn()?;
    // Until its exec it is this program.
    let comm = format!("/proc/{}/comm", before.id());
    wait_for("its exec", || {
        Ok(std::fs::read_to_string(&comm)?.trim() == "auxe2e")
    })?;
    thread::sleep(Duration::from_millis(100));
    let all = ["-a", "--", "auxe2e", "workload", "fork", "--ms", "400"];
    let ended = Recorder::start(file.path(), &with("rate=64", 16, &all))?.wait(Reader::KeepsUp)?;
    let pid = before.id();
    before.kill()?;
    before.wait()?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;

    let bytes = std::fs::read(file.path())?;
    let parsed = perfdata::File::parse(&bytes)?;
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for record in parsed.records() {
        let record = record?;
        let (event, id) = parsed.decode(&record)?;
        let made_up = id.is_some_and(|id| id.time == Some(0));
        let what = match event {
            perfdata::Event::Mmap(map) if map.filename.starts_with(b"[kernel.kallsyms]") => {
                "kernel"
            }
            perfdata::Event::Mmap(map) if map.filename == b"[pattern]" => "module",
            perfdata::Event::Comm(comm) if made_up && comm.pid == pid => "name before",
            perfdata::Event::Mmap2(map) if made_up && map.pid == pid => {
                let named = map.file.build_id().is_some();
                *found.entry("build-id before").or_default() += usize::from(named);
                "mapping before"
            }
            perfdata::Event::Comm(comm) if comm.exec && !made_up => "exec",
            perfdata::Event::Mmap2(map) if map.file.build_id().is_some() => "build-id",
            perfdata::Event::Mmap2(_) if !made_up => "mapping",
            perfdata::Event::Fork(_) => "fork",
            perfdata::Event::Exit(_) => "exit",
            perfdata::Event::Switch(..) => "switch",
            _ => continue,
        };
        *found.entry(what).or_default() += 1;
    }
    let wanted = [
        "kernel",
        "module",
        "name before",
        "mapping before",
        "exec",
        "fork",
        "exit",
        "switch",
    ];
    for what in wanted {
        ensure!(found.contains_key(what), "no {what}: {found:?}");
    }
    // Of the same program the recorder finds one where the kernel does.
    ensure!(
        !found.contains_key("build-id") || found.get("build-id before") != Some(&0),
        "no build-id of what ran already: {found:?}"
    );
    let mappings = found.get("mapping").or_else(|| found.get("build-id"));
    ensure!(mappings.is_some(), "no mapping of what was run: {found:?}");
    released()?;
    Ok(format!("{found:?}"))
}
