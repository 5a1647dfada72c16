// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A recording in memory: the AUX records, pieces of trace and counters of each ring, in their order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::num::NonZero;

use perfdata::auxtrace::{ARM_SPE, INTEL_BTS, INTEL_PT};
use perfdata::{Aux, AuxFlags, Auxtrace, Event, Feature, Read, RecordType, Stream, TimeConv};

use crate::error::{Error, Result};
use crate::finish::ENDED;
use crate::loss::Loss;
use crate::source::Source;
use crate::unpack::{Next, Place, Plain};

mod area;
mod problems;
mod tracefs;

pub use area::{since, Mode};
pub use problems::Problems;
use tracefs::is_ours;
pub use tracefs::{Tracefs, FIRST_ID};

/// Key of the note that gives the unit of `reference` in AUXTRACE records. Without the note, it is the time.
pub const REFERENCE: &str = "reference";
/// Value of this note: the processor's cycle counter, which TIME_CONV converts to the time.
pub const CYCLES: &str = "cycles";

/// An AUX record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuxAt {
    /// Its fields.
    pub aux: Aux,
    /// Time at which it was written, ns.
    pub time: u64,
    /// CPU on which it was written.
    pub cpu: Option<u32>,
    /// Thread that was running.
    pub tid: Option<u32>,
}

impl AuxAt {
    /// Whether the AUX area was full.
    pub(crate) fn is_truncated(&self) -> bool {
        self.aux.flags.contains(AuxFlags::TRUNCATED)
    }
}

/// A piece of trace. Its bytes stay in the file: see [`Pieces`](crate::pieces::Pieces).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// File offset of its record; if it is compressed, the offset in the decompressed file.
    pub at: u64,
    /// Where it begins, in bytes since the first byte that was written into the area.
    pub offset: u64,
    /// Its length without padding.
    pub size: u64,
    /// Time at which the recorder read it, by the clock of the records, ns, if the file has it.
    pub read: Option<NonZero<u64>>,
    /// Number of the file that it is in.
    pub file: u32,
    /// Number of zeros at the end of the piece in the file, at most 7.
    zeros: u8,
    packed: bool,
    place: u64,
}

// The lists of these grow with the file.
const _: () = assert!(size_of::<Piece>() == 48 && size_of::<AuxAt>() == 48);

/// A ring of the recording.
#[derive(Debug, Clone, Default)]
pub struct Ring {
    /// Its CPU.
    pub cpu: Option<u32>,
    /// Its thread.
    pub thread: Option<u32>,
    /// The PMU that wrote its trace.
    pub pmu: String,
    /// The event that wrote its trace, if the rings have different events.
    pub event: Option<String>,
    /// Its AUX records.
    pub records: Vec<AuxAt>,
    /// Its pieces of trace.
    pub pieces: Vec<Piece>,
    /// Final counts of its events.
    pub counts: Vec<Read>,
    /// What was lost.
    pub loss: Loss,
}

impl Ring {
    /// Name of the ring, for people.
    #[must_use]
    pub fn name(&self) -> String {
        let place = match (self.cpu, self.thread) {
            (Some(cpu), _) => format!("CPU {cpu}"),
            (None, Some(thread)) => format!("thread {thread}"),
            (None, None) => "all CPUs".to_owned(),
        };
        match &self.event {
            Some(event) => format!("{place}, {event}"),
            None => place,
        }
    }

