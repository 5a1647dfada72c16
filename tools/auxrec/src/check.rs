// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `check`: whether a recording is consistent, and, of the PMU `pattern`, whether every byte of it is right.
//!
//! Of any PMU: every record is within the file; AUX records follow each other, or the gap is named; the pieces of trace
//! follow each other; every byte that AUX records tell of is there; the index of the pieces is right.
//!
//! Of `pattern` also: every packet's header and payload; the positions that the packets of each stream give themselves;
//! and the sum: the bytes that the unit has generated, by its counter, are those in the file and those that were lost.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pattern_codec::{Behind, Follow, Header, Kind};
use perfdata::{AuxFlags, Feature};

use crate::error::Result;
use crate::loss::Loss;
use crate::session::Mode;
use crate::trace::{Ring, Trace};

/// The PMU whose trace `check` can read.
const PATTERN: &str = "pattern";
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
    pub problems: Vec<String>,
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
        if let Some(more) = self.problems.len().checked_sub(TOLD + 1) {
            writeln!(f, "problem: and {} more", more + 1)?;
        }
        for (name, loss, content) in &self.rings {
            write!(
                f,
                "{name}: {} AUX records, {} bytes",
                loss.records, loss.read
            )?;
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
            self.problems.len(),
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
/// If it is no perf.data file.
pub fn check(bytes: &[u8]) -> Result<Findings> {
    check_parts(&[bytes])
}

/// Checks the files that one recording went into, in their order.
///
/// # Errors
/// If one is no perf.data file.
pub fn check_parts(parts: &[&[u8]]) -> Result<Findings> {
    let trace = Trace::read_parts(parts)?;
    let mut findings = Findings {
        problems: trace.problems.clone(),
        records: trace.records,
        recovered: trace.recovered,
        ..Findings::default()
    };
    if trace.files.iter().any(|file| !file.is_finished()) {
        findings
            .problems
            .push("the recording was not ended, and the file has no features and no index: `auxrec recover` makes them".into());
    }
    index(&trace, &mut findings)?;
    for ring in trace.rings.values() {
        let content = (ring.pmu == PATTERN).then(|| content(ring, &trace, &mut findings.problems));
        let padding = content.map_or(0, |content| content.padding);
        covered(ring, &trace, padding, &mut findings);
        findings.wraps = findings
            .wraps
            .saturating_add(trace.aux_size.map_or(0, |size| wraps(ring, size)));
        findings.rings.push((ring.name(), ring.loss, content));
    }
    Ok(findings)
}

/// How often a ring was written from end to end.
pub(crate) fn wraps(ring: &Ring<'_>, size: u64) -> u64 {
    let end = ring
        .pieces
        .iter()
        .map(|piece| piece.aux.offset.saturating_add(piece.aux.size))
        .max();
    end.unwrap_or(0).checked_div(size).unwrap_or(0)
}

/// Whether the index of each file says where the pieces of trace are.
fn index(trace: &Trace<'_>, findings: &mut Findings) -> Result<()> {
    for (number, file) in trace.files.iter().enumerate() {
        let pieces = trace.rings.values().flat_map(|ring| &ring.pieces);
        let mut there: Vec<u64> = pieces
            .filter(|piece| piece.file == number)
            .map(|piece| piece.at)
            .collect();
        there.sort_unstable();
        let said = match file.feature(Feature::AUXTRACE) {
            Some(section) => section.index()?,
            None => Vec::new(),
        };
        let wrong = said
            .iter()
            .find(|entry| there.binary_search(&entry.offset).is_err());
        if let Some(entry) = wrong {
            findings.problems.push(format!(
                "the index names an AUXTRACE record at file offset {:#x}, where there is none",
                entry.offset
            ));
        } else if said.len() != there.len() && file.is_finished() {
            findings.problems.push(format!(
                "the index names {} AUXTRACE records, and there are {}",
                said.len(),
                there.len()
            ));
        }
    }
    Ok(())
}

/// Whether the pieces follow each other, and every byte that an AUX record tells of is in one. `padding`: bytes of which none
/// tells, as it should be.
fn covered(ring: &Ring<'_>, trace: &Trace<'_>, padding: u64, findings: &mut Findings) {
    let mode = trace.mode;
    let name = ring.name();
    for pair in ring.pieces.windows(2) {
        let [before, after] = pair else { continue };
        let end = before.aux.offset.wrapping_add(before.aux.size);
        if mode == Mode::Linear && end != after.aux.offset {
            findings.problems.push(format!(
                "{name}: the piece of trace at file offset {:#x} begins at {:#x}, and the one before it ends at {end:#x}",
                after.at, after.aux.offset,
            ));
        }
    }
    if mode == Mode::Overwrite {
        return;
    }
    let (start, end) = match (ring.pieces.first(), ring.pieces.last()) {
        (Some(first), Some(last)) => (
            first.aux.offset,
            last.aux.offset.wrapping_add(last.aux.size),
        ),
        _ => (0, 0),
    };
    for record in ring.records.iter().filter(|record| record.aux.size != 0) {
        let aux = record.aux;
        if aux.flags.contains(AuxFlags::OVERWRITE) {
            findings.problems.push(format!(
                "{name}: an AUX record of the overwriting kind in a recording that is not"
            ));
        } else if !trace.cut
            && !trace.partial
            && (aux.offset < start || aux.offset.saturating_add(aux.size) > end)
        {
            findings.problems.push(format!(
                "{name}: an AUX record tells of {} bytes at {:#x}, and the trace in the file is that from {start:#x} to {end:#x}",
                aux.size, aux.offset,
            ));
        }
    }
    // Up to 7 bytes may bring the last piece to a multiple of 8; what a lost record told of is counted as lost.
    let untold = ring.loss.untold().saturating_sub(padding);
    if untold > 7 && !trace.partial && ring.loss.jumped < untold && ring.loss.records_lost == 0 {
        findings.problems.push(format!(
            "{name}: no AUX record tells of {untold} bytes of the trace"
        ));
    }
}

/// Trace without a gap in its positions.
struct Run<'a> {
    base: u64,
    bytes: Cow<'a, [u8]>,
}

