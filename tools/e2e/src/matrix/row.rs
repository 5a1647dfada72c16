// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rows: the attributes of a row's event, and the way in which its trace is read.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use auxrec::pmu::Pmus;
use perfdata::{Attr, Flags, Read};

use crate::events::probe::bytes;
use crate::model::{Fault, Setup, Sink};

/// The CPU or thread that an event is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// A CPU.
    Cpu,
    /// All CPUs, with an event for each.
    System,
    /// A thread, on any CPU.
    Task,
    /// A thread, with an event for each CPU.
    TaskCpu,
    /// Like `TaskCpu`, and the event is inherited by the thread's children.
    Inherited,
}

/// How a ring is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// As soon as there is trace.
    KeepsUp,
    /// When the ring is full, and then only a part of it.
    Slow,
    /// Only at the end.
    Stops,
    /// By a process that is killed.
    Dies,
    /// In overwrite mode, one snapshot at the end.
    Once,
    /// In overwrite mode, several snapshots.
    Snapshots,
}

impl Reader {
    pub(super) fn overwrites(self) -> bool {
        matches!(self, Self::Once | Self::Snapshots)
    }
}

/// A row of the matrix.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) mode: Mode,
    pub(super) reader: Reader,
    pub(super) sink: Sink,
    /// Pages of the ring.
    pub(super) pages: usize,
    /// `attr.aux_watermark`; 0 for perf's default.
    pub(super) watermark: u64,
    /// The fault that the unit has.
    pub(super) fault: Fault,
    /// Each transaction begins at a multiple of this power of two; 1 for no alignment.
    pub(super) align: u64,
    /// Pages of bounce memory; 0 for the driver's default.
    pub(super) bounce: usize,
    /// Whether siblings in the group pause and resume the event, and whether it starts paused.
    pub(super) paused: Option<Paused>,
    /// Whether mappings of the ring are refused several times first, and for which reason.
    pub(super) refused: Option<Refused>,
    /// An addition to the row's name.
    pub(super) note: String,
}

/// How an event is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paused {
    /// From the start, until a sibling resumes it.
    Start,
    /// One sibling pauses it and another resumes it, over and over.
    Again,
    /// From the start, and never resumed.
    Always,
}

/// Why a driver refuses a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// `setup_aux()` fails before it allocates anything: `fault=6`.
    Setup,
    /// `setup_aux()` fails at the last allocation: `fault=7`.
    Memory,
    /// The ring has half as many pages as `min=` demands.
    Small,
}

/// `attr.aux_action`.
const START_PAUSED: u32 = 1 << 0;
pub(super) const PAUSE: u32 = 1 << 1;
pub(super) const RESUME: u32 = 1 << 2;

pub(super) const SINKS: [Sink; 3] = [Sink::Direct, Sink::Sg, Sink::Flat];
const MODES: [Mode; 5] = [
    Mode::Cpu,
    Mode::System,
    Mode::Task,
    Mode::TaskCpu,
    Mode::Inherited,
];
const READERS: [Reader; 6] = [
    Reader::KeepsUp,
    Reader::Slow,
    Reader::Stops,
    Reader::Dies,
    Reader::Once,
    Reader::Snapshots,
];

/// All rows.
pub(super) fn rows(sinks: &[Sink]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &sink in sinks {
        product(sink, &mut rows);
        watermarks(sink, &mut rows);
        pauses(sink, &mut rows);
        // A driver that has only the direct sink lacks these features, too.
        if sinks.len() > 1 {
            faults(sink, &mut rows);
            refusals(sink, &mut rows);
            alignments(sink, &mut rows);
            bounces(sink, &mut rows);
        }
    }
    rows
}

/// Each mode, with rings of each size and readers of each kind.
fn product(sink: Sink, rows: &mut Vec<Row>) {
    for pages in [smallest(sink), 16, 1024] {
        for mode in MODES {
            rows.extend(READERS.map(|reader| Row {
                watermark: match reader {
                    // The rest of the ring has space for the trace that comes until the reader runs.
                    Reader::KeepsUp => bytes(pages) / 4,
                    // Many pieces, so that the reader is killed between two of them.
                    Reader::Dies => bytes(pages) / 8,
                    _ => 0,
                },
                ..Row::new(sink, mode, pages, reader)
            }));
        }
    }
}

