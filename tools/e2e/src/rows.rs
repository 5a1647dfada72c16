// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What sets the recorder apart from stock perf, seen of both on the same driver: the table in `Documentation/recorder.md`.
//!
//! A case fails too when perf does better than the table says.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use auxrec::trace::Trace;
use rustix::process::Signal;

use crate::beside::Case;
use crate::hotplug::{of_cpu, switch};
use crate::module;
use crate::recorder::{pieces, size, wait_for, Commander};
use crate::recording::{Ended, Reader, Recorder, TraceFile};

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

/// A recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `perf record`.
    Perf,
    /// `auxrec record`.
    Auxrec,
}

use Tool::{Auxrec, Perf};

impl Tool {
    /// Its program.
    pub fn name(self) -> &'static str {
        match self {
            Perf => "perf",
            Auxrec => "auxrec",
        }
    }

    /// Where it may record to.
    pub fn file(self) -> TraceFile {
        TraceFile::new(&format!("row-{}", self.name()))
    }

    /// Starts it on the driver under the name `intel_pt`.
    fn start(self, file: &TraceFile, arguments: &[&str]) -> Result<Recorder> {
        if !Path::new("/sys/bus/event_source/devices/intel_pt").exists() {
            module::alias(1)?;
        }
        let mut all: Vec<String> = Vec::new();
        if self == Perf {
            // Build-ids of programs have nothing to do with it, and take long.
            all.extend(["-N", "-B"].map(String::from));
        }
        all.extend(arguments.iter().map(ToString::to_string));
        Recorder::of(self.name(), file.path(), &all)
    }

    /// Has it record to its end.
    pub fn record(self, file: &TraceFile, arguments: &[&str]) -> Result<Ended> {
        self.start(file, arguments)?.wait(Reader::KeepsUp)
    }

    /// The same, and it must succeed and have trace.
    fn records(self, arguments: &[&str]) -> Result<u64> {
        let file = self.file();
        let ended = self.record(&file, arguments)?;
        let bytes = trace(file.path())?;
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

/// Bytes of trace in a file.
fn trace(file: &Path) -> Result<u64> {
    let bytes = std::fs::read(file)?;
    let trace = Trace::read(&bytes)?;
    Ok(trace.rings.values().map(|ring| ring.loss.read).sum())
}

/// How many pieces of trace perf finds in a file, unless it cannot read it; without its decoder, for which this is no trace.
fn perf_reads(file: &Path) -> Result<Option<usize>> {
    let output = Command::new("perf")
        .args(["script", "-D", "--no-itrace", "-i"])
        .arg(file)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let pieces = text.matches("PERF_RECORD_AUXTRACE ").count();
    Ok(output.status.success().then_some(pieces))
}

const CPU: [&str; 6] = ["-e", "intel_pt/rate=2048/", "-C", "1", "-m", "64,64"];

/// These arguments, until the file has so many bytes.
fn until<'a>(arguments: &[&'a str], file: &'a TraceFile, bytes: &'a str) -> Vec<&'a str> {
    let path = file.path().to_str().unwrap_or_default();
    let workload = ["--", "auxe2e", "workload", "sleep", "--until", path, bytes];
    [arguments, &workload].concat()
}

fn unknown_pmu() -> Result<String> {
    let mut seen = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        // Without a period perf does not open the event.
        let event = if tool == Perf { "-c1" } else { "-q" };
        module::alias(0)?;
        let arguments = [event, "-e", "pattern/rate=2048/", "-C", "1", "-m", "64,64"];
        let workload = ["--", "auxe2e", "workload", "sleep", "--ms", "500"];
        let mut all = [&arguments[..], &workload].concat();
        if tool == Perf {
            all.splice(0..0, ["-N", "-B"]);
        }
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        let ended = Recorder::of(tool.name(), file.path(), &all)?.wait(Reader::KeepsUp)?;
        ensure!(ended.status == 0, "{}: {}", tool.name(), ended.errors);
        seen.push(trace(file.path())?);
    }
    ensure!(
        matches!(seen.as_slice(), [0, bytes] if *bytes != 0),
        "trace of perf and of auxrec: {seen:?}"
    );
    Ok(format!("both succeed; bytes of perf and auxrec: {seen:?}"))
}

