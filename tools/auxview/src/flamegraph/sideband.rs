// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sideband records: which task ran on which CPU and when, and what each process had mapped.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use perfdata::{Attr, Event, Feature, FileId, SampleId, Stream, Task, TimeConv};

use super::clock::Ratios;
use super::generated::{Bpf, Symbol};
use super::pokes::Poke;
use crate::source::{Reader, Source};

/// A thread: process, thread.
pub(super) type Who = (u32, u32);

/// Code that a process has mapped.
#[derive(Debug, Clone)]
pub(super) struct Mapping {
    since: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Its offset in the file.
    pub(super) offset: u64,
    /// As the kernel has it: it need not be UTF-8.
    pub(super) path: Vec<u8>,
    pub(super) build_id: Option<Vec<u8>>,
}

/// A program that a process runs: another one after each exec.
#[derive(Debug, Clone, Default)]
pub(super) struct Program {
    since: u64,
    /// Its number among all programs.
    pub(super) number: usize,
    pub(super) name: String,
    /// In order of time.
    mappings: Vec<Mapping>,
}

impl Program {
    /// The mapping of `address` at a time, and all times at which it is that.
    pub(super) fn mapping(
        &self,
        address: u64,
        time: u64,
    ) -> Option<(&Mapping, RangeInclusive<u64>)> {
        let has = |map: &&Mapping| (map.start..map.end).contains(&address);
        let after = self.mappings.partition_point(|map| map.since <= time);
        let (before, after) = self.mappings.split_at(after);
        let map = before.iter().rev().find(has)?;
        let until = after.iter().find(has).map_or(u64::MAX, |map| map.since - 1);
        Some((map, map.since..=until))
    }
}

/// A record of a change: of processes, or of the kernel's code.
enum Change {
    Fork(Task),
    Comm {
        pid: u32,
        tid: u32,
        exec: bool,
        name: String,
    },
    Map(u32, Mapping),
    Poke(Poke),
    Symbol(Symbol),
}

impl Change {
    fn of(time: u64, event: &Event<'_>) -> Option<Self> {
        Some(match event {
            Event::Fork(task) => Self::Fork(*task),
            Event::Comm(comm) => Self::Comm {
                pid: comm.pid,
                tid: comm.tid,
                exec: comm.exec,
                name: String::from_utf8_lossy(comm.comm).into_owned(),
            },
            Event::Mmap2(map) => {
                /// `PROT_EXEC`
                const EXECUTABLE: u32 = 4;
                // Recorders that do not know the protection write 0.
                if map.prot & EXECUTABLE == 0 && map.prot != 0 {
                    return None;
                }
                let build_id = match map.file {
                    FileId::BuildId(..) => map.file.build_id().map(<[u8]>::to_vec),
                    FileId::Inode { .. } => None,
                };
                Self::Map(
                    map.pid,
                    Mapping {
                        since: time,
                        start: map.addr,
                        end: map.addr.saturating_add(map.len),
                        offset: map.pgoff,
                        path: map.filename.to_vec(),
                        build_id,
                    },
                )
            }
            Event::TextPoke(at, old, new) => Self::Poke(Poke {
                time,
                at: *at,
                old: old.to_vec(),
                new: new.to_vec(),
            }),
            Event::Ksymbol(gone, at, len, name) => Self::Symbol(Symbol {
                since: time,
                at: *at..at.saturating_add(u64::from(*len)),
                name: String::from_utf8_lossy(name).into_owned(),
                gone: *gone,
            }),
            _ => return None,
        })
    }
}

/// The sideband records of a recording.
#[derive(Debug, Default)]
pub(super) struct Sideband {
    /// The tasks that ran on each CPU, and when, in order of time.
    cpus: HashMap<u32, Vec<(u64, Who)>>,
    processes: HashMap<u32, u32>,
    programs: HashMap<u32, Vec<Program>>,
    /// Changes of the kernel's code.
    pub(super) pokes: Vec<Poke>,
    /// Functions that the kernel has generated.
    pub(super) symbols: Vec<Symbol>,
    /// The functions of BPF programs.
    pub(super) programs_of_bpf: Vec<Bpf>,
    /// Conversion of the time stamp counter to perf's clock.
    pub(super) clock: TimeConv,
    /// How the clocks of the processor are related.
    pub(super) ratios: Ratios,
    /// Whether the trace has the time stamp counter, and it can be converted to perf's clock.
    pub(super) is_timed: bool,
    /// Format of the trace, as `AUXTRACE_INFO` numbers it, if there is trace.
    pub(super) format: Option<u32>,
    /// Release of the kernel that was running.
    pub(super) release: String,
}

