// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks one ring: every packet, the positions of each stream, and the sum.
//!
//! The trace is read once, from its beginning to its end, in portions. Less than a packet is kept from one portion for the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

use anyhow::Result;
use auxview::pieces::Pieces;
use auxview::source::Source;
use auxview::trace::{Mode, Piece, Ring, Trace};
use pattern_codec::{
    find_sync, lost_before, verify_payload, Behind, DecodeError, Follow, Header, Kind, HEADER_LEN,
};

use super::{Content, KEPT};

/// The name of the PMU.
const PATTERN: &str = "pattern";

/// Verifies the trace of all rings of `pattern`. The result has the ring's number as its key. Pieces are read in their order in the files.
pub(super) fn contents<S: Source>(
    files: &[S],
    trace: &Trace,
) -> Result<BTreeMap<u32, (Content, Vec<String>)>> {
    let rings = trace.rings.iter().filter(|(_, ring)| ring.pmu == PATTERN);
    let mut units: BTreeMap<_, _> = rings
        .map(|(&idx, ring)| (idx, Unit::new(ring, trace)))
        .collect();
    let next = |idx: u32, unit: &Unit<'_>, number: usize| {
        let piece = unit.ring.pieces.get(number)?;
        Some(Reverse((piece.file, piece.at, idx, number)))
    };
    let mut order: BinaryHeap<_> = units
        .iter()
        .filter_map(|(&idx, unit)| next(idx, unit, 0))
        .collect();
    let mut read = Pieces::of(files);
    let mut again = Pieces::of(files);
    while let Some(Reverse((_, _, idx, number))) = order.pop() {
        let Some(unit) = units.get_mut(&idx) else {
            continue;
        };
        unit.piece(number, &mut read, &mut again)?;
        order.extend(next(idx, unit, number + 1));
    }
    Ok(units
        .into_iter()
        .map(|(idx, unit)| (idx, unit.ended()))
        .collect())
}

/// The state of the check of a run.
enum Phase {
    /// Searches for the first packet.
    Sync,
    Packets,
    /// No packet begins at this position of the run, for this reason. Searches for the next packet.
    Stray(DecodeError, u64),
}

/// A run: trace without a gap between its positions.
struct Run {
    base: u64,
    /// The length so far.
    len: u64,
    /// How many bytes were checked.
    at: u64,
    phase: Phase,
    /// Bytes in front of the first packet: the rest of a packet whose front is missing.
    cut: u64,
    /// The streams that this run contains.
    here: BTreeSet<u32>,
    /// Where the bytes of each piece begin in the run, and the number of the piece.
    parts: Vec<(u64, usize)>,
}

/// The check of one ring's trace.
struct Unit<'t> {
    ring: &'t Ring,
    trace: &'t Trace,
    name: String,
    out: Content,
    problems: Vec<String>,
    streams: BTreeMap<u32, Follow>,
    /// Bytes of the file that are no valid packets. The gap that they leave in a stream does not count as a loss.
    unknown: u64,
    run: Option<Run>,
    /// Bytes of the run that were read but not yet checked.
    carry: Vec<u8>,
}

impl<'t> Unit<'t> {
    fn new(ring: &'t Ring, trace: &'t Trace) -> Self {
        Self {
            ring,
            trace,
            name: ring.name(),
            out: Content::default(),
            problems: Vec::new(),
            streams: BTreeMap::new(),
            unknown: 0,
            run: None,
            carry: Vec::new(),
        }
    }

    fn wrong(&mut self, place: u64, what: impl FnOnce() -> String) {
        self.mismatch(|| format!("at {place:#x} of the trace: {}", what()));
    }