fn threads() -> Result<String> {
    let arguments = ["-e", "intel_pt/rate=2048/", "-a", "-m", "64,64"];
    let workload = ["--", "auxe2e", "workload", "sleep", "--ms", "500"];
    let file = Perf.file();
    let ended = Perf.record(&file, &[&arguments[..], &["--threads"], &workload].concat())?;
    ensure!(
        ended.status != 0
            && ended
                .errors
                .contains("not available in AUX area tracing mode"),
        "perf: exit status {}: {}",
        ended.status,
        ended.errors
    );
    let bytes = Auxrec.records(&[&arguments[..], &["--threads", "2"], &workload].concat())?;
    // Each with a file of its own: perf finds what is there in the one that they are joined into.
    let file = Auxrec.file();
    let ended = Auxrec.record(&file, &[&arguments[..], &["--apart"], &workload].concat())?;
    let there: usize = pieces(file.path())?.iter().map(Vec::len).sum();
    let read = perf_reads(file.path())?;
    ensure!(
        ended.status == 0 && there != 0 && read == Some(there),
        "perf finds {read:?} of {there} pieces: {}",
        ended.errors
    );
    // It puts records into order, and says if one comes after the end of a round that it should have come before.
    let script = Command::new("perf")
        .args(["script", "--no-itrace", "--show-switch-events", "-i"])
        .arg(file.path())
        .output()?;
    let says = String::from_utf8_lossy(&script.stderr).into_owned();
    ensure!(
        script.status.success() && !says.contains("out of order"),
        "perf script: {}: {says}",
        script.status
    );
    // And, of a recorder that was killed, in that of each.
    let recorder = Auxrec.start(&file, &[&arguments[..], &["--apart"]].concat())?;
    let parts = [0, 1].map(|thread| {
        let name = format!("{}.t{thread}", file.path().display());
        PathBuf::from(name)
    });
    // By its header, which is what perf goes by.
    let has = |part: &PathBuf| {
        let bytes = std::fs::read(part).unwrap_or_default();
        perfdata::File::parse(&bytes).is_ok_and(|file| file.data_section().1 > 400_000)
    };
    let result = wait_for("trace", || Ok(parts.iter().all(has)));
    recorder.kill()?;
    let read: Vec<_> = parts.iter().map(|part| perf_reads(part)).collect();
    for part in parts {
        std::fs::remove_file(part)?;
    }
    result?;
    let read = read.into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(
        matches!(read.as_slice(), [Some(1..), Some(1..)]),
        "pieces that perf finds in the file of each thread: {read:?}"
    );
    Ok(format!(
        "perf refuses; auxrec: {bytes} bytes; joined, perf finds all {there} pieces; killed, {read:?}"
    ))
}

/// perf tells how often, and ends well; auxrec tells for how long, and by its status.
fn full_area() -> Result<String> {
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let json = file.path().with_extension("json");
        let mut arguments = vec!["-e", "intel_pt/rate=4096/", "-C", "1", "-m", "64,8"];
        if tool == Auxrec {
            arguments.extend(["--json", json.to_str().unwrap_or_default()]);
        }
        let arguments = until(&arguments, &file, "400000");
        let ended = tool.start(&file, &arguments)?.wait(Reader::Slow)?;
        match tool {
            Perf => ensure!(
                ended.status == 0 && !ended.errors.contains("lost"),
                "perf: exit status {}: {}",
                ended.status,
                ended.errors
            ),
            Auxrec => {
                let told = std::fs::read_to_string(&json)?;
                ensure!(
                    ended.status == 3 && told.contains("\"truncated\""),
                    "auxrec: exit status {}: {told}",
                    ended.status
                );
                std::fs::remove_file(&json)?;
            }
        }
        let report = Command::new("perf")
            .args(["script", "--no-itrace", "-i"])
            .arg(file.path())
            .output()?;
        let report = String::from_utf8_lossy(&report.stderr).into_owned();
        let told = report.lines().find(|line| line.contains("AUX data lost"));
        let bytes = std::fs::read(file.path())?;
        let loss = Trace::read(&bytes)?;
        let loss = loss.rings.values().find(|ring| ring.cpu == Some(1));
        let loss = loss.context("no ring of CPU 1")?.loss;
        ensure!(loss.truncated != 0, "the area was never full");
        out.push(format!(
            "{}: status {}, said \"{}\"; perf script: {:?}; auxrec check: {}",
            tool.name(),
            ended.status,
            ended.errors.lines().last().unwrap_or_default(),
            told.unwrap_or_default(),
            loss.describe()
        ));
    }
    Ok(out.join("; "))
}

