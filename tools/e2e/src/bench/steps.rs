// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the cost of tracing a program instruction by instruction: with `soft_pt`, with ptrace (`steptrace`), with gdb's `record full`,
//! and with valgrind. Also measures how many instructions `soft_pt` interprets.
//!
//! The program is the workload `calls`, from its exec to its end. `soft_pt` also traces some common programs; the time of the untraced
//! program is subtracted. With a filter for a function that is never called, all steps are outside the filter.
//!
//! Two other measurements: the overhead of the driver for system calls of an untraced program, and whether enabling and disabling an event
//! becomes slower over time.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::io::Read as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use perfdata::Flags;
use rustix::process::getppid;

use crate::events::probe::{bytes, Probe};
use crate::module;
use crate::soft_pt;
use crate::soft_pt::stepped::{waiting, Stepped};

const PROGRAM: &[&str] = &["/bin/auxe2e", "workload", "calls"];
/// Common programs that execute some millions of instructions. Programs that the guest lacks are left out.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("static", PROGRAM),
    ("perl", &["/usr/bin/perl", "-e", PERL]),
    ("gzip", &["/usr/bin/gzip", "-nc", "/usr/bin/gzip"]),
    ("sqlite3", &["/usr/bin/sqlite3", ":memory:", SQL]),
    ("python3", &["/usr/bin/python3", "-I", "-S", "-c", PYTHON]),
];
const PERL: &str = "for my $i (1..2000) { my $s = 'k' . $i % 97; $h{$s} .= chr(65 + $i % 26); $n++ if $h{$s} =~ /A.*Z/ } print \"$n\\n\"";
const SQL: &str = "with recursive c(x) as (select 1 union all select x + 1 from c where x < 1000) select sum(x * x), count(distinct x % 97) from c";
const PYTHON: &str = "print(sorted({str(n * n % 997): n for n in range(2000)}.items())[:3])";
const LATE: [&str; 5] = ["-f", "1", "/bin/auxe2e", "workload", "late"];
const GDB: &str = "/usr/bin/gdb";
/// Other programs that execute each instruction of a program: the name of the figure, and the command. valgrind's tool `none` records
/// nothing. Its tool `lackey` writes the address of each executed block. `qemu-x86_64` emulates single programs.
const RIVALS: [(&str, &[&str]); 3] = [
    (
        "valgrind.none",
        &["/bin/valgrind", "--tool=none", "--log-file=/dev/null"],
    ),
    (
        "valgrind.lackey",
        &[
            "/bin/valgrind",
            "--tool=lackey",
            "--basic-counts=no",
            "--trace-superblocks=yes",
            "--log-file=/dev/null",
        ],
    ),
    ("qemu-user", &["/bin/qemu-x86_64"]),
];

/// Prints the figures: name, instructions, and time in ns.
pub fn run() -> Result<()> {
    calls()?;
    // The first run loads the program into memory.
    alone()?;
    println!("steps alone 0 {}", alone()?);
    let (count, trace, time) = traced(PROGRAM, None)?;
    println!("steps soft_pt {count} {time}");
    println!("steps bytes {trace}");
    let (offset, size) = soft_pt::place("4spin")?;
    let filter = format!("filter {offset:#x}/{size:#x}@{}", soft_pt::PROGRAM);
    let (inside, _, time) = traced(PROGRAM, Some(&filter))?;
    ensure!(inside == 0, "{inside} instructions are in the filter");
    println!("steps outside {count} {time}");
    for (name, program) in PROGRAMS {
        if fs::exists(program[0])? {
            ends(waiting(program)?)?;
            let alone = ends(waiting(program)?)?;
            let (count, _, time) = traced(program, None)?;
            println!(
                "steps program {name} {count} {}",
                time.saturating_sub(alone)
            );
            interpreted(name, program)?;
        }
    }
    for (name, rival) in RIVALS {
        let program = [rival, PROGRAM].concat();
        ends(waiting(&program)?)?;
        println!("steps {name} {count} {}", ends(waiting(&program)?)?);
    }
    let [first, last] = soft_pt::of_runs()?;
    println!("steps runs first {first}\nsteps runs last {last}");
    delays()?;
    let (count, time) = stepped()?;
    println!("steps ptrace {count} {time}");
    if fs::exists(GDB)? {
        let (count, time) = recorded()?;
        println!("steps gdb {count} {time}");
    }
    Ok(())
}