/// The pieces of a ring put together. Snapshots may hold the same bytes: where they do, these must be equal.
fn runs<'a>(ring: &Ring<'a>, mode: Mode, mut wrong: impl FnMut(u64, String)) -> Vec<Run<'a>> {
    let mut out: Vec<Run<'a>> = Vec::new();
    for piece in &ring.pieces {
        let offset = piece.aux.offset;
        let Some(run) = out.last_mut() else {
            out.push(Run {
                base: offset,
                bytes: piece.bytes.into(),
            });
            continue;
        };
        let end = run.base.wrapping_add(len(run.bytes.len()));
        if mode == Mode::Linear {
            // A packet may go from one piece into the next.
            run.bytes.to_mut().extend_from_slice(piece.bytes);
        } else if offset > end {
            out.push(Run {
                base: offset,
                bytes: piece.bytes.into(),
            });
        } else if let Some(at) = offset.checked_sub(run.base) {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let both = run.bytes.get(at..).unwrap_or(&[]);
            let same = both.len().min(piece.bytes.len());
            let (before, new) = piece.bytes.split_at(same);
            if both.get(..same) != Some(before) {
                wrong(
                    offset,
                    "what two snapshots hold of the same bytes is not the same".to_owned(),
                );
            }
            if !new.is_empty() {
                run.bytes.to_mut().extend_from_slice(new);
            }
        } else {
            wrong(
                offset,
                format!(
                    "a snapshot begins before the one before it, which begins at {:#x}",
                    run.base
                ),
            );
        }
    }
    out
}

