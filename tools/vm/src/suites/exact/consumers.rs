// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Other uses of a unit's trace. gdb records a program that crashes, and steps back in the recording. A core dump comes with the trace that
//! leads to the crash.
//!
//! The program is `crashes`. Results are compared with the log of `steptrace`, and with the address of the program's symbol `faulting`.

use super::matrix::executed::{Ends, Executed as Stepped};
use super::programs;
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::python;
use crate::guest::{Devices, Guest, Outcome};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use crate::step::{Log, Progress};
use crate::tools;
use object::{Object, ObjectSymbol};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The case's name.
pub(super) const NAME: &str = "consumers";

const PROGRAM: &str = "crashes";

/// A unit that traces the program.
struct Unit {
    name: &'static str,
    /// The prefix of the names of its cases.
    prefix: &'static str,
    devices: Devices,
    loads: &'static str,
}

const UNITS: [Unit; 2] = [
    Unit {
        name: "soft_pt",
        prefix: "",
        devices: Devices::Plain,
        loads: "insmod /modules/rust_stepping.ko && insmod /modules/soft_pt.ko intel_pt=1",
    },
    Unit {
        name: "trace_unit",
        prefix: "unit, ",
        devices: Devices::TraceUnit,
        loads: "insmod /modules/trace_unit.ko intel_pt=1",
    },
];

/// Waits for a file, as the kernel does not wait for the program to which it pipes a core.
const WAIT: &str = "for i in $(seq 100); do [ -s";

/// How many steps gdb makes, back from the end and forward from the beginning.
const STEPS: usize = 300;

/// The addresses of all instructions that the program executed, of `main`, and of the instruction that crashes.
struct Executed {
    ips: Vec<u64>,
    main: u64,
    faulting: u64,
}

type Verdict = std::result::Result<String, String>;

pub(super) fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let tools = tools::build(cache)?;
    let Some((_, steptrace)) = tools.iter().find(|(name, _)| name == "steptrace") else {
        return Ok(Case::skip(NAME, "tools/steptrace is not in this checkout"));
    };
    let progress = Progress::begin(&format!("exact: {NAME} on {}", kernel.kind));
    let dir = dir.join("exact-consumers");
    let programs = programs(cache)?;
    let Some(program) = programs.iter().find(|path| path.ends_with(PROGRAM)) else {
        return Ok(Case::fail(NAME, "the program is not built"));
    };
    let executed = executed(&dir, steptrace, program)?;
    let mut cases = Vec::new();
    for unit in &UNITS {
        let outcome = record(cache, &dir, kernel, &tools, program, unit)?;
        let mut case = |name: &str, verdict| {
            cases.push(Case::judged(&format!("{}{name}", unit.prefix), verdict));
        };
        case("gdb: history", history(&outcome, &executed)?);
        case("gdb: steps back and on", steps(&outcome, &executed)?);
        let core = core(&dir, &outcome.files, program, &executed)?;
        case("a core dump", core);
        case("a core dump without a recorder", alone(&outcome)?);
        if let Some(fault) = outcome.faults().first() {
            case(&fault.name, Err(fault.reason.clone()));
        }
    }
    let suite = Case::suite(NAME, cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// Records the program in a guest: with gdb, and with auxrec until the kernel dumps the core.
fn record(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    tools: &[(String, PathBuf)],
    program: &Path,
    unit: &Unit,
) -> Result<Outcome> {
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let mut guest = Guest::new(kernel, &built.files)?
        // No vDSO: perf here does not have the code of the guest kernel's vDSO.
        .append("vdso=0 vdso32=0 kunit.enable=0")
        .timeout(Duration::from_secs(900))
        .more_memory(256)
        .intel()
        .devices(unit.devices)
        .script("gdb.commands", &gdb_commands())
        .installed(Path::new("/usr/bin/gdb"))?
        .installed(program)?
        .program(
            "core-with-trace",
            &cache.checkout().join("tools/auxrec/core-with-trace"),
        )?;
    for (name, path) in tools {
        guest = guest.program(name, path)?;
    }
    for file in python::of_gdb()? {
        guest = guest.installed(&file)?;
    }
    let program = program.display();
    let command = format!(
        "insmod /modules/rust_perf.ko && {} || exit 1
gdb -nx -batch -x /bin/gdb.commands {program} >/out/gdb.said 2>/out/gdb.errors
mkdir /out/alone
echo '|/bin/core-with-trace /out/alone /tmp/control /tmp/ack %P' >/proc/sys/kernel/core_pattern
{program}
{WAIT} /out/alone/core.* ] && break; usleep 100000; done
dmesg | grep core-with-trace >/out/alone/said
mkfifo /tmp/control /tmp/ack
echo '|/bin/core-with-trace /out /tmp/control /tmp/ack %P' >/proc/sys/kernel/core_pattern
auxrec record -q -S --control fifo:/tmp/control,/tmp/ack -e intel_pt//u -m64,512 -o /out/crash.data -- {program} >/out/crash.said 2>&1
{WAIT} /out/core.* ] && break; usleep 100000; done
exit 0",
        unit.loads
    );
    let dir = dir.join(format!("guest-{}", unit.name));
    guest.run(cache, &dir, &command, |_| {})
}

