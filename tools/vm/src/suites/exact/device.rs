// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that stock perf decodes from the trace unit's trace the instructions that each CPU executed, of the kernel and of programs.
//!
//! In the guest, stock perf records with `trace_unit` under the name `intel_pt`. Outside, the same perf decodes. The plugin that implements
//! the device logs each instruction while the unit traces.

use super::{end, follow, programs, Decoder};
use crate::cache::{self, Cache};
use crate::error::{Error, OnFile, Result};
use crate::guest::{Devices, Guest, Outcome};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::parallel::both;
use crate::plugin;
use crate::results::ktap::Case;
use crate::step::Progress;
use crate::tools;
use recordings::{Machine, Recording, MACHINES};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

mod calls;
mod libipt;
mod recordings;
mod steps;

/// The case's name.
pub(super) const NAME: &str = "kernel and programs";
/// The part that records two CPUs. The name of the part with code changes contains this name.
const TWO_CPUS: &str = "two CPUs";

/// The log of a CPU's instructions, one a line.
struct Executed {
    cpu: usize,
    log: PathBuf,
    lines: Lines<BufReader<File>>,
    /// How many of the lines perf has shown.
    shown: u64,
}

/// The names of the parts of this suite.
pub(super) fn parts() -> impl Iterator<Item = &'static str> {
    let machines = MACHINES.iter().map(|machine| machine.name);
    machines.chain([steps::NAME])
}

/// Runs the parts for whose names `asked` returns true.
pub(super) fn run(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    asked: impl Fn(&str) -> bool,
) -> Result<Case> {
    let machines = MACHINES.iter().filter(|machine| asked(machine.name));
    let (small, large): (Vec<_>, Vec<_>) = machines.partition(|machine| machine.cpus == 1);
    let each = |machines: Vec<&Machine>| {
        let machines = machines.into_iter();
        let cases = machines.map(|machine| on(cache, dir, kernel, machine));
        cases.collect::<Result<Vec<_>>>()
    };
    let steps = asked(steps::NAME);
    // Both guests that run in parallel need these builds, and must not make them at the same time.
    modules::build(cache, kernel, Mode::Plain)?;
    tools::build(cache)?;
    programs(cache)?;
    plugin::build(cache, "traceunit")?;
    let mut cases = each(large)?;
    // A guest with one CPU leaves time for another guest.
    let (small, steps) = both(
        || each(small),
        || steps.then(|| steps::run(cache, dir, kernel)).transpose(),
    )?;
    cases.extend(small);
    cases.extend(steps);
    Ok(Case::suite(NAME, cases))
}

fn on(cache: &Cache, dir: &Path, kernel: &Kernel, machine: &Machine) -> Result<Case> {
    let Machine {
        name,
        cpus,
        recordings,
        ..
    } = *machine;
    let dir = dir.join(format!("exact-device-{}", name.replace(' ', "-")));
    fs::create_dir_all(&dir).on("make", &dir)?;
    let progress = Progress::begin(&format!("exact: {NAME} on {}, {name}", kernel.kind));
    let prefix = dir.join("unit");
    let outcome = recorded(cache, &dir, kernel, machine, &prefix)?;
    if let Some(fault) = outcome.faults().first() {
        let why = format!("{}: {}", fault.name, fault.reason);
        return Ok(Case::fail(name, &why));
    }
    let mut executed = (0..cpus)
        .map(|cpu| Executed::open(&prefix, cpu))
        .collect::<Result<Vec<_>>>()?;
    let mut cases = Vec::new();
    for recording in recordings {
        let before = total(&executed);
        let case = compared(&outcome.files, recording, &mut executed)?;
        let failed = !case.reason.is_empty();
        cases.push(case);
        let file = outcome.files.join(recording.file());
        if !failed {
            let count = total(&executed) - before;
            cases.push(calls::followed(cache, recording.name, &file, count)?);
        }
        cases.extend(calls::found(&file, recording.calls)?);
        if recording.by_libipt {
            cases.push(libipt::agrees(cache, &dir, &file, cpus)?);
        }
        if failed {
            break;
        }
    }
    for Executed { lines, shown, .. } in &mut executed {
        if let Err(why) = end(lines, *shown) {
            cases.push(Case::fail("the end", &why));
        }
    }
    progress.end(&format!("{} instructions", total(&executed)));
    // The logs are large.
    for Executed { log, .. } in executed {
        let _ = fs::remove_file(log);
    }
    Ok(Case::suite(name, cases))
}