fn offline() -> Result<String> {
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let arguments = ["-e", "intel_pt/rate=2048/", "-a", "-m", "64,16"];
        let recorder = tool.start(&file, &arguments)?;
        let grows = || {
            let before = size(file.path());
            wait_for("trace", || Ok(size(file.path()) > before + 400_000))
        };
        let mut outcome = grows();
        for on in [false, true] {
            outcome = outcome.and_then(|()| switch(on)).and_then(|()| grows());
        }
        switch(true)?;
        outcome?;
        if tool == Auxrec {
            let before = of_cpu(&file, 1)?;
            // It goes on: of half a second.
            let enough = before + 1_000_000;
            wait_for("trace of the CPU", || Ok(of_cpu(&file, 1)? > enough))?;
        }
        recorder.signal(Signal::INT)?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        // AUX records of the other CPU after the last one of that which came back.
        let bytes = std::fs::read(file.path())?;
        let trace = Trace::read(&bytes)?;
        let of = |cpu| trace.rings.values().find(|ring| ring.cpu == Some(cpu));
        let [stays, back] = [of(0), of(1)].map(|ring| ring.context("a CPU has no ring"));
        let last = back?.records.iter().map(|aux| aux.time).max();
        let later = stays?.records.iter().filter(|aux| Some(aux.time) > last);
        let later = later.count();
        // That auxrec goes on with the CPU was waited for. How soon before the end it does so for the last time is chance.
        ensure!(
            tool == Auxrec || later > 4,
            "perf: {later} AUX records of CPU 0 after the last one of CPU 1"
        );
        ensure!(
            tool == Perf || perf_reads(file.path())?.is_some(),
            "perf cannot read the file of a CPU that came back"
        );
        let told = ended.errors.contains("offline") || ended.status == 3;
        ensure!(
            told == (tool == Auxrec),
            "{}: {}",
            tool.name(),
            ended.errors
        );
        out.push(format!("{}: status {}", tool.name(), ended.status));
    }
    Ok(out.join("; "))
}

fn full_disk() -> Result<String> {
    let directory = Path::new("/tmp/full-disk");
    std::fs::create_dir_all(directory)?;
    let mount = |program: &str, arguments: &[&str]| -> Result<()> {
        let mut command = Command::new(program);
        let status = command.args(arguments).arg(directory).status()?;
        ensure!(status.success(), "{program} {arguments:?}: {status}");
        Ok(())
    };
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        mount("mount", &["-t", "tmpfs", "-o", "size=1m", "disk"])?;
        let file = TraceFile::within(directory);
        let workload = ["--", "auxe2e", "workload", "sleep", "--ms", "30000"];
        let ended = tool.record(&file, &[&CPU[..], &workload].concat());
        let read = ended.and_then(|ended| Ok((ended, perf_reads(file.path())?)));
        mount("umount", &[])?;
        let (ended, read) = read?;
        ensure!(ended.status != 0, "{} succeeds", tool.name());
        ensure!(
            read.is_some_and(|pieces| pieces != 0) == (tool == Auxrec),
            "pieces in the file of {}: {read:?}",
            tool.name()
        );
        out.push(format!(
            "{}: status {}, pieces that perf reads: {read:?}",
            tool.name(),
            ended.status
        ));
    }
    Ok(out.join("; "))
}

