// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A recording read back: for each ring its AUX records, its pieces of trace, its counters, in their order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use perfdata::{Aux, AuxFlags, Auxtrace, Event, Feature, File, Read};

use crate::convert;
use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::recover::ENDED;
use crate::session::Mode;

/// An AUX record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuxAt {
    /// What it says.
    pub aux: Aux,
    /// When it was written, ns.
    pub time: u64,
    /// On which CPU.
    pub cpu: Option<u32>,
    /// By which thread.
    pub tid: Option<u32>,
}

/// A piece of trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Which file it is in.
    pub file: usize,
    /// Where its record is in the file.
    pub at: u64,
    /// Its record; but its size is that of its bytes.
    pub aux: Auxtrace,
    /// Its bytes, without what brought them to a multiple of 8.
    pub bytes: &'a [u8],
}

/// A ring of the recording.
#[derive(Debug, Clone, Default)]
pub struct Ring<'a> {
    /// Its CPU.
    pub cpu: Option<u32>,
    /// Its thread.
    pub thread: Option<u32>,
    /// The PMU that wrote its trace.
    pub pmu: String,
    /// The event that did, where several did.
    pub event: Option<String>,
    /// Its AUX records.
    pub records: Vec<AuxAt>,
    /// Its pieces of trace.
    pub pieces: Vec<Piece<'a>>,
    /// What its events have counted, at the end.
    pub counts: Vec<Read>,
    /// What was lost.
    pub loss: Loss,
}

impl Ring<'_> {
    /// Where it belongs, for people.
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

    /// Takes away what brought pieces to a multiple of 8: zeros beyond where the next piece begins, or, of the last one, beyond
    /// what AUX records tell of; of a snapshot, beyond the newest head that AUX records tell of and it can have. Anything else
    /// stays, for `check` to find.
    fn unpad(&mut self, mode: Mode) {
        let starts = self.pieces.iter().map(|piece| piece.aux.offset);
        let told = || self.records.iter().map(|record| record.aux);
        let ends: Vec<_> = match mode {
            Mode::Linear => {
                let last = told().map(|aux| aux.offset.saturating_add(aux.size)).max();
                starts.skip(1).chain(last).collect()
            }
            Mode::Overwrite => {
                let heads = || told().filter(|aux| aux.flags.contains(AuxFlags::OVERWRITE));
                let all: BTreeSet<_> = heads().map(|aux| aux.offset).collect();
                let end = |piece: &Piece<'_>| piece.aux.offset.wrapping_add(piece.aux.size);
                let ends = self.pieces.iter().map(end);
                ends.map(|end| all.range(..=end).next_back().copied().unwrap_or(end))
                    .collect()
            }
        };
        for (piece, end) in self.pieces.iter_mut().zip(ends) {
            let padding = piece.padding(end);
            piece.aux.size -= padding;
            let len = usize::try_from(piece.aux.size).unwrap_or(usize::MAX);
            piece.bytes = piece.bytes.get(..len).unwrap_or(piece.bytes);
            self.loss.padded(padding);
        }
    }
}

impl Piece<'_> {
    /// How many bytes of it are padding, if the trace goes on at `end`.
    fn padding(&self, end: u64) -> u64 {
        let over = self.aux.offset.wrapping_add(self.aux.size);
        let over = over.wrapping_sub(end);
        let len = usize::try_from(over).unwrap_or(usize::MAX);
        let tail = self.bytes.iter().rev().take(len);

        // A piece of less than 8 bytes of trace is padded, too.
        if over < 8 && over < self.aux.size && tail.copied().all(|byte| byte == 0) {
            over
        } else {
            0
        }
    }
}

/// A recording.
#[derive(Debug)]
pub struct Trace<'a> {
    /// The file, or the files in their order.
    pub files: Vec<File<'a>>,
    /// Its rings, by their numbers.
    pub rings: BTreeMap<u32, Ring<'a>>,
    /// Name of the event that wrote the trace.
    pub event: String,
    /// Name of its PMU.
    pub pmu: String,
    /// How the AUX area was used.
    pub mode: Mode,
    /// Whether the output failed, so that what came after is not in the file.
    pub cut: bool,
    /// Whether the recorder was killed and the file recovered, so that what it had not written is not in the file, and its
    /// last counters are not.
    pub recovered: bool,
    /// Length of each AUX area, where the file says.
    pub aux_size: Option<u64>,
    /// Whether files before the first or behind the last are missing, of a recording that went into several.
    pub partial: bool,
    /// What is wrong with its records.
    pub problems: Vec<String>,
    /// How many records there are.
    pub records: u64,
}

