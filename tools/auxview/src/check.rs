// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `check`: verifies that a recording is consistent. It checks what is true for every PMU, and does not decode the trace.
//!
//! - Every record is within the file.
//! - AUX records follow each other, or the gap is reported.
//! - The pieces of trace follow each other.
//! - The file has every byte that AUX records report.
//! - The index of the pieces is right.

use std::fmt;

use perfdata::{AuxFlags, Stream};

use crate::error::Result;
use crate::loss::Loss;
use crate::source::{Reader, Source};
use crate::trace::{Mode, Problems, Ring, Trace};

/// How many problems are printed; further ones are only counted.
const MAX_PROBLEMS: usize = 20;

/// What the check of one ring has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Name of the ring.
    pub name: String,
    /// What was lost.
    pub loss: Loss,
    /// Bytes of trace after the last AUX record. A driver may end with padding, which no record reports.
    pub unreported: u64,
}

/// What the check of a recording has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// The findings of each ring.
    pub rings: Vec<Found>,
    /// Inconsistencies of the recording.
    pub problems: Problems,
    /// Number of records in the files.
    pub records: u64,
    /// How often AUX areas have wrapped, in all rings together.
    pub wraps: u64,
    /// Whether the recorder was killed and the file recovered. It is unknown how much trace was not yet written.
    pub recovered: bool,
}

impl Findings {
    /// Whether trace was lost.
    #[must_use]
    pub fn lost(&self) -> bool {
        self.recovered || self.rings.iter().any(|ring| ring.loss.any())
    }

    /// What was lost in all rings together.
    #[must_use]
    pub fn total(&self) -> Loss {
        let losses = self.rings.iter().map(|ring| ring.loss);
        losses.fold(Loss::default(), Loss::plus)
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter().take(MAX_PROBLEMS) {
            writeln!(f, "problem: {problem}")?;
        }
        let problems = self.problems.more() + len(self.problems.len());
        if let Some(more @ 1..) = problems.checked_sub(len(MAX_PROBLEMS)) {
            writeln!(f, "problem: and {more} more")?;
        }
        for ring in &self.rings {
            let Found { name, loss, .. } = ring;
            if loss.events != 0 || loss.events_lost != 0 {
                write!(f, "{name}: {} events", loss.events)?;
            } else {
                let (records, read) = (loss.records, loss.read);
                write!(f, "{name}: {records} AUX records, {read} bytes")?;
            }
            let lost = loss.describe();
            if !lost.is_empty() {
                write!(f, "; {lost}")?;
            }
            if ring.unreported != 0 {
                write!(f, "; {} bytes behind the last AUX record", ring.unreported)?;
            }
            writeln!(f)?;
        }
        let total = self.total();
        writeln!(
            f,
            "file: {} records, {} AUX records, {} bytes of trace, {} wraps, {} truncations, {} problems",
            self.records,
            total.records,
            total.read,
            self.wraps,
            total.truncated,
            problems,
        )?;
        if self.recovered {
            writeln!(
                f,
                "recovered: what the recorder had not written when it was killed is lost, and not counted"
            )?;
        }
        Ok(())
    }
}

/// Checks a file.
///
/// # Errors
/// If it is no perf.data file, or it cannot be read.
pub fn check<S: Source + ?Sized>(file: &S) -> Result<Findings> {
    check_parts(&[file])
}

/// Checks the files of one recording, in their order.
///
/// # Errors
/// If one is no perf.data file, or it cannot be read.
pub fn check_parts<S: Source>(files: &[S]) -> Result<Findings> {
    let trace = Trace::read_parts(files)?;
    let mut findings = Findings {
        problems: trace.problems.clone(),
        records: trace.records,
        recovered: trace.recovered,
        ..Findings::default()
    };
    if !trace.finished {
        findings
            .problems
            .add(|| "the recording was not ended, and the file has no features and no index: `auxrec recover` makes them".into());
    }
    index(files, &trace, &mut findings.problems)?;
    for ring in trace.rings.values() {
        covered(ring, &trace, &mut findings.problems);
        findings.wraps = findings
            .wraps
            .saturating_add(trace.aux_size.map_or(0, |size| wraps(ring, size)));
        findings.rings.push(Found {
            name: ring.name(),
            loss: ring.loss,
            unreported: unreported(ring, &trace),
        });
    }
    let tracefs = trace.tracefs.iter().map(|(cpu, of)| Found {
        name: format!("tracefs, CPU {cpu}"),
        loss: of.loss,
        unreported: 0,
    });
    findings.rings.extend(tracefs);
    Ok(findings)
}

