// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that stock perf shows all instructions of a whole guest, from the kernel's first one on. The guest is recorded from outside,
//! while its kernel patches its code.
//!
//! The first instructions of each of two CPUs are compared with the log, one by one. In the rest, perf must find no error, and must show
//! the names of programs, which `auxrec` has recorded in the guest. In another recording, the guest is a virtual machine of a host. There
//! perf does not support code changes: it finds errors until `auxrec` begins to record in the guest, but none after that.

use super::{end, follow};
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::parallel::both;
use crate::results::ktap::Case;
use crate::step::Progress;
use crate::trace::{self, Plan, Recorded};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The case's name.
pub(super) const NAME: &str = "a whole guest";

/// How many instructions of each CPU are compared. On CPU 0, some millions of them follow the first one that the kernel has patched.
const COMPARED: u64 = 60_000_000;

/// How many instructions each CPU must have executed at least. The second CPU begins later, and has less to do.
const LEAST: u64 = 1_000_000;

/// The guest's command. It reads much from the kernel.
const WORK: &str = "cd /sys/kernel/slab; ls -l; ls -l; md5sum /bin/busybox";

/// The name of a program in [`WORK`].
const PROGRAM: &str = "ls";

/// Two functions that each CPU must execute, in this order: one before any code is patched, and one later.
const SYMBOLS: [[&str; 2]; 2] = [
    ["common_startup_64", "start_kernel"],
    ["common_startup_64", "start_secondary"],
];

pub(super) fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let progress = Progress::begin(&format!("exact: {NAME} on {}", kernel.kind));
    let guest = Guest::new(kernel, &[])?
        .append("kunit.enable=0")
        .timeout(Duration::from_secs(900));
    let plan = Plan {
        cpus: 2,
        log: Some(COMPARED),
        vm: true,
        cyc: false,
    };
    let recorded = trace::record(cache, &dir.join("exact-outside"), guest, WORK, plan, |_| {})?;
    let mut cases = match recorded.outcome.faults().first() {
        Some(fault) => vec![Case::fail(
            "the guest",
            &format!("{}: {}", fault.name, fault.reason),
        )],
        None => {
            let first = || compared(&recorded, 0);
            let (first, second) = both(first, || compared(&recorded, 1))?;
            let (whole, vm) = both(|| whole(&recorded.data), || as_vm(&recorded))?;
            vec![
                Case::judged("each instruction of CPU 0", first),
                Case::judged("each instruction of CPU 1", second),
                Case::judged("the whole trace", whole),
                Case::judged("a virtual machine", vm),
            ]
        }
    };
    for cpu in 0..plan.cpus {
        let log = recorded.prefix.with_extension(format!("cpu{cpu}.log"));
        fs::remove_file(&log).on("remove", &log)?;
    }
    cases.push(Case::judged("cycles", on_one_cpu(cache, dir, kernel)?));
    progress.end(&format!("{} cases", cases.len()));
    Ok(Case::suite(NAME, cases))
}

/// Runs `perf script`, and passes its output to `read`, line by line.
fn shown<T>(
    data: &Path,
    options: &[&str],
    read: impl FnOnce(&mut dyn Iterator<Item = io::Result<String>>) -> T,
) -> Result<T> {
    let mut perf = Command::new("perf")
        .args(["script", "-i"])
        .arg(data)
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|source| Error::Spawn {
            program: "perf".to_owned(),
            source,
        })?;
    let mut lines = perf.stdout.take().map(|out| BufReader::new(out).lines());
    let found = match &mut lines {
        Some(lines) => read(lines),
        None => read(&mut io::empty().lines()),
    };
    // perf may still have output.
    let _ = perf.kill();
    let _ = perf.wait();
    Ok(found)
}

/// Compares the first instructions of a CPU with the log.
fn compared(recorded: &Recorded, cpu: usize) -> Result<std::result::Result<String, String>> {
    let log = recorded.prefix.with_extension(format!("cpu{cpu}.log"));
    let mut executed = BufReader::new(File::open(&log).on("open", &log)?).lines();
    let mut symbols = SYMBOLS.get(cpu).into_iter().flatten().peekable();
    let number = cpu.to_string();
    let options = ["--itrace=i1i", "-F", "ip,sym", "-C", &number];
    let same = shown(&recorded.data, &options, |lines| {
        let max = usize::try_from(COMPARED).unwrap_or(usize::MAX);
        let addresses = lines.take(max).map(|line| {
            let mut line = line?;
            let at = line
                .trim_start()
                .find(' ')
                .map(|at| at + line.len() - line.trim_start().len());
            if let Some(at) = at {
                let symbol = line.split_off(at);
                symbols.next_if(|wanted| symbol.trim() == **wanted);
            }
            Ok(line)
        });
        let count = follow(addresses, &mut executed)?;
        end(&mut executed, count)?;
        Ok(count)
    })?;
    Ok(same.and_then(|count| match symbols.next() {
        Some(symbol) => Err(format!("perf does not show {symbol} where it is executed")),
        None if count < LEAST => Err(format!("the guest has executed {count} instructions")),
        None => Ok(format!("{count} instructions, each of them")),
    }))
}

/// Checks cycles in a guest with one CPU, whose clock counts instructions.
fn on_one_cpu(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
) -> Result<std::result::Result<String, String>> {
    let guest = Guest::new(kernel, &[])?
        .append("kunit.enable=0")
        .timeout(Duration::from_secs(900));
    let plan = Plan {
        cpus: 1,
        log: None,
        vm: false,
        cyc: true,
    };
    let recorded = trace::record(
        cache,
        &dir.join("exact-cycles"),
        guest,
        "true",
        plan,
        |_| {},
    )?;
    cycles(&recorded.data)
}