    /// Checks the next piece. Snapshots may overlap, and then must have the same bytes.
    fn piece<S: Source>(
        &mut self,
        number: usize,
        read: &mut Pieces<'_, S>,
        again: &mut Pieces<'_, S>,
    ) -> Result<()> {
        let pieces = &self.ring.pieces;
        let Some(piece) = pieces.get(number) else {
            return Ok(());
        };
        let overwritten = self.trace.mode == Mode::Overwrite;
        let mut same = 0;
        match &self.run {
            // A packet may continue in the next piece.
            Some(_) if !overwritten => {}
            Some(run) if piece.offset <= run.base.wrapping_add(run.len) => {
                let base = run.base;
                let Some(at) = piece.offset.checked_sub(base) else {
                    self.wrong(piece.offset, || {
                        format!(
                            "a snapshot begins before the one before it, which begins at {base:#x}"
                        )
                    });
                    return Ok(());
                };
                same = run.len.saturating_sub(at).min(piece.size);
                if !run.is_same(pieces, piece, same, read, again)? {
                    self.wrong(piece.offset, || {
                        "what two snapshots hold of the same bytes is not the same".to_owned()
                    });
                }
            }
            _ => {
                self.end_run();
                let cut = piece.offset != 0 && (overwritten || self.trace.partial);
                self.run = Some(Run {
                    base: piece.offset,
                    len: 0,
                    at: 0,
                    // The area begins within a packet. Its front was overwritten, or is in the file before.
                    phase: if cut { Phase::Sync } else { Phase::Packets },
                    cut: 0,
                    here: BTreeSet::new(),
                    parts: Vec::new(),
                });
            }
        }
        if let Some(run) = self.run.as_mut().filter(|_| overwritten) {
            run.parts.push((run.len, number));
        }
        read.read(piece, same..piece.size, |bytes| {
            self.carry.extend_from_slice(bytes);
            self.look(false);
            Ok(())
        })?;
        Ok(())
    }

    /// Checks the bytes that are there, except an incomplete packet at the end. If `last`, the run ends here, so all bytes are checked.
    fn look(&mut self, last: bool) {
        let Some(mut run) = self.run.take() else {
            return;
        };
        let bytes = std::mem::take(&mut self.carry);
        let mut at = 0;
        while let Some(len) = bytes
            .get(at..)
            .filter(|rest| !rest.is_empty())
            .and_then(|rest| self.step(&mut run, rest, last))
        {
            at += len;
            run.at += to_u64(len);
        }
        self.carry = bytes;
        self.carry.drain(..at);
        run.len = run.at + to_u64(self.carry.len());
        self.run = Some(run);
    }

    fn end_run(&mut self) {
        self.look(true);
        let Some(run) = self.run.take() else {
            return;
        };
        match run.phase {
            Phase::Sync => self.synced(&run, false),
            Phase::Stray(why, from) => self.stray(run.base, why, from..run.at),
            Phase::Packets => {}
        }
    }

    /// Checks what `rest` begins with. Returns how many bytes that is, or [`None`] if it needs more of the run.
    fn step(&mut self, run: &mut Run, rest: &[u8], last: bool) -> Option<usize> {
        if let Phase::Packets = run.phase {
            return self.packet(run, rest, last);
        }
        let found = find_sync(rest);
        let len = match found {
            Some(len) => len,
            None if last => rest.len(),
            // A packet may begin in the last bytes, which are too short for a header.
            None => rest
                .len()
                .checked_sub(HEADER_LEN - 1)
                .filter(|len| *len != 0)?,
        };
        if let Phase::Sync = run.phase {
            run.cut += to_u64(len);
        }
        if found.is_some() {
            match std::mem::replace(&mut run.phase, Phase::Packets) {
                Phase::Sync => self.synced(run, true),
                Phase::Stray(why, from) => {
                    self.stray(run.base, why, from..run.at + to_u64(len));
                }
                Phase::Packets => {}
            }
        }
        Some(len)
    }

    /// Counts the bytes in front of the first packet. `found` says whether the run has a packet.
    fn synced(&mut self, run: &Run, found: bool) {
        let cut = run.cut;
        if (!found && cut != 0) || cut > u64::from(u16::MAX) {
            self.wrong(run.base, || {
                format!("the first {cut} bytes are more than the rest of a packet")
            });
        }
        self.out.recorded += cut;
    }

