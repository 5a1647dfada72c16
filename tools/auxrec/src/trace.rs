// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A recording read back: for each ring its AUX records, its pieces of trace, its counters, in their order.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use perfdata::{Aux, Auxtrace, Event, Feature, File, Read};

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
    /// Where its record is in the file.
    pub at: u64,
    /// Its record.
    pub aux: Auxtrace,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// A ring of the recording.
#[derive(Debug, Clone, Default)]
pub struct Ring<'a> {
    /// Its CPU.
    pub cpu: Option<u32>,
    /// Its thread.
    pub thread: Option<u32>,
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
        match (self.cpu, self.thread) {
            (Some(cpu), _) => format!("CPU {cpu}"),
            (None, Some(thread)) => format!("thread {thread}"),
            (None, None) => "all CPUs".to_owned(),
        }
    }
}

/// A recording.
#[derive(Debug)]
pub struct Trace<'a> {
    /// The file.
    pub file: File<'a>,
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
    /// What is wrong with its records.
    pub problems: Vec<String>,
    /// How many records there are.
    pub records: u64,
}

/// The bytes of a file.
///
/// # Errors
/// If it cannot be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Error::failed(format!("cannot read {}: {e}", path.display())))
}

fn known(n: u32) -> Option<u32> {
    (n != u32::MAX).then_some(n)
}

impl<'a> Trace<'a> {
    /// Reads all records of a file.
    ///
    /// # Errors
    /// If it is no perf.data file. What is wrong with its records stands in [`problems`](Self::problems).
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        let file = File::parse(bytes)?;
        let notes: HashMap<String, String> = match file.feature(Feature::NOTES) {
            Some(section) => section.notes()?.into_iter().collect(),
            None => HashMap::new(),
        };
        let aux_kind = file.events().first().map_or(0, |(attr, _)| attr.kind);
        let event = match file.feature(Feature::EVENT_DESC) {
            Some(section) => section
                .events()?
                .first()
                .map_or(String::new(), |event| event.name.clone()),
            None => String::new(),
        };
        let pmus = match file.feature(Feature::PMU_MAPPINGS) {
            Some(section) => section.pmu_mappings()?,
            None => Vec::new(),
        };
        let pmu = pmus
            .into_iter()
            .find(|(kind, _)| *kind == aux_kind)
            .map(|(_, name)| name)
            .or_else(|| event.split_once('/').map(|(name, _)| name.to_owned()))
            .unwrap_or_default();
        let overwrite = notes.get("mode").is_some_and(|mode| mode == "overwrite");
        let mut trace = Self {
            file,
            rings: BTreeMap::new(),
            event,
            pmu,
            mode: if overwrite {
                Mode::Overwrite
            } else {
                Mode::Linear
            },
            aux_size: notes.get("aux_size").and_then(|size| size.parse().ok()),
            cut: notes
                .get("ended")
                .is_some_and(|ended| ended == "cut" || ended == ENDED),
            recovered: notes.get("ended").is_some_and(|ended| ended == ENDED),
            problems: Vec::new(),
            records: 0,
        };
        trace.index_ids();
        trace.records();
        Ok(trace)
    }

    /// Rings that wrote nothing are rings too.
    fn index_ids(&mut self) {
        for (_, idx, cpu, tid) in self.id_index() {
            let ring = self.rings.entry(idx).or_default();
            ring.cpu = cpu;
            ring.thread = if cpu.is_none() { tid } else { None };
        }
    }

    fn id_index(&self) -> Vec<(u64, u32, Option<u32>, Option<u32>)> {
        let word = |entry: &[u8], n: usize| {
            entry
                .get(n * 8..n * 8 + 8)
                .and_then(|word| word.try_into().ok())
                .map_or(0, u64::from_le_bytes)
        };
        let narrow = |n: u64| u32::try_from(n).ok();
        self.file
            .records()
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

    fn records(&mut self) {
        let rings: HashMap<u64, u32> = self
            .id_index()
            .into_iter()
            .map(|(id, idx, _, _)| (id, idx))
            .collect();
        for record in self.file.records() {
            let record = match record {
                Ok(record) => record,
                Err(e) => {
                    self.problems.push(e.to_string());
                    break;
                }
            };
            self.records += 1;
            let (event, id) = match self.file.decode(&record) {
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
                    let ring = self.rings.entry(ring).or_default();
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
                        self.rings.entry(ring).or_default().loss.lost(lost.lost);
                    }
                }
                Event::Read(read) => {
                    if let Some(ring) = ring_of(Some(read.id)) {
                        self.rings.entry(ring).or_default().counts.push(read);
                    }
                }
                Event::Auxtrace(aux, bytes) => {
                    let ring = self.rings.entry(aux.idx).or_default();
                    ring.cpu = ring.cpu.or(known(aux.cpu));
                    ring.thread = if ring.cpu.is_none() {
                        ring.thread.or(known(aux.tid))
                    } else {
                        None
                    };
                    let told = ring
                        .records
                        .iter()
                        .map(|r| r.aux.size)
                        .fold(0, u64::saturating_add);
                    // The last piece may be longer than the trace, by what brings it to a multiple of 8.
                    let size = match aux.size {
                        0 => 0,
                        size if size.wrapping_sub(8) < told.saturating_sub(ring.loss.read) => {
                            size.min(told - ring.loss.read)
                        }
                        size => size,
                    };
                    ring.loss.drained(size, aux.reference);
                    ring.pieces.push(Piece {
                        at: record.offset,
                        aux,
                        bytes,
                    });
                }
                _ => {}
            }
        }
    }
}