/// Verifies a ring's trace of `pattern`.
fn content(ring: &Ring<'_>, trace: &Trace<'_>, problems: &mut Vec<String>) -> Content {
    let mode = trace.mode;
    let mut out = Content::default();
    let name = ring.name();
    let mut wrong = |out: &mut Content, base: u64, at: usize, what: String| {
        out.mismatches += 1;
        problems.push(format!(
            "{name}: at {:#x} of the trace: {what}",
            base.wrapping_add(len(at))
        ));
    };

    let mut streams: BTreeMap<u32, Follow> = BTreeMap::new();
    // Bytes that are in the file though no packet claims them: the gap that they leave is no loss.
    let mut unknown = 0;
    for Run { base, bytes } in runs(ring, mode, |base, what| wrong(&mut out, base, 0, what)) {
        let mut at = 0;
        let mut cut = 0;
        let mut here = BTreeSet::new();
        if base != 0 && (mode == Mode::Overwrite || trace.partial) {
            // The area begins in the middle of a packet, whose front was overwritten, or is in the file before.
            at = pattern_codec::find_sync(&bytes).unwrap_or(bytes.len());
            cut = len(at);
            if (at == bytes.len() && at != 0) || cut > u64::from(u16::MAX) {
                wrong(
                    &mut out,
                    base,
                    0,
                    format!("the first {cut} bytes are more than the rest of a packet"),
                );
            }
            out.recorded += cut;
        }
        while at < bytes.len() {
            let rest = &bytes[at..];
            let header = match Header::decode(rest) {
                Ok(header) => header,
                Err(_)
                    if (trace.recovered || trace.partial)
                        && rest.len() < pattern_codec::HEADER_LEN =>
                {
                    // The piece was cut with the file.
                    out.recorded += len(rest.len());
                    break;
                }
                Err(e) => {
                    // Go on at the next packet, so that one bad place is one problem.
                    let skip = rest
                        .get(1..)
                        .and_then(pattern_codec::find_sync)
                        .map_or(rest.len(), |n| n + 1);
                    wrong(
                        &mut out,
                        base,
                        at,
                        format!("{e}; {skip} bytes are not understood"),
                    );
                    out.recorded += len(skip);
                    unknown += len(skip);
                    at += skip;
                    continue;
                }
            };
            let Some(packet) = rest.get(..usize::from(header.len)) else {
                if trace.recovered || trace.partial {
                    // The piece was cut with the file, or goes on in the next.
                    out.recorded += len(rest.len());
                    break;
                }
                wrong(
                    &mut out,
                    base,
                    at,
                    format!(
                        "a packet of {} bytes is cut after {}",
                        header.len,
                        rest.len()
                    ),
                );
                out.recorded += len(rest.len());
                break;
            };
            at += packet.len();
            out.packets += 1;
            match header.kind {
                Kind::Data => out.recorded += len(packet.len()),
                kind => {
                    out.overhead += len(packet.len());
                    if kind == Kind::Pad {
                        out.padding += len(packet.len());
                    }
                }
            }
            let start = at - packet.len();
            let payload = packet.get(pattern_codec::HEADER_LEN..).unwrap_or(&[]);
            let offset = u16::try_from(pattern_codec::HEADER_LEN).unwrap_or(0);
            if let Err(offset) = pattern_codec::verify_payload(&header, offset, payload) {
                wrong(
                    &mut out,
                    base,
                    start,
                    format!("the payload of the packet differs from byte {offset} on"),
                );
            }
            if ring.cpu.is_some_and(|cpu| cpu != u32::from(header.cpu)) {
                wrong(
                    &mut out,
                    base,
                    start,
                    format!("the packet was written by CPU {}", header.cpu),
                );
            }
            if header.kind == Kind::Pad {
                continue;
            }
            let new = here.insert(header.stream);
            let begins = !streams.contains_key(&header.stream);
            // Where it was before the first file that is there nobody knows.
            let unseen = trace.partial && mode == Mode::Linear;
            let follow = streams
                .entry(header.stream)
                .or_insert(Follow::from(if unseen { header.pos } else { 0 }));
            match follow.packet(&header) {
                // What was generated between two snapshots, and before the first, was overwritten; but for the rest of the
                // packet that was cut.
                Ok(gap) if new && mode == Mode::Overwrite => {
                    let there = gap.min(cut);
                    cut -= there;
                    out.overwritten = out.overwritten.saturating_add(gap - there);
                }
                Ok(gap) => {
                    let told = pattern_codec::lost_before(&header, packet);
                    if let (Some(told), false) =
                        (told.filter(|told| *told != gap), begins && unseen)
                    {
                        wrong(
                            &mut out,
                            base,
                            start,
                            format!("the barrier tells of {told} bytes lost before it, and there are {gap}"),
                        );
                    }
                    let there = gap.min(unknown);
                    unknown -= there;
                    out.gaps += u64::from(gap != there);
                    out.lost = out.lost.saturating_add(gap - there);
                }
                Err(Behind { reached }) => wrong(
                    &mut out,
                    base,
                    start,
                    format!(
                        "the packet is at {} of stream {}, which had come to {reached}",
                        header.pos, header.stream
                    ),
                ),
            }
        }
    }
    // In the midst of a trace bytes go missing for a reason, and a record has its flag.
    let flagged = ring.loss.truncated + ring.loss.partial + ring.loss.collision;
    let told = flagged != 0 || ring.loss.full != 0 || ring.loss.records_lost != 0;
    if out.lost != 0 && !told && !trace.cut && !trace.recovered && !trace.partial {
        problems.push(format!(
            "{name}: {} bytes are missing between packets, and no AUX record says that trace was lost",
            out.lost
        ));
        out.mismatches += 1;
    }
    out.streams = len(streams.len());

    // The sum. What was generated after the last packet that found room can only be told by the counter.
    if trace.partial || trace.recovered && ring.counts.is_empty() {
        // How far the unit has come nobody has written down. What is known adds up by itself.
        out.generated = out.accounted();
        return out;
    }
    if ring.counts.is_empty() && !ring.pieces.is_empty() {
        problems.push(format!(
            "{name}: the file has no counter, so what was lost at the end cannot be told"
        ));
        out.mismatches += 1;
        return out;
    }
    out.generated = ring
        .counts
        .iter()
        .map(|count| count.value)
        .fold(0, u64::saturating_add);
    let accounted = out.accounted();
    match out.generated.checked_sub(accounted) {
        Some(0) => {}
        Some(rest) if mode == Mode::Overwrite => {
            out.overwritten = out.overwritten.saturating_add(rest);
        }
        // The last packets found no room, and a record says so; or the recorder's output failed.
        Some(rest) if trace.cut || ring.loss.truncated + ring.loss.full != 0 => {
            out.gaps += 1;
            out.lost = out.lost.saturating_add(rest);
        }
        Some(rest) => {
            problems.push(format!("{name}: {rest} bytes were generated that are neither recorded nor reported as lost"));
            out.mismatches += 1;
            out.lost = out.lost.saturating_add(rest);
        }
        None => {
            problems.push(format!(
                "{name}: {} bytes were generated, and {accounted} are recorded or lost",
                out.generated
            ));
            out.mismatches += 1;
        }
    }
    out
}

fn len(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
