// SPDX-License-Identifier: GPL-2.0 OR MIT

//! perf's own shell tests, unmodified, from Debian's package. They run with `soft_pt` and with the trace unit, each under the name
//! `intel_pt`.
//!
//! [`CANNOT`] has the tests that cannot pass here, with the reasons. If such a test does not pass, it is reported as skipped.

use crate::cache::Cache;
use crate::error::{OnFile, Result};
use crate::guest::python;
use crate::guest::{Devices, Guest, Outcome};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::parallel::both;
use crate::results::ktap::Case;
use crate::step::Progress;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The case's name.
pub(super) const NAME: &str = "perf's own tests";

/// The folder in which the package has the tests.
const PLACE: &str = "/usr/lib/perf-core/tests/shell";

/// The tests that run with each unit. The first one reports its parts.
const SCRIPTS: [&str; 5] = [
    "test_intel_pt.sh",
    "pipe_test.sh",
    "record+zstd_comp_decomp.sh",
    "record_sideband.sh",
    "script.sh",
];

/// The prefixes of the names of other tests. These run with `soft_pt` only, as they do not trace.
const OTHERS: [&str; 4] = ["record", "inject", "script", "stat"];

/// The programs that the tests call besides perf and busybox.
const PROGRAMS: [&str; 10] = [
    "/usr/bin/perf",
    "/usr/bin/bash",
    "/usr/bin/awk",
    "/usr/bin/date",
    "/usr/bin/find",
    "/usr/bin/mktemp",
    "/usr/bin/perl",
    "/usr/bin/python3",
    "/usr/bin/sed",
    "/usr/bin/taskset",
];

/// Tests that cannot pass: the unit, the test or a part of one, and the reason.
const CANNOT: &[(&str, &str, &str)] = &[
    (SOFT_PT, "with kernel trace", NO_KERNEL),
    (SOFT_PT, "power events", NO_POWER),
    (SOFT_PT, "with event_trace", NO_EVENTS),
    (UNIT, "power events", NO_POWER),
    (UNIT, "with TNT packets disabled", "it has no such term"),
    (SOFT_PT, "per-thread recording", TOO_SLOW),
    (UNIT, "per-thread recording", TOO_SLOW),
    (SOFT_PT, "per-thread (incl. kernel) recording", NO_KERNEL),
    (UNIT, "per-thread (incl. kernel) recording", TOO_SLOW),
    (SOFT_PT, "pipe_test.sh", NO_SYMBOLS),
    (UNIT, "pipe_test.sh", NO_SYMBOLS),
    (SOFT_PT, "virtual LBR", NO_COUNTERS),
    (UNIT, "virtual LBR", NO_COUNTERS),
    (SOFT_PT, "with pause / resume", NO_COUNTERS),
    (UNIT, "with pause / resume", NO_COUNTERS),
    (SOFT_PT, "inject_aslr.sh", NO_SYMBOLS),
    (SOFT_PT, "record.sh", NO_SYMBOLS),
    (
        SOFT_PT,
        "record+probe_libc_inet_pton.sh",
        "the guest has no network",
    ),
    (
        SOFT_PT,
        "record+script_probe_vfs_getname.sh",
        "there are no line numbers of Debian's kernel",
    ),
    (
        SOFT_PT,
        "record+zstd_comp_decomp_multi_record.sh",
        "what it records in its time fills no two records",
    ),
    (SOFT_PT, "record_bpf_filter.sh", NO_BPF),
    (SOFT_PT, "record_offcpu.sh", NO_BPF),
    (SOFT_PT, "stat_bpf_counters.sh", NO_BPF),
    (SOFT_PT, "stat_bpf_counters_cgrp.sh", NO_BPF),
    (SOFT_PT, "record_lbr.sh", NO_COUNTERS),
    (SOFT_PT, "record_weak_term.sh", NO_COUNTERS),
    (SOFT_PT, "stat.sh", NO_COUNTERS),
    (SOFT_PT, "stat_metrics_cgrp.sh", NO_COUNTERS),
    (SOFT_PT, "stat_metrics_values.sh", NO_COUNTERS),
    (SOFT_PT, "script_dlfilter.sh", "the guest has no compiler"),
    (
        SOFT_PT,
        "script_perl.sh",
        "Debian's perf is built without Perl",
    ),
    (
        SOFT_PT,
        "stat_all_pfm.sh",
        "Debian's perf is built without libpfm",
    ),
];

