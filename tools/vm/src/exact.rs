// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whether decoders show of `soft_pt`'s trace what programs executed: recorded in a guest, decoded outside.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::ktap::{self, Case};
use crate::modules::{self, Mode};
use crate::step::{Log, Progress};
use crate::tools;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Programs that are unlike each other, and soon done: stepping them by ptrace takes a minute each in a guest that is emulated.
pub const FEW: [&str; 13] = [
    "again",
    "debugged",
    "dispatched",
    "generated",
    "jumps",
    "losses",
    "probed",
    "sequences",
    "strings",
    "threads",
    "unreadable",
    "vsyscalls",
    "x32",
];

/// Records and compares the programs whose names contain one of `filters`.
///
/// # Errors
///
/// When something does not build, or a file cannot be read or written.
pub fn run(cache: &Cache, dir: &Path, kernel: &Kernel, filters: &[String]) -> Result<Case> {
    let tools = tools::build(cache)?;
    let Some((_, judge)) = tools.iter().find(|(name, _)| name == "auxe2e") else {
        let reason = "tools/e2e is not in this checkout";
        return Ok(Case::suite("exact", vec![Case::skip("all", reason)]));
    };
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let programs = programs(cache)?;
    let progress = Progress::begin(&format!("exact on {}", kernel.kind));
    let mut guest = Guest::new(kernel, &built.files)?
        // perf has no text of another kernel's vDSO.
        .append("vdso=0 vdso32=0 vsyscall=xonly kunit.enable=0")
        .timeout(Duration::from_secs(2700))
        .intel()
        .installed(Path::new("/usr/bin/perf"))?
        .installed(Path::new("/usr/bin/env"))?;
    for (name, path) in &tools {
        guest = guest.program(name, path)?;
    }
    for program in &programs {
        guest = guest.installed(program)?;
    }
    let place = cache.build().join("programs");
    let words = filters
        .iter()
        .map(|f| format!(" '{}'", f.replace('\'', "'\\''")));
    let words: String = words.collect();
    let command = format!("auxe2e exact record {}{words}", place.display());
    let dir = dir.join("exact");
    // Each as it ends: it takes minutes.
    let live = |line: &str| println!("{line}");
    let outcome = guest.run(cache, &dir, &command, live)?;
    let runs = outcome.suite("runs");

    let ptwalk = cache.checkout().join("tools/steptrace/ptwalk.c");
    let mut command = Command::new(judge);
    command
        .args(["exact", "judge"])
        .arg(&outcome.files)
        .arg(ptwalk)
        .args(filters);
    let log = dir.join("judge.log");
    let said = command.output().map_err(|source| Error::Spawn {
        program: judge.display().to_string(),
        source,
    })?;
    fs::write(&log, [said.stdout.clone(), said.stderr].concat()).on("write", &log)?;
    let traces = Case::suite(
        "traces",
        ktap::parse(&String::from_utf8_lossy(&said.stdout)),
    );
    let suite = Case::suite("exact", vec![runs, traces]);
    progress.end(&suite.counts().summary());
    Ok(suite)
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
