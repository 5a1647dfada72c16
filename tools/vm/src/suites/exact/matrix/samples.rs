// SPDX-License-Identifier: GPL-2.0 OR MIT

//! AUX samples of `soft_pt` in stock perf. At each system call of a program, a tracepoint samples the newest trace. A sample is large
//! enough for all trace so far. So each must lead to that system call, and its call chain and last branches must be the program's there.

use super::calls::walk;
use super::executed::{Ends, Executed, Kind};
use super::recordings::SHORT;
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use crate::step::Progress;
use crate::suites::exact::programs;
use crate::tools;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The case's name.
pub(in crate::suites::exact) const NAME: &str = "AUX samples";

const FILE: &str = "samples.data";

/// The guest's output if the kernel does not export `perf_output_copy_aux()`.
const REFUSES: &str = "refuses";

pub(in crate::suites::exact) fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let tools = tools::build(cache)?;
    let Some((_, steptrace)) = tools.iter().find(|(name, _)| name == "steptrace") else {
        return Ok(Case::skip(NAME, "tools/steptrace is not in this checkout"));
    };
    let progress = Progress::begin(&format!("exact: {NAME} on {}", kernel.kind));
    let dir = dir.join("exact-samples");
    fs::create_dir_all(&dir).on("make", &dir)?;
    let built = modules::build(cache, kernel, Mode::Plain)?;
    programs(cache)?;
    let program = cache.build().join("programs").join(SHORT);
    let executed = Executed::stepped(&dir, steptrace, &program, Ends::Itself)?;
    let guest = Guest::new(kernel, &built.files)?
        .append("vdso=0 vdso32=0 kunit.enable=0")
        .timeout(Duration::from_secs(300))
        .intel()
        .installed(Path::new("/usr/bin/perf"))?
        .installed(&program)?;
    // The program stays on one CPU, as a sample has only the trace of its CPU.
    let command = format!(
        "grep -q __ksymtab_perf_output_copy_aux /proc/kallsyms || {{ echo {REFUSES} >/out/said; exit 0; }}
insmod /modules/rust_perf.ko && insmod /modules/rust_stepping.ko && insmod /modules/soft_pt.ko intel_pt=1 || exit 1
echo 0 >/proc/sys/kernel/randomize_va_space
taskset 1 perf record -q -B -N --aux-sample=32768 -e '{{intel_pt//u,raw_syscalls:sys_enter}}' -m512,64 -o /out/{FILE} -- {} >/out/said 2>&1",
        program.display()
    );
    let outcome = guest.run(cache, &dir.join("guest"), &command, |_| {})?;
    if let Some(fault) = outcome.faults().first() {
        let why = format!("{}: {}", fault.name, fault.reason);
        return Ok(Case::fail(NAME, &why));
    }
    let file = outcome.files.join(FILE);
    let said = outcome.files.join("said");
    let said = fs::read_to_string(&said).on("read", &said)?;
    if said.trim() == REFUSES {
        return Ok(Case::skip(
            NAME,
            "this kernel does not export perf_output_copy_aux()",
        ));
    }
    if !file.exists() {
        return Ok(Case::fail(NAME, said.trim()));
    }
    let shown = |options: &[&str]| -> Result<String> {
        let output = Command::new("perf")
            .args(["script", "--no-inline", "-i"])
            .arg(&file)
            .args(options)
            .output()
            .map_err(|source| Error::Spawn {
                program: "perf".to_owned(),
                source,
            })?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let each = instructions(&shown(&["--itrace=i1ie", "-F", "event,ip"])?, &executed);
    let chains = chains(&shown(&["--itrace=Ge", "-F", "ip"])?, &executed);
    let branches = branches(&shown(&["--itrace=Le", "-F", "ip,brstack"])?, &executed);
    let case = |name, found: std::result::Result<String, String>| match found {
        Ok(note) => Case::pass(name).with_log(vec![note]),
        Err(why) => Case::fail(name, &why),
    };
    let cases = vec![
        case("each instruction", each),
        case("call chains", chains),
        case("last branches", branches),
    ];
    let suite = Case::suite(NAME, cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// Lines of `-F event,ip`: the instructions of a sample's trace precede the sample. perf skips those that the previous sample has.
fn instructions(shown: &str, executed: &Executed) -> std::result::Result<String, String> {
    let steps = executed.first();
    let ends = (1..).zip(steps);
    let mut ends = ends.filter_map(|(end, step)| (step.kind == Kind::Syscall).then_some(end));
    let (mut samples, mut before, mut trace) = (0, 0, Vec::new());
    for line in shown.lines().filter(|line| !line.trim().is_empty()) {
        if line.contains("instructions") {
            trace.push(line.split_whitespace().next_back().unwrap_or_default());
            continue;
        }
        let end: usize = ends.next().ok_or_else(|| format!("perf shows `{line}`"))?;
        let right = steps.get(before..end).unwrap_or_default();
        let is = |(shown, step): (&&str, &super::executed::Step)| {
            u64::from_str_radix(shown, 16) == Ok(step.ip)
        };
        let same = trace.iter().zip(right).take_while(|pair| is(*pair)).count();
        if same != right.len() || same != trace.len() {
            return Err(format!(
                "sample {samples}: after {same} instructions perf shows {:?} for {:x?}",
                trace.get(same),
                right.get(same)
            ));
        }
        samples += 1;
        before = end;
        trace.clear();
    }
    match (samples, ends.count()) {
        (1.., 0) => Ok(format!(
            "{samples} samples, with all {before} instructions before them"
        )),
        (samples, left) => Err(format!(
            "perf shows {samples} samples, and not the last {left}"
        )),
    }
}

/// Samples with their call chains: lines of `-F ip`, with an empty one after each sample. The kernel's part of a chain is skipped, as the
/// kernel is not traced.
fn chains(shown: &str, executed: &Executed) -> std::result::Result<String, String> {
    let mut right = Vec::new();
    walk(executed.first(), |step, stack| {
        if step.kind == Kind::Syscall {
            right.push(stack.iter().rev().copied().collect::<Vec<_>>());
        }
    });
    let hex = |word| u64::from_str_radix(word, 16).ok();
    let shown = shown.split("\n\n").map(|sample| {
        let chain = sample.split_whitespace().filter_map(hex);
        chain.filter(|ip| ip >> 63 == 0).collect::<Vec<_>>()
    });
    let shown: Vec<_> = shown.filter(|chain| !chain.is_empty()).collect();
    let ends = |(shown, right): (&Vec<u64>, &Vec<u64>)| shown.ends_with(right);
    match shown.len() == right.len() && shown.iter().zip(&right).all(ends) {
        true => Ok(format!("{} samples, each with its chain", right.len())),
        false => Err(format!("perf shows {shown:x?}, and {right:x?} is right")),
    }
}

/// Samples with the branches before them, the newest first: lines of `-F ip,brstack`. A branch from 0 is the beginning of the trace, and a
/// branch to 0 its end.
fn branches(shown: &str, executed: &Executed) -> std::result::Result<String, String> {
    /// perf's default number of branches in a sample.
    const MAX: usize = 64;

    let mut taken = Vec::new();
    let mut right = Vec::new();
    for step in executed.first() {
        taken.extend(step.target().map(|target| (step.ip, target)));
        if step.kind == Kind::Syscall {
            right.push(taken.iter().rev().copied().collect::<Vec<_>>());
        }
    }
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let mut lines = shown.lines().filter(|line| !line.trim().is_empty());
    let mut count = 0;
    for right in &right {
        let line = lines.next().ok_or("perf shows fewer samples")?;
        let entries = line.split_whitespace().skip(1).map(|entry| {
            let mut parts = entry.split('/');
            Some((hex(parts.next()?)?, hex(parts.next()?)?))
        });
        let entries: Option<Vec<_>> = entries.collect();
        let entries = entries.ok_or_else(|| format!("perf shows `{line}`"))?;
        let is_real = |(from, to): &&(u64, u64)| *from != 0 && *to != 0;
        let real: Vec<_> = entries.iter().filter(is_real).copied().collect();
        let space = MAX - (entries.len() - real.len());
        if right.get(..right.len().min(space)) != Some(&real) {
            return Err(format!("perf shows {real:x?}, and {right:x?} is right"));
        }
        count += real.len();
    }
    match (count, lines.count()) {
        (1.., 0) => Ok(format!("{} samples with {count} branches", right.len())),
        (_, more) => Err(format!(
            "perf shows {count} branches, and {more} more samples"
        )),
    }
}