const SOFT_PT: &str = "soft_pt";
const UNIT: &str = "trace_unit";
const NO_POWER: &str = "the unit sees no power states";
const NO_KERNEL: &str = "it traces no kernel code";
const NO_BPF: &str = "Debian's perf is built without BPF";
const TOO_SLOW: &str =
    "it gives perf five seconds to start, beside four busy threads: too few on an emulated processor";
const NO_SYMBOLS: &str = "Debian's perf has no symbols";
const NO_EVENTS: &str = "the unit has no Event Trace";
const NO_COUNTERS: &str = "an emulated processor has no hardware counters";

pub(super) fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let progress = Progress::begin(&format!("exact: {NAME} on {}", kernel.kind));
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let on = |unit| on(cache, dir, kernel, &built.files, unit);
    let (soft_pt, unit) = both(|| on(SOFT_PT), || on(UNIT))?;
    let suite = Case::suite(NAME, vec![soft_pt, unit]);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

fn on(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    modules: &[PathBuf],
    unit: &'static str,
) -> Result<Case> {
    let (loads, devices) = match unit {
        SOFT_PT => (
            "insmod /modules/rust_stepping.ko && insmod /modules/soft_pt.ko intel_pt=1",
            Devices::Plain,
        ),
        _ => (
            "insmod /modules/trace_unit.ko intel_pt=1",
            Devices::TraceUnit,
        ),
    };
    let mut guest = Guest::new(kernel, modules)?
        .append("vdso=0 kunit.enable=0")
        .timeout(Duration::from_secs(3600))
        .more_memory(512)
        .intel()
        .devices(devices);
    for program in PROGRAMS {
        guest = guest.installed(Path::new(program))?;
    }
    let place = Path::new(PLACE);
    let scripts = Path::new("/usr/lib/perf-core/scripts");
    for file in [files(place)?, all_files(scripts)?, python::library()?].concat() {
        guest = guest.installed(&file)?;
    }
    let scripts = scripts_for(unit, &files(place)?);
    let mut command = format!(
        "insmod /modules/rust_perf.ko && {loads} || exit 1\necho 0 >/proc/sys/kernel/kptr_restrict\ncd /tmp; export PATH=/usr/bin:$PATH\n"
    );
    for script in &scripts {
        command += &format!(
            "timeout 1500 bash {PLACE}/{script} >/out/{script}.said 2>&1; echo $? >/out/{script}.status\n"
        );
    }
    let outcome = guest.run(
        cache,
        &dir.join(format!("exact-theirs-{unit}")),
        &command,
        |_| {},
    )?;
    let mut cases = Vec::new();
    for script in &scripts {
        cases.extend(judged(&outcome, unit, script)?);
    }
    if let Some(fault) = outcome.faults().first() {
        cases.push(Case::fail(fault.name.as_str(), &fault.reason));
    }
    Ok(Case::suite(unit, cases))
}

/// The names of the tests for a unit.
fn scripts_for(unit: &str, files: &[PathBuf]) -> Vec<String> {
    let mut scripts: Vec<_> = SCRIPTS.map(str::to_owned).to_vec();
    if unit == SOFT_PT {
        let mut others: Vec<_> = files
            .iter()
            .filter(|path| path.parent() == Some(Path::new(PLACE)))
            .filter_map(|path| path.file_name()?.to_str())
            .filter(|name| name.ends_with(".sh") && !SCRIPTS.contains(name))
            .filter(|name| OTHERS.iter().any(|other| name.starts_with(other)))
            .map(str::to_owned)
            .collect();
        others.sort();
        scripts.extend(others);
    }
    scripts
}

