// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that decoders show exactly the instructions that were executed. Traces are recorded in a guest and decoded outside.
//!
//! - This module: programs, traced by `soft_pt`.
//! - [`kernel`]: a kernel, traced from outside by the trace unit in QEMU.
//! - [`outside`]: a whole guest, traced by that unit from its kernel's first instruction on, for stock perf.
//! - [`device`]: kernel and programs, traced by that unit and its driver.
//! - [`matrix`]: perf's other features for such traces.
//! - [`consumers`]: gdb, and core dumps.
//! - [`theirs`]: perf's own tests.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::python;
use crate::guest::Guest;
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::results::ktap::{self, Case, Status};
use crate::step::{Log, Progress};
use crate::tools;
use std::fs;
use std::io::{self, BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

mod consumers;
mod device;
mod kernel;
pub(crate) mod matrix;
mod outside;
mod theirs;

/// Cases that differ from each other and do not take long, although ptrace is slow in an emulated guest. `outside::NAME` and
/// `device::NAME` are left out, as they take minutes. Recordings of the trace unit are still decoded, by the matrix.
pub const FEW: [&str; 19] = [
    "again",
    consumers::NAME,
    "debugged",
    "dispatched",
    "faults",
    "generated",
    "jumps",
    kernel::NAME,
    matrix::NAME,
    "losses",
    "probed",
    "sequences",
    "stress",
    "strings",
    "threads",
    "unreadable",
    "vsyscalls",
    "writes",
    "x32",
];

/// The filter that selects all programs that `soft_pt` traces.
const SOFT_PT: &str = "soft_pt";

/// A program for PyPy.
const PYPY: &str = "compiled.py";

/// Programs that are skipped on a kernel without an option that they need, and this option.
const NEEDS: [(&str, &str); 2] = [
    ("dispatched", "CONFIG_SYSCALL_USER_DISPATCH"),
    ("x32", "CONFIG_X86_X32_ABI"),
];

/// Runs the cases whose names contain one of `filters`, or all cases if there are none. The filter `soft_pt` selects all programs that
/// `soft_pt` traces. `stock` is the kernel that the trace unit's driver runs on, as perf needs its `/proc/kcore`.
///
/// # Errors
///
/// When something does not build, or a file cannot be read or written.
pub fn run(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    stock: &Kernel,
    filters: &[String],
) -> Result<Case> {
    let asked = |case: &str| {
        let has = |filter: &String| case.contains(filter.as_str());
        filters.is_empty() || filters.iter().any(has)
    };
    let all = filters.is_empty() || filters.iter().any(|filter| filter == SOFT_PT);
    let of_programs: Vec<_> = filters
        .iter()
        .filter(|filter| {
            let mut others = [
                kernel::NAME,
                outside::NAME,
                matrix::NAME,
                consumers::NAME,
                matrix::pairs::NAME,
                matrix::samples::NAME,
                device::NAME,
                theirs::NAME,
            ]
            .into_iter()
            .chain(device::parts());
            !all && !others.any(|name| name.contains(filter.as_str()))
        })
        .cloned()
        .collect();
    let mut suites = Vec::new();
    if all || !of_programs.is_empty() {
        suites.push(programs_on(cache, dir, kernel, &of_programs)?);
    }
    if asked(kernel::NAME) {
        suites.push(kernel::run(cache, dir, kernel)?);
    }
    if asked(outside::NAME) {
        suites.push(outside::run(cache, dir, kernel)?);
    }
    if asked(matrix::NAME) {
        suites.push(matrix::run(cache, dir, stock)?);
    }
    if asked(consumers::NAME) {
        suites.push(consumers::run(cache, dir, stock)?);
    }
    if asked(matrix::pairs::NAME) {
        suites.push(matrix::pairs::run(cache, dir, kernel)?);
    }
    if asked(matrix::samples::NAME) {
        suites.push(matrix::samples::run(cache, dir, kernel)?);
    }
    if asked(theirs::NAME) {
        suites.push(theirs::run(cache, dir, stock)?);
    }
    let part = |name: &str| asked(device::NAME) || asked(name);
    if device::parts().any(part) {
        suites.push(device::run(cache, dir, stock, part)?);
    }
    Ok(Case::suite("exact", suites))
}

/// The lines that a decoder prints. When this is dropped, the decoder is killed.
struct Decoder {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Decoder {
    fn start(command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let spawned = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .and_then(|mut child| match child.stdout.take() {
                Some(out) => Ok((child, out)),
                None => Err(io::ErrorKind::BrokenPipe.into()),
            });
        let (child, out) = spawned.map_err(|source| Error::Spawn { program, source })?;
        let lines = BufReader::new(out).lines();
        Ok(Self { child, lines })
    }
}

impl Iterator for Decoder {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.lines.next()
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compares the instructions that are shown with the next ones that were executed. Returns their number.
fn follow(
    shown: impl Iterator<Item = io::Result<String>>,
    executed: &mut impl Iterator<Item = io::Result<String>>,
) -> std::result::Result<u64, String> {
    let mut count = 0;
    for shown in shown {
        let shown = shown.map_err(unreadable)?;
        let executed = executed.next().transpose().map_err(unreadable)?;
        if executed.as_deref() != Some(shown.trim_start()) {
            return Err(format!(
                "after {count} instructions {} was executed, and {shown} is shown",
                executed.as_deref().unwrap_or("the end")
            ));
        }
        count += 1;
    }
    Ok(count)
}

/// Checks that nothing was executed after `count` instructions.
fn end(
    executed: &mut impl Iterator<Item = io::Result<String>>,
    count: u64,
) -> std::result::Result<(), String> {
    match executed.next().transpose().map_err(unreadable)? {
        None => Ok(()),
        Some(more) => Err(format!(
            "after {count} instructions {more} was executed, and the end is shown"
        )),
    }
}

#[allow(clippy::needless_pass_by_value)] // `map_err()` passes the error by value.
fn unreadable(error: io::Error) -> String {
    format!("cannot read: {error}")
}

fn programs_on(cache: &Cache, dir: &Path, kernel: &Kernel, filters: &[String]) -> Result<Case> {
    let tools = tools::build(cache)?;
    let Some((_, judge)) = tools.iter().find(|(name, _)| name == "auxe2e") else {
        let reason = "tools/e2e is not in this checkout";
        return Ok(Case::suite("programs", vec![Case::skip("all", reason)]));
    };
    let programs = programs(cache)?;
    let progress = Progress::begin(&format!("exact on {}", kernel.kind));
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let mut traced = guest(kernel, &built.files, &tools, &programs)?;
    // PyPy is large, so only guests that run its program have it.
    if filters.is_empty() || filters.iter().any(|filter| PYPY.contains(filter.as_str())) {
        for file in python::pypy()? {
            traced = traced.installed(&file)?;
        }
    }
    let place = cache.build().join("programs");
    let words = filters
        .iter()
        .map(|f| format!(" '{}'", f.replace('\'', "'\\''")));
    let words: String = words.collect();
    let words = format!("{}{words}", place.display());
    // On the debug kernel, stepping by ptrace takes many times as long. So the programs are stepped on the lean kernel. What they execute
    // does not depend on the kernel's checks.
    let elsewhere = kernel.kind == Kind::Debug;
    let option = if elsewhere { "--traced " } else { "" };
    let command = format!(
        "auxe2e exact record {option}{words}; ended=$?; auxe2e exact record --again steps {words} && exit $ended"
    );
    let dir = dir.join("exact");
    // Prints each result at once, as all of them take minutes.
    let live = |line: &str| crate::out!("{line}");
    let outcome = traced.run(cache, &dir, &command, live)?;
    let config = kernel.build_dir().join(".config");
    let config = fs::read_to_string(&config).on("read", &config)?;
    let mut suite = vec![refuse_skips(outcome.suite("runs"), &config)];
    if elsewhere {
        let lean = Kernel::prepare(cache, Kind::Lean)?;
        let mut stepped = guest(&lean, &[], &tools, &programs)?;
        for asked in files(&outcome.files, "asked")? {
            stepped = stepped.installed(&asked)?;
        }
        let folder = outcome.files.display();
        let command = format!("auxe2e exact record --stepped {folder} {words}");
        let stepped = stepped.run(cache, &dir.join("stepped"), &command, live)?;
        for log in files(&stepped.files, "log")? {
            let to = outcome.files.join(log.file_name().unwrap_or_default());
            fs::copy(&log, &to).on("write", &to)?;
        }
        suite.push(stepped.suite("stepped"));
    }

    let words: Vec<_> = filters.iter().map(String::as_str).collect();
    let judged = |name, options: &[&str]| {
        let cases = judged(cache, judge, &dir, &outcome.files, options, &words)?;
        Ok(Case::suite(name, cases))
    };
    let again = ["--again", "steps", "--packets"];
    suite.push(judged("traces", &[])?);
    suite.push(judged("traces by steps alone", &again[..2])?);
    let packets = "packets by steps alone";
    suite.push(if kernel.kind == Kind::Rt {
        let reason = "with PREEMPT_RT tasks also switch where they wait for a lock of the kernel";
        Case::suite(packets, vec![Case::skip("all", reason)])
    } else {
        judged(packets, &again)?
    });
    let suite = Case::suite("programs", suite);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// A guest with the programs, and with the tools that run and record them.
fn guest<'a>(
    kernel: &'a Kernel,
    modules: &[PathBuf],
    tools: &[(String, PathBuf)],
    programs: &[PathBuf],
) -> Result<Guest<'a>> {
    let mut guest = Guest::new(kernel, modules)?
        // No vDSO: perf here does not have the code of the guest kernel's vDSO.
        .append("vdso=0 vdso32=0 vsyscall=xonly kunit.enable=0")
        // Debian's kernels execute x32 programs only if told to. Others ignore this.
        .append("syscall.x32=y")
        .timeout(Duration::from_secs(5400))
        // The programs and their interpreters are in the initramfs.
        .more_memory(256)
        .intel();
    for program in ["perf", "env", "chrt", "luajit"] {
        guest = guest.installed(&Path::new("/usr/bin").join(program))?;
    }
    for (name, path) in tools {
        guest = guest.program(name, path)?;
    }
    for program in programs {
        guest = guest.installed(program)?;
    }
    Ok(guest)
}

/// Runs `auxe2e`, which decodes the recordings of programs and compares them with the logs.
fn judged(
    cache: &Cache,
    judge: &Path,
    dir: &Path,
    files: &Path,
    options: &[&str],
    filters: &[&str],
) -> Result<Vec<Case>> {
    let ptwalk = cache.checkout().join("tools/steptrace/ptwalk.c");
    let mut command = Command::new(judge);
    command.args(["exact", "judge"]).args(options);
    command.arg(files).arg(ptwalk).args(filters);
    let log = dir.join("judge.log");
    let said = command.output().map_err(|source| Error::Spawn {
        program: judge.display().to_string(),
        source,
    })?;
    fs::write(&log, [said.stdout.clone(), said.stderr].concat()).on("write", &log)?;
    Ok(ktap::parse(&String::from_utf8_lossy(&said.stdout)))
}

/// The suite `runs`, in which each skipped program has failed, unless the kernel's configuration is the reason.
fn refuse_skips(runs: Case, config: &str) -> Case {
    let lacks = |name: &str| {
        let need = NEEDS.iter().find(|(program, _)| *program == name);
        need.is_some_and(|(_, option)| !config.lines().any(|line| line == format!("{option}=y")))
    };
    let cases = runs.children.into_iter().map(|case| {
        // The case `none` is skipped if no requested program is compared with a log, as then none is recorded again.
        if case.status != Status::Skip || case.name == "none" || lacks(&case.name) {
            return case;
        }
        let reason = format!(
            "skipped, but the kernel is configured for it: {}",
            case.reason
        );
        Case::fail(&case.name, &reason).with_log(case.log)
    });
    Case::suite(&runs.name, cases.collect())
}

/// The files in a folder that have the extension `end`.
fn files(folder: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).on("read", folder)? {
        let path = entry.on("read", folder)?.path();
        if path.extension().is_some_and(|extension| extension == end) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Builds the programs that are traced.
fn programs(cache: &Cache) -> Result<Vec<PathBuf>> {
    let place = cache.build().join("programs");
    let log = Log::create(&cache.build().join("programs.log"))?;
    let mut make = Command::new("make");
    make.args(["-s", "-C"])
        .arg(cache.checkout().join("tools/e2e/programs"))
        .arg(format!("O={}", place.display()));
    log.run("building the programs to trace", &mut make)?;
    let mut programs = Vec::new();
    for entry in fs::read_dir(&place).on("read", &place)? {
        let path = entry.on("read", &place)?.path();
        if path.is_file() {
            programs.push(path);
        }
    }
    programs.sort();
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_need_a_reason() {
        let with = "CONFIG_SYSCALL_USER_DISPATCH=y\n# CONFIG_X86_X32_ABI is not set\n";
        let without = "# CONFIG_SYSCALL_USER_DISPATCH is not set\nCONFIG_X86_X32_ABI=y\n";
        let table = [
            (Case::pass("dispatched"), with, Status::Pass),
            (Case::skip("dispatched", "none"), with, Status::Fail),
            (Case::skip("dispatched", "none"), without, Status::Skip),
            (Case::skip("dispatched", "none"), "", Status::Skip),
            (Case::skip("x32", "none"), with, Status::Skip),
            (Case::skip("x32", "none"), without, Status::Fail),
            (Case::skip("calls", "none"), "", Status::Fail),
        ];
        for (case, config, want) in table {
            let said = format!("{case:?} with {config}");
            let runs = refuse_skips(Case::suite("runs", vec![case]), config);
            assert_eq!(runs.children[0].status, want, "{said}");
        }
    }
}