/// The bytes of a file; of one whose trace is compressed, those of the file that would have been written otherwise.
///
/// # Errors
/// If it cannot be read, or compressed trace in it is damaged.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let name = path.display();
    let bytes =
        std::fs::read(path).map_err(|e| Error::failed(format!("cannot read {name}: {e}")))?;
    convert::plain(bytes).map_err(|e| Error::failed(format!("{name}: {e}")))
}

fn known(n: u32) -> Option<u32> {
    (n != u32::MAX).then_some(n)
}

/// An entry of ID_INDEX: id, ring, CPU, thread.
type Index = (u64, u32, Option<u32>, Option<u32>);

fn id_index(file: &File<'_>) -> Vec<Index> {
    let word = |entry: &[u8], n: usize| {
        entry
            .get(n * 8..n * 8 + 8)
            .and_then(|word| word.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    };
    let narrow = |n: u64| u32::try_from(n).ok();
    file.records()
        .map_while(std::result::Result::ok)
        .take_while(|record| record.kind != perfdata::RecordType::FINISHED_INIT)
        .filter(|record| record.kind == perfdata::RecordType::ID_INDEX)
        .flat_map(|record| record.body.get(8..).unwrap_or(&[]).chunks_exact(32))
        .filter_map(|entry| {
            Some((
                word(entry, 0),
                narrow(word(entry, 1))?,
                narrow(word(entry, 2)),
                narrow(word(entry, 3)),
            ))
        })
        .collect()
}

/// So many CPUs may come while a recording lasts; a file that names more is not to fill the memory.
const NEWCOMERS: usize = 64;

/// What one file says of the recording.
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
}

impl About {
    fn of(file: &File<'_>) -> Result<Self> {
        let notes: HashMap<String, String> = match file.feature(Feature::NOTES) {
            Some(section) => section.notes()?.into_iter().collect(),
            None => HashMap::new(),
        };
        let aux_kind = file.events().first().map_or(0, |(attr, _)| attr.kind);
        let events = match file.feature(Feature::EVENT_DESC) {
            Some(section) => section.events()?,
            None => Vec::new(),
        };
        let event = events
            .first()
            .map_or(String::new(), |event| event.name.clone());
        let pmus: HashMap<u32, String> = match file.feature(Feature::PMU_MAPPINGS) {
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
                Mode::Linear
            },
            aux_size: number("aux_size"),
            ended: notes.get("ended").cloned().unwrap_or_default(),
            part: number("part").and_then(|part| u32::try_from(part).ok()),
            offline: notes.get("offline").map_or(BTreeMap::new(), |text| {
                let cpus = text.split(',').filter_map(|cpu| cpu.split_once(':'));
                cpus.filter_map(|(cpu, ns)| Some((cpu.parse().ok()?, ns.parse().ok()?)))
                    .collect()
            }),
        })
    }
}