/// The files in a folder and in those below.
fn all_files(place: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(place).on("read", place)? {
        let path = entry.on("read", place)?.path();
        match path.is_dir() {
            true => files.extend(all_files(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}

/// All tests, and the files in `lib` that they read.
fn files(place: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(place).on("read", place)? {
        let path = entry.on("read", place)?.path();
        match path.is_dir() {
            true if path.ends_with("lib") => files.extend(self::files(&path)?),
            true => {}
            false => files.push(path),
        }
    }
    Ok(files)
}

/// The result of a test or of a part, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Came {
    Passed,
    Skipped(String),
    Failed(String),
}

fn judged(outcome: &Outcome, unit: &str, script: &str) -> Result<Vec<Case>> {
    let read = |what: &str| {
        let path = outcome.files.join(format!("{script}.{what}"));
        fs::read_to_string(&path).on("read", &path)
    };
    let (said, status) = (read("said")?, read("status")?);
    let last = || said.lines().last().unwrap_or_default().to_owned();
    let parts = parts(&said);
    // The status of a script that has run all its parts is only the sum of theirs.
    let whole = match (status.trim(), said.contains("--- Done ---")) {
        ("0", _) => Came::Passed,
        (_, true) if !parts.is_empty() => Came::Passed,
        ("2", _) => Came::Skipped(last()),
        (status, _) => Came::Failed(format!("status {status}: {}", last())),
    };
    let all = parts
        .into_iter()
        .map(|(name, came)| (format!("{script}: {name}"), came))
        .chain([(script.to_owned(), whole)]);
    Ok(all
        .map(|(name, came)| {
            let is = |(of, test, _): &&(&str, &str, &str)| *of == unit && is_test(&name, test);
            let cannot = CANNOT.iter().find(is);
            match (came, cannot) {
                (Came::Passed, _) => Case::pass(&name),
                (_, Some((_, _, reason))) => Case::skip(&name, reason),
                (Came::Skipped(why), None) => {
                    Case::fail(&name, &format!("skipped, without a reason of ours: {why}"))
                }
                (Came::Failed(why), None) => Case::fail(&name, &why),
            }
        })
        .collect())
}

/// Whether `name` is the name of this test, or of this part of a test.
fn is_test(name: &str, test: &str) -> bool {
    let part = name.strip_suffix(test);
    part.is_some_and(|script| script.is_empty() || script.ends_with(": "))
}

/// The parts of a script. It prints `--- Test NAME ---` before each part, and `OK` or `SKIP: WHY` at the end of the part.
fn parts(said: &str) -> Vec<(String, Came)> {
    let mut parts: Vec<(String, Came)> = Vec::new();
    for line in said.lines() {
        let name = line
            .strip_prefix("--- Test ")
            .and_then(|line| line.strip_suffix(" ---"));
        if let Some(name) = name {
            parts.push((
                name.trim_end().to_owned(),
                Came::Failed("it says nothing".to_owned()),
            ));
            continue;
        }
        // No part follows such a line.
        if line.starts_with("--- ") {
            break;
        }
        if let Some((_, came)) = parts.last_mut() {
            *came = match line.strip_prefix("SKIP: ") {
                Some(why) => Came::Skipped(why.to_owned()),
                None if line == "OK" => Came::Passed,
                None if line.trim().is_empty() => continue,
                None => Came::Failed(line.to_owned()),
            };
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_known_by_its_whole_name() {
        for (name, test, want) in [
            ("record.sh", "record.sh", true),
            ("a.sh: with kernel trace", "with kernel trace", true),
            ("multi_record.sh", "record.sh", false),
            ("a.sh: not with kernel trace", "with kernel trace", false),
        ] {
            assert_eq!(is_test(name, test), want, "{name}");
        }
    }

    #[test]
    fn parts_are_told_apart() {
        let said = "before\n--- Test one ---\nnoise\nOK\n--- Test two  ---\nSKIP: none is there\n--- Test three ---\n\
                    OK\nwent wrong\n--- Test four ---\n--- Cleaning up ---\nOK\n";
        let want = [
            ("one", Came::Passed),
            ("two", Came::Skipped("none is there".to_owned())),
            ("three", Came::Failed("went wrong".to_owned())),
            ("four", Came::Failed("it says nothing".to_owned())),
        ];
        let want = want.map(|(name, came)| (name.to_owned(), came));
        assert_eq!(parts(said), want);
    }
}