/// How long the file is when a command is answered, and half a second later. Only of auxrec is anything demanded: perf may have been
/// quick.
fn answered() -> Result<String> {
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let mut commander = Commander::new("answered")?;
        let [_, control] = commander.arguments();
        let arguments = ["-e", "intel_pt/rate=4096/", "-a", "-m", "64,512", "-S"];
        let arguments = [&arguments[..], &["--control", &control]].concat();
        let recorder = tool.start(&file, &arguments)?;
        commander.ask("ping")?;
        thread::sleep(Duration::from_millis(1000));
        let mut short = 0;
        for _ in 0..3 {
            commander.ask("snapshot")?;
            let copy = std::fs::read(file.path())?;
            thread::sleep(Duration::from_millis(500));
            let later = std::fs::read(file.path())?;
            // What the answer was for was there, if nothing but what is told beside the trace came after.
            short += u32::from(later.len() > copy.len() + 65536);
        }
        recorder.signal(Signal::INT)?;
        recorder.wait(Reader::KeepsUp)?;
        ensure!(tool == Perf || short == 0, "auxrec answered too early");
        out.push(format!(
            "{}: of 3 answers {short} came before the trace was in the file",
            tool.name()
        ));
    }
    Ok(out.join("; "))
}

/// Requests that come while one is taken: auxrec takes each command, and each signal that the kernel delivers.
fn requests() -> Result<String> {
    const TIMES: usize = 20;
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let mut commander = Commander::new("requests")?;
        let [_, control] = commander.arguments();
        let arguments = [
            "-e",
            "intel_pt/rate=4096/",
            "-C",
            "1",
            "-m",
            "64,1024",
            "-S",
        ];
        let arguments = [&arguments[..], &["--control", &control]].concat();
        let recorder = tool.start(&file, &arguments)?;
        commander.ask("ping")?;
        thread::sleep(Duration::from_millis(500));
        for _ in 0..TIMES {
            commander.send("snapshot\n")?;
        }
        commander.answers(TIMES)?;
        // The last may still be written.
        thread::sleep(Duration::from_millis(500));
        for _ in 0..TIMES {
            recorder.signal(Signal::USR2)?;
            thread::sleep(Duration::from_millis(4));
        }
        thread::sleep(Duration::from_millis(1000));
        recorder.signal(Signal::INT)?;
        recorder.wait(Reader::KeepsUp)?;
        let all = perf_reads(file.path())?.context("perf cannot read it")?;
        ensure!(
            tool == Perf || all > TIMES,
            "auxrec took {all} snapshots for {TIMES} commands and some signals"
        );
        out.push(format!(
            "{}: {TIMES} commands and {TIMES} signals, {all} snapshots",
            tool.name()
        ));
    }
    Ok(out.join("; "))
}

fn killed() -> Result<String> {
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let recorder = tool.start(&file, &CPU)?;
        let waited = wait_for("trace", || Ok(size(file.path()) > 1 << 20));
        recorder.kill()?;
        waited?;
        let before = perf_reads(file.path())?;
        let recovered = Command::new("auxrec")
            .arg("recover")
            .arg(file.path())
            .output()?
            .status
            .success();
        let after = perf_reads(file.path())?;
        let read = after.is_some_and(|pieces| pieces != 0);
        ensure!(
            read == (tool == Auxrec) && before.is_some() == read,
            "{}: {before:?}, and {after:?} after recover: {recovered}",
            tool.name()
        );
        out.push(format!(
            "{}: pieces that perf reads {before:?}, after recover {after:?}",
            tool.name()
        ));
    }
    Ok(out.join("; "))
}

/// The parts of a recording, whose names begin with that of the file.
fn parts(file: &Path) -> Result<Vec<PathBuf>> {
    let name = format!(
        "{}.",
        file.file_name().unwrap_or_default().to_string_lossy()
    );
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(file.parent().context("no directory")?)? {
        let entry = entry?;
        if entry.path().is_file() && entry.file_name().to_string_lossy().starts_with(&name) {
            parts.push(entry.path());
        }
    }
    parts.sort();
    Ok(parts)
}

