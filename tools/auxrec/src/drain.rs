// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Copies the content of the rings into the file.
//!
//! A [`Drain`] has the whole state of reading one pair of rings; the file is an argument. So each pair of rings can be drained by a thread
//! of its own.

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

/// Length of the buffer through which small areas are written.
const BOUNCE: usize = 256 * 1024;
/// Larger areas are written without a copy, in steps of the size of the area divided by this number. A step is at least as long as the
/// buffer. The driver gets the space of a step back only after the write, and a file may be slow; but each step costs a call.
const STRAIGHT: u64 = 4;

/// Records of Intel BTS are at multiples of this length in their area.
const BTS_RECORD: u64 = 24;

/// When the recorder restarts events that the kernel has disabled because their area was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// After a pass that has read trace, so that there is space again.
    Drained,
    /// After each pass, even if it has read no trace: the kernel may have disabled an event although its area had space.
    All,
    /// Never: the recording ends.
    Never,
}

/// First and last time of records, ns.
pub(crate) use auxview::join::Times;

/// The state of reading a pair of rings.
#[derive(Debug)]
pub struct Drain {
    attr: Attr,
    /// Stores the code that a tracer reports. With the numbers of the event that reports it, and of the tracking event.
    code: Option<(Arc<Code>, [usize; 2])>,
    /// The hits of the trigger in the records; [`None`]: there is no trigger.
    pub(crate) hits: Option<Hits>,
    /// Where these records have their time.
    time: TimePlace,
    /// The clock of this time.
    clock: Clock,
    records: Vec<u8>,
    bounce: Vec<u8>,
    /// Whether the kernel has disabled an event, and the recorder has not restarted it yet.
    off: bool,
    policy: OnTruncate,
    /// The format of the trace, if perf decodes it. Then a piece must not be cut at any place.
    format: Option<Format>,
    /// Time of the newest AUX record.
    newest: Option<u64>,
    /// `aux_head` at the last progress report.
    head: u64,
    /// Whether an area in overwrite mode was seen to wrap.
    wrapped: bool,
    /// Where to report the progress, if a display reads it.
    pub(crate) gauge: Option<Arc<Gauge>>,
    /// What was lost.
    pub loss: Loss,
    /// How often the AUX area has wrapped.
    pub wraps: u64,
}

/// Where a drain writes: the file, or a queue to the thread that writes the file.
pub trait Sink {
    /// Writes whole records as the kernel wrote them. `times` are the first and last time in them.
    ///
    /// # Errors
    /// If they cannot be written. The same holds for the other functions.
    fn records(&mut self, bytes: &[u8], times: Option<(u64, u64)>) -> Result<()>;
    /// Maximum length of a piece of trace, if the trace may be cut: a multiple of 8.
    fn piece_limit(&self) -> usize;
    /// Begins a piece of trace. Its content must follow through [`payload`](Self::payload).
    fn piece(&mut self, aux: &Auxtrace) -> Result<()>;
    /// Writes the next part of the piece.
    fn payload(&mut self, bytes: &[u8]) -> Result<()>;
    /// Writes the next part of the piece directly from an area. Returns false if the sink cannot do that for this piece.
    fn payload_from(&mut self, aux: &Mapping, run: Range<usize>) -> Result<bool> {
        let _ = (aux, run);
        Ok(false)
    }
}

/// A sink that writes files: one file, or a series of files.
pub(crate) trait FileSink: Sink {
    /// Ends a round: each ring has been read once since the last call.
    fn round(&mut self) -> Result<()>;
    /// Writes the names and mappings of the processes that run now.
    fn describe(&mut self) -> Result<()>;
    /// Passes all buffered data to the kernel.
    fn flush(&mut self) -> Result<()>;
    /// Updates the header, so that the file can be read as it is.
    fn checkpoint(&mut self) -> Result<()>;
    /// Whether the recording has reached its maximum size.
    fn is_over(&self) -> bool;
    /// Begins the next file if this one has reached its maximum size.
    fn turn(&mut self) -> Result<()>;
    /// Begins the next file.
    fn rotate(&mut self) -> Result<()>;
    /// Whether each call only writes: the sink neither begins new files nor compresses.
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
    /// Whether the kernel has disabled an event, and the recording ends because of that.
    pub over: bool,
}

impl Pass {
    /// Whether the pass has read anything.
    #[must_use]
    pub fn any(self) -> bool {
        self.records != 0 || self.trace != 0
    }
}

