// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The recorder's files in other versions of perf: that of this kernel's series, and 6.1.
//!
//! perf 6.1 is Debian 12's, which is too old for the build root: it gets a folder of the cache, with its libraries.

use crate::archive::Archive;
use crate::cache::{hash, Cache};
use crate::error::{Error, OnFile, Result};
use crate::ktap::Case;
use crate::step::{Log, Progress};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the old perf comes from.
const SUITE: &str = "bookworm";

/// Reads all recordings that lie in this folder.
///
/// # Errors
///
/// When the old perf cannot be had.
pub fn run(cache: &Cache, dir: &Path, folder: &Path) -> Result<Case> {
    let old = fetch(cache)?;
    let progress = Progress::begin("recordings in other readers");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).on("read", folder)? {
        let path = entry.on("read", folder)?.path();
        if path.extension().is_some_and(|e| e == "data") {
            files.push(path);
        }
    }
    files.sort();
    let cases = files.iter().map(|file| read(dir, &old, file)).collect();
    let suite = Case::suite("readers", cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// Whether both find the same trace in a file.
fn read(dir: &Path, old: &Path, file: &Path) -> Case {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let seen = || -> Result<String> {
        let new = records(dir, &name, Command::new("perf"), file)?;
        let old = records(dir, &name, perf_in(old), file)?;
        if new.is_empty() || new != old {
            return Err(Error::Other(format!(
                "perf finds {} records of trace, perf 6.1 {}, and they are not the same",
                new.len(),
                old.len()
            )));
        }
        Ok(format!("{} records of trace", new.len()))
    };
    match seen() {
        Ok(note) => Case::pass(&name).with_log(vec![note]),
        Err(e) => Case::fail(&name, &e.to_string()),
    }
}

/// What a perf prints of AUX and AUXTRACE records.
fn records(dir: &Path, name: &str, mut perf: Command, file: &Path) -> Result<Vec<String>> {
    let log = Log::create(&dir.join("readers").join(format!("{name}.log")))?;
    perf.env("HOME", "/tmp");
    let mut out = Vec::new();
    let text = log.output(
        "reading a recording with perf",
        perf.args(["script", "-D", "--no-itrace", "-i"]).arg(file),
    )?;
    for line in text.lines() {
        if let Some((_, record)) = line.split_once("PERF_RECORD_AUX") {
            out.push(format!("AUX{record}"));
        }
    }
    Ok(out)
}

/// The perf in this folder, with the libraries that it was built for.
fn perf_in(dir: &Path) -> Command {
    let library = |place: &str| dir.join(place).join("x86_64-linux-gnu");
    let mut path = library("lib").into_os_string();
    path.push(":");
    path.push(library("usr/lib"));
    let mut command = Command::new(library("lib").join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(path);
    command.arg(dir.join("usr/bin/perf"));
    command
}

/// Fetches the old perf, with all that it depends on, into the cache.
fn fetch(cache: &Cache) -> Result<PathBuf> {
    cache.entry(&format!("perf-{}", hash([SUITE, "1"])), |temporary, _| {
        let progress = Progress::begin("fetching perf 6.1");
        let log = Log::create(&cache.log("perf.log"))?;
        let work = temporary.join("apt");
        let archive =
            Archive::new(work.clone(), SUITE)?.with(&["Acquire::Check-Valid-Until=false"]);
        archive.update(&log, true)?;
        archive.fetch_all(&log, "linux-perf", temporary, |name| {
            ["lib", "zlib", "linux-perf"]
                .iter()
                .any(|p| name.starts_with(p))
        })?;
        fs::remove_dir_all(&work).on("remove", &work)?;
        progress.end("ready");
        Ok(())
    })
}
