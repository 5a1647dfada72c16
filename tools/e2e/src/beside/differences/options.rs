// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Differences in options and messages: PMUs, targets, threads, snapshots and limits.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use rustix::process::Signal;

use super::Tool::{Auxrec, Perf};
use super::{both, of_each, outcome, perf_reads, Tool, CPU};
use crate::module;
use crate::recorder::{pieces, size, Commander};
use crate::recording::{trace_in, Reader, Recorder};
use crate::wait::wait_for;

pub(super) fn unknown_pmu() -> Result<String> {
    let mut seen = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        // perf does not open the event without a period.
        let event = if tool == Perf { "-c1" } else { "-q" };
        module::alias(0)?;
        let arguments = [event, "-e", "pattern/rate=2048/", "-C", "1", "-m", "64,512"];
        let workload = ["--", "auxe2e", "workload", "sleep", "--ms", "500"];
        let mut all = [&arguments[..], &workload].concat();
        if tool == Perf {
            all.splice(0..0, ["-N", "-B"]);
        }
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        let ended = Recorder::of(tool.name(), file.path(), &all)?.wait(Reader::KeepsUp)?;
        seen.push(match tool {
            Perf => outcome(&ended, file.path(), "pattern")?,
            Auxrec => {
                let bytes = trace_in(file.path())?;
                ensure!(ended.status == 0 && bytes != 0, "auxrec: {}", ended.errors);
                format!("status 0, {bytes} bytes of trace")
            }
        });
    }
    of_each(&seen)
}

pub(super) fn threads() -> Result<String> {
    let arguments = ["-e", "intel_pt/rate=2048/", "-a", "-m", "64,512"];
    let workload = ["--", "auxe2e", "workload", "sleep", "--ms", "500"];
    let file = Perf.file();
    let ended = Perf.record(&file, &[&arguments[..], &["--threads"], &workload].concat())?;
    let of_perf = outcome(&ended, file.path(), "AUX area tracing mode")?;
    let bytes = Auxrec.records(&[&arguments[..], &["--threads", "2"], &workload].concat())?;
    // Each thread has its own file. perf must find all pieces in the joined file.
    let file = Auxrec.file();
    let ended = Auxrec.record(
        &file,
        &[&arguments[..], &["--split-files"], &workload].concat(),
    )?;
    let there: usize = pieces(file.path())?.iter().map(Vec::len).sum();
    let read = perf_reads(file.path())?;
    ensure!(
        ended.status == 0 && there != 0 && read == Some(there),
        "perf finds {read:?} of {there} pieces: {}",
        ended.errors
    );
    // perf sorts records within rounds. It warns if a record comes after the round to which its time belongs.
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
    // perf must also read each thread's file of a killed recorder.
    let recorder = Auxrec.start(&file, &[&arguments[..], &["--split-files"]].concat())?;
    let parts = [0, 1].map(|thread| {
        let name = format!("{}.t{thread}", file.path().display());
        PathBuf::from(name)
    });
    // perf uses the length in the file's header.
    let has = |part: &PathBuf| {
        let bytes = std::fs::read(part).unwrap_or_default();
        perfdata::File::parse(&bytes).is_ok_and(|file| file.data_section().1 > 400_000)
    };
    if let Err(error) = wait_for("trace", || Ok(parts.iter().all(has))) {
        recorder.signal(Signal::INT)?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        return Err(error.context(format!("auxrec: {}: {}", ended.status, ended.errors)));
    }
    recorder.kill()?;
    let read: Vec<_> = parts.iter().map(|part| perf_reads(part)).collect();
    for part in parts {
        std::fs::remove_file(part)?;
    }
    let read = read.into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(
        matches!(read.as_slice(), [Some(1..), Some(1..)]),
        "pieces that perf finds in the file of each thread: {read:?}"
    );
    let killed: usize = read.into_iter().flatten().sum();
    Ok(both(
        &of_perf,
        &format!(
            "{bytes} bytes of trace; of a file for each thread perf finds all {there} pieces when they are joined, and {killed} in \
             those of a recorder that was killed"
        ),
    ))
}