/// perf's index of trace in a later file has what is in an earlier one, and perf itself refuses it.
fn several_files() -> Result<String> {
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        ensure!(parts(file.path())?.is_empty(), "there are files already");
        // An area that is full once is one that perf may never start again.
        let arguments = [&CPU[..4], &["-m", "64,512", "--switch-output"]].concat();
        let recorder = tool.start(&file, &arguments)?;
        // perf's file gets a name of its own only when it is whole.
        let written = || -> Result<u64> {
            let parts = parts(file.path())?;
            Ok(size(file.path()) + parts.iter().map(|part| size(part)).sum::<u64>())
        };
        let grows = |bytes| wait_for("trace", || Ok(written()? > bytes));
        let mut outcome = grows(200_000);
        for part in 1..=2 {
            outcome = outcome
                .and_then(|()| recorder.signal(Signal::USR2))
                .and_then(|()| wait_for("a file", || Ok(parts(file.path())?.len() >= part)))
                .and_then(|()| grows(written()? + 200_000));
        }
        recorder.signal(Signal::INT)?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        outcome.with_context(|| format!("{}: {}", tool.name(), ended.errors))?;
        let parts = parts(file.path())?;
        let mut bad = 0;
        for part in parts.iter().skip(1) {
            let findings = auxrec::check::check(&std::fs::read(part)?)?;
            let index = findings
                .problems
                .iter()
                .any(|p| p.contains("the index names"));
            let mut script = Command::new("perf");
            script.arg("script");
            if tool == Auxrec {
                script.arg("--no-itrace");
            }
            let output = script.arg("-i").arg(part).output()?;
            let refused = String::from_utf8_lossy(&output.stderr).contains("AUXTRACE_INFO");
            bad += usize::from(index && refused);
            ensure!(
                tool == Perf || findings.problems.is_empty() && output.status.success(),
                "{}: {findings}",
                part.display()
            );
        }
        for part in &parts {
            std::fs::remove_file(part)?;
        }
        ensure!((bad != 0) == (tool == Perf), "{bad} of {}", parts.len());
        out.push(format!(
            "{}: of {} later files {bad} with an index of another, which perf refuses",
            tool.name(),
            parts.len() - 1
        ));
    }
    Ok(out.join("; "))
}

/// With --aio perf's two ways to the file overwrite each other. auxrec writes from a thread of its own.
fn aio() -> Result<String> {
    let file = Perf.file();
    let arguments = ["--aio", "-e", "intel_pt/rate=4096/", "-a", "-m", "64,64"];
    let workload = ["--", "auxe2e", "workload", "sleep", "--ms", "2000"];
    let ended = Perf.record(&file, &[&arguments[..], &workload].concat())?;
    let read = perf_reads(file.path())?;
    ensure!(
        ended.status == 0 && read.is_none(),
        "perf --aio: exit status {}, {read:?} pieces: {}",
        ended.status,
        ended.errors
    );
    Ok(format!(
        "perf --aio: status {}, and cannot read its file of {} bytes",
        ended.status,
        size(file.path())
    ))
}

fn modes() -> Result<String> {
    let spin = [
        "-C", "0", "-m", "64,64", "--", "auxe2e", "workload", "spin", "--ms", "700",
    ];
    let with = |arguments: &[&'static str]| [arguments, &spin].concat();
    let resume =
        "{intel_pt/rate=2048,aux-action=start-paused/,cpu-clock/freq=50,aux-action=resume/}";
    let table = [
        ("full", with(&["-e", "intel_pt/rate=2048/"])),
        ("snapshot", with(&["-e", "intel_pt/rate=2048/", "-Se"])),
        ("paused and resumed", with(&["-e", resume])),
    ];
    let mut out = Vec::new();
    for (name, arguments) in &table {
        let bytes = [Perf.records(arguments)?, Auxrec.records(arguments)?];
        out.push(format!("{name}: bytes of perf and auxrec {bytes:?}"));
    }
    Ok(out.join("; "))
}

fn targets() -> Result<String> {
    let spin = ["--", "auxe2e", "workload", "spin", "--ms", "500"];
    let mut attached = Command::new("auxe2e")
        .args(["workload", "spin", "--ms", "60000"])
        .spawn()?;
    let pid = attached.id().to_string();
    let table: [&[&str]; 6] = [
        &[],
        &["--per-thread"],
        &["-C", "0,1"],
        &["-a"],
        &["-p", &pid],
        &["-t", &pid],
    ];
    let mut outcome: Result<Vec<String>> = Ok(Vec::new());
    for target in table {
        let arguments = ["-e", "intel_pt/rate=2048/", "-m", "64,512"];
        let arguments = [&arguments[..], target, &spin].concat();
        outcome = outcome.and_then(|mut out| {
            let bytes = [Perf.records(&arguments)?, Auxrec.records(&arguments)?];
            out.push(format!("{target:?}: {bytes:?}"));
            Ok(out)
        });
    }
    attached.kill()?;
    attached.wait()?;
    Ok(format!("bytes of perf and auxrec {}", outcome?.join(", ")))
}

/// The same conversation with both.
fn commands() -> Result<String> {
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let mut commander = Commander::new("conversation")?;
        let [_, control] = commander.arguments();
        let arguments = [&CPU[..], &["-D", "-1", "--control", &control]].concat();
        let recorder = tool.start(&file, &arguments)?;
        let event = CPU[1];
        for command in ["ping", "enable", "evlist", &format!("disable {event}")] {
            commander
                .ask(command)
                .with_context(|| format!("{command} to {}", tool.name()))?;
        }
        commander.ask("enable")?;
        wait_for("trace", || Ok(size(file.path()) > 400_000))?;
        commander.ask("stop")?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        ensure!(ended.status == 0, "{}: {}", tool.name(), ended.errors);
        ensure!(trace(file.path())? != 0, "{}: no trace", tool.name());
    }
    Ok("both answer ping, enable, evlist, disable EVENT and stop".into())
}