/// The commands for gdb. A word before each address that is printed identifies it.
fn gdb_commands() -> String {
    let mut commands = "set pagination off
set confirm off
set width 0
set debuginfod enabled off
set record btrace cpu none
set record btrace pt buffer-size 4194304
set record instruction-history-size unlimited
break main
run
record btrace pt
continue
printf \"crashed %#lx\\n\", $pc
info record
record instruction-history 1
"
    .to_owned();
    for (name, first, step) in [
        ("back", "record goto end", "reverse-stepi"),
        ("on", "record goto begin", "stepi"),
    ] {
        // Begins a new line, as gdb prints its position before.
        let _ = write!(
            commands,
            "{first}
set $i = 0
while $i < {STEPS}
{step}
printf \"\\n{name} %#lx\\n\", $pc
set $i = $i + 1
end
"
        );
    }
    commands + "record goto end\nreverse-continue\nprintf \"\\nbegin %#lx\\n\", $pc\n"
}

/// Takes the instructions from the log of `steptrace`, and the symbols from the program's file.
fn executed(dir: &Path, steptrace: &Path, program: &Path) -> Result<Executed> {
    let stepped = Stepped::stepped(dir, steptrace, program, Ends::Killed)?;
    let ips = stepped.first().iter().map(|step| step.ip).collect();
    let bytes = fs::read(program).on("read", program)?;
    let bad = |what: &str| Error::Other(format!("{}: {what}", program.display()));
    let elf = object::File::parse(&*bytes).map_err(|error| bad(&error.to_string()))?;
    let symbol = |name: &str| {
        let found = elf.symbols().find(|symbol| symbol.name() == Ok(name));
        found
            .map(|symbol| symbol.address())
            .ok_or_else(|| bad(&format!("no symbol {name}")))
    };
    Ok(Executed {
        ips,
        main: symbol("main")?,
        faulting: symbol("faulting")?,
    })
}

impl Executed {
    /// The instructions that gdb records: it begins before `main`, and stops before the instruction that crashes.
    fn by_gdb(&self) -> &[u64] {
        let first = self.ips.iter().position(|ip| *ip == self.main);
        let ips = first.and_then(|at| self.ips.get(at..)).unwrap_or_default();
        // The last step in the log is the one that crashes, as ptrace reports it like others.
        ips.strip_suffix(&[self.faulting]).unwrap_or(ips)
    }
}

fn address(word: &str) -> Option<u64> {
    u64::from_str_radix(word.trim().trim_start_matches("0x"), 16).ok()
}

fn said(outcome: &Outcome) -> Result<String> {
    let path = outcome.files.join("gdb.said");
    fs::read_to_string(&path).on("read", &path)
}

/// The addresses of the lines `NAME ADDRESS`.
fn named(said: &str, name: &str) -> Vec<u64> {
    let line = |line: &str| address(line.strip_prefix(name)?.strip_prefix(' ')?);
    said.lines().filter_map(line).collect()
}

/// The addresses of the lines `NUMBER  ADDRESS <PLACE>: INSTRUCTION`, numbered from 1 on. The line of a gap has no number.
fn shown_history(said: &str) -> Vec<u64> {
    let mut ips = Vec::new();
    for line in said.lines() {
        let mut words = line.split_whitespace();
        let number = words.next().and_then(|word| word.parse().ok());
        if number == Some(ips.len() + 1) {
            ips.extend(words.next().and_then(address));
        }
    }
    ips
}

/// gdb must show all instructions in order. It does not show the one at which it is, as that has not been executed.
fn history(outcome: &Outcome, executed: &Executed) -> Result<Verdict> {
    let said = said(outcome)?;
    Ok(right_history(&said, executed))
}

fn right_history(said: &str, executed: &Executed) -> Verdict {
    if named(said, "crashed") != [executed.faulting] {
        return Err("gdb did not see the crash where it is".to_owned());
    }
    let shown = shown_history(said);
    same("instructions", &shown, executed.by_gdb())
}

/// Checks gdb's steps back from the crash, its steps forward from the beginning, and one command that runs back to the beginning.
fn steps(outcome: &Outcome, executed: &Executed) -> Result<Verdict> {
    let said = said(outcome)?;
    Ok(right_steps(&said, executed))
}

fn right_steps(said: &str, executed: &Executed) -> Verdict {
    let ran = executed.by_gdb();
    let back: Vec<_> = ran.iter().rev().take(STEPS).copied().collect();
    let on: Vec<_> = ran.iter().skip(1).take(STEPS).copied().collect();
    same("steps back", &named(said, "back"), &back)?;
    same("steps on", &named(said, "on"), &on)?;
    same("all the way back", &named(said, "begin"), &[executed.main])?;
    Ok(format!("{} steps back, {} on", back.len(), on.len()))
}

