// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `check`: whether a recording is consistent, and, of the PMU `pattern`, whether every byte of it is right.
//!
//! Of any PMU: every record is within the file; AUX records follow each other, or the gap is named; the pieces of trace
//! follow each other; every byte that AUX records tell of is there; the index of the pieces is right.
//!
//! Of `pattern` also: every packet's header and payload; the positions that the packets of each stream give themselves;
//! and the sum: the bytes that the unit has generated, by its counter, are those in the file and those that were lost.

use std::fmt;

use perfdata::{AuxFlags, Stream};

use crate::error::Result;
use crate::loss::Loss;
use crate::source::{Reader, Source};
use crate::trace::{Mode, Problems, Ring, Trace};

#[path = "check/content.rs"]
mod content;

/// So many problems of a kind are told in full.
const TOLD: usize = 20;

/// What was found in one ring's trace of `pattern`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    /// Bytes of trace in the file.
    pub recorded: u64,
    /// Bytes of packets that carry no trace: barriers and padding.
    pub overhead: u64,
    /// Those of them that are padding, of which no AUX record tells.
    pub padding: u64,
    /// Bytes that the unit generated and that are not in the file.
    pub lost: u64,
    /// Those of them that newer ones have overwritten, as they should.
    pub overwritten: u64,
    /// Bytes that the unit generated, by its counter.
    pub generated: u64,
    /// Places where bytes are missing between packets of a stream.
    pub gaps: u64,
    /// Packets.
    pub packets: u64,
    /// Streams.
    pub streams: u64,
    /// Bytes or packets that are not what they should be.
    pub mismatches: u64,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// Each ring's name, what was lost, what its trace of `pattern` holds.
    pub rings: Vec<(String, Loss, Option<Content>)>,
    /// What is not consistent.
    pub problems: Problems,
    /// Records in the file.
    pub records: u64,
    /// How often an AUX area was written from end to end.
    pub wraps: u64,
    /// The recorder was killed and the file recovered: nobody knows what it had not yet written.
    pub recovered: bool,
}

impl Content {
    /// Bytes that were generated and are known of.
    fn accounted(&self) -> u64 {
        self.recorded
            .saturating_add(self.lost)
            .saturating_add(self.overwritten)
    }
}

impl Findings {
    /// Whether trace was lost.
    #[must_use]
    pub fn lost(&self) -> bool {
        self.recovered
            || self.rings.iter().any(|(_, loss, content)| match content {
                // The content says it exactly; a truncation after the last byte has lost nothing.
                Some(content) => content.lost != 0 || loss.records_lost != 0 || loss.offline != 0,
                None => loss.any(),
            })
    }

    /// The content of all rings together, of `pattern`.
    #[must_use]
    pub fn content(&self) -> Option<Content> {
        self.rings
            .iter()
            .filter_map(|(_, _, content)| *content)
            .reduce(|a, b| Content {
                recorded: a.recorded.saturating_add(b.recorded),
                overhead: a.overhead.saturating_add(b.overhead),
                padding: a.padding.saturating_add(b.padding),
                lost: a.lost.saturating_add(b.lost),
                overwritten: a.overwritten.saturating_add(b.overwritten),
                generated: a.generated.saturating_add(b.generated),
                gaps: a.gaps.saturating_add(b.gaps),
                packets: a.packets.saturating_add(b.packets),
                streams: a.streams.saturating_add(b.streams),
                mismatches: a.mismatches.saturating_add(b.mismatches),
            })
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter().take(TOLD) {
            writeln!(f, "problem: {problem}")?;
        }
        let problems = self.problems.more() + len(self.problems.len());
        if let Some(more @ 1..) = problems.checked_sub(len(TOLD)) {
            writeln!(f, "problem: and {more} more")?;
        }
        for (name, loss, content) in &self.rings {
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
            if let Some(content) = content {
                write!(f, "; {content}")?;
            }
            writeln!(f)?;
        }
        let total = self
            .rings
            .iter()
            .fold(Loss::default(), |sum, (_, loss, _)| sum.plus(*loss));
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

/// Checks a file.
///
/// # Errors
/// If it is no perf.data file, or it cannot be read.
pub fn check<S: Source + ?Sized>(file: &S) -> Result<Findings> {
    check_parts(&[file])
}

/// Checks the files that one recording went into, in their order.
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
    let mut contents = content::contents(files, &trace)?;
    for (idx, ring) in &trace.rings {
        let content = contents.remove(idx).map(|(content, problems)| {
            findings.problems.append(problems);
            content
        });
        let padding = content.map_or(0, |content| content.padding);
        covered(ring, &trace, padding, &mut findings.problems);
        findings.wraps = findings
            .wraps
            .saturating_add(trace.aux_size.map_or(0, |size| wraps(ring, size)));
        findings.rings.push((ring.name(), ring.loss, content));
    }
    let tracefs = trace.tracefs.iter();
    let tracefs = tracefs.map(|(cpu, of)| (format!("tracefs, CPU {cpu}"), of.loss, None));
    findings.rings.extend(tracefs);
    Ok(findings)
}

/// How often a ring was written from end to end.
pub(crate) fn wraps(ring: &Ring, size: u64) -> u64 {
    let end = ring
        .pieces
        .iter()
        .map(|piece| piece.offset.saturating_add(piece.size))
        .max();
    end.unwrap_or(0).checked_div(size).unwrap_or(0)
}

/// Whether the index of each file says where the pieces of trace are. It names none that are compressed.
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

/// Whether the pieces follow each other, and every byte that an AUX record tells of is in one. `padding`: bytes of which none
/// tells, as it should be.
fn covered(ring: &Ring, trace: &Trace, padding: u64, problems: &mut Problems) {
    let mode = trace.mode;
    let name = ring.name();
    for pair in ring.pieces.windows(2) {
        let [before, after] = pair else { continue };
        let end = before.end();
        if mode == Mode::Linear && end != after.offset {
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
                "{name}: an AUX record tells of {} bytes at {:#x}, and the trace in the file is that from {start:#x} to {end:#x}",
                aux.size, aux.offset,
            ));
        }
    }
    // Up to 7 bytes may bring the last piece to a multiple of 8; what a lost record told of is counted as lost.
    let untold = ring.loss.untold().saturating_sub(padding);
    if untold > 7 && !trace.partial && ring.loss.jumped < untold && ring.loss.records_lost == 0 {
        problems.add(|| format!("{name}: no AUX record tells of {untold} bytes of the trace"));
    }
}

fn len(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