    /// Removes padding, which extends pieces to a multiple of 8. Only zeros after the end of the trace in a piece are padding:
    ///
    /// - In normal mode, the trace ends where the next piece begins; in the last piece, at the end of the last AUX record.
    /// - In overwrite mode, it ends at a head that AUX records report: at the newest that is not after the end of the snapshot. If the area
    ///   of `size` bytes has wrapped, there is no padding: the snapshot is a multiple of 8, and a head may be an offset in the area.
    ///
    /// All other bytes stay, so that `check` can find them.
    fn unpad(&mut self, mode: Mode, size: Option<u64>) {
        let reported = || self.records.iter().map(|record| record.aux);
        let mut heads = Vec::new();
        let mut next = None;
        match mode {
            Mode::Normal => {
                let ends = reported().map(|aux| aux.offset.saturating_add(aux.size));
                next = ends.max();
            }
            Mode::Overwrite => {
                let all = reported().filter(|aux| aux.flags.contains(AuxFlags::OVERWRITE));
                heads.extend(all.map(|aux| aux.offset));
                heads.sort_unstable();
            }
        }
        for piece in self.pieces.iter_mut().rev() {
            let before = match size {
                Some(size) if piece.end() > size => 0,
                _ => heads.partition_point(|head| *head <= piece.end()),
            };
            let end = match mode {
                Mode::Normal => next.replace(piece.offset),
                Mode::Overwrite => before.checked_sub(1).and_then(|n| heads.get(n)).copied(),
            };
            let padding = piece.padding(end.unwrap_or(piece.end()));
            piece.size -= padding;
            self.loss.padded(padding);
        }
    }
}

impl Piece {
    fn of(file: u32, at: u64, aux: &Auxtrace, read: Option<u64>, place: Place, zeros: u8) -> Self {
        Self {
            at,
            offset: aux.offset,
            size: aux.size,
            read: read.and_then(NonZero::new),
            file,
            zeros,
            packed: place.packed,
            place: place.at,
        }
    }

    /// Place of its record.
    pub(crate) fn place(&self) -> Place {
        Place {
            at: self.place,
            size: self.size,
            packed: self.packed,
        }
    }

    /// Where it ends, in bytes since the first byte that was written into the area.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.wrapping_add(self.size)
    }

    /// How many bytes of it are padding, if its trace ends at `end`.
    fn padding(&self, end: u64) -> u64 {
        let over = self.end().wrapping_sub(end);
        // A piece of less than 8 bytes of trace is padded, too.
        if over <= self.zeros.into() && over < self.size {
            over
        } else {
            0
        }
    }
}

/// A recording. It needs the memory of its lists: 48 bytes for each AUX record and each piece.
#[derive(Debug)]
pub struct Trace {
    /// Whether all its files are finished.
    pub finished: bool,
    /// Its rings, by their numbers.
    pub rings: BTreeMap<u32, Ring>,
    /// The events of tracefs, by CPU.
    pub tracefs: BTreeMap<u32, Tracefs>,
    /// Name of the event that wrote the trace.
    pub event: String,
    /// Name of its PMU.
    pub pmu: String,
    /// Mode of the AUX area.
    pub mode: Mode,
    /// Whether the end of the recording is not in the file: the output failed, or the recorder was killed.
    pub cut: bool,
    /// Whether the recorder was killed and the file recovered. The file then lacks the trace that was not yet written, and the final
    /// counters.
    pub recovered: bool,
    /// Size of each AUX area, if the file has it.
    pub aux_size: Option<u64>,
    /// Whether files of a recording of several files are missing, before the first or after the last.
    pub partial: bool,
    /// Problems of its records.
    pub problems: Problems,
    /// Number of records.
    pub records: u64,
}

fn known(n: u32) -> Option<u32> {
    (n != u32::MAX).then_some(n)
}

/// An entry of ID_INDEX: id, ring, CPU, thread.
type Index = (u64, u32, Option<u32>, Option<u32>);