/// Prints how many of a program's instructions are interpreted. Writes a file about the stepped instructions. Each line has the reason, the
/// number of steps, the number of instructions in them, and the bytes of the instruction.
fn interpreted(name: &str, program: &[&str]) -> Result<()> {
    let mut seen = BTreeMap::<_, (u64, u64)>::new();
    let stepped = Stepped::run(waiting(program)?, |step| {
        let text = step.text.get(..step.len).unwrap_or(&step.text);
        let (steps, instructions) = seen.entry((step.reason, text.to_vec())).or_default();
        *steps += 1;
        *instructions += u64::from(step.instructions);
    })
    .with_context(|| format!("the steps of {name}"))?;
    let mut file = String::new();
    for ((reason, text), (steps, instructions)) in seen {
        write!(file, "{reason} {steps} {instructions} ")?;
        for byte in text {
            write!(file, "{byte:02x}")?;
        }
        file.push('\n');
    }
    let path = format!("/out/{name}.steps");

    fs::write(&path, file).with_context(|| format!("cannot write {path}"))?;
    println!(
        "steps interpreted {name} {} {}",
        stepped.counted, stepped.interpreted
    );
    Ok(())
}

/// Closes the input. Returns the time until the program has ended.
fn ends(mut child: Child) -> Result<u128> {
    let start = Instant::now();

    drop(child.stdin.take());
    let status = child.wait().context("cannot wait for the program")?;
    ensure!(status.success(), "the program ended with {status}");
    Ok(start.elapsed().as_nanos())
}

fn alone() -> Result<u128> {
    ends(waiting(PROGRAM)?)
}

/// The shortest time of a system call that does almost nothing.
fn call() -> u128 {
    const TIMES: u32 = 200;
    let each = |_| {
        let start = Instant::now();
        for _ in 0..TIMES {
            black_box(getppid());
        }
        start.elapsed().as_nanos() / u128::from(TIMES)
    };
    // An interrupt may come in between, so the minimum counts.
    (0..20).map(each).min().unwrap_or(0)
}

/// Prints the time of a system call: without the driver, with it, while another task is traced, and afterwards.
fn calls() -> Result<()> {
    module::unload("soft_pt")?;
    println!("steps call absent {}", call());
    module::load("soft_pt")?;
    println!("steps call idle {}", call());

    let mut child = Command::new(PROGRAM[0])
        .args(["workload", "sleep", "--ms", "600000"])
        .spawn()
        .context("cannot start a program")?;
    let id = i32::try_from(child.id())?;
    let probe = Probe::open(&soft_pt::traced()?, id, -1, 64, false)?;
    probe.event.enable()?;
    println!("steps call others {}", call());
    drop(probe);
    println!("steps call after {}", call());
    child.kill().context("cannot end a program")?;
    child.wait().context("cannot wait for a program")?;
    Ok(())
}

/// Prints the longest wakeup delay of a real-time task while an untraced program and then a traced one uses its CPU.
fn delays() -> Result<()> {
    // `soft_pt` interprets the whole loop.
    let spin = || waiting(&["/bin/busybox", "sh", "-c", "while :; do :; done"]);
    let late = |name: &str, mut child: Child| -> Result<()> {
        drop(child.stdin.take());
        let output = Command::new("chrt").args(LATE).output();
        let output = output.context("cannot start chrt")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "chrt ended with {}", output.status);
        println!("steps delay {name} {}", said.trim());
        child.kill().context("cannot end a program")?;
        child.wait().context("cannot wait for a program")?;
        Ok(())
    };
    late("alone", spin()?)?;
    let child = spin()?;
    let mut attr = soft_pt::traced()?;
    attr.flags |= Flags::ENABLE_ON_EXEC;
    let probe = Probe::open(&attr, i32::try_from(child.id())?, -1, 64, true)?;
    late("traced", child)?;
    ensure!(probe.generated()? > 100_000, "it was not traced");
    Ok(())
}