fn watermarks(sink: Sink, rows: &mut Vec<Row>) {
    for pages in [16, 1024] {
        let (page, ring) = (bytes(1), bytes(pages));
        for (name, watermark) in [
            ("1 page", page),
            ("2 pages", 2 * page),
            ("3/4 of the ring", ring / 4 * 3),
            ("all but a page", ring - page),
            ("the whole ring", ring),
        ] {
            rows.extend([Reader::KeepsUp, Reader::Stops].map(|reader| Row {
                watermark,
                note: format!(", watermark {name}"),
                ..Row::new(sink, Mode::Cpu, pages, reader)
            }));
        }
    }
}

/// A paused unit generates nothing and commits nothing, so the model's prediction is the same.
fn pauses(sink: Sink, rows: &mut Vec<Row>) {
    for (name, paused) in [
        ("started paused", Paused::Start),
        ("paused and resumed", Paused::Again),
        ("never resumed", Paused::Always),
    ] {
        rows.extend(
            [Reader::Stops, Reader::Slow, Reader::Once].map(|reader| Row {
                paused: Some(paused),
                note: format!(", {name}"),
                ..Row::new(sink, Mode::Cpu, 16, reader)
            }),
        );
    }
}

fn faults(sink: Sink, rows: &mut Vec<Row>) {
    for (name, fault) in [
        ("interrupts a tick late", Fault::Late(1)),
        ("interrupts 5 ticks late", Fault::Late(5)),
        ("interrupts lost", Fault::Lost),
        ("overflow each 16th tick", Fault::Overflow(16)),
        ("overflow each tick", Fault::Overflow(1)),
        ("collision each 16th tick", Fault::Collision(16)),
        ("collision each 7th tick", Fault::Collision(7)),
        ("interrupts taken after the next start", Fault::Pending),
        ("start refused", Fault::Start),
    ] {
        rows.extend(
            [Reader::Stops, Reader::Slow, Reader::Once].map(|reader| Row {
                fault,
                note: format!(", {name}"),
                ..Row::new(sink, Mode::Cpu, 16, reader)
            }),
        );
    }
}

/// After the refusals, a ring is mapped, which must work like any other.
fn refusals(sink: Sink, rows: &mut Vec<Row>) {
    for (name, refused) in [
        ("setup fails", Refused::Setup),
        ("memory short", Refused::Memory),
        ("ring below the minimum", Refused::Small),
    ] {
        rows.extend([Reader::Stops, Reader::Once].map(|reader| Row {
            refused: Some(refused),
            note: format!(", first {name}"),
            ..Row::new(sink, Mode::Cpu, 1024, reader)
        }));
    }
}

fn alignments(sink: Sink, rows: &mut Vec<Row>) {
    for align in [128, 4096, 32_768] {
        rows.extend(
            [Reader::Stops, Reader::Slow, Reader::Once].map(|reader| Row {
                align,
                note: format!(", aligned to {align}"),
                ..Row::new(sink, Mode::Cpu, 16, reader)
            }),
        );
    }
}

/// Bounce memory that is smaller or larger than the ring.
fn bounces(sink: Sink, rows: &mut Vec<Row>) {
    if sink == Sink::Direct {
        return;
    }
    for bounce in [1, 4, 64] {
        rows.extend(
            [Reader::Stops, Reader::Slow, Reader::Once, Reader::Snapshots].map(|reader| Row {
                bounce,
                note: format!(", {bounce} pages of bounce memory"),
                ..Row::new(sink, Mode::Cpu, 16, reader)
            }),
        );
    }
}

/// Pages of the smallest ring that the sink supports.
fn smallest(sink: Sink) -> usize {
    match sink {
        Sink::Direct => 2,
        Sink::Sg | Sink::Flat => 1,
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sink = match self.sink {
            Sink::Direct => "direct",
            Sink::Sg => "sg",
            Sink::Flat => "flat",
        };
        let mode = match self.mode {
            Mode::Cpu => "CPU",
            Mode::System => "all CPUs",
            Mode::Task => "task",
            Mode::TaskCpu => "task and CPU",
            Mode::Inherited => "inherited",
        };
        let reader = match self.reader {
            Reader::KeepsUp => "reader keeps up",
            Reader::Slow => "reader slow",
            Reader::Stops => "reader stops",
            Reader::Dies => "reader dies",
            Reader::Once => "overwrite",
            Reader::Snapshots => "overwrite with snapshots",
        };
        let (pages, note) = (self.pages, &self.note);
        write!(f, "{sink}, {mode}, {pages} pages, {reader}{note}")
    }
}

/// The size and number of the unit's packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Length of a packet, in units of 64 bytes.
    pub(super) packet: u64,
    pub(super) burst: u64,
    /// Ticks until the ring is full.
    pub(super) ticks: u64,
}