/// Reads the ID_INDEX records, then goes back to the first record.
fn id_index<R: io::Read + io::Seek>(file: &mut Stream<R>) -> Result<Vec<Index>> {
    let word = |entry: &[u8], n: usize| {
        entry
            .get(n * 8..n * 8 + 8)
            .and_then(|word| word.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    };
    let narrow = |n: u64| u32::try_from(n).ok();
    let mut out = Vec::new();
    loop {
        let record = match file.record() {
            Ok(Some(record)) => record,
            Err(e @ perfdata::Error::Input { .. }) => return Err(e.into()),
            // Invalid records are reported when all records are read.
            _ => break,
        };
        match record.kind {
            RecordType::FINISHED_INIT => break,
            RecordType::ID_INDEX => {}
            _ => continue,
        }
        let entries = record.body.get(8..).unwrap_or(&[]).chunks_exact(32);
        out.extend(entries.filter_map(|entry| {
            Some((
                word(entry, 0),
                narrow(word(entry, 1))?,
                narrow(word(entry, 2)),
                narrow(word(entry, 3)),
            ))
        }));
    }
    file.go_to(file.data())?;
    Ok(out)
}

/// Maximum number of hotplugged CPUs in a recording: a file that names more must not fill the memory.
const HOTPLUGGED: usize = 64;

/// Properties of the recording in one file.
struct About {
    events: Vec<perfdata::EventDesc>,
    pmus: HashMap<u32, String>,
    event: String,
    pmu: String,
    mode: Mode,
    aux_size: Option<u64>,
    ended: String,
    part: Option<u32>,
    /// CPUs that went offline, and for how long each was not recorded, ns.
    offline: BTreeMap<u32, u64>,
    finished: bool,
    counter: Counter,
}

/// The unit of `reference` in AUXTRACE records, and its conversion to the time of the records.
#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    /// Whether a note says that it is the cycle counter.
    noted: bool,
    /// Whether the file is not by `auxrec`: perf writes no notes.
    foreign: bool,
    /// The decoder of the trace, if the trace has times of the cycle counter. The records then have times of perf's clock.
    decoder: Option<u32>,
    conv: Option<TimeConv>,
}

impl Counter {
    /// Updates these fields from a record.
    fn look(&mut self, event: &Event<'_>) {
        match event {
            Event::TimeConv(conv) => self.conv = Some(*conv),
            Event::AuxtraceInfo(kind @ (INTEL_PT | INTEL_BTS | ARM_SPE), _) => {
                self.decoder = Some(*kind);
            }
            _ => {}
        }
    }

    /// Converts a reference to a time, ns.
    fn time(&self, reference: u64) -> Option<u64> {
        match self {
            Self { noted: true, .. }
            | Self {
                foreign: true,
                decoder: Some(INTEL_PT | INTEL_BTS),
                ..
            } => self.conv?.time(reference),
            // Old versions of `auxrec` wrote times of a clock other than perf's. For Arm SPE, perf writes no time.
            Self {
                decoder: Some(_), ..
            } => None,
            Self { .. } => Some(reference),
        }
    }
}

impl About {
    fn of<R: io::Read + io::Seek>(file: &mut Stream<R>) -> Result<Self> {
        let notes: HashMap<String, String> = match file.feature(Feature::NOTES)? {
            Some(section) => section.notes()?.into_iter().collect(),
            None => HashMap::new(),
        };
        let aux_kind = file.events().first().map_or(0, |(attr, _)| attr.kind);
        let events = match file.feature(Feature::EVENT_DESC)? {
            Some(section) => section.events()?,
            None => Vec::new(),
        };
        let event = events
            .first()
            .map_or(String::new(), |event| event.name.clone());
        let pmus: HashMap<u32, String> = match file.feature(Feature::PMU_MAPPINGS)? {
            Some(section) => section.pmu_mappings()?.into_iter().collect(),
            None => HashMap::new(),
        };
        let pmu = pmus
            .get(&aux_kind)
            .cloned()
            .or_else(|| event.split_once('/').map(|(name, _)| name.to_owned()))
            .unwrap_or_default();
        let number = |key: &str| notes.get(key).and_then(|text| text.parse().ok());
        Ok(Self {
            events,
            pmus,
            event,
            pmu,
            mode: if notes.get("mode").is_some_and(|mode| mode == "overwrite") {
                Mode::Overwrite
            } else {
                Mode::Normal
            },
            aux_size: number("aux_size"),
            ended: notes.get("ended").cloned().unwrap_or_default(),
            part: number("part").and_then(|part| u32::try_from(part).ok()),
            offline: notes.get("offline").map_or(BTreeMap::new(), |text| {
                let cpus = text.split(',').filter_map(|cpu| cpu.split_once(':'));
                cpus.filter_map(|(cpu, ns)| Some((cpu.parse().ok()?, ns.parse().ok()?)))
                    .collect()
            }),
            finished: file.is_finished(),
            counter: Counter {
                noted: notes.get(REFERENCE).is_some_and(|text| text == CYCLES),
                foreign: notes.is_empty(),
                ..Counter::default()
            },
        })
    }
}

