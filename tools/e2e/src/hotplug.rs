// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A CPU goes offline and comes online again while it is recorded.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::Event;
use auxview::trace::Trace;
use perfdata::Attr;
use rustix::process::Pid;
use rustix::thread::{sched_setaffinity, CpuSet};

use crate::attack::{attack, sleep, traced, Attack, Victim};
use crate::events::probe::Probe;
use crate::ktap::Skip;
use crate::module::{self, counter, lost};
use crate::pattern;
use crate::recorder::{accounted, end, with, Steps};
use crate::recording::{
    released, trace_in, wait_for_trace, Ended, Recorder, Seen, TraceFile, PAGE,
};
use crate::soft_pt;
use crate::stream;
use crate::wait::wait_for;

/// The cases, with their names.
pub const ALL: [(&str, Steps); 3] = [
    ("a CPU goes and comes back", cpu),
    ("a CPU goes and comes back, a task stays", task),
    ("a CPU comes that was offline at first", newcomer),
];

/// The file that takes CPU 1 offline and online.
pub const ONLINE: &str = "/sys/devices/system/cpu/cpu1/online";

/// Takes CPU 1 online or offline.
pub fn switch(on: bool) -> Result<()> {
    std::fs::write(ONLINE, if on { "1" } else { "0" }).with_context(|| {
        format!(
            "cannot take CPU 1 {}",
            if on { "online" } else { "offline" }
        )
    })
}

/// Takes CPU 1 offline and online again twice during a recording. Before the first and after each change, `grows` waits for trace.
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
    // Even if the case failed, the next case needs two CPUs.
    switch(true)?;
    outcome?;
    end(recorder)
}

/// Bytes of trace of a CPU in a file so far.
pub fn of_cpu(file: &TraceFile, cpu: u32) -> Result<u64> {
    // The recorder may not have created the file yet.
    let bytes = std::fs::read(file.path()).unwrap_or_default();
    let Ok(trace) = Trace::read(&bytes) else {
        return Ok(0);
    };
    let mut rings = trace.rings.values();
    let ring = rings.find(|ring| ring.cpu == Some(cpu));
    Ok(ring.map_or(0, |ring| ring.loss.read))
}

/// The kernel removes a CPU's events when the CPU goes offline, and does not open them again. The recorder opens new events, and reports
/// the untraced time between.
fn cpu(name: &str) -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let arguments = with("rate=512,packet=3", 16, &["-a", "--threads", threads]);
        // Waits for trace of CPU 1 while it is online, otherwise of CPU 0.
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
        let findings = pattern::check(&std::fs::read(file.path())?)?;
        let offline = findings.check.rings.iter();
        let offline: Vec<bool> = offline.map(|ring| ring.loss.offline != 0).collect();
        ensure!(
            offline == [false, true],
            "the file does not say which CPU went"
        );
        // A new event, and so a new stream, each time that the CPU came online.
        let contents = findings.contents.iter();
        let streams: Vec<_> = contents
            .map(|content| content.map_or(0, |content| content.streams))
            .collect();
        ensure!(streams == [1, 3], "streams of the CPUs: {streams:?}");
        released()?;
        out = format!("{seen}; {}", ended.errors.trim().replace('\n', " "));
    }
    Ok(out)
}