    /// Reports a range of the run that is no packet.
    fn stray(&mut self, base: u64, why: DecodeError, at: Range<u64>) {
        let len = at.end - at.start;
        self.wrong(base.wrapping_add(at.start), || {
            format!("{why}; {len} bytes are not understood")
        });
        self.out.recorded += len;
        self.unknown += len;
    }

    fn packet(&mut self, run: &mut Run, rest: &[u8], last: bool) -> Option<usize> {
        let is_header = rest.len() >= HEADER_LEN;
        if !is_header && !last {
            return None;
        }
        // The end of the file may be cut, or the trace continues in the next file.
        let may_be_cut = self.trace.recovered || self.trace.partial;
        let header = match Header::decode(rest) {
            Ok(header) => header,
            Err(_) if may_be_cut && !is_header => {
                self.out.recorded += to_u64(rest.len());
                return Some(rest.len());
            }
            Err(why) => {
                // The check continues at the next packet, so that one defect is one problem.
                run.phase = Phase::Stray(why, run.at);
                return Some(1);
            }
        };
        let Some(packet) = rest.get(..usize::from(header.len)) else {
            if !last {
                return None;
            }
            if !may_be_cut {
                self.wrong(run.base.wrapping_add(run.at), || {
                    format!(
                        "a packet of {} bytes is cut after {}",
                        header.len,
                        rest.len()
                    )
                });
            }
            self.out.recorded += to_u64(rest.len());
            return Some(rest.len());
        };
        self.verify(run, &header, packet);
        Some(packet.len())
    }

    fn verify(&mut self, run: &mut Run, header: &Header, packet: &[u8]) {
        let place = run.base.wrapping_add(run.at);
        let len = to_u64(packet.len());
        self.out.packets += 1;
        match header.kind {
            Kind::Data => self.out.recorded += len,
            kind => {
                self.out.overhead += len;
                if kind == Kind::Pad {
                    self.out.padding += len;
                }
            }
        }
        let payload = packet.get(HEADER_LEN..).unwrap_or(&[]);
        let offset = u16::try_from(HEADER_LEN).unwrap_or(0);
        if let Err(offset) = verify_payload(header, offset, payload) {
            self.wrong(place, || {
                format!("the payload of the packet differs from byte {offset} on")
            });
        }
        if self
            .ring
            .cpu
            .is_some_and(|cpu| cpu != u32::from(header.cpu))
        {
            self.wrong(place, || {
                format!("the packet was written by CPU {}", header.cpu)
            });
        }
        if header.kind == Kind::Pad {
            return;
        }
        let overwritten = self.trace.mode == Mode::Overwrite;
        let new = run.here.insert(header.stream);
        let begins = !self.streams.contains_key(&header.stream);
        // The position before the first available file is unknown.
        let unseen = self.trace.partial && !overwritten;
        let from = if unseen { header.pos } else { 0 };
        let follow = self
            .streams
            .entry(header.stream)
            .or_insert(Follow::from(from));
        match follow.packet(header) {
            // Bytes that were generated before the first snapshot and between two snapshots were overwritten. The rest of a cut packet is
            // an exception: it is in the file.
            Ok(gap) if new && overwritten => {
                let there = gap.min(run.cut);
                run.cut -= there;
                self.out.overwritten = self.out.overwritten.saturating_add(gap - there);
            }
            Ok(gap) => {
                let reported = lost_before(header, packet);
                if let (Some(reported), false) = (
                    reported.filter(|reported| *reported != gap),
                    begins && unseen,
                ) {
                    self.wrong(place, || {
                        format!(
                            "the barrier reports {reported} bytes lost before it, and there are {gap}"
                        )
                    });
                }
                let there = gap.min(self.unknown);
                self.unknown -= there;
                self.out.gaps += u64::from(gap != there);
                self.out.lost = self.out.lost.saturating_add(gap - there);
            }
            Err(Behind { reached }) => self.wrong(place, || {
                format!(
                    "the packet is at {} of stream {}, which had come to {reached}",
                    header.pos, header.stream
                )
            }),
        }
    }