impl Trace {
    /// Reads all records of a file.
    ///
    /// # Errors
    /// If it is no perf.data file, or it cannot be read, or compressed trace in it is damaged. Problems of its records are in
    /// [`problems`](Self::problems).
    pub fn read<S: Source + ?Sized>(file: &S) -> Result<Self> {
        Self::read_parts(&[file])
    }

    /// Reads the files of one recording, in their order.
    ///
    /// # Errors
    /// As [`read`](Self::read); or if `files` is empty.
    pub fn read_parts<S: Source>(files: &[S]) -> Result<Self> {
        let about = |file| About::of(&mut Plain::open(file)?.stream);
        let abouts = files.iter().map(about).collect::<Result<Vec<_>>>()?;
        let (Some(first), Some(last)) = (abouts.first(), abouts.last()) else {
            return Err(Error::usage("no file was given"));
        };
        let mut trace = Self {
            rings: BTreeMap::new(),
            tracefs: BTreeMap::new(),
            event: first.event.clone(),
            pmu: first.pmu.clone(),
            mode: first.mode,
            aux_size: first.aux_size,
            cut: last.ended == "cut" || last.ended == ENDED,
            recovered: last.ended == ENDED,
            partial: first.part.is_some_and(|part| part != 1) || last.ended == "rotated",
            problems: Problems::default(),
            records: 0,
            finished: abouts.iter().all(|about| about.finished),
        };
        for pair in abouts.windows(2) {
            let [before, after] = pair else { continue };
            let next = before.part.and_then(|part| part.checked_add(1));
            if next.is_none() || next != after.part || before.ended != "rotated" {
                let number = |part: Option<u32>| {
                    part.map_or("a file that is no part".to_owned(), |part| {
                        format!("part {part}")
                    })
                };
                trace.problems.add(|| {
                    format!(
                        "{} of a recording cannot follow {}",
                        number(after.part),
                        number(before.part),
                    )
                });
            }
        }
        let mut counter = first.counter;
        for (number, file) in (0..).zip(files) {
            let mut file = Plain::open(file)?;
            let index = id_index(&mut file.stream)?;
            // Rings without trace are listed, too. The first event of each ring writes its trace.
            let mut known = BTreeSet::new();
            for &(id, idx, cpu, tid) in &index {
                let ring = trace.ring(idx);
                ring.cpu = cpu;
                ring.thread = if cpu.is_none() { tid } else { None };
                if known.insert(idx) {
                    let stream = &file.stream;
                    let event = stream.event_with(id);
                    let attr = event.and_then(|event| stream.events().get(event));
                    let pmu = attr.and_then(|(attr, _)| first.pmus.get(&attr.kind));
                    ring.pmu = pmu.unwrap_or(&first.pmu).clone();
                    let event = first.events.iter().find(|event| event.ids.contains(&id));
                    ring.event = event.map(|event| event.name.clone());
                }
            }
            let names: BTreeSet<_> = trace.rings.values().map(|ring| &ring.event).collect();
            if names.len() < 2 {
                trace.rings.values_mut().for_each(|ring| ring.event = None);
            }
            trace.read_records(number, &mut file, &index, &mut counter)?;
        }
        for ring in trace.rings.values_mut() {
            ring.unpad(trace.mode, trace.aux_size);
            let offline = ring.cpu.and_then(|cpu| last.offline.get(&cpu));
            ring.loss.offline = offline.copied().unwrap_or(0);
        }
        trace.add_hotplugged(&last.offline);
        Ok(trace)
    }

