// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the recorder, `tracering` and `conform` on Debian's unmodified kernel 6.1, without auxpmu modules. This kernel lacks file
//! descriptors of threads (since 6.9), and cannot map buffers of tracefs (since 6.10).
//!
//! `conform` runs twice: first without any PMU that has an AUX area, then on `c_pattern`, our driver in C.

use crate::cache::Cache;
use crate::error::{OnFile, Result};
use crate::guest::{Guest, Outcome};
use crate::kernel::Kernel;
use crate::results::ktap::{self, Case};
use crate::step::{Log, Progress};
use crate::tools;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How many events are written into a buffer of tracefs.
const EVENTS: usize = 500;

/// The driver in C, and the files that it is made of.
const SOURCES: &str = "tools/bench/pmu";
const DRIVER: [&str; 4] = ["c_aux.h", "c_old.h", "c_packet.h", "c_pattern.c"];
const MODULE: &str = "c_pattern.ko";

type Verdict = std::result::Result<String, String>;

/// Runs all cases.
///
/// # Errors
///
/// When there is no kernel or no tools.
pub fn run(cache: &Cache, dir: &Path) -> Result<Case> {
    let kernel = Kernel::old(cache)?;
    let programs = tools::build(cache)?;
    let driver = build(cache, &kernel)?;
    let progress = Progress::begin("an older kernel");
    let mut guest = Guest::new(&kernel, &[])?
        // 7.3 has no such mode any more.
        .append("preempt=none")
        .timeout(Duration::from_secs(3600))
        .program(MODULE, &driver)?;
    for (program, path) in &programs {
        guest = guest.program(program, path)?;
    }
    let outcome = guest.run(cache, &dir.join("old"), &command(), |_| {})?;
    let mut cases = vec![
        Case::judged(
            "it is an older kernel",
            release(&read(&outcome, "release")?),
        ),
        Case::judged(
            "it preempts no kernel code",
            modes(&read(&outcome, "preempt")?),
        ),
        Case::judged("a process", to_its_end(&outcome, "process")?),
        Case::judged("a thread", to_its_end(&outcome, "thread")?),
        Case::judged("a buffer of tracefs", events(&outcome)?),
        Case::judged(
            "conform without an AUX PMU",
            no_pmu(
                &read(&outcome, "no-pmu.status")?,
                &read(&outcome, "no-pmu")?,
            ),
        ),
        conformity(&read(&outcome, "conform")?),
        Case::judged(
            "the driver in C is unloaded",
            unloaded(&read(&outcome, "unloaded")?),
        ),
    ];
    if let Some(fault) = outcome.faults().first() {
        cases.push(Case::fail(fault.name.as_str(), &fault.reason));
    }
    let suite = Case::suite("old", cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// Builds the driver in C against the kernel's headers. The build system of 6.1 makes a module in the folder of its sources, so they are
/// copied.
///
/// # Errors
///
/// When it does not compile.
fn build(cache: &Cache, kernel: &Kernel) -> Result<PathBuf> {
    let dir = cache.build().join("old");
    fs::create_dir_all(&dir).on("make", &dir)?;
    for name in DRIVER {
        let from = cache.checkout().join(SOURCES).join(name);
        fs::copy(&from, dir.join(name)).on("copy", &from)?;
    }
    let kbuild = dir.join("Kbuild");
    fs::write(&kbuild, "obj-m := c_pattern.o\n").on("write", &kbuild)?;
    let log = Log::create(&dir.with_extension("log"))?;
    let mut make = Command::new("make");
    // The headers name gcc-12, which the build root lacks.
    make.arg("-C")
        .arg(kernel.build_dir())
        .arg(format!("M={}", dir.display()))
        .args(["CC=gcc-14", "modules"]);
    log.run("building the driver in C for kernel 6.1", &mut make)?;
    Ok(dir.join(MODULE))
}

/// The guest's command. It records a sleeping program, once by its process ID and once by its thread ID. The recording must end when the
/// program has ended. A recording that does not end is killed, so that the other cases run.
fn command() -> String {
    let mut command =
        "uname -r >/out/release\ncat /sys/kernel/debug/sched/preempt >/out/preempt\n".to_owned();
    for (name, option) in [("process", "-p"), ("thread", "-t")] {
        command += &format!(
            "sleep 3 & target=$!
timeout -s KILL 60 auxrec record --sideband {option} $target -o /out/{name}.data >/out/{name}.said 2>&1
echo $? >/out/{name}.status
[ -d /proc/$target ] && grep -v zombie /proc/$target/status | grep State >>/out/{name}.status
wait
"
        );
    }
    command
        + &format!(
            "instance=/sys/kernel/tracing/instances/old
mkdir $instance
for i in $(seq {EVENTS}); do echo number $i >$instance/trace_marker; done
tracering -i old cat --drain >/out/events 2>/out/events.errors; echo $? >/out/events.status
tracering -i old stat >/out/stat 2>/out/stat.errors; echo $? >/out/stat.status
conform >/out/no-pmu 2>&1; echo $? >/out/no-pmu.status
insmod /bin/{MODULE}
conform --patience 300 --pmu c_pattern/rate=4096/ >/out/conform 2>&1
rmmod {MODULE} >/out/unloaded 2>&1; echo $? >>/out/unloaded
exit 0"
        )
}

fn read(outcome: &Outcome, name: &str) -> Result<String> {
    let path = outcome.files.join(name);
    fs::read_to_string(&path).on("read", &path)
}

fn release(said: &str) -> Verdict {
    match said.strip_prefix("6.1.") {
        Some(_) => Ok(said.trim().to_owned()),
        None => Err(format!("it is {said}")),
    }
}

/// The kernel marks the mode that it is in.
fn modes(said: &str) -> Verdict {
    match said.contains("(none)") {
        true => Ok(said.trim().to_owned()),
        false => Err(format!("its mode is another: {said}")),
    }
}

/// `conform` must skip with a status of its own where no PMU has an AUX area.
fn no_pmu(status: &str, said: &str) -> Verdict {
    match (
        status.trim(),
        said.contains("1..0 # SKIP this machine has no PMU"),
    ) {
        ("4", true) => Ok(said.to_owned()),
        _ => Err(format!("it ends with {status}: {said}")),
    }
}

/// The suite of the cases that `conform` reports on the driver in C.
fn conformity(said: &str) -> Case {
    let cases = match ktap::parse(said).pop() {
        Some(unit) if !unit.children.is_empty() => unit.children,
        _ => vec![Case::fail("start", &format!("conform says: {said}"))],
    };
    Case::suite("conform on the driver in C", cases)
}

fn unloaded(said: &str) -> Verdict {
    match said {
        "0\n" => Ok("no event is left".to_owned()),
        _ => Err(format!("rmmod ends with {said}")),
    }
}

/// The recorder must succeed, and must not end before the program.
fn to_its_end(outcome: &Outcome, name: &str) -> Result<Verdict> {
    let status = read(outcome, &format!("{name}.status"))?;
    let said = read(outcome, &format!("{name}.said"))?;
    Ok(match status.as_str() {
        "0\n" => Ok(said.trim().to_owned()),
        _ => Err(format!("it ends with {status}: {said}")),
    })
}

/// All events must be read and counted, although the kernel cannot map the buffer.
fn events(outcome: &Outcome) -> Result<Verdict> {
    let read = |name| read(outcome, name);
    let (status, said, errors) = (
        read("events.status")?,
        read("events")?,
        read("events.errors")?,
    );
    let (stat_status, stat) = (read("stat.status")?, read("stat")?);
    Ok(right_events(&status, &said, &errors)
        .and_then(|note| right_stat(&stat_status, &stat).map(|()| note)))
}

/// `tracering stat` must report that the buffer cannot be mapped and why, and the counts in tracefs's `stats`.
fn right_stat(status: &str, said: &str) -> std::result::Result<(), String> {
    let counted = |line: &str| -> Option<usize> {
        let (_, read) = line.split_once(" overrun 0 read ")?;
        read.split(' ').next()?.parse().ok()
    };
    let read: usize = said.lines().filter_map(counted).sum();
    match status.trim() == "0" && said.contains("older than 6.10") && read == EVENTS {
        true => Ok(()),
        false => Err(format!("stat ends with {status}: {said}")),
    }
}

fn right_events(status: &str, said: &str, errors: &str) -> Verdict {
    if status.trim() != "0" {
        return Err(format!("it ends with {status}: {errors}"));
    }
    let mut numbers: Vec<usize> = said
        .lines()
        .filter_map(|line| {
            let (number, _) = line.split_once("number ")?.1.split_once('\\')?;
            number.parse().ok()
        })
        .collect();
    let count = numbers.len();
    numbers.sort_unstable();
    match numbers.into_iter().eq(1..=EVENTS) {
        true => Ok(format!("{EVENTS} events; {}", errors.trim())),
        false => Err(format!("{count} events of {EVENTS}: {errors}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_events_must_be_there() {
        let line = |n: usize| format!("1 [000] ftrace:print buf=\"number {n}\\n\"\n");
        let all: String = (1..=EVENTS).map(line).collect();
        assert!(right_events("0\n", &all, "").is_ok());
        assert!(right_events("1\n", &all, "").is_err());
        let fewer: String = (2..=EVENTS).map(line).collect();
        assert!(right_events("0\n", &fewer, "").is_err());
        assert!(right_events("0\n", &(all.clone() + &line(1)), "").is_err());
    }

    #[test]
    fn all_events_must_be_counted() {
        let said = "CPU 0: not mapped: it is older than 6.10\n  entries 0 overrun 0 read 499 dropped 0\n  entries 0 overrun 0 read 1 dropped 0\n";
        assert!(right_stat("0\n", said).is_ok());
        assert!(right_stat("1\n", said).is_err());
        assert!(right_stat("0\n", &said.replace("read 1 ", "read 0 ")).is_err());
        assert!(right_stat("0\n", &said.replace("6.10", "6.1")).is_err());
    }

    #[test]
    fn an_older_kernel_is_6_1() {
        assert!(release("6.1.0-42-amd64\n").is_ok());
        assert!(release("6.12.0\n").is_err());
    }
}
