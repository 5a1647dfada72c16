// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The content of a recording of `pattern`, and its check.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use pattern_codec::{Header, PACKET_UNIT};

use super::{auxrec, run, TraceFile};
use crate::pattern;

/// The content of a recording.
pub struct Seen {
    pub content: pattern::Content,
    problems: Vec<String>,
    pub wraps: u64,
    pub truncations: u64,
    /// Whether trace was lost, or may have been, as `auxview check` reports.
    pub lost: bool,
    pub cpus: Vec<u32>,
}

impl Seen {
    /// Reads a file with the library. `auxrec check` must agree.
    pub fn of(file: &TraceFile) -> Result<Self> {
        Self::of_parts(&[file.path().to_owned()])
    }

    /// Does the same for a recording in several files.
    pub fn of_parts(paths: &[PathBuf]) -> Result<Self> {
        let (seen, expected) = Self::read(paths)?;
        let output = run(auxrec(["check"]).args(paths))?;
        ensure!(
            output.status.code() == Some(expected),
            "auxrec check ended with {} and not with {expected}: {}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
        );
        Ok(seen)
    }

    /// Reads files with the library only. Also returns the exit status that `auxrec check` must have.
    pub fn read(paths: &[PathBuf]) -> Result<(Self, i32)> {
        let files = paths
            .iter()
            .map(|path| auxview::source::open(path))
            .collect::<Result<Vec<_>, _>>()?;
        let findings = pattern::check_parts(&files)?;
        let content = findings
            .content()
            .context("the file has no trace of pattern")?;
        let expected = if !findings.check.problems.is_empty() {
            1
        } else if findings.check.lost() {
            3
        } else {
            0
        };
        let total = findings.check.total();
        let seen = Self {
            content,
            problems: findings.problems,
            wraps: findings.check.wraps,
            truncations: total.truncated + total.full,
            lost: findings.check.lost(),
            cpus: cpus(&files)?,
        };
        Ok((seen, expected))
    }

    /// Checks that every byte is right, and that every missing byte was counted.
    pub fn is_right(&self) -> Result<()> {
        let Self {
            content, problems, ..
        } = self;

        ensure!(problems.is_empty(), "{}\n{self}", problems.join("\n"));
        ensure!(
            content.mismatches == 0,
            "{} mismatches: {self}",
            content.mismatches
        );
        ensure!(content.generated > 0, "nothing was generated");
        ensure!(
            content.generated == content.recorded + content.lost + content.overwritten,
            "the sum is wrong: {self}",
        );
        Ok(())
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} wraps, {} truncations, CPUs {:?}",
            self.content, self.wraps, self.truncations, self.cpus,
        )
    }
}

/// The CPUs that have written packets, by the packets' headers.
fn cpus(files: &[File]) -> Result<Vec<u32>> {
    let trace = auxview::trace::Trace::read_parts(files)?;
    let mut read = auxview::pieces::Pieces::of(files);
    let mut cpus = BTreeSet::new();

    for piece in trace.rings.values().flat_map(|ring| &ring.pieces) {
        // Packets begin at multiples of their unit in the stream. A piece may begin within a unit.
        let skew = piece.offset.wrapping_neg() % u64::from(PACKET_UNIT);
        let bytes = read.bytes(piece)?;
        let whole = bytes.get(usize::try_from(skew)?..).unwrap_or_default();
        for unit in whole.chunks(PACKET_UNIT.into()) {
            if let Ok(header) = Header::decode(unit) {
                cpus.insert(u32::from(header.cpu));
            }
        }
    }
    Ok(cpus.into_iter().collect())
}