/// How many branches are checked for cycles.
const BRANCHES: usize = 1_000_000;

/// Compares perf's counts of instructions and of cycles. The cycles come from `CYC` packets, of which there is one for up to six branches.
/// A return has its own packet. So from one return to the next, there must be as many cycles as instructions. There may be more cycles if
/// an instruction repeats itself, which perf shows once.
fn cycles(data: &Path) -> Result<std::result::Result<String, String>> {
    let options = ["--itrace=b", "-F", "ip,ipc,flags"];
    shown(data, &options, |lines| {
        let (mut ahead, mut last, mut returns, mut repeated) = (0, 0, 0u64, 0u64);
        for line in lines.take(BRANCHES) {
            let line = line.map_err(|error| error.to_string())?;
            let Some((more, cycles)) = counted(&line) else {
                continue;
            };
            ahead += i128::from(more) - i128::from(cycles);
            if !line.trim_start().starts_with("return ") {
                continue;
            }
            returns += 1;
            // The first return is not compared: its cycles are those since the first packet.
            if returns > 1 && ahead > last {
                return Err(format!(
                    "there are {} more instructions than cycles since the return before: {line}",
                    ahead - last
                ));
            }
            repeated += u64::from(ahead != last);
            last = ahead;
        }
        match returns {
            0..1000 => Err(format!("perf shows {returns} returns with cycles")),
            _ if repeated > returns / 10 => Err(format!(
                "at {repeated} of {returns} returns there are more cycles than instructions"
            )),
            _ => Ok(format!(
                "as many cycles as instructions at all but {repeated} of {returns} returns"
            )),
        }
    })
}

/// The instructions and cycles in a line such as "return ffffffff81163d57  IPC: 0.75 (18/24)".
fn counted(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.split_once("IPC:")?;
    let (_, counts) = counts.split_once('(')?;
    let (instructions, cycles) = counts.split_once(')')?.0.split_once('/')?;
    Some((instructions.parse().ok()?, cycles.parse().ok()?))
}

/// perf must decode the whole trace without an error, and must show the name of the program that runs.
fn whole(data: &Path) -> Result<std::result::Result<String, String>> {
    let options = ["--itrace=i10000ie", "-F", "comm,ip"];
    shown(data, &options, |lines| {
        let (mut samples, mut named) = (0u64, 0u64);
        for line in lines {
            let line = line.map_err(|error| error.to_string())?;
            if line.contains("error") {
                return Err(line);
            }
            samples += 1;
            named += u64::from(line.trim_start().starts_with(&format!("{PROGRAM} ")));
        }
        match (samples * 10_000, named) {
            (max, _) if max <= COMPARED => Err(format!("perf shows {max} instructions")),
            (_, 0) => Err(format!("perf does not show that {PROGRAM} runs")),
            (max, _) => Ok(format!("{max} instructions, 0 errors")),
        }
    })
}

/// The CPU in a line such as "instruction trace error type 1 time 0.5 cpu 0 pid -1 tid -1 ip 0 code 5: …".
fn error_on(line: &str) -> Option<usize> {
    let (_, error) = line.split_once("error type")?;
    let (_, cpu) = error.split_once(" cpu ")?;
    cpu.split(' ').next()?.parse().ok()
}

/// If the guest is a virtual machine, perf must show its process, its CPUs and its programs.
fn as_vm(recorded: &Recorded) -> Result<std::result::Result<String, String>> {
    let Some(data) = &recorded.vm else {
        return Ok(Err("it was not recorded so".to_owned()));
    };
    let options = ["--itrace=i10000ie", "-F", "comm,machine_pid,vcpu,ip"];
    let process = recorded.outcome.process;
    shown(data, &options, |lines| {
        let (mut samples, mut named) = ([0u64; 2], 0u64);
        for line in lines {
            let line = line.map_err(|error| error.to_string())?;
            if line.contains("error") {
                let before = error_on(&line).and_then(|cpu| samples.get(cpu));
                // Errors before the first sample of a CPU are allowed: perf does not know the virtual machine yet.
                if before == Some(&0) {
                    continue;
                }
                return Err(line);
            }
            // A sample is a line such as "VM: 1234 VCPU:000 ls ffffffff81000000".
            let Some((_, of_guest)) = line.split_once("VM:") else {
                continue;
            };
            let mut words = of_guest.split_whitespace();
            let machine = words.next().and_then(|pid| pid.parse().ok());
            let cpu = words.next().and_then(|cpu| cpu.strip_prefix("VCPU:00"));
            let cpu = cpu.and_then(|cpu| cpu.parse::<usize>().ok());
            let samples = cpu.and_then(|cpu| samples.get_mut(cpu));
            let Some(samples) = samples.filter(|_| machine == Some(process)) else {
                return Err(line);
            };
            *samples += 1;
            named += u64::from(words.next() == Some(PROGRAM));
        }
        if named == 0 || samples.contains(&0) {
            return Err(format!(
                "perf does not show that {PROGRAM} runs on the machine {process}, or not its CPUs: {samples:?}"
            ));
        }
        Ok(format!(
            "{} instructions, 0 errors",
            samples.map(|count| count * 10_000).iter().sum::<u64>()
        ))
    })
}