impl Sideband {
    /// Reads the sideband records of a file.
    pub(super) fn read<S: Source + ?Sized>(file: &S) -> crate::Result<Self> {
        let mut file = Stream::open(Reader::new(file))?;
        let mut found = Self {
            release: match file.feature(Feature::OSRELEASE)? {
                Some(section) => section.string()?,
                None => String::new(),
            },
            ..Self::default()
        };
        if let Some(section) = file.feature(Feature::BPF_PROG_INFO)? {
            let functions = section.bpf_functions()?.into_iter();
            found.programs_of_bpf = functions.map(Bpf::from).collect();
        }
        let mut events = Vec::new();
        loop {
            let user = match file.record() {
                Ok(Some(record)) => record.kind.is_user(),
                Err(e @ perfdata::Error::Input { .. }) => return Err(e.into()),
                // A file that ends in the middle of a record is read up to there.
                _ => break,
            };
            let (event, id) = file.decode()?;
            if let Event::AuxtraceInfo(kind, words) = event {
                found.format = Some(kind);
                found.clock = clock(words);
                found.ratios = ratios(words, file.events());
                found.is_timed = is_timed(words, file.events());
                continue;
            }
            if user {
                continue;
            }
            let id = id.unwrap_or_default();
            found.place(&event, &id);
            let time = id.time.unwrap_or(0);
            events.extend(Change::of(time, &event).map(|change| (time, change)));
        }
        found.program(0).name = "swapper".to_owned();
        found.program(Self::unknown(0).0).name = "unknown".to_owned();
        for places in found.cpus.values_mut() {
            places.sort_by_key(|(time, _)| *time);
        }
        events.sort_by_key(|(time, _)| *time);
        for (time, change) in events {
            found.apply(time, change);
        }
        for (number, program) in found.programs.values_mut().flatten().enumerate() {
            program.number = number;
        }
        Ok(found)
    }

    /// Notes that the task in a record's sample id ran on that CPU at that time.
    fn place(&mut self, event: &Event<'_>, id: &SampleId) {
        if let (Some(time @ 1..), Some(cpu), Some(pid), Some(tid)) =
            (id.time, id.cpu, id.pid, id.tid)
        {
            let who = match (tid, event) {
                // Each CPU has an idle thread of its own, and all have this number.
                (0, _) => (0, cpu),
                // A thread that has exited has no number any more, but is switched in once again.
                (u32::MAX, Event::Switch(false, _)) => Self::unknown(cpu),
                (u32::MAX, _) => return,
                _ => (pid, tid),
            };
            self.cpus.entry(cpu).or_default().push((time, who));
        }
    }

    fn apply(&mut self, time: u64, change: Change) {
        match change {
            Change::Fork(task) => {
                self.processes.insert(task.tid, task.pid);
                if task.pid != task.ppid {
                    let parent = self.programs.get(&task.ppid).and_then(|all| all.last());
                    let child = Program {
                        since: time,
                        ..parent.cloned().unwrap_or_default()
                    };
                    self.programs.entry(task.pid).or_default().push(child);
                }
            }
            Change::Comm {
                pid,
                tid,
                exec,
                name,
            } => {
                self.processes.insert(tid, pid);
                if exec {
                    let program = Program {
                        since: time,
                        ..Program::default()
                    };
                    self.programs.entry(pid).or_default().push(program);
                }
                if pid == tid {
                    self.program(pid).name = name;
                }
            }
            Change::Poke(poke) => self.pokes.push(poke),
            Change::Symbol(symbol) => self.symbols.push(symbol),
            Change::Map(pid, mapping) => {
                self.processes.entry(pid).or_insert(pid);
                self.program(pid).mappings.push(mapping);
            }
        }
    }

    /// The last program of a process, as far as the records were applied.
    fn program(&mut self, pid: u32) -> &mut Program {
        let all = self.programs.entry(pid).or_default();
        if all.is_empty() {
            all.push(Program::default());
        }
        let last = all.len() - 1;
        &mut all[last]
    }