fn two_events() -> Result<String> {
    let workload = [
        "-C", "1", "--", "auxe2e", "workload", "sleep", "--ms", "500",
    ];
    let file = Perf.file();
    let two = ["-e", "intel_pt/rate=2048/", "-e", "intel_pt/rate=1024/"];
    let ended = Perf.record(&file, &[&two[..], &workload].concat())?;
    ensure!(
        ended.status != 0 && ended.errors.contains("only one intel_pt event"),
        "perf: exit status {}: {}",
        ended.status,
        ended.errors
    );
    module::alias(1)?;
    let Some((pmu, second)) = module::load_second()? else {
        return Ok("perf refuses; there is no second driver".into());
    };
    let event = format!("{pmu}//");
    let two = ["-e", "intel_pt/rate=2048/", "-e", &event];
    let file = Auxrec.file();
    let all: Vec<String> = [&two[..], &workload]
        .concat()
        .iter()
        .map(ToString::to_string)
        .collect();
    let ended = Recorder::of("auxrec", file.path(), &all)?.wait(Reader::KeepsUp);
    module::unload(second)?;
    let ended = ended?;
    ensure!(ended.status == 0, "auxrec: {}", ended.errors);
    Ok(format!(
        "perf refuses two of one PMU; auxrec with {pmu}: {} bytes",
        trace(file.path())?
    ))
}

/// perf names one limit; auxrec names both, their values, and what to set them to.
fn locked_memory() -> Result<String> {
    use std::os::unix::process::CommandExt;

    const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
    module::alias(1)?;
    let before = std::fs::read_to_string(PARANOID)?;
    std::fs::write(PARANOID, "0")?;
    let mut out = Vec::new();
    let mut outcome = Ok(());
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let mut command = Command::new(tool.name());
        command.args(["record", "-o"]).arg(file.path());
        command.args(["-e", "intel_pt/rate=64/", "-a", "-m", "16,16384"]);
        command.args(["--", "auxe2e", "workload", "sleep", "--ms", "50"]);
        let output = command.uid(65534).gid(65534).env("HOME", "/tmp").output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success()
            || !said.contains("mlock_kb")
            || said.contains("RLIMIT_MEMLOCK") != (tool == Auxrec)
        {
            outcome = Err(anyhow::anyhow!(
                "{}: {}: {said}",
                tool.name(),
                output.status
            ));
        }
        out.push(format!(
            "{}: {}",
            tool.name(),
            said.trim().replace('\n', " ")
        ));
    }
    std::fs::write(PARANOID, before.trim())?;
    outcome?;
    Ok(out.join("; "))
}