/// Traces a program. Returns the number of instructions, the bytes of trace, and the time.
fn traced(program: &[&str], filter: Option<&str>) -> Result<(u64, u64, u128)> {
    let child = waiting(program)?;
    let mut attr = soft_pt::traced()?;
    attr.flags |= Flags::ENABLE_ON_EXEC;
    let probe = Probe::open(&attr, i32::try_from(child.id())?, -1, 1024, false)?;
    if let Some(filter) = filter {
        let filter = CString::new(filter).context("a zero in a filter")?;
        probe
            .event
            .set_filter(&filter)
            .context("cannot set a filter")?;
    }
    let time = ends(child)?;

    ensure!(probe.head() < bytes(1024), "the ring is full");
    Ok((probe.generated()?, probe.head(), time))
}

fn stepped() -> Result<(u64, u128)> {
    let start = Instant::now();
    let output = Command::new("steptrace")
        .args(["record", "-o", "/tmp/steps.log", "--"])
        .args(PROGRAM)
        .output()
        .context("cannot start steptrace")?;
    let time = start.elapsed().as_nanos();
    let said = String::from_utf8_lossy(&output.stderr);

    ensure!(output.status.success(), "steptrace: {said}");
    Ok((number(&said, "steptrace: ", " instructions")?, time))
}

/// Measures gdb from the call of `caller` to its return. This code has no AVX instructions, which gdb does not support.
fn recorded() -> Result<(u64, u128)> {
    let gdb = |commands: &[&str]| -> Result<(String, u128)> {
        let start = Instant::now();
        let mut command = Command::new(GDB);
        command.args(["-nx", "-batch", "-ex", "set confirm off"]);
        command.args(["-ex", "break auxe2e::workload::caller", "-ex", "run"]);
        for text in commands {
            command.args(["-ex", text]);
        }
        let output = command
            .args(["-ex", "kill", "--args"])
            .args(PROGRAM)
            .output()
            .context("cannot start gdb")?;
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        Ok((said.into_owned(), start.elapsed().as_nanos()))
    };
    let (_, without) = gdb(&["finish"])?;
    let (said, with) = gdb(&[
        "set record full insn-number-max unlimited",
        "record full",
        "finish",
        "info record",
    ])?;
    let count = number(&said, "Log contains ", " instructions")?;

    Ok((count, with.saturating_sub(without)))
}

fn number(said: &str, before: &str, after: &str) -> Result<u64> {
    said.split_once(before)
        .and_then(|(_, rest)| rest.split_once(after))
        .and_then(|(number, _)| number.parse().ok())
        .with_context(|| format!("no number between `{before}` and `{after}`: {said}"))
}

/// Traces a program for a long time. Prints each second how much memory the kernel has in slabs, and how much is available, in KiB.
pub fn memory(seconds: u64) -> Result<()> {
    let mut child = Command::new(PROGRAM[0])
        .args(["workload", "spin", "--ms", "600000"])
        .spawn()
        .context("cannot start a program")?;
    let mut probe = Probe::open(
        &soft_pt::traced()?,
        i32::try_from(child.id())?,
        -1,
        64,
        false,
    )?;
    probe.event.enable()?;

    let start = Instant::now();
    let mut next = Duration::from_secs(1);
    while start.elapsed() < Duration::from_secs(seconds) {
        probe.wait()?;
        probe.read_records()?;
        probe.records.clear();
        probe.read_trace(u64::MAX)?;
        probe.trace.clear();
        if start.elapsed() >= next {
            next += Duration::from_secs(1);
            let [slab, available] = ["Slab:", "MemAvailable:"].map(meminfo);
            println!(
                "memory {} {} {} {}",
                probe.generated()?,
                probe.head(),
                slab?,
                available?
            );
        }
    }
    drop(probe);
    child.kill().context("cannot end a program")?;
    child.wait().context("cannot wait for a program")?;
    Ok(())
}

/// The number in a line of /proc/meminfo.
fn meminfo(name: &str) -> Result<u64> {
    let mut text = String::new();
    fs::File::open("/proc/meminfo")?.read_to_string(&mut text)?;
    text.lines()
        .find_map(|line| {
            line.strip_prefix(name)?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .with_context(|| format!("no {name} in /proc/meminfo"))
}