    /// perf's time of a time stamp; `u64::MAX` if it is unknown.
    pub(super) fn time(&self, tsc: Option<u64>) -> u64 {
        tsc.and_then(|tsc| self.clock.time(tsc)).unwrap_or(u64::MAX)
    }

    /// The task that ran on a CPU at a time, and the index of the record that names it: `seen` or higher.
    pub(super) fn on_cpu(&self, cpu: u32, seen: usize, time: u64) -> Option<(usize, Who)> {
        let places = self.cpus.get(&cpu)?;
        let after = places.partition_point(|(since, _)| *since <= time);
        // The recording may begin with trace.
        let at = after.saturating_sub(1).max(seen);
        places.get(at).map(|(_, who)| (at, *who))
    }

    /// Whether a time is long before any record of a CPU: the task that ran there then is not known.
    pub(super) fn is_before(&self, cpu: u32, time: u64) -> bool {
        /// The scheduler's slowest tick, in nanoseconds.
        const TICK: u64 = 10_000_000;

        let first = self.cpus.get(&cpu).and_then(|places| places.first());
        first.is_none_or(|(first, _)| time.saturating_add(TICK) < *first)
    }

    /// The task that ran on a CPU after the one that ran at a time.
    pub(super) fn after(&self, cpu: u32, seen: usize, time: u64) -> Option<(usize, Who)> {
        if self.is_before(cpu, time) {
            return None;
        }
        let (at, who) = self.on_cpu(cpu, seen, time)?;
        let mut places = self.cpus.get(&cpu)?.iter().enumerate().skip(at);
        let other = places.find(|(_, (_, other))| *other != who);
        other.map(|(at, (_, other))| (at, *other))
    }

    /// Stands for the thread of a CPU that no record names.
    pub(super) fn unknown(cpu: u32) -> Who {
        (u32::MAX, cpu)
    }

    /// A thread with its process.
    pub(super) fn thread(&self, tid: u32) -> Who {
        (self.processes.get(&tid).copied().unwrap_or(tid), tid)
    }

    /// The number of the program that a process ran at a time.
    pub(super) fn program_at(&self, pid: u32, time: u64) -> usize {
        self.programs.get(&pid).map_or(0, |all| {
            all.partition_point(|program| program.since <= time)
                .saturating_sub(1)
        })
    }

    /// The program of a process that has this number.
    pub(super) fn program_of(&self, pid: u32, number: usize) -> Option<&Program> {
        self.programs.get(&pid)?.get(number)
    }
}

/// A private word of `AUXTRACE_INFO`, as `intel_pt_info_fill()` in perf's `arch/x86/util/intel-pt.c` writes them; 0 if there are fewer.
fn word(words: &[u8], n: usize) -> u64 {
    words
        .get(n * 8..n * 8 + 8)
        .and_then(|word| word.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

/// The conversion of the clock in the private words.
fn clock(words: &[u8]) -> TimeConv {
    TimeConv {
        shift: word(words, 1),
        mult: word(words, 2),
        zero: word(words, 3),
        ..TimeConv::default()
    }
}

/// A term of `config`: the bits in a mask, shifted down to bit 0. Takes the first event of the trace's PMU that has any of them.
fn term(words: &[u8], mask: u64, events: &[(Attr, Vec<u64>)]) -> u64 {
    let of_pmu = |attr: &&Attr| u64::from(attr.kind) == word(words, 0);
    let attrs = events.iter().map(|(attr, _)| attr).filter(of_pmu);
    let bits = attrs.map(|attr| attr.config & mask).find(|bits| *bits != 0);
    bits.unwrap_or(0) >> mask.trailing_zeros().min(63)
}

/// How the clocks of the processor are related.
fn ratios(words: &[u8], events: &[(Attr, Vec<u64>)]) -> Ratios {
    Ratios {
        tsc: word(words, 12),
        coarse: word(words, 13),
        mtc_period: u32::try_from(term(words, word(words, 11), events)).unwrap_or(0),
        max_nonturbo: word(words, 15),
    }
}

/// Whether the trace has times. It has them if the recorder does not name the bit that enables time stamps.
fn is_timed(words: &[u8], events: &[(Attr, Vec<u64>)]) -> bool {
    let mask = word(words, 5);
    word(words, 2) != 0 && (mask == 0 || term(words, mask, events) != 0)
}