    /// Reports a problem of the ring, without a position.
    fn mismatch(&mut self, what: impl FnOnce() -> String) {
        self.out.mismatches += 1;
        if self.problems.len() < KEPT {
            self.problems.push(format!("{}: {}", self.name, what()));
        }
    }

    /// Returns the findings, after the last piece.
    fn ended(mut self) -> (Content, Vec<String>) {
        self.end_run();
        self.sum();
        (self.out, self.problems)
    }

    fn sum(&mut self) {
        let (trace, ring) = (self.trace, self.ring);
        // Bytes between packets are missing only if a driver has lost them, and then a record has a flag.
        let flagged = ring.loss.truncated + ring.loss.partial + ring.loss.collision;
        let reported = flagged != 0 || ring.loss.full != 0 || ring.loss.records_lost != 0;
        let lost = self.out.lost;
        if lost != 0 && !reported && !trace.cut && !trace.recovered && !trace.partial {
            self.mismatch(|| {
                format!("{lost} bytes are missing between packets, and no AUX record says that trace was lost")
            });
        }
        self.out.streams = to_u64(self.streams.len());

        // Only the counter shows how many bytes were generated after the last recorded packet.
        if trace.partial || trace.recovered && ring.counts.is_empty() {
            // The number of generated bytes is unknown, so the sum of the known bytes is used.
            self.out.generated = self.out.accounted();
            return;
        }
        if ring.counts.is_empty() && !ring.pieces.is_empty() {
            self.mismatch(|| {
                "the file has no counter, so the loss at the end is unknown".to_owned()
            });
            return;
        }
        let counts = ring.counts.iter().map(|count| count.value);
        let generated = counts.fold(0, u64::saturating_add);
        self.out.generated = generated;
        let accounted = self.out.accounted();
        match generated.checked_sub(accounted) {
            Some(0) => {}
            Some(rest) if trace.mode == Mode::Overwrite => {
                self.out.overwritten = self.out.overwritten.saturating_add(rest);
            }
            // The last packets found no space, and a record reports that; or the recorder could not write its output.
            Some(rest) if trace.cut || ring.loss.truncated + ring.loss.full != 0 => {
                self.out.gaps += 1;
                self.out.lost = self.out.lost.saturating_add(rest);
            }
            Some(rest) => {
                self.mismatch(|| {
                    format!("{rest} bytes were generated that are neither recorded nor reported as lost")
                });
                self.out.lost = self.out.lost.saturating_add(rest);
            }
            None => self.mismatch(|| {
                format!("{generated} bytes were generated, and {accounted} are recorded or lost")
            }),
        }
    }
}

impl Run {
    /// Whether the first `same` bytes of a piece equal the run's bytes at the same positions.
    fn is_same<S: Source>(
        &self,
        pieces: &[Piece],
        piece: &Piece,
        same: u64,
        read: &mut Pieces<'_, S>,
        again: &mut Pieces<'_, S>,
    ) -> Result<bool> {
        let mut equal = true;
        let mut at = piece.offset.wrapping_sub(self.base);
        read.read(piece, 0..same, |mut bytes| {
            while equal && !bytes.is_empty() {
                let after = self.parts.partition_point(|(from, _)| *from <= at);
                let end = self.parts.get(after).map_or(self.len, |(from, _)| *from);
                let number = after.checked_sub(1).and_then(|n| self.parts.get(n));
                let Some(before) = number.and_then(|(_, number)| pieces.get(*number)) else {
                    return Ok(());
                };
                let some = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
                let (mut new, rest) = bytes.split_at(some.min(bytes.len()));
                let from = self.base.wrapping_add(at).wrapping_sub(before.offset);
                at += to_u64(new.len());
                again.read(before, from..from + to_u64(new.len()), |old| {
                    let (now, later) = new.split_at(old.len().min(new.len()));
                    equal &= now == old;
                    new = later;
                    Ok(())
                })?;
                bytes = rest;
            }
            Ok(())
        })?;
        Ok(equal)
    }
}

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
