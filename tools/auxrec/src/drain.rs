// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From the rings into the file.
//!
//! A [`Drain`] is all that reading one pair of rings needs and keeps; the file comes in as an argument. So there can be one
//! for each ring on a thread of its own.

use std::io::{Seek, Write};
use std::ops::Range;
use std::sync::Arc;

use perfdata::{Attr, Auxtrace, Event, Read, RecordType, Records, SampleId, TimePlace, Writer};

use crate::code::Code;
use crate::error::{Error, Result};
use crate::live::Gauge;
use crate::pmu::Format;
use crate::ring::{pieces, steps, Area};
use crate::session::{Clock, Mode, Moment, OnTruncate, Rings, Session};
use crate::sys::Mapping;
use crate::trigger::Hits;
use auxview::loss::Loss;
use auxview::trace::since;

/// Small areas are written through a buffer of this length.
const BOUNCE: usize = 256 * 1024;
/// An area is written from where it is in steps of this part of it, if that is as much as the buffer. A file may be slow, and
/// the driver gets the place of a step back only afterwards; but each step costs a call.
const STRAIGHT: u64 = 4;

/// Records of Intel BTS are at multiples of this length in their area.
const BTS_RECORD: u64 = 24;

/// When events that the kernel has turned off, their area being full, are started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// When there is room again.
    Drained,
    /// In any case, drained or not: an event that stopped although its area had space is tried again.
    All,
    /// Never: nothing is to be traced any more.
    Never,
}

/// First and last time of records, ns.
pub(crate) use auxview::join::Times;

/// What reading a pair of rings keeps.
#[derive(Debug)]
pub struct Drain {
    attr: Attr,
    /// Where code goes that a tracer tells of, and the numbers of the event that tells, and of the tracking event.
    code: Option<(Arc<Code>, [usize; 2])>,
    /// What the records tell of the trigger, if there is one.
    pub(crate) hits: Option<Hits>,
    /// Where records of such have their time.
    time: TimePlace,
    /// The clock of that time.
    clock: Clock,
    records: Vec<u8>,
    bounce: Vec<u8>,
    /// Whether something said that the kernel has turned an event off, and it was not yet started again.
    off: bool,
    policy: OnTruncate,
    /// The format of the trace, if perf decodes it. Then a piece may not be cut anywhere.
    format: Option<Format>,
    /// Time of the newest AUX record.
    newest: Option<u64>,
    /// `aux_head` at the last progress report.
    head: u64,
    /// Whether an area in overwrite mode was seen to wrap.
    wrapped: bool,
    /// Where to leave the progress, if a display reads it.
    pub(crate) gauge: Option<Arc<Gauge>>,
    /// What was lost.
    pub loss: Loss,
    /// How often the AUX area was written from end to end.
    pub wraps: u64,
}

/// Where a drain puts what it reads: the file, or a queue to the thread that writes the file.
pub trait Sink {
    /// Whole records as the kernel wrote them, with the first and last time in them.
    ///
    /// # Errors
    /// If they cannot be written, as with every function here.
    fn records(&mut self, bytes: &[u8], times: Option<(u64, u64)>) -> Result<()>;
    /// How long a piece of trace should be, if it can be cut: a multiple of 8.
    fn piece_limit(&self) -> usize;
    /// Begins a piece of trace, which must follow through [`payload`](Self::payload).
    fn piece(&mut self, aux: &Auxtrace) -> Result<()>;
    /// Some of the piece.
    fn payload(&mut self, bytes: &[u8]) -> Result<()>;
    /// Some of the piece, straight from where it lies in an area; false, always, of a sink that cannot.
    fn payload_from(&mut self, aux: &Mapping, run: Range<usize>) -> Result<bool> {
        let _ = (aux, run);
        Ok(false)
    }
}

/// A sink that is the end of the way: a file, or a row of them.
pub(crate) trait Tape: Sink {
    /// Every ring was looked at once.
    fn round(&mut self) -> Result<()>;
    /// Tells of the names and mappings of what runs now.
    fn describe(&mut self) -> Result<()>;
    /// Hands everything to the system.
    fn flush(&mut self) -> Result<()>;
    /// Makes the file readable as it is.
    fn checkpoint(&mut self) -> Result<()>;
    /// Whether it has as much as it should.
    fn is_over(&self) -> bool;
    /// Begins another file if this one is long enough.
    fn turn(&mut self) -> Result<()>;
    /// Begins another file.
    fn rotate(&mut self) -> Result<()>;
    /// Whether it takes everything as it comes, and no call does more than to write it.
    fn takes_all(&self) -> bool;
}