fn same(what: &str, shown: &[u64], want: &[u64]) -> Verdict {
    if want.is_empty() {
        return Err("the log has nothing".to_owned());
    }
    if let Some(at) = (0..shown.len().max(want.len())).find(|at| shown.get(*at) != want.get(*at)) {
        return Err(format!(
            "{what}: number {} is {:x?} and should be {:x?}, of {} and {}",
            at + 1,
            shown.get(at),
            want.get(at),
            shown.len(),
            want.len()
        ));
    }
    Ok(format!("{} {what}", want.len()))
}

fn cores(files: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(files).on("read", files)?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths
        .filter(|path| path.file_stem().is_some_and(|stem| stem == "core"))
        .collect())
}

/// Without a recorder, the core must be kept, and the kernel's log must report that there is no trace.
fn alone(outcome: &Outcome) -> Result<Verdict> {
    let files = outcome.files.join("alone");
    let cores = cores(&files)?;
    let said = files.join("said");
    let said = fs::read_to_string(&said).on("read", &said)?;
    Ok(match cores.as_slice() {
        [_] if said.contains("no recorder has taken a snapshot") => Ok(said.trim().to_owned()),
        _ => Err(format!("{} cores, and the log says {said:?}", cores.len())),
    })
}

/// The core must have the address of the crash. The trace must end there, and must show all instructions up to the crash.
fn core(dir: &Path, files: &Path, program: &Path, executed: &Executed) -> Result<Verdict> {
    let cores = cores(files)?;
    let [core] = cores.as_slice() else {
        return Ok(Err(format!("there are {} cores", cores.len())));
    };
    let log = Log::create(&dir.join("core.log"))?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "printf \"crashed %#lx\\n\", $pc"])
        .arg(program)
        .arg(core);
    let at = log.output("asking gdb of a core", &mut gdb)?;
    let script = |itrace: &str, fields: &str| {
        let mut perf = Command::new("perf");
        perf.args(["script", itrace, "-F", fields, "-i"])
            .arg(files.join("crash.data"));
        log.output("decoding the trace of a core", &mut perf)
    };
    let shown = script("--itrace=i1i", "ip")?;
    let shown: Vec<_> = shown.lines().filter_map(address).collect();
    let branches = script("--itrace=b", "flags,ip,addr")?;
    Ok(right_core(&at, &shown, &branches, executed))
}

fn right_core(at: &str, shown: &[u64], branches: &str, executed: &Executed) -> Verdict {
    if named(at, "crashed") != [executed.faulting] {
        return Err(format!("the core is somewhere else: {at}"));
    }
    // The instruction that faults has not been executed: the trace ends before it.
    let ips = executed
        .ips
        .strip_suffix(&[executed.faulting])
        .unwrap_or(&executed.ips);
    same("instructions", shown, ips)?;
    let last = branches.lines().next_back().unwrap_or_default();
    let end = last
        .trim_start()
        .strip_prefix("tr end  async")
        .and_then(|rest| address(rest.split_once("=>")?.0));
    if end != Some(executed.faulting) {
        return Err(format!("the trace does not end at the crash: {last}"));
    }
    Ok(format!("{} instructions, up to the crash", shown.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Executed {
        Executed {
            ips: vec![1, 0x10, 0x12, 0x10, 0x20],
            main: 0x10,
            faulting: 0x20,
        }
    }

    #[test]
    fn a_history_is_compared_whole() {
        let said = "crashed 0x20\n1\t   0x10 <main+0>:\tnop\n2\t   0x12 <main+2>:\tnop\n3\t   0x10 <main+0>:\tnop\n";
        assert!(right_history(said, &small()).is_ok());
        for (from, to) in [
            ("crashed 0x20", "crashed 0x21"),
            ("2\t   0x12", "2\t   0x13"),
            ("2\t   0x12", "\t   [decode error]"),
            ("3\t   0x10 <main+0>:\tnop\n", ""),
        ] {
            let wrong = said.replace(from, to);
            assert!(right_history(&wrong, &small()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn steps_are_compared_in_both_directions() {
        let said = "back 0x10\nback 0x12\nback 0x10\non 0x12\non 0x10\nbegin 0x10\n";
        assert!(right_steps(said, &small()).is_ok());
        for (from, to) in [
            ("back 0x12\n", ""),
            ("on 0x12", "on 0x10"),
            ("begin 0x10\n", ""),
        ] {
            let wrong = said.replace(from, to);
            assert!(right_steps(&wrong, &small()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_trace_ends_where_its_core_is() {
        const AT: &str = "crashed 0x20\n";
        const END: &str = "  call      10 =>  20\n  tr end  async      20 =>      0\n";
        let executed = small();
        let ips = &executed.ips[..4];
        assert!(right_core(AT, ips, END, &executed).is_ok());
        assert!(right_core("crashed 0x10\n", ips, END, &executed).is_err());
        assert!(right_core(AT, &ips[1..], END, &executed).is_err());
        assert!(right_core(AT, &ips[..3], END, &executed).is_err());
        let elsewhere = END.replace("async      20", "async      12");
        assert!(right_core(AT, ips, &elsewhere, &executed).is_err());
        assert!(right_core(AT, ips, "  call      10 =>  20\n", &executed).is_err());
    }
}