/// How often the AUX area of a ring has wrapped.
pub(crate) fn wraps(ring: &Ring, size: u64) -> u64 {
    let end = ring
        .pieces
        .iter()
        .map(|piece| piece.offset.saturating_add(piece.size))
        .max();
    end.unwrap_or(0).checked_div(size).unwrap_or(0)
}

/// Checks that the index of each file lists all AUXTRACE records, and nothing else. Compressed pieces are not in the index.
fn index<S: Source>(files: &[S], trace: &Trace, problems: &mut Problems) -> Result<()> {
    for (number, file) in (0..).zip(files) {
        let pieces = trace.rings.values().flat_map(|ring| &ring.pieces);
        let mut there: Vec<u64> = pieces
            .filter(|piece| piece.file == number && !piece.place().packed)
            .map(|piece| piece.place().at)
            .collect();
        there.sort_unstable();
        let mut stream = Stream::open(Reader::new(file))?;
        let (mut said, mut wrong) = (0, None);
        stream.index(|entry| {
            said += 1;
            if wrong.is_none() && there.binary_search(&entry.offset).is_err() {
                wrong = Some(entry.offset);
            }
        })?;
        if let Some(offset) = wrong {
            problems.add(|| {
                format!(
                "the index names an AUXTRACE record at file offset {offset:#x}, where there is none"
            )
            });
        } else if said != there.len() && stream.is_finished() {
            problems.add(|| {
                format!(
                    "the index names {said} AUXTRACE records, and there are {}",
                    there.len()
                )
            });
        }
    }
    Ok(())
}

/// Checks that the pieces follow each other, and that they have every byte that AUX records report.
fn covered(ring: &Ring, trace: &Trace, problems: &mut Problems) {
    let mode = trace.mode;
    let name = ring.name();
    for pair in ring.pieces.windows(2) {
        let [before, after] = pair else { continue };
        let end = before.end();
        if mode == Mode::Normal && end != after.offset {
            problems.add(|| format!(
                "{name}: the piece of trace at file offset {:#x} begins at {:#x}, and the one before it ends at {end:#x}",
                after.at, after.offset,
            ));
        }
    }
    if mode == Mode::Overwrite {
        return;
    }
    let (start, end) = match (ring.pieces.first(), ring.pieces.last()) {
        (Some(first), Some(last)) => (first.offset, last.end()),
        _ => (0, 0),
    };
    for record in ring.records.iter().filter(|record| record.aux.size != 0) {
        let aux = record.aux;
        if aux.flags.contains(AuxFlags::OVERWRITE) {
            problems.add(|| {
                format!("{name}: an AUX record of the overwriting kind in a recording that is not")
            });
        } else if !trace.cut
            && !trace.partial
            && (aux.offset < start || aux.offset.saturating_add(aux.size) > end)
        {
            problems.add(|| format!(
                "{name}: an AUX record reports {} bytes at {:#x}, and the trace in the file is that from {start:#x} to {end:#x}",
                aux.size, aux.offset,
            ));
        }
    }
}

/// Bytes of trace after the last AUX record. 0 if it is unknown: in overwrite mode, if AUX records may have been lost, or if files of the
/// recording are missing.
fn unreported(ring: &Ring, trace: &Trace) -> u64 {
    if trace.mode == Mode::Overwrite || trace.partial || ring.loss.records_lost != 0 {
        return 0;
    }
    // The last piece may have up to 7 bytes of padding to a multiple of 8.
    let bytes = ring.loss.unreported().saturating_sub(ring.loss.jumped);
    if bytes > 7 {
        bytes
    } else {
        0
    }
}

fn len(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
