// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `--switch-output`: a recording in several files.

use std::path::{Path, PathBuf};

use anyhow::{ensure, Result};
use rustix::process::Signal;

use super::{accounted, accounted_or, end, size, with};
use crate::pattern;
use crate::recording::{released, wait_for_trace, Reader, Recorder, Seen, TraceFile, PAGE};
use crate::wait::wait_for;

/// The existing files of a recording, in their order.
fn parts(file: &Path) -> Vec<PathBuf> {
    let name = |n: u32| PathBuf::from(format!("{}.{n:04}", file.display()));
    (1..10_000).map(name).filter(|path| path.exists()).collect()
}

/// The files of a recording, which are removed at the end of the case.
struct Parts<'a>(&'a TraceFile);

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        for path in parts(self.0.path()) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Checks that every file is consistent by itself.
fn each_alone(parts: &[PathBuf]) -> Result<()> {
    for path in parts {
        let bytes = std::fs::read(path)?;
        let findings = pattern::check(&bytes)?;
        ensure!(
            findings.problems.is_empty(),
            "{}: {findings}",
            path.display()
        );
    }
    Ok(())
}

pub(super) fn files_by_size(name: &str) -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let _parts = Parts(&file);
        let recorder = Recorder::start(
            file.path(),
            &with(
                "rate=512,packet=3",
                16,
                &["-a", "--threads", threads, "--switch-output", "256K"],
            ),
        )?;
        wait_for("the fourth file", || Ok(parts(file.path()).len() >= 4))?;
        let ended = end(recorder)?;
        let all = parts(file.path());
        let seen = Seen::of_parts(&all)?;
        accounted(&ended, &seen)?;
        each_alone(&all)?;
        released()?;
        out = format!("{} files: {seen}", all.len());
    }
    Ok(out)
}

pub(super) fn files_by_signal(name: &str) -> Result<String> {
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let _parts = Parts(&file);
        let more = [
            "-a",
            "--threads",
            threads,
            "--switch-output",
            "--switch-max-files",
            "2",
        ];
        let recorder = Recorder::start(file.path(), &with("rate=512", 16, &more))?;
        for part in 1..=4 {
            let path = PathBuf::from(format!("{}.{part:04}", file.path().display()));
            wait_for_trace(&path, 2 * 16 * PAGE)?;
            recorder.signal(Signal::USR2)?;
            let next = PathBuf::from(format!("{}.{:04}", file.path().display(), part + 1));
            wait_for("the next file", || Ok(next.exists()))?;
        }
        let ended = end(recorder)?;
        let all = parts(file.path());
        let names: Vec<_> = all.iter().filter_map(|path| path.extension()).collect();
        ensure!(
            names == ["0004", "0005"],
            "the last two are kept: {names:?}"
        );
        each_alone(&all)?;
        let seen = Seen::of_parts(&all)?;
        // The loss may be in a file that was removed.
        accounted_or(&ended, &seen, "trace was lost")?;
        released()?;
        out = seen.to_string();
    }
    Ok(out)
}

/// The limit counts all files together. Trace that was read before the limit is reached is written, too. With one thread, that is at most
/// twice the size of all rings, because the rate is low. With several threads, it depends on how slow the file is.
pub(super) fn files_and_max_size(name: &str) -> Result<String> {
    const LIMIT: u64 = 1 << 20;
    // An area of 16 pages and a data ring of 64 pages for each of two CPUs; and the features at the end of each file.
    const RINGS: u64 = 2 * (16 + 64) * PAGE;
    const ENDS: u64 = 256 * 1024;
    let mut out = String::new();
    for threads in ["1", "2"] {
        let file = TraceFile::new(name);
        let _parts = Parts(&file);
        let more = [
            "-a",
            "--threads",
            threads,
            "--switch-output",
            "256K",
            "--max-size",
            "1M",
        ];
        let ended =
            Recorder::start(file.path(), &with("rate=64", 16, &more))?.wait(Reader::KeepsUp)?;
        let all = parts(file.path());
        let sum: u64 = all.iter().map(|path| size(path)).sum();
        ensure!(
            sum >= LIMIT && (threads != "1" || sum < LIMIT + 2 * RINGS + ENDS),
            "{} files have {sum} bytes",
            all.len()
        );
        let seen = Seen::of_parts(&all)?;
        accounted(&ended, &seen)?;
        released()?;
        out = format!("{} files: {seen}", all.len());
    }
    Ok(out)
}