/// Compares the file when the response to a command comes, and half a second later. Only auxrec must have written the trace before the
/// response: perf may have been quick by chance.
pub(super) fn answered() -> Result<String> {
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
            // The trace was there when the answer came if only sideband records came after it.
            short += u32::from(later.len() > copy.len() + 65536);
        }
        recorder.signal(Signal::INT)?;
        recorder.wait(Reader::KeepsUp)?;
        ensure!(tool == Perf || short == 0, "auxrec answered too early");
        out.push(format!(
            "of 3 answers {short} came before the trace was in the file"
        ));
    }
    of_each(&out)
}

/// Requests that come during a snapshot: auxrec must take a snapshot for each command, and for each signal that the kernel delivers.
pub(super) fn requests() -> Result<String> {
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
        // The last snapshot may not be complete yet.
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
            "{TIMES} commands and {TIMES} signals, {all} snapshots"
        ));
    }
    of_each(&out)
}

pub(super) fn modes() -> Result<String> {
    let spin = ["-C", "0", "--", "auxe2e", "workload", "spin", "--ms", "700"];
    let with = |arguments: &[&'static str]| [arguments, &spin].concat();
    let resume =
        "{intel_pt/rate=2048,aux-action=start-paused/,cpu-clock/freq=50,aux-action=resume/}";
    let table = [
        ("full", with(&["-e", CPU[1], "-m", "64,512"])),
        // The trace is larger than the area, and the snapshot has its end.
        ("snapshot", with(&["-e", CPU[1], "-m", "64,64", "-Se"])),
        ("paused and resumed", with(&["-e", resume, "-m", "64,512"])),
    ];
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let mut seen = Vec::new();
        for (name, arguments) in &table {
            seen.push(format!("{name} {} bytes", tool.records(arguments)?));
        }
        out.push(seen.join(", "));
    }
    of_each(&out)
}

pub(super) fn targets() -> Result<String> {
    let spin = ["--", "auxe2e", "workload", "spin", "--ms", "500"];
    let mut attached = Command::new("auxe2e")
        .args(["workload", "spin", "--ms", "600000"])
        .spawn()?;
    let pid = attached.id().to_string();
    let table: [(&str, &[&str]); 6] = [
        ("command", &[]),
        ("--per-thread", &["--per-thread"]),
        ("-C", &["-C", "0,1"]),
        ("-a", &["-a"]),
        ("-p", &["-p", &pid]),
        ("-t", &["-t", &pid]),
    ];
    let of = |tool: Tool| {
        let mut seen = Vec::new();
        for (name, target) in table {
            let arguments = ["-e", "intel_pt/rate=2048/", "-m", "64,512"];
            let arguments = [&arguments[..], target, &spin].concat();
            seen.push(format!("{name} {} bytes", tool.records(&arguments)?));
        }
        Ok(seen.join(", "))
    };
    let out: Result<Vec<String>> = [Perf, Auxrec].map(of).into_iter().collect();
    attached.kill()?;
    attached.wait()?;
    of_each(&out?)
}

/// Both recorders must understand the same commands.
pub(super) fn commands() -> Result<String> {
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
        ensure!(trace_in(file.path())? != 0, "{}: no trace", tool.name());
    }
    let answered = "answers ping, enable, evlist, disable EVENT and stop";
    Ok(both(answered, answered))
}