/// Makes the recordings in a guest. The trace unit logs into files whose paths begin with `prefix`.
fn recorded(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    machine: &Machine,
    prefix: &Path,
) -> Result<Outcome> {
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let mut guest = Guest::new(kernel, &built.files)?
        .append(&format!(
            "vdso=0 vdso32=0 nr_cpus={} {}",
            machine.cpus, machine.append
        ))
        .timeout(Duration::from_secs(900))
        // Each recording has a copy of the kernel's code.
        .more_memory(512)
        .intel()
        .devices(Devices::TraceUnit)
        .logged(prefix)
        .installed(Path::new("/usr/bin/perf"))?;
    // perf reads the programs' code here, under the paths that they have in the guest.
    let programs = programs(cache)?;
    for program in programs.iter().filter(|path| machine.has(path)) {
        guest = guest.installed(program)?;
    }
    let place = programs.first().and_then(|program| program.parent());
    let place = place.map_or(String::new(), |place| place.display().to_string());
    let mut command = format!("export PROGRAMS={place} PATH=$PATH:{place}\n");
    command +=
        "insmod /modules/rust_perf.ko && insmod /modules/trace_unit.ko intel_pt=1 || exit 1\n";
    command += "echo 0 > /proc/sys/kernel/kptr_restrict\n";
    for recording in machine.recordings {
        let text = format!("#!/bin/sh\n{}\n", recording.work);
        guest = guest.script(&recording.file(), &text);
        command += &recording.command();
    }
    guest.run(cache, &dir.join("guest"), &command, |_| {})
}

/// How many instructions of all CPUs perf has shown.
fn total(executed: &[Executed]) -> u64 {
    executed.iter().map(|executed| executed.shown).sum()
}

impl Executed {
    fn open(prefix: &Path, cpu: usize) -> Result<Self> {
        let log = prefix.with_extension(format!("cpu{cpu}.log"));
        let file = File::open(&log).on("open", &log)?;
        Ok(Self {
            cpu,
            log,
            lines: BufReader::new(file).lines(),
            shown: 0,
        })
    }

    /// Compares the instructions that perf shows of a recording with those that were executed. Returns their number.
    fn takes(&mut self, recording: &Path) -> Result<std::result::Result<u64, String>> {
        let cpu = self.cpu;
        let same = follow(shown(recording, cpu)?, &mut self.lines);
        let same = same.map_err(|why| format!("CPU {cpu}: {why}"));
        self.shown += same.as_ref().copied().unwrap_or(0);
        Ok(same)
    }
}

fn compared(files: &Path, recording: &Recording, executed: &mut [Executed]) -> Result<Case> {
    let file = files.join(recording.file());
    if let Some(later) = recording.later() {
        replace_kcore(&file, &files.join(later))?;
    }
    let traced = executed.iter_mut().filter(|on| recording.traces(on.cpu));
    let results = thread::scope(|scope| {
        let threads: Vec<_> = traced
            .map(|executed| scope.spawn(|| executed.takes(&file)))
            .collect();
        let died = || Error::Other("a thread died".to_owned());
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().map_err(|_| died())?;
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let counts: std::result::Result<Vec<_>, _> = results.into_iter().collect();
    Ok(match counts {
        Err(why) => Case::fail(recording.name, &why),
        Ok(counts) if counts.contains(&0) => {
            let said = said(files, recording)?;
            let why = format!("nothing was traced on a CPU. {said}");
            Case::fail(recording.name, &why)
        }
        Ok(counts) => {
            let counts: Vec<_> = counts.iter().map(u64::to_string).collect();
            let note = format!("{} instructions, each of them", counts.join(" and "));
            Case::pass(recording.name).with_log(vec![note])
        }
    })
}

/// The output of perf and of the work in the guest, and the errors of perf here, for a recording without trace.
fn said(files: &Path, recording: &Recording) -> Result<String> {
    let there = fs::read_to_string(files.join(recording.said())).unwrap_or_default();
    let mut perf = perf_script(&files.join(recording.file()));
    let here = perf.args(["--itrace=e", "-F", "ip"]).output();
    let here = here.map_err(|source| Error::Spawn {
        program: "perf".to_owned(),
        source,
    })?;
    let errors = String::from_utf8_lossy(&here.stderr);
    Ok(format!(
        "perf record: {there}; perf script: {}, {errors}",
        here.status
    ))
}

/// Replaces a recording's copy of the kernel's code by that of another recording.
fn replace_kcore(recording: &Path, other: &Path) -> Result<()> {
    let [old, new] = [recording, other].map(|path| path.join("kcore_dir"));
    cache::remove(&old)?;
    fs::rename(&new, &old).on("rename", &new)
}

fn perf_script(recording: &Path) -> Command {
    let mut perf = Command::new("perf");
    perf.args(["script", "-i"]).arg(recording);
    perf
}

/// The instructions of a CPU that perf shows of a recording. An error is a line, too.
pub(super) fn shown(recording: &Path, cpu: usize) -> Result<Decoder> {
    let mut perf = perf_script(recording);
    perf.args(["--itrace=i1ie", "-F", "ip", "-C", &cpu.to_string()]);
    Decoder::start(&mut perf)
}