impl Row {
    const fn new(sink: Sink, mode: Mode, pages: usize, reader: Reader) -> Self {
        Self {
            mode,
            reader,
            sink,
            pages,
            watermark: 0,
            fault: Fault::None,
            align: 1,
            bounce: 0,
            paused: None,
            refused: None,
            note: String::new(),
        }
    }

    pub(super) fn pace(&self) -> Pace {
        // Ticks do not divide the ring. The smallest ring for `direct` has two pages, of which the unit can use only one.
        match self.pages {
            0..=2 => Pace {
                packet: 3,
                burst: 1,
                ticks: 21,
            },
            16 => Pace {
                packet: 3,
                burst: 7,
                ticks: 48,
            },
            _ => Pace {
                packet: 31,
                burst: 37,
                ticks: 57,
            },
        }
    }

    /// Whether only the row itself starts and stops the event.
    pub(super) fn is_predictable(&self) -> bool {
        matches!(self.mode, Mode::Cpu | Mode::System)
    }

    /// Whether the unit generates nothing.
    pub(super) fn is_silent(&self) -> bool {
        self.paused == Some(Paused::Always) || self.fault == Fault::Start
    }

    /// How much trace is generated, in lengths of the ring.
    pub(super) fn rings(&self) -> u64 {
        if self.pages > 16 || !self.is_predictable() {
            2
        } else {
            5
        }
    }

    pub(super) fn setup(&self) -> Setup {
        let Pace { packet, burst, .. } = self.pace();
        let ring = bytes(self.pages);
        let packet = packet * 64;
        // The unit must be able to generate all of it, so it is a whole number of ticks.
        let limit = (self.rings() * ring + ring / 3) / (packet * burst) * packet * burst;
        Setup {
            sink: self.sink,
            region: if Path::new("/sys/bus/event_source/devices/pattern/caps/sinks").exists() {
                bytes(1)
            } else {
                1
            },
            ring,
            bounce: match self.bounce {
                0 => ring.min(bytes(1024)),
                pages => bytes(pages),
            },
            watermark: self.watermark,
            overwrite: self.reader.overwrites(),
            packet,
            burst,
            limit: if self.is_predictable() && self.reader != Reader::Dies {
                limit
            } else {
                u64::MAX
            },
            align: self.align,
            fault: self.fault,
        }
    }

    /// The event's attributes, with a tick every `tick_us` microseconds.
    pub(super) fn attr(&self, tick_us: u64) -> Result<Attr> {
        let setup = self.setup();
        let Pace { packet, burst, .. } = self.pace();
        let rate = (setup.tick() * 1_000_000 / 1024).div_ceil(tick_us);
        let mut terms = format!("rate={rate},packet={packet},burst={burst},seed=7");
        match self.sink {
            Sink::Direct => {}
            Sink::Sg => terms += ",sink=1",
            Sink::Flat => terms += ",sink=2",
        }
        if setup.limit != u64::MAX {
            terms += &format!(",limit={}", setup.limit);
        }
        let (fault, nth) = match self.fault {
            Fault::None => (0, 0),
            Fault::Late(n) => (1, n),
            Fault::Lost => (2, 0),
            Fault::Overflow(n) => (3, n),
            Fault::Collision(n) => (4, n),
            Fault::Pending => (5, 0),
            Fault::Start => (8, 0),
        };
        let min = match self.refused {
            Some(Refused::Small) => self.pages,
            _ => 0,
        };
        for (name, value) in [
            ("fault", fault),
            ("nth", nth),
            ("align", u64::from(self.align.trailing_zeros())),
            ("bounce", u64::try_from(self.bounce)?),
            ("min", u64::try_from(min)?),
        ] {
            if value != 0 {
                terms += &format!(",{name}={value}");
            }
        }
        let pmus = Pmus::at(Path::new("/sys/bus/event_source/devices"));
        let mut attr = pmus.event(&format!("pattern/{terms}/"))?.attr();
        attr.sample_period = 1;
        attr.read_format = Read::FORMAT;
        attr.flags |= Flags::DISABLED;
        attr.aux_watermark = u32::try_from(self.watermark)?;
        if self.mode == Mode::Inherited {
            attr.flags |= Flags::INHERIT;
        }
        if matches!(self.paused, Some(Paused::Start | Paused::Always)) {
            attr.aux_action = START_PAUSED;
        }
        Ok(attr)
    }
}