pub(super) fn two_events() -> Result<String> {
    let workload = [
        "-C", "1", "--", "auxe2e", "workload", "sleep", "--ms", "500",
    ];
    let file = Perf.file();
    let two = ["-e", "intel_pt/rate=2048/", "-e", "intel_pt/rate=1024/"];
    let ended = Perf.record(&file, &[&two[..], &workload].concat())?;
    let of_perf = outcome(&ended, file.path(), "only one")?;
    module::alias(1)?;
    let Some((pmu, second)) = module::load_second()? else {
        return Ok(both(&of_perf, "there is no second driver"));
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
    Ok(both(
        &of_perf,
        &format!("with {pmu} {} bytes of trace", trace_in(file.path())?),
    ))
}

/// auxrec must name both limits, their values, and the values to set.
pub(super) fn locked_memory() -> Result<String> {
    use std::os::unix::process::CommandExt;

    const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
    module::alias(1)?;
    let before = std::fs::read_to_string(PARANOID)?;
    std::fs::write(PARANOID, "0")?;
    let mut out = Vec::new();
    let mut refused = Ok(());
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let mut command = Command::new(tool.name());
        command.args(["record", "-o"]).arg(file.path());
        command.args(["-e", "intel_pt/rate=64/", "-a", "-m", "16,16384"]);
        command.args(["--", "auxe2e", "workload", "sleep", "--ms", "50"]);
        let output = command.uid(65534).gid(65534).env("HOME", "/tmp").output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let names_both = said.contains("mlock_kb") && said.contains("RLIMIT_MEMLOCK");
        if tool == Auxrec && (output.status.success() || !names_both) {
            refused = Err(anyhow::anyhow!(
                "{}: {}: {said}",
                tool.name(),
                output.status
            ));
        }
        out.push(said.trim().replace('\n', " "));
    }
    std::fs::write(PARANOID, before.trim())?;
    refused?;
    of_each(&out)
}

/// The default watermark of auxrec must be 7/16 of the area, in whole pages.
pub(super) fn watermark() -> Result<String> {
    // Even the smallest area holds the trace of a second.
    let event = "intel_pt/rate=64/";
    let mut of_perf = Vec::new();
    for (pages, ours) in [("16", 7 * 4096), ("64", 28 * 4096), ("1024", 448 * 4096)] {
        let rings = format!("64,{pages}");
        let file = Perf.file();
        let arguments = ["-vv", "-e", event, "-C", "1", "-m", &rings];
        let sleep = ["--", "auxe2e", "workload", "sleep", "--ms", "50"];
        let ended = Perf.record(&file, &[&arguments[..], &sleep].concat())?;
        let line = ended.errors.lines().find(|l| l.contains("aux_watermark"));
        let value = line.and_then(|line| line.split_whitespace().last());
        of_perf.push(value.unwrap_or("an unknown number of").to_owned());
        let file = Auxrec.file();
        let arguments = ["-e", event, "-C", "1", "-m", &rings];
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
    let of_perf = of_perf.join(", ");
    Ok(both(
        &format!("at {of_perf} bytes of areas of 16, 64 and 1024 pages"),
        "at 7, 28 and 448 pages",
    ))
}

/// What perf reports while it records, and whether it shows trace live.
pub(super) fn meanwhile() -> Result<String> {
    let file = Perf.file();
    module::alias(1)?;
    let errors = file.path().with_extension("errors");
    let mut perf = Command::new("perf")
        .args(["record", "-v", "-N", "-B", "-o"])
        .arg(file.path())
        // The area must not get full: perf may never start such an event again.
        .args(["-e", CPU[1], "-a", "-m", "64,512"])
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
    // A perf that opens the event shows it until it is interrupted.
    let top = Command::new("/bin/busybox")
        .args(["timeout", "-s", "INT", "60"])
        .args(["perf", "top", "--stdio", "-e", CPU[1], "-C", "1"])
        .env("HOME", "/tmp")
        .output()?;
    let errors = String::from_utf8_lossy(&top.stderr);
    let said = after.saturating_sub(before);
    let opens = match !top.status.success() && errors.contains("Invalid argument") {
        true => "does not open",
        false => "opens",
    };
    Ok(both(
        &format!("record says {said} bytes with -v, and top {opens} the event"),
        "what \"live on a terminal\" and \"live as JSON\" of make e2e show",
    ))
}