impl<W: Write + Seek> Sink for Writer<W> {
    fn records(&mut self, bytes: &[u8], _: Option<Times>) -> Result<()> {
        Ok(self.raw(bytes)?)
    }

    fn piece_limit(&self) -> usize {
        usize::MAX & !7
    }

    fn piece(&mut self, aux: &Auxtrace) -> Result<()> {
        Ok(self.auxtrace(aux)?)
    }

    fn payload(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(Writer::payload(self, bytes)?)
    }
}

/// What one pass over a pair of rings has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pass {
    /// Bytes of records.
    pub records: usize,
    /// Bytes of trace.
    pub trace: u64,
    /// Trace was cut off, and the recording is to end for it.
    pub over: bool,
}

impl Pass {
    /// Whether there was anything.
    #[must_use]
    pub fn any(self) -> bool {
        self.records != 0 || self.trace != 0
    }
}

impl Drain {
    /// For a pair of rings of this session.
    #[must_use]
    pub fn new(session: &Session) -> Self {
        // The layout of what ends each record is the same for all events.
        let attr = session.plan().tracking_attr();
        Self {
            time: TimePlace::of(&attr),
            clock: session.record_clock(),
            attr,
            code: session
                .plan()
                .code
                .clone()
                .map(|code| (code, session.plan().numbers_for_code())),
            hits: Hits::new(session.plan()),
            records: Vec::new(),
            bounce: vec![0; BOUNCE],
            off: false,
            policy: session.plan().on_truncate,
            format: session.plan().format(),
            newest: None,
            head: 0,
            wrapped: false,
            gauge: None,
            loss: Loss::default(),
            wraps: 0,
        }
    }

    /// Reads what is there. Of an area in linear mode everything is read and given back: where its head stands, a driver has
    /// ended a packet, and a decoder may not be able to go on within one. What brings a piece to a multiple of 8, as the file
    /// wants it, is zeros, and the position of the next one says how many.
    ///
    /// # Errors
    /// If the file cannot be written, or the driver has lost its place.
    pub fn pass(
        &mut self,
        rings: &mut Rings,
        mode: Mode,
        again: Again,
        file: &mut impl Sink,
    ) -> Result<Pass> {
        // The head of the area first: then the records of all that is before it are in the data ring.
        let trace = match mode {
            Mode::Linear if rings.have_aux() => {
                let (reader, area) = rings.aux();
                let range = reader.pending(&area)?;
                Some((reader.is_full(&range), range))
            }
            Mode::Linear | Mode::Overwrite => None,
        };
        let before = self.loss.cuts();
        self.newest = None;
        let came = self.gauge.as_ref().and_then(|_| self.clock.now());
        let mut pass = Pass {
            records: self.records(rings, file)?,
            ..Pass::default()
        };
        if let Some(gauge) = &self.gauge {
            let size = rings.aux.size();
            let (head, came_since, fill) = match &trace {
                Some((_, range)) => {
                    let came = range.end.wrapping_sub(self.head);
                    (range.end, came, came)
                }
                // An area in overwrite mode stays full once it has wrapped.
                None => {
                    let head = rings.aux().1.head();
                    self.wrapped |= head < self.head || head > size;
                    let fill = if self.wrapped { size } else { head };
                    (head, since(size, self.head, head), fill)
                }
            };
            let age = came.zip(self.newest);
            let age = age.map(|(came, newest)| came.saturating_sub(newest));
            gauge.found(came_since, fill, age, self.loss.cuts());
            self.head = head;
        }
        if let Some((full, range)) = trace {
            if full {
                self.loss.found_full();
            }
            pass.trace = self.trace(rings, range, file)?;
        }
        // Of a CPU from which trace comes it need not be asked.
        if again == Again::All && pass.trace == 0 {
            rings.revive();
        }
        // Every way in which the kernel turns an event off leaves a sign: a record that says TRUNCATED, an area that is full to
        // the last byte, or records that found no room, which may have said so.
        self.off |= self.loss.cuts() != before;
        if self.policy != OnTruncate::Resume {
            pass.over = self.off;
            return Ok(pass);
        }
        let start = match again {
            Again::All => self.off,
            Again::Drained => self.off && pass.trace != 0,
            Again::Never => false,
        };
        if start {
            self.off = false;
            rings.restart().map_err(|e| {
                Error::failed(format!(
                    "cannot enable the event of {} again: its PMU may be gone ({e})",
                    rings.name()
                ))
            })?;
        }
        Ok(pass)
    }