/// perf compresses what is told beside the trace; of auxrec's it finds all but the trace.
fn compressed() -> Result<String> {
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let arguments = [&["-z"], &CPU[..]].concat();
        let arguments = until(&arguments, &file, "200000");
        let ended = tool.record(&file, &arguments)?;
        ensure!(ended.status == 0, "{}: {}", tool.name(), ended.errors);
        let output = Command::new("perf")
            .args(["script", "-D", "--no-itrace", "-i"])
            .arg(file.path())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let count = |what: &str| text.matches(what).count();
        let [trace, aux] = ["PERF_RECORD_AUXTRACE ", "PERF_RECORD_AUX "].map(count);
        let warned = String::from_utf8_lossy(&output.stderr).contains("Unsupported header type");
        ensure!(
            output.status.success()
                && (trace != 0, warned) == (tool == Perf, tool == Auxrec)
                && (aux != 0 || tool == Perf),
            "of the file of {}: {trace} pieces, {aux} AUX records, a warning: {warned}, {}",
            tool.name(),
            output.status
        );
        let bytes = std::fs::read(file.path())?;
        let found = match tool {
            Perf => self::trace(file.path())?,
            Auxrec => 0,
        };
        let len = u64::try_from(bytes.len())?;
        ensure!(found <= len, "{found} bytes of trace in a file of {len}");
        out.push(format!(
            "{}: {len} bytes, {found} of them plain trace",
            tool.name()
        ));
    }
    Ok(out.join("; "))
}

/// perf at a quarter of the area, auxrec at seven sixteenths in whole pages, whatever comes.
fn watermark() -> Result<String> {
    for (pages, perfs, ours) in [
        ("16", "16384", 7 * 4096),
        ("64", "65536", 28 * 4096),
        ("1024", "1048576", 448 * 4096),
    ] {
        let rings = format!("64,{pages}");
        let file = Perf.file();
        let arguments = ["-vv", "-e", CPU[1], "-C", "1", "-m", &rings];
        let sleep = ["--", "auxe2e", "workload", "sleep", "--ms", "50"];
        let ended = Perf.record(&file, &[&arguments[..], &sleep].concat())?;
        let line = ended.errors.lines().find(|l| l.contains("aux_watermark"));
        ensure!(
            line.is_some_and(|line| line.split_whitespace().last() == Some(perfs)),
            "perf, {pages} pages: {line:?}"
        );
        let file = Auxrec.file();
        let arguments = ["-e", CPU[1], "-C", "1", "-m", &rings];
        let ended = Auxrec.record(&file, &[&arguments[..], &sleep].concat())?;
        ensure!(ended.status == 0, "auxrec: {}", ended.errors);
        let bytes_of = std::fs::read(file.path())?;
        let parsed = perfdata::File::parse(&bytes_of)?;
        let watermark = parsed.events().first().map(|(attr, _)| attr.aux_watermark);
        ensure!(
            watermark == Some(ours),
            "auxrec, {pages} pages: {watermark:?}"
        );
    }
    Ok("at 4, 16, 256 pages and 7, 28, 448, of areas of 16, 64 and 1024".to_owned())
}

/// perf says nothing of how it goes.
fn meanwhile() -> Result<String> {
    let file = Perf.file();
    module::alias(1)?;
    let errors = file.path().with_extension("errors");
    let mut perf = Command::new("perf")
        .args(["record", "-v", "-N", "-B", "-o"])
        .arg(file.path())
        .args(["-e", CPU[1], "-a", "-m", "64,64"])
        .stderr(std::fs::File::create(&errors)?)
        .stdout(std::process::Stdio::null())
        .env("HOME", "/tmp")
        .spawn()?;
    let said = || std::fs::metadata(&errors).map_or(0, |meta| meta.len());
    let grows = || {
        let before = size(file.path());
        wait_for("trace", || Ok(size(file.path()) > before + 400_000))
    };
    let outcome = grows().map(|()| said());
    let outcome = outcome.and_then(|before| grows().map(|()| (before, said())));
    perf.kill()?;
    perf.wait()?;
    std::fs::remove_file(&errors)?;
    let (before, after) = outcome?;
    ensure!(
        before == after,
        "perf has said {} bytes while it recorded",
        after - before
    );
    let top = Command::new("perf")
        .args(["top", "--stdio", "-e", CPU[1], "-C", "1"])
        .env("HOME", "/tmp")
        .output()?;
    let errors = String::from_utf8_lossy(&top.stderr);
    ensure!(
        !top.status.success() && errors.contains("Invalid argument"),
        "perf top: {}: {errors}",
        top.status
    );
    Ok("perf record says nothing, perf top does not open the event".to_owned())
}