impl Drain {
    /// Creates the state for a pair of rings of this session.
    #[must_use]
    pub fn new(session: &Session) -> Self {
        // The layout of the sample id at the end of each record is the same for all events.
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

    /// Reads a pair of rings. In non-overwrite mode it reads the whole content of the AUX area and frees its space. At the head the driver
    /// has ended a packet, and a decoder may not be able to continue within one. The file needs pieces whose length is a multiple of 8, so
    /// zeros follow the trace; the position of the next piece shows how many.
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
        // Loads the head of the area first. Then the data ring has the records of all trace before this head.
        let trace = match mode {
            Mode::Normal if rings.have_aux() => {
                let (reader, area) = rings.aux();
                let range = reader.pending(&area)?;
                Some((reader.is_full(&range), range))
            }
            Mode::Normal | Mode::Overwrite => None,
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
        // A CPU that writes trace is online, and is not checked.
        if again == Again::All && pass.trace == 0 {
            rings.revive();
        }
        // There is a sign whenever the kernel disables an event: a record with the flag TRUNCATED, an area that is full to the last byte,
        // or lost records, which may have had the flag.
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

    /// Writes a snapshot of an area in overwrite mode. `held` is a copy of the area, beginning at position `range.start`.
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
        self.sideband(rings, &mut bytes, file)?;
        let len = bytes.len();
        self.records = bytes;
        Ok(len)
    }

    /// Writes the records that were added to the data ring in overwrite mode since the last call, if there is such a ring.
    ///
    /// # Errors
    /// If the file cannot be written, or the ring cannot be read.
    pub fn newest(&mut self, rings: &mut Rings, file: &mut impl Sink) -> Result<()> {
        let mut newest = rings.newest()?.records;
        self.sideband(rings, &mut newest, file)
    }

    /// Examines records and writes them to the file.
    fn sideband(&mut self, rings: &Rings, bytes: &mut Vec<u8>, file: &mut impl Sink) -> Result<()> {
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
            // The other records are not needed here, and there may be many.
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
                    // A step never crosses the end of the area.
                    let [run, _] = reader.runs(at, len);
                    // The sink takes either all parts of a piece in this way, or none.
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
                // The bytes are copied: the driver gets their space back before they are in the file.
                reader.release(&area, part.end);
                file.payload(bounce)?;
            }
            pad(&aux, len, file)?;
            self.loss.drained(len, moment.time);
        }
        Ok(len)
    }
}

/// Cuts a range of positions in an area of `size` bytes into pieces of at most `limit` bytes. perf's decoders start anew with each piece.
/// With Intel BTS a piece also ends at the end of the area, because no record crosses it.
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

/// The part of an overwritten area that begins with a whole record. Known for Intel BTS only; otherwise the whole range.
fn whole(format: Option<Format>, range: &Range<u64>, size: u64) -> Range<u64> {
    if format != Some(Format::IntelBts) {
        return range.clone();
    }
    let at = range.start % size;
    let next = at.next_multiple_of(BTS_RECORD).min(size);
    (range.start + (next - at)).min(range.end)..range.end
}

/// Writes the zeros that pad a piece with `len` bytes of trace to its size.
fn pad(aux: &Auxtrace, len: u64, file: &mut impl Sink) -> Result<()> {
    let zeros = usize::try_from(aux.size.saturating_sub(len)).unwrap_or(0);
    if zeros == 0 {
        return Ok(());
    }
    file.payload([0; 8].get(..zeros).unwrap_or_default())
}

/// Reads all rings once. Ends the round in the file if any ring had content.
///
/// # Errors
/// As [`Drain::pass`].
pub(crate) fn pass(
    session: &mut Session,
    drains: &mut [Drain],
    again: Again,
    file: &mut impl FileSink,
) -> Result<Pass> {
    let mode = session.plan().mode;
    let mut sum = Pass::default();
    for (rings, drain) in session.rings_mut().iter_mut().zip(drains) {
        let pass = drain.pass(rings, mode, again, file)?;
        sum.records += pass.records;
        sum.trace += pass.trace;
        sum.over |= pass.over;
    }
    // With `--overwrite` a snapshot writes older records, so the round ends with the snapshot.
    if sum.any() && !session.plan().overwrite {
        file.round()?;
    }
    Ok(sum)
}

/// Writes the counts of the events of these rings at `time`. `attr` has the layout of the sample id at the end of each record.
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
        // An event whose PMU is gone cannot be read, and has no count; `check` reports that.
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
            // The oldest record is cut, or there is none.
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