    /// Reads the data ring alone.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn records(&mut self, rings: &mut Rings, file: &mut impl Sink) -> Result<usize> {
        self.data(rings, file)
    }

    /// Writes a copy of what an area of the overwriting kind held, in one piece: `held` is at position `range.start`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn held(
        &mut self,
        rings: &Rings,
        range: &Range<u64>,
        held: &[u8],
        moment: Moment,
        file: &mut impl Sink,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let len = range.end - range.start;
        self.wraps = range.end / rings.aux.size();
        let size = rings.aux.size();
        let whole = whole(self.format, range, size);
        for part in cut(self.format, whole, size, self.piece_limit(file)) {
            let from = usize::try_from(part.start - range.start).unwrap_or(usize::MAX);
            let to = usize::try_from(part.end - range.start).unwrap_or(usize::MAX);
            let aux = rings.piece(&part, moment.reference);
            file.piece(&aux)?;
            file.payload(held.get(from..to).unwrap_or(&[]))?;
            pad(&aux, part.end - part.start, file)?;
        }
        self.loss.drained(len, moment.time);
        Ok(())
    }

    fn piece_limit(&self, file: &impl Sink) -> usize {
        if self.format.is_none() {
            file.piece_limit()
        } else {
            usize::MAX & !7
        }
    }

    fn data(&mut self, rings: &mut Rings, file: &mut impl Sink) -> Result<usize> {
        let (reader, area) = rings.data();
        let mut bytes = std::mem::take(&mut self.records);
        reader.drain(&area, &mut bytes)?;
        self.told(rings, &mut bytes, file)?;
        let len = bytes.len();
        self.records = bytes;
        Ok(len)
    }

    /// Writes what came since the last time into the data ring that is overwritten, if there is one.
    ///
    /// # Errors
    /// If the file cannot be written, or the ring cannot be read.
    pub fn newest(&mut self, rings: &mut Rings, file: &mut impl Sink) -> Result<()> {
        let mut newest = rings.newest()?.records;
        self.told(rings, &mut newest, file)
    }

    /// Records, for the file.
    fn told(&mut self, rings: &Rings, bytes: &mut Vec<u8>, file: &mut impl Sink) -> Result<()> {
        rings.rename(bytes)?;
        if let Some((code, [number, tracking])) = &self.code {
            if let [tracking, ..] = rings.ids(*tracking)[..] {
                code.replace(bytes, &rings.ids(*number), tracking, &self.attr)?;
            }
        }
        let mut times = None;
        for record in Records::new(bytes, 0) {
            let record = record?;
            let time = record.time(self.time);
            if let Some(time) = time {
                let (first, last) = times.unwrap_or((time, time));
                times = Some((first.min(time), last.max(time)));
            }
            if let (Some(hits), RecordType::SAMPLE) = (&mut self.hits, record.kind) {
                if let Some(number) = rings.number_of(record.body) {
                    hits.sample(number, record.body);
                }
            }
            // Of the others nothing is needed here, and there may be many.
            if !matches!(record.kind, RecordType::AUX | RecordType::LOST) {
                continue;
            }
            match record.event(&self.attr)? {
                Event::Aux(aux) => {
                    self.newest = time;
                    self.loss.aux(&aux, time);
                }
                Event::Lost(lost) => {
                    self.loss.lost(lost.lost);
                    self.hits.iter_mut().for_each(Hits::lost);
                }
                _ => {}
            }
        }
        file.records(bytes, times)
    }

    fn trace(&mut self, rings: &mut Rings, range: Range<u64>, file: &mut impl Sink) -> Result<u64> {
        let len = range.end.wrapping_sub(range.start);
        self.wraps += rings.aux.wraps(&range);
        let size = rings.aux.size();
        for range in cut(self.format, range, size, self.piece_limit(file)) {
            let moment = self.clock.moment();
            let len = range.end.wrapping_sub(range.start);
            let aux = rings.piece(&range, moment.reference);
            file.piece(&aux)?;
            let (reader, area) = rings.aux();
            let mut at = range.start;
            let step = reader.size() / STRAIGHT;
            let large = usize::try_from(step).is_ok_and(|step| step >= BOUNCE);
            if let Some(aux) = area.aux.filter(|_| large) {
                for part in steps(range.clone(), step) {
                    let len = usize::try_from(part.end.wrapping_sub(at)).unwrap_or(usize::MAX);
                    // One step never goes over the area's end.
                    let [run, _] = reader.runs(at, len);
                    // It takes all of a piece so, or nothing.
                    if !file.payload_from(aux, run)? {
                        break;
                    }
                    reader.release(&area, part.end);
                    at = part.end;
                }
            }
            for part in pieces(at..range.end, BOUNCE) {
                let len = usize::try_from(part.end.wrapping_sub(part.start)).unwrap_or(usize::MAX);
                let bounce = &mut self.bounce[..len];
                reader.copy(&area, part.start, bounce);
                // The bytes are ours now; the driver gets their place before the file has them.
                reader.release(&area, part.end);
                file.payload(bounce)?;
            }
            pad(&aux, len, file)?;
            self.loss.drained(len, moment.time);
        }
        Ok(len)
    }
}

