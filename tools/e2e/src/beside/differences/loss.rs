// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Trace that is lost, or may be: a full area, a CPU that goes offline, a full disk, a killed recorder.

use std::path::Path;
use std::process::Command;

use anyhow::{ensure, Context, Result};
use auxview::trace::Trace;
use rustix::process::Signal;

use super::Tool::{Auxrec, Perf};
use super::{both, of_each, of_pieces, outcome, perf_reads, CPU, SLEEP};
use crate::hotplug::{of_cpu, switch};
use crate::recorder::size;
use crate::recording::{auxrec, said, Reader, TraceFile};
use crate::wait::wait_for;

/// auxrec must report how often trace was lost and for how long, and its exit status must show the loss.
pub(super) fn full_area() -> Result<String> {
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let json = file.path().with_extension("json");
        let mut arguments = vec!["-e", "intel_pt/rate=4096/", "-C", "1", "-m", "64,8"];
        if tool == Auxrec {
            arguments.extend(["--json", json.to_str().unwrap_or_default()]);
        }
        arguments.extend(SLEEP);
        let ended = tool.start(&file, &arguments)?.wait(Reader::Slow)?;
        if tool == Auxrec {
            let reported = std::fs::read_to_string(&json)?;
            ensure!(
                ended.status == 3 && reported.contains("\"truncated\""),
                "auxrec: exit status {}: {reported}",
                ended.status
            );
            std::fs::remove_file(&json)?;
        }
        let report = Command::new("perf")
            .args(["script", "--no-itrace", "-i"])
            .arg(file.path())
            .output()?;
        let report = String::from_utf8_lossy(&report.stderr).into_owned();
        let reported = report.lines().find(|line| line.contains("AUX data lost"));
        let bytes = std::fs::read(file.path())?;
        let loss = Trace::read(&bytes)?;
        let loss = loss.rings.values().find(|ring| ring.cpu == Some(1));
        let loss = loss.context("no ring of CPU 1")?.loss;
        ensure!(loss.truncated != 0, "the area was never full");
        out.push(match tool {
            Perf => format!(
                "status {}, and record {}; perf script says {:?}",
                ended.status,
                match ended.errors.contains("lost") {
                    true => "says it",
                    false => "does not say it",
                },
                reported.unwrap_or_default()
            ),
            Auxrec => format!(
                "status {}, {:?}, and check says {}",
                ended.status,
                ended.errors.lines().last().unwrap_or_default(),
                loss.describe()
            ),
        });
    }
    of_each(&out)
}

pub(super) fn offline() -> Result<String> {
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
            // The CPU's trace continues: this is half a second.
            let enough = before + 1_000_000;
            wait_for("trace of the CPU", || Ok(of_cpu(&file, 1)? > enough))?;
        }
        recorder.signal(Signal::INT)?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        // Counts the AUX records of CPU 0 after the last one of CPU 1, which came back.
        let bytes = std::fs::read(file.path())?;
        let trace = Trace::read(&bytes)?;
        let of = |cpu| trace.rings.values().find(|ring| ring.cpu == Some(cpu));
        let [stays, back] = [of(0), of(1)].map(|ring| ring.context("a CPU has no ring"));
        let last = back?.records.iter().map(|aux| aux.time).max();
        let later = stays?.records.iter().filter(|aux| Some(aux.time) > last);
        let later = later.count();
        // The trace of CPU 1 was waited for above. Its last AUX record may be any time before the end, so auxrec is not checked.
        ensure!(
            tool == Perf || perf_reads(file.path())?.is_some(),
            "perf cannot read the file of a CPU that came back"
        );
        let reported = ended.errors.contains("offline") || ended.status == 3;
        ensure!(tool == Perf || reported, "auxrec: {}", ended.errors);
        out.push(match tool {
            Perf => format!(
                "status {}, and {} of the CPU when it is back",
                ended.status,
                match later > 4 {
                    true => "no trace",
                    false => "trace",
                }
            ),
            Auxrec => format!("status {}, and the CPU is traced again", ended.status),
        });
    }
    of_each(&out)
}

pub(super) fn full_disk() -> Result<String> {
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
        // A piece of trace must be smaller than the disk.
        let rings = ["-m", "64,64"];
        let ended = tool.record(&file, &[&CPU[..4], &rings, &workload].concat());
        let read = ended.and_then(|ended| Ok((ended, perf_reads(file.path())?)));
        mount("umount", &[])?;
        let (ended, read) = read?;
        ensure!(
            tool == Perf || ended.status != 0 && read.is_some_and(|pieces| pieces != 0),
            "auxrec: exit status {}, pieces in its file: {read:?}",
            ended.status
        );
        out.push(format!("status {}, {}", ended.status, of_pieces(read)));
    }
    of_each(&out)
}

pub(super) fn killed() -> Result<String> {
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let recorder = tool.start(&file, &CPU)?;
        let waited = wait_for("trace", || Ok(size(file.path()) > 1 << 20));
        recorder.kill()?;
        waited?;
        let before = perf_reads(file.path())?;
        let there = std::fs::read(file.path())?;
        said(auxrec(["recover"]).arg(file.path()))?;
        let recovered = auxview::recover::beside(file.path());
        let after = perf_reads(&recovered)?;
        ensure!(
            std::fs::read(file.path())? == there,
            "auxrec recover has changed the file of {}",
            tool.name()
        );
        std::fs::remove_file(&recovered)?;
        ensure!(
            after.is_some_and(|pieces| pieces != 0) && (tool == Perf || before.is_some()),
            "{}: {before:?}, and {after:?} after recover",
            tool.name()
        );
        out.push(format!(
            "{}; after recover {}",
            of_pieces(before),
            of_pieces(after)
        ));
    }
    of_each(&out)
}

/// A ring of records that is overwritten is mapped read-only. A recorder must not write to its control page.
pub(super) fn overwritten() -> Result<String> {
    let arguments = ["-S", "--overwrite", "-e", CPU[1], "-a", "-m", "16,64"];
    let sleep = ["--", "auxe2e", "workload", "sleep", "--ms", "500"];
    let arguments = [&arguments[..], &sleep].concat();
    let file = Perf.file();
    let ended = Perf.record(&file, &arguments)?;
    let crash = 128 + Signal::SEGV.as_raw();
    let of_perf = match ended.status == crash || ended.errors.contains("Segmentation fault") {
        true => "crashes (SIGSEGV)".to_owned(),
        false => outcome(&ended, file.path(), "")?,
    };
    let mut arguments = arguments;
    arguments[0] = "-Se";
    let bytes = Auxrec.records(&arguments)?;
    Ok(both(&of_perf, &format!("{bytes} bytes of trace")))
}