    /// Adds rings for CPUs that were offline at the beginning, to report what was lost of them.
    fn add_hotplugged(&mut self, offline: &BTreeMap<u32, u64>) {
        let cpus: BTreeSet<_> = self.rings.values().filter_map(|ring| ring.cpu).collect();
        let last = self.rings.keys().next_back();
        let Some(next) = last.map_or(Some(0), |last| last.checked_add(1)) else {
            return;
        };
        let missed = offline.iter().filter(|(cpu, _)| !cpus.contains(cpu));
        let count = missed.clone().count();
        if count > HOTPLUGGED {
            self.problems
                .add(|| format!("the notes name {count} CPUs that have no ring"));
        }
        for (idx, (cpu, ns)) in (next..=u32::MAX).zip(missed.take(HOTPLUGGED)) {
            let ring = self.ring(idx);
            ring.cpu = Some(*cpu);
            ring.loss.offline = *ns;
        }
    }

    fn ring(&mut self, idx: u32) -> &mut Ring {
        let partial = self.partial;
        self.rings.entry(idx).or_insert_with(|| Ring {
            loss: if partial {
                Loss::begun_before()
            } else {
                Loss::default()
            },
            ..Ring::default()
        })
    }

    fn read_records<S: Source + ?Sized>(
        &mut self,
        number_of_file: u32,
        file: &mut Plain<'_, S>,
        index: &[Index],
        counter: &mut Counter,
    ) -> Result<()> {
        let rings: HashMap<u64, u32> = index.iter().map(|(id, idx, _, _)| (*id, *idx)).collect();
        loop {
            let next = match file.next() {
                Ok(Some(next)) => next,
                Ok(None) => return Ok(()),
                Err(Error::File(e)) if !matches!(e, perfdata::Error::Input { .. }) => {
                    self.problems.add(|| e.to_string());
                    return Ok(());
                }
                Err(e) => return Err(e),
            };
            self.records += 1;
            let at = file.at;
            if let Next::Piece(aux, place) = next {
                let zeros = file.zeros(place)?;
                let ring = self.ring(aux.idx);
                ring.cpu = ring.cpu.or(known(aux.cpu));
                ring.thread = if ring.cpu.is_none() {
                    ring.thread.or(known(aux.tid))
                } else {
                    None
                };
                let read = counter.time(aux.reference);
                ring.loss.drained(aux.size, read);
                let piece = Piece::of(number_of_file, at, &aux, read, place, zeros);
                ring.pieces.push(piece);
                continue;
            }
            let (event, id) = match file.stream.decode() {
                Ok(decoded) => decoded,
                Err(e) => {
                    self.problems.add(|| e.to_string());
                    continue;
                }
            };
            counter.look(&event);
            let number = id.and_then(|id| id.id);
            let ring_of = |number: Option<u64>| number.and_then(|id| rings.get(&id)).copied();
            match event {
                Event::Aux(aux) => {
                    let Some(ring) = ring_of(number) else {
                        self.problems.add(|| {
                            format!("the AUX record at file offset {at:#x} is of no known event")
                        });
                        continue;
                    };
                    let ring = self.ring(ring);
                    let time = id.and_then(|id| id.time);
                    ring.loss.aux(&aux, time);
                    ring.records.push(AuxAt {
                        aux,
                        time: time.unwrap_or(0),
                        cpu: id.and_then(|id| id.cpu),
                        tid: id.and_then(|id| id.tid),
                    });
                }
                Event::Lost(lost) => {
                    if let Some(ring) = ring_of(Some(lost.id)).or_else(|| ring_of(number)) {
                        self.ring(ring).loss.lost(lost.lost);
                    } else if let Some(cpu) = id.and_then(|id| id.cpu).filter(|_| is_ours(lost.id))
                    {
                        self.tracefs.entry(cpu).or_default().lost(lost.lost);
                    }
                }
                Event::Tracepoint(event) if is_ours(event.id) => {
                    self.tracefs.entry(event.cpu).or_default().event(event.time);
                }
                Event::Read(read) => {
                    if let Some(ring) = ring_of(Some(read.id)) {
                        self.ring(ring).counts.push(read);
                    }
                }
                _ => {}
            }
        }
    }
}