/// perf writes into the control page of a ring that it has mapped read-only.
fn overwritten() -> Result<String> {
    let arguments = ["-S", "--overwrite", "-e", CPU[1], "-a", "-m", "16,64"];
    let sleep = ["--", "auxe2e", "workload", "sleep", "--ms", "500"];
    let arguments = [&arguments[..], &sleep].concat();
    let file = Perf.file();
    let ended = Perf.record(&file, &arguments)?;
    let crash = 128 + Signal::SEGV.as_raw();
    ensure!(
        ended.status == crash || ended.errors.contains("Segmentation fault"),
        "perf: exit status {}: {}",
        ended.status,
        ended.errors
    );
    let mut arguments = arguments;
    arguments[0] = "-Se";
    let bytes = Auxrec.records(&arguments)?;
    Ok(format!("perf crashes; auxrec: {bytes} bytes of trace"))
}

/// The crate linux-perf-data finds every byte of trace; the files stay for other versions of perf.
fn other_readers() -> Result<String> {
    let sleep = ["--", "auxe2e", "workload", "sleep", "--ms", "700"];
    let table: [(&str, &[&str], Reader); 4] = [
        (
            "all-cpus",
            &["-e", "intel_pt/rate=2048/", "-a", "-m", "64,16"],
            Reader::KeepsUp,
        ),
        (
            "truncated",
            &["-e", "intel_pt/rate=4096/", "-C", "1", "-m", "64,8"],
            Reader::Slow,
        ),
        (
            "snapshot",
            &["-e", "intel_pt/rate=2048/", "-a", "-m", "64,16", "-Se"],
            Reader::KeepsUp,
        ),
        (
            "other-events",
            &[
                "-e",
                "{intel_pt/rate=2048/,cpu-clock/freq=100/},context-switches",
                "-a",
                "-m",
                "64,16",
            ],
            Reader::KeepsUp,
        ),
    ];
    let mut out = Vec::new();
    for (name, arguments, reader) in table {
        let file = TraceFile::new(name);
        let arguments = [arguments, &sleep].concat();
        Auxrec.start(&file, &arguments)?.wait(reader)?;
        let bytes = std::fs::read(file.path())?;
        let seen = by_crate(&bytes)?;
        ensure!(
            seen == trace(file.path())? && seen != 0,
            "{name}: linux-perf-data finds {seen} bytes of trace"
        );
        std::fs::write(format!("/out/{name}.data"), bytes)?;
        out.push(format!("{name}: {seen}"));
    }
    // Of a program that those have too who read it elsewhere.
    let file = TraceFile::new("soft-pt");
    let event = ["-e", "soft_pt//u", "-m", "16,64", "--"];
    let arguments = [&event[..], &["/bin/busybox", "true"]].concat();
    let ended = module::with("soft_pt", || Auxrec.record(&file, &arguments))?;
    ensure!(ended.status == 0, "soft_pt: {}", ended.errors);
    std::fs::copy(file.path(), "/out/soft-pt.data")?;
    Ok(format!("bytes of {}", out.join(", ")))
}

/// Bytes of trace by linux-perf-data.
fn by_crate(bytes: &[u8]) -> Result<u64> {
    use linux_perf_data::{PerfFileReader, PerfFileRecord, UserRecord};

    let PerfFileReader {
        mut perf_file,
        mut record_iter,
    } = PerfFileReader::parse_file(std::io::Cursor::new(bytes))?;
    let mut trace = 0;
    while let Some(record) = record_iter.next_record(&mut perf_file)? {
        match record {
            PerfFileRecord::EventRecord { record, .. } => {
                record.parse()?;
            }
            PerfFileRecord::UserRecord(record) => {
                if let UserRecord::Auxtrace(aux) = record.parse()? {
                    trace += u64::try_from(aux.aux_data.as_slice().len())?;
                }
            }
        }
    }
    Ok(trace)
}
