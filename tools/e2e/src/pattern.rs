// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks recordings of `pattern`: every byte of the trace must be right, and every missing byte must be counted.
//!
//! `auxview check` checks any recording. For `pattern`, this module also verifies:
//! - header and payload of each packet, its CPU, and the positions of each stream;
//! - the sum: the bytes that the unit has generated, by its counter, are either in the file or lost;
//! - that AUX records report all trace except the padding.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use auxview::command;
use auxview::loss::Loss;
use auxview::source::Source;
use auxview::trace::{Mode, Ring, Trace};

mod ring;
#[cfg(test)]
mod tests;

/// How many problems of one ring are kept.
const KEPT: usize = 100;

/// What the check of one ring's trace has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    /// Bytes of trace in the file.
    pub recorded: u64,
    /// Bytes of packets that carry no trace: barriers and padding.
    pub overhead: u64,
    /// Bytes of padding, which no AUX record reports. Part of [`Self::overhead`].
    pub padding: u64,
    /// Bytes that the unit generated and that are missing in the file.
    pub lost: u64,
    /// Bytes that newer ones have overwritten, as overwrite mode intends. Not part of [`Self::lost`].
    pub overwritten: u64,
    /// Bytes that the unit generated, by its counter.
    pub generated: u64,
    /// Places where bytes are missing between packets of a stream.
    pub gaps: u64,
    /// Packets.
    pub packets: u64,
    /// Streams.
    pub streams: u64,
    /// Bytes or packets that are wrong.
    pub mismatches: u64,
}

/// What the check of a recording has found.
#[derive(Debug)]
pub struct Findings {
    /// The findings of `auxview check`.
    pub check: auxview::check::Findings,
    /// For each ring the content of its trace, if `pattern` has written it.
    pub contents: Vec<Option<Content>>,
    /// The problems that `auxview check` and this module have found.
    pub problems: Vec<String>,
}

impl Content {
    /// Bytes that the file has, that are lost, or that were overwritten.
    fn accounted(&self) -> u64 {
        self.recorded
            .saturating_add(self.lost)
            .saturating_add(self.overwritten)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            recorded: self.recorded.saturating_add(other.recorded),
            overhead: self.overhead.saturating_add(other.overhead),
            padding: self.padding.saturating_add(other.padding),
            lost: self.lost.saturating_add(other.lost),
            overwritten: self.overwritten.saturating_add(other.overwritten),
            generated: self.generated.saturating_add(other.generated),
            gaps: self.gaps.saturating_add(other.gaps),
            packets: self.packets.saturating_add(other.packets),
            streams: self.streams.saturating_add(other.streams),
            mismatches: self.mismatches.saturating_add(other.mismatches),
        }
    }
}

impl Findings {
    /// The sum over all rings.
    pub fn content(&self) -> Option<Content> {
        let contents = self.contents.iter().copied().flatten();
        contents.reduce(Content::plus)
    }

    /// Whether trace was lost. The content is exact here: a truncation after the last byte loses nothing.
    pub fn lost(&self) -> bool {
        let lost = |(loss, content): (&Loss, &Option<Content>)| match content {
            Some(content) => content.lost != 0 || loss.records_lost != 0 || loss.offline != 0,
            None => loss.any(),
        };
        let losses = self.check.rings.iter().map(|ring| &ring.loss);
        self.check.recovered || losses.zip(&self.contents).any(lost)
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "problem: {problem}")?;
        }
        write!(f, "{}", self.check)?;
        if let Some(content) = self.content() {
            writeln!(f, "pattern: {content}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes recorded, {} lost, {} overwritten, {} generated, {} gaps, {} packets, {} streams, {} mismatches",
            self.recorded, self.lost, self.overwritten, self.generated, self.gaps, self.packets, self.streams, self.mismatches,
        )
    }
}

/// Checks the files of a recording, and prints the findings. The exit status is that of `auxview check`.
pub fn run(files: &[PathBuf]) -> Result<ExitCode> {
    let files = files.iter().map(|file| auxview::source::open(file));
    let findings = check_parts(&files.collect::<Result<Vec<_>, _>>()?)?;
    print!("{findings}");
    Ok(ExitCode::from(if !findings.problems.is_empty() {
        command::FAILED
    } else if findings.lost() {
        command::LOST
    } else {
        command::ALL
    }))
}

/// Checks a recording.
///
/// # Errors
/// If it is no perf.data file, or if it cannot be read.
pub fn check<S: Source + ?Sized>(file: &S) -> Result<Findings> {
    check_parts(&[file])
}

/// Checks the files of one recording, in their order.
///
/// # Errors
/// If one is no perf.data file, or if it cannot be read.
pub fn check_parts<S: Source>(files: &[S]) -> Result<Findings> {
    let check = auxview::check::check_parts(files)?;
    let trace = Trace::read_parts(files)?;
    let mut contents = ring::contents(files, &trace)?;
    let mut problems = check.problems.to_vec();
    let mut found = Vec::new();
    for (idx, ring) in &trace.rings {
        let content = contents.remove(idx).map(|(content, wrong)| {
            problems.extend(wrong);
            content
        });
        problems.extend(unreported(ring, &trace, content.map_or(0, |c| c.padding)));
        found.push(content);
    }
    // The remaining rings are those of tracefs.
    found.resize(check.rings.len(), None);
    Ok(Findings {
        check,
        contents: found,
        problems,
    })
}

/// Returns a problem if AUX records do not report all trace except `padding`.
fn unreported(ring: &Ring, trace: &Trace, padding: u64) -> Option<String> {
    if trace.mode == Mode::Overwrite || trace.partial || ring.loss.records_lost != 0 {
        return None;
    }
    // Up to 7 bytes may pad the last piece to a multiple of 8.
    let bytes = ring.loss.unreported().saturating_sub(padding);
    (bytes > 7 && ring.loss.jumped < bytes).then(|| {
        format!(
            "{}: no AUX record reports {bytes} bytes of the trace",
            ring.name()
        )
    })
}