/// Cuts positions in an area of `size` bytes into pieces of at most `limit` bytes. perf's decoders begin anew with each piece. One
/// of Intel BTS ends where the area ends: there is no whole record.
fn cut(
    format: Option<Format>,
    range: Range<u64>,
    size: u64,
    limit: usize,
) -> impl Iterator<Item = Range<u64>> {
    let lap = match format {
        Some(Format::IntelBts) => size,
        _ => u64::MAX,
    };
    steps(range, lap).flat_map(move |part| pieces(part, limit))
}

/// What of an overwritten area begins with a record, as far as that is known.
fn whole(format: Option<Format>, range: &Range<u64>, size: u64) -> Range<u64> {
    if format != Some(Format::IntelBts) {
        return range.clone();
    }
    let at = range.start % size;
    let next = at.next_multiple_of(BTS_RECORD).min(size);
    (range.start + (next - at)).min(range.end)..range.end
}

/// Writes the zeros that bring a piece with `len` bytes of trace to its size.
fn pad(aux: &Auxtrace, len: u64, file: &mut impl Sink) -> Result<()> {
    let zeros = usize::try_from(aux.size.saturating_sub(len)).unwrap_or(0);
    if zeros == 0 {
        return Ok(());
    }
    file.payload([0; 8].get(..zeros).unwrap_or_default())
}

/// Reads all rings once, and ends the round in the file if there was anything.
///
/// # Errors
/// As [`Drain::pass`].
pub(crate) fn pass(
    session: &mut Session,
    drains: &mut [Drain],
    again: Again,
    file: &mut impl Tape,
) -> Result<Pass> {
    let mode = session.plan().mode;
    let mut sum = Pass::default();
    for (rings, drain) in session.rings_mut().iter_mut().zip(drains) {
        let pass = drain.pass(rings, mode, again, file)?;
        sum.records += pass.records;
        sum.trace += pass.trace;
        sum.over |= pass.over;
    }
    // Where older records come with a snapshot, a round ends with that.
    if sum.any() && !session.plan().overwrite {
        file.round()?;
    }
    Ok(sum)
}

/// Writes what the events of these rings have counted by `time`; `attr` has the layout of what ends each record.
///
/// # Errors
/// If the file cannot be written.
pub fn counts<W: Write + Seek>(
    attr: &Attr,
    time: u64,
    rings: &[Rings],
    file: &mut Writer<W>,
) -> Result<()> {
    for rings in rings {
        // An event that cannot be read any more, its PMU being gone, has no count; `check` says so.
        for (opened, count) in rings.counts() {
            let thread = opened.thread.unwrap_or(u32::MAX);
            let id = SampleId {
                pid: Some(thread),
                tid: Some(thread),
                time: Some(time),
                id: Some(opened.id),
                stream_id: None,
                cpu: Some(rings.cpu.unwrap_or(u32::MAX)),
            };
            let read = Read {
                pid: thread,
                tid: thread,
                value: count.value,
                enabled: count.enabled,
                running: count.running,
                id: opened.id,
            };
            file.record(&read, Some((&id, attr)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An area of 64 bytes has two records of Intel BTS, and 16 bytes of no record.
    #[test]
    fn pieces_of_records() {
        let bts = Some(Format::IntelBts);
        let pt = Some(Format::IntelPt);
        for (format, range, cuts, snapshot) in [
            (bts, 0..48, &[0, 48][..], 0..48),
            (bts, 24..112, &[24, 64, 112], 24..112),
            (bts, 64..128, &[64, 128], 64..128),
            // The oldest is cut, or is none.
            (bts, 40..104, &[40, 64, 104], 48..104),
            (bts, 50..114, &[50, 64, 114], 64..114),
            (bts, 60..62, &[60, 62], 62..62),
            (pt, 40..104, &[40, 104], 40..104),
            (None, 40..104, &[40, 104], 40..104),
        ] {
            let found: Vec<_> = cut(format, range.clone(), 64, 1000).collect();
            let cuts: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
            assert_eq!(found, cuts, "{format:?} {range:?}");
            assert_eq!(whole(format, &range, 64), snapshot, "{format:?} {range:?}");
        }
    }
}