/// A task's events follow the task to another CPU, so nothing is lost.
fn task(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut target = Command::new("auxe2e")
        .args(["workload", "spin", "--ms", "600000"])
        .spawn()
        .context("cannot start a process to attach to")?;
    let pid = i32::try_from(target.id()).ok().and_then(Pid::from_raw);
    // The task runs on CPU 1 until that goes offline.
    let mut cpus = CpuSet::new();
    cpus.set(1);
    let arguments = with("rate=512,packet=3", 16, &["-p", &target.id().to_string()]);
    let ended = sched_setaffinity(pid, &cpus)
        .context("cannot move a process")
        .and_then(|()| {
            recorded(&file, &arguments, |_| {
                // At first, the file may not exist.
                let before = trace_in(file.path()).unwrap_or_default();
                wait_for_trace(file.path(), before + 4 * 16 * PAGE)
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

/// A CPU comes online that has no ring. That is a loss, which recorder and file must report.
fn newcomer(name: &str) -> Result<String> {
    if !Path::new(ONLINE).exists() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    let mut out = String::new();
    let spin = ["--", "auxe2e", "workload", "spin", "--ms", "600000"];
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
        // The recorder checks for such CPUs four times a second.
        let outcome = recorder.and_then(|recorder| {
            wait_for_trace(file.path(), 16 * PAGE)?;
            switch(true)?;
            thread::sleep(Duration::from_millis(600));
            Ok(recorder)
        });
        // Even if the case failed, the next case needs two CPUs.
        switch(true)?;
        let ended = end(outcome?)?;
        let reported = std::fs::read_to_string(&json)?;
        std::fs::remove_file(&json)?;
        let seen = Seen::of(&file)?;
        seen.is_right()?;
        let findings = pattern::check(&std::fs::read(file.path())?)?;
        let rings = findings.check.rings.iter();
        let rings: Vec<_> = rings
            .map(|ring| (ring.name.as_str(), ring.loss.offline != 0))
            .collect();
        // If the user has named CPUs, the recorder ignores the other ones.
        let (wanted, comes): (&[_], _) = match target {
            ["-C", ..] => (&[("CPU 0", false)], false),
            _ => (&[("CPU 0", false), ("CPU 1", true)], true),
        };
        // A recorder that got little processor time may have found an area full.
        let lost = comes || seen.truncations > 0;
        let said = |what: &str| ended.errors.contains(what);
        ensure!(
            rings == wanted
                && ended.status == if lost { 3 } else { 0 }
                && findings.lost() == lost
                && said("CPU 1 has come online, and is not recorded") == comes
                && said("should they come online: 1") == (target.first() == Some(&"-a"))
                && reported.contains("\"CPU 1\"") == comes,
            "{target:?}: exit status {}: {}; {rings:?}; {reported}",
            ended.status,
            ended.errors
        );
        released()?;
        out = format!("{seen}; {}", ended.errors.trim().replace('\n', " "));
    }
    Ok(out)
}

/// The cases that need no recorder.
pub const ATTACKS: [Attack; 2] = [
    attack("CPU offline that fails and is rolled back", rolled_back),
    attack("soft_pt: aux_head while a CPU goes and comes back", heads),
];

/// The number of a hotplug state that is written here makes that step of CPU 1's teardown fail.
const FAIL: &str = "/sys/devices/system/cpu/cpu1/hotplug/fail";

/// The hotplug states, lowest first. A teardown runs them in reverse order.
const STATES: &str = "/sys/devices/system/cpu/hotplug/states";

/// The number of a hotplug state.
fn step(states: &str, name: &str) -> Result<u32> {
    let mut lines = states.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(_, found)| found.trim() == name);
    let (number, _) = found.with_context(|| format!("there is no step {name}"))?;
    number
        .trim()
        .parse()
        .context("a step's number is no number")
}

/// A teardown that fails after the framework's callback is rolled back. The framework must restart the events that it stopped: for perf
/// they were active all the time.
fn rolled_back() -> Result<String> {
    if !Path::new(FAIL).exists() {
        bail!(Skip("this kernel cannot make a CPU's teardown fail"));
    }
    let Some((second, module)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    let outcome = ["pattern", second].map(|pmu| rolled_back_of(pmu).context(pmu));
    module::unload(module)?;
    let [first, second] = outcome;
    Ok(format!("{}, {}", first?, second?))
}

fn rolled_back_of(pmu: &str) -> Result<String> {
    const TIMES: u32 = 3;
    let states = std::fs::read_to_string(STATES).context("cannot read the steps of hotplug")?;
    // The failing step comes after the framework's dynamic state and before perf's own, in the order of a teardown.
    let failing = step(&states, "workqueue:online")?;
    ensure!(
        failing > step(&states, "perf:online")?,
        "the steps have another order"
    );

    // An event that perf regards as active throughout the rollback.
    let mut attr = traced(pmu)?;
    // Slow enough that the area does not get full during a teardown, in which nothing reads it: a full area would disable the event.
    attr.config = if pmu == "pattern" { 64 } else { 1000 };
    attr.aux_watermark = 4096;
    let mut probe = Probe::open(&attr, -1, 1, 64, false)?;
    let before = (counter(pmu, "bytes")?, lost(pmu)?);
    probe.event.enable()?;
    for n in 1..=TIMES {
        grows(&mut probe).with_context(|| format!("before teardown {n}"))?;
        std::fs::write(FAIL, failing.to_string()).context("cannot have a step fail")?;
        let outcome = switch(false);
        if outcome.is_ok() {
            switch(true)?;
            bail!("the teardown did not fail");
        }
        grows(&mut probe).with_context(|| format!("after teardown {n} was rolled back"))?;
    }
    probe.event.disable()?;
    probe.read_records()?;
    probe.read_trace(u64::MAX)?;
    let committed = counter(pmu, "bytes")? - before.0;
    let lost = lost(pmu)? - before.1;
    probe.end()?;
    ensure!(
        committed == probe.head(),
        "{committed} bytes were committed, and aux_head is {}",
        probe.head()
    );
    if pmu == "pattern" {
        let generated = probe.generated()?;
        let content = stream::read(&probe.trace, probe.from, false)?;
        ensure!(
            generated == content.trace + lost,
            "{generated} bytes generated, {} in the ring, {lost} counted as lost",
            content.trace
        );
    }
    Ok(format!("{pmu}: {TIMES} times, {committed} bytes"))
}

/// Waits for trace without enabling the event.
fn grows(probe: &mut Probe) -> Result<()> {
    let head = probe.head();
    wait_for("trace", || {
        probe.read_records()?;
        probe.read_trace(u64::MAX)?;
        Ok(probe.head() != head)
    })
}

/// Traces a task while its CPU goes offline and comes back, repeatedly. Whenever the event is disabled, the sum of its AUX records must
/// equal `aux_head`.
fn heads() -> Result<String> {
    if !Path::new(ONLINE).exists() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    soft_pt::run(|| {
        let outcome = head_and_records();
        // Even if the case failed, the next case needs two CPUs.
        switch(true)?;
        outcome
    })
}

fn head_and_records() -> Result<String> {
    const TIMES: u32 = 20;
    let mut bytes = 0;
    for n in 0..TIMES {
        let mut target = Command::new("auxe2e")
            .args(["workload", "spin", "--ms", "600000"])
            .spawn()
            .context("cannot start a process to trace")?;
        let pid = i32::try_from(target.id())?;
        let outcome = one_head(pid, n).with_context(|| format!("time {n}"));
        target.kill()?;
        target.wait()?;
        bytes += outcome?;
    }
    Ok(format!("{TIMES} times, {bytes} bytes"))
}

fn one_head(pid: i32, n: u32) -> Result<u64> {
    // The event is for all CPUs, or for CPU 1 only.
    let cpu = if n % 2 == 0 { -1 } else { 1 };
    let mut cpus = CpuSet::new();
    cpus.set(1);
    sched_setaffinity(Pid::from_raw(pid), &cpus).context("cannot move a process")?;
    let mut probe = Probe::open(&soft_pt::traced()?, pid, cpu, 256, false)?;
    probe.event.enable()?;
    grows(&mut probe).context("before the CPU goes")?;
    for on in [false, true] {
        switch(on)?;
        probe.read_records()?;
        probe.read_trace(u64::MAX)?;
        thread::sleep(Duration::from_millis(u64::from(n % 4)));
    }
    probe.event.disable()?;
    probe.read_records()?;
    probe.end()?;
    Ok(probe.head())
}

/// Takes a CPU offline with an event of the CPU and an event of a task on it.
pub fn offline() -> Result<String> {
    const TIMES: u32 = 4;
    if !Path::new(ONLINE).exists() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    let mut bytes_seen = 0;
    let mut outcome = Ok(());
    for n in 0..TIMES {
        let victim = Victim::on_cpu(1, 8)?;
        victim.traces()?;
        victim.event.enable()?;
        // This event belongs to the task, on this CPU.
        let task = Victim::open(
            &Attr {
                config: 512,
                ..traced("pattern")?
            },
            0,
            1,
            8,
        );
        if let Ok(task) = &task {
            task.event.enable()?;
        }
        sleep(u64::from(n));
        outcome = switch(false).and_then(|()| {
            victim.event.disable()?;
            victim.event.enable()?;
            let refused = Event::open(&traced("pattern")?, -1, 1).is_err();
            ensure!(refused, "an event on a CPU that is offline was not refused");
            sleep(5);
            Ok(())
        });
        bytes_seen += victim.head();
        if n % 2 == 0 {
            drop(victim);
            drop(task);
            switch(true)?;
        } else {
            switch(true)?;
            drop(victim);
            drop(task);
        }
        if outcome.is_err() {
            break;
        }
        Victim::on_cpu(1, 4)?
            .traces()
            .context("on a CPU that is back")?;
    }
    outcome?;
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{TIMES} times, {bytes_seen} bytes"))
}
