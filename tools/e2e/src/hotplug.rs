// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A CPU that goes and comes back while it is recorded.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxrec::trace::Trace;
use rustix::process::Pid;
use rustix::thread::{sched_setaffinity, CpuSet};

use crate::cases::{released, Seen, PAGE};
use crate::hostile::{switch, ONLINE};
use crate::recorder::{accounted, end, size, wait_for, with, Steps};
use crate::recording::{Ended, Recorder, TraceFile};
use crate::Skip;

/// The cases, by their names.
pub const ALL: [(&str, Steps); 3] = [
    ("a CPU goes and comes back", cpu),
    ("a CPU goes and comes back, a task stays", task),
    ("a CPU comes that was offline at first", newcomer),
];

/// Has CPU 1 go and come back twice while a recorder writes; each time `grows` waits for trace.
fn recorded(
    file: &TraceFile,
    arguments: &[String],
    grows: impl Fn(bool) -> Result<()>,
) -> Result<Ended> {
    if !Path::new(ONLINE).exists() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    let recorder = Recorder::start(file.path(), arguments)?;
    let mut outcome = grows(true);
    for on in [false, true, false, true] {
        outcome = outcome.and_then(|()| switch(on)).and_then(|()| grows(on));
    }
    // Whatever came of it: the next case finds two CPUs.
    switch(true)?;
    outcome?;
    end(recorder)
}

/// Bytes of trace of a CPU that are in a file until now.
pub fn of_cpu(file: &TraceFile, cpu: u32) -> Result<u64> {
    // It may not have been begun.
    let bytes = std::fs::read(file.path()).unwrap_or_default();
    let Ok(trace) = Trace::read(&bytes) else {
        return Ok(0);
    };
    let mut rings = trace.rings.values();
    let ring = rings.find(|ring| ring.cpu == Some(cpu));
    Ok(ring.map_or(0, |ring| ring.loss.read))
}

/// The kernel takes a CPU's events off when it goes, and does not put them on again: the recorder does, and tells of the time
/// between.
fn cpu(name: &str) -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let arguments = with("rate=512,packet=3", 16, &["-a", "--threads", threads]);
        // Of the CPU that came back, if it did.
        let ended = recorded(&file, &arguments, |on| {
            let cpu = u32::from(on);
            let before = of_cpu(&file, cpu)?;
            let enough = before + 2 * 16 * PAGE;
            wait_for(&format!("trace of CPU {cpu}"), || {
                Ok(of_cpu(&file, cpu)? > enough)
            })
        })?;
        let seen = Seen::of(&file)?;
        seen.is_right()?;
        ensure!(seen.cpus == [0, 1], "not of both CPUs: {seen}");
        ensure!(
            ended.status == 3 && ended.errors.contains("the CPU was or had been offline"),
            "exit status {}: {}",
            ended.status,
            ended.errors
        );
        let findings = auxrec::check::check(&std::fs::read(file.path())?)?;
        let offline = findings.rings.iter();
        let offline: Vec<bool> = offline.map(|(_, loss, _)| loss.offline != 0).collect();
        ensure!(
            offline == [false, true],
            "the file does not say which CPU went"
        );
        // Each time another event wrote it.
        let contents = findings.rings.iter();
        let streams: Vec<_> = contents
            .map(|(_, _, content)| content.map_or(0, |content| content.streams))
            .collect();
        ensure!(streams == [1, 3], "streams of the CPUs: {streams:?}");
        released()?;
        out = format!("{seen}; {}", ended.errors.trim().replace('\n', " "));
    }
    Ok(out)
}

/// A task's events go where it goes: of that nothing is lost.
fn task(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut target = Command::new("auxe2e")
        .args(["workload", "spin", "--ms", "60000"])
        .spawn()
        .context("cannot start a process to attach to")?;
    let pid = i32::try_from(target.id()).ok().and_then(Pid::from_raw);
    // On CPU 1 until that goes.
    let mut cpus = CpuSet::new();
    cpus.set(1);
    let arguments = with("rate=512,packet=3", 16, &["-p", &target.id().to_string()]);
    let ended = sched_setaffinity(pid, &cpus)
        .context("cannot move a process")
        .and_then(|()| {
            recorded(&file, &arguments, |_| {
                let before = size(file.path());
                wait_for("trace", || Ok(size(file.path()) > before + 4 * 16 * PAGE))
            })
        });
    target.kill()?;
    target.wait()?;
    let ended = ended?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    ensure!(
        seen.cpus == [0, 1] && !ended.errors.contains("offline"),
        "{seen}: {}",
        ended.errors
    );
    released()?;
    Ok(seen.to_string())
}

/// A CPU for which there are no rings: that is a loss, of which recorder and file tell.
fn newcomer(name: &str) -> Result<String> {
    if !Path::new(ONLINE).exists() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    let mut out = String::new();
    let spin = ["--", "auxe2e", "workload", "spin", "--ms", "60000"];
    for target in [
        &["-a", "--threads", "1"][..],
        &["-a", "--threads", "2"],
        &["-C", "0"],
        &spin,
    ] {
        let file = TraceFile::new(name);
        let json = file.path().with_extension("json");
        let mut arguments = vec!["--json", json.to_str().unwrap_or_default()];
        arguments.extend(target);
        switch(false)?;
        let recorder = Recorder::start(file.path(), &with("rate=512", 16, &arguments));
        // It is looked for four times a second.
        let outcome = recorder.and_then(|recorder| {
            wait_for("trace", || Ok(size(file.path()) > 16 * PAGE))?;
            switch(true)?;
            thread::sleep(Duration::from_millis(600));
            Ok(recorder)
        });
        // Whatever came of it: the next case finds two CPUs.
        switch(true)?;
        let ended = end(outcome?)?;
        let told = std::fs::read_to_string(&json)?;
        std::fs::remove_file(&json)?;
        let seen = Seen::of(&file)?;
        seen.is_right()?;
        let findings = auxrec::check::check(&std::fs::read(file.path())?)?;
        let rings = findings.rings.iter();
        let rings: Vec<_> = rings
            .map(|(name, loss, _)| (name.as_str(), loss.offline != 0))
            .collect();
        // Of CPUs that were named others are none of the recorder's business.
        let (wanted, status): (&[_], _) = match target {
            ["-C", ..] => (&[("CPU 0", false)], 0),
            _ => (&[("CPU 0", false), ("CPU 1", true)], 3),
        };
        let said = |what: &str| ended.errors.contains(what);
        ensure!(
            rings == wanted
                && ended.status == status
                && findings.lost() == (status == 3)
                && said("CPU 1 has come online, and is not recorded") == (status == 3)
                && said("should they come online: 1") == (target.first() == Some(&"-a"))
                && told.contains("\"CPU 1\"") == (status == 3),
            "{target:?}: exit status {}: {}; {rings:?}; {told}",
            ended.status,
            ended.errors
        );
        released()?;
        out = format!("{seen}; {}", ended.errors.trim().replace('\n', " "));
    }
    Ok(out)
}