impl<'a> Trace<'a> {
    /// Reads all records of a file.
    ///
    /// # Errors
    /// If it is no perf.data file. What is wrong with its records stands in [`problems`](Self::problems).
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        Self::read_parts(&[bytes])
    }

    /// Reads the files that one recording went into, in their order.
    ///
    /// # Errors
    /// If one is no perf.data file, or there is none.
    pub fn read_parts(parts: &[&'a [u8]]) -> Result<Self> {
        let files = parts
            .iter()
            .map(|bytes| Ok(File::parse(bytes)?))
            .collect::<Result<Vec<_>>>()?;
        let abouts = files.iter().map(About::of).collect::<Result<Vec<_>>>()?;
        let (Some(first), Some(last)) = (abouts.first(), abouts.last()) else {
            return Err(Error::usage("no file was given"));
        };
        let mut trace = Self {
            rings: BTreeMap::new(),
            event: first.event.clone(),
            pmu: first.pmu.clone(),
            mode: first.mode,
            aux_size: first.aux_size,
            cut: last.ended == "cut" || last.ended == ENDED,
            recovered: last.ended == ENDED,
            partial: first.part.is_some_and(|part| part != 1) || last.ended == "rotated",
            problems: Vec::new(),
            records: 0,
            files: files.clone(),
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
                trace.problems.push(format!(
                    "{} of a recording cannot follow {}",
                    number(after.part),
                    number(before.part),
                ));
            }
        }
        for (number, file) in files.iter().enumerate() {
            let index = id_index(file);
            // Rings that wrote nothing are rings too. The first event of each writes its trace.
            let mut known = BTreeSet::new();
            for &(id, idx, cpu, tid) in &index {
                let ring = trace.ring(idx);
                ring.cpu = cpu;
                ring.thread = if cpu.is_none() { tid } else { None };
                if known.insert(idx) {
                    let attr = file
                        .event_with(id)
                        .and_then(|event| file.events().get(event));
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
            trace.read_records(number, file, &index);
        }
        for ring in trace.rings.values_mut() {
            ring.unpad(trace.mode);
            let offline = ring.cpu.and_then(|cpu| last.offline.get(&cpu));
            ring.loss.offline = offline.copied().unwrap_or(0);
        }
        trace.add_newcomers(&last.offline);
        Ok(trace)
    }

    /// Gives rings to CPUs that were offline at the beginning, for what was lost of them.
    fn add_newcomers(&mut self, offline: &BTreeMap<u32, u64>) {
        let cpus: BTreeSet<_> = self.rings.values().filter_map(|ring| ring.cpu).collect();
        let last = self.rings.keys().next_back();
        let Some(next) = last.map_or(Some(0), |last| last.checked_add(1)) else {
            return;
        };
        let missed = offline.iter().filter(|(cpu, _)| !cpus.contains(cpu));
        let count = missed.clone().count();
        if count > NEWCOMERS {
            let problem = format!("the notes name {count} CPUs that have no ring");
            self.problems.push(problem);
        }
        for (idx, (cpu, ns)) in (next..=u32::MAX).zip(missed.take(NEWCOMERS)) {
            let ring = self.ring(idx);
            ring.cpu = Some(*cpu);
            ring.loss.offline = *ns;
        }
    }

    fn ring(&mut self, idx: u32) -> &mut Ring<'a> {
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

    fn read_records(&mut self, number_of_file: usize, file: &File<'a>, index: &[Index]) {
        let rings: HashMap<u64, u32> = index.iter().map(|(id, idx, _, _)| (*id, *idx)).collect();
        for record in file.records() {
            let record = match record {
                Ok(record) => record,
                Err(e) => {
                    self.problems.push(e.to_string());
                    break;
                }
            };
            self.records += 1;
            let (event, id) = match file.decode(&record) {
                Ok(decoded) => decoded,
                Err(e) => {
                    self.problems.push(e.to_string());
                    continue;
                }
            };
            let number = id.and_then(|id| id.id);
            let ring_of = |number: Option<u64>| number.and_then(|id| rings.get(&id)).copied();
            match event {
                Event::Aux(aux) => {
                    let Some(ring) = ring_of(number) else {
                        self.problems.push(format!(
                            "the AUX record at file offset {:#x} is of no known event",
                            record.offset
                        ));
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
                    }
                }
                Event::Read(read) => {
                    if let Some(ring) = ring_of(Some(read.id)) {
                        self.ring(ring).counts.push(read);
                    }
                }
                Event::Auxtrace(aux, bytes) => {
                    let ring = self.ring(aux.idx);
                    ring.cpu = ring.cpu.or(known(aux.cpu));
                    ring.thread = if ring.cpu.is_none() {
                        ring.thread.or(known(aux.tid))
                    } else {
                        None
                    };
                    ring.loss.drained(aux.size, aux.reference);
                    ring.pieces.push(Piece {
                        file: number_of_file,
                        at: record.offset,
                        aux,
                        bytes,
                    });
                }
                Event::AuxtraceZstd(part) if part.at == 0 => self.problems.push(format!(
                    "the trace at file offset {:#x} is compressed: `auxrec convert` writes it plain",
                    record.offset
                )),
                _ => {}
            }
        }
    }
}
