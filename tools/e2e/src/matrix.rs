// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The matrix: each sink in each mode, with rings of each size, under readers of each kind.
//!
//! A row opens the events itself and reads their rings in this process, so that it knows when the reader reads. Where only
//! that matters, the whole sequence of AUX records is predicted by [`model`](crate::model) and must come exactly; where the
//! scheduler has a part, each record must be possible. In every row, of every byte: it is right; and what the event's counter
//! says was generated is what the ring or the file has, and what the driver has reported lost.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::pmu::Pmus;
use auxrec::ring::{AuxArea, Reader as Ring};
use auxrec::sys::{Count, Event};
use perfdata::{Attr, Flags, Read};
use rustix::io::Errno;
use rustix::thread::gettid;

use crate::hostile::{software, CPU_CLOCK};
use crate::model::{say, Fault, Follower, Model, Setup, Sink, BARRIER};
use crate::module::{self, counter};
use crate::probe::{bytes, map, Probe, PATIENCE};
use crate::recording::TraceFile;
use crate::stream::{self, Content};
use crate::workload::{pin, spin};

/// What an event is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// A CPU.
    Cpu,
    /// Each CPU, an event each.
    System,
    /// A thread, wherever it runs.
    Task,
    /// A thread on a CPU, an event for each CPU.
    TaskCpu,
    /// The same, and what the thread starts.
    Inherited,
}

/// How a ring is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// As soon as there is something.
    KeepsUp,
    /// When the ring is full, and then only a part.
    Slow,
    /// Not before the end.
    Stops,
    /// By a process that is killed.
    Dies,
    /// Overwritten; looked at once, at the end.
    Once,
    /// Overwritten; looked at several times.
    Snapshots,
}

impl Reader {
    fn overwrites(self) -> bool {
        matches!(self, Self::Once | Self::Snapshots)
    }
}

/// A row.
#[derive(Debug, Clone)]
struct Row {
    mode: Mode,
    reader: Reader,
    sink: Sink,
    /// Pages of the ring.
    pages: usize,
    /// `attr.aux_watermark`; 0: as perf has it.
    watermark: u64,
    /// What goes wrong.
    fault: Fault,
    /// Each session begins at a multiple of this power of two, if it is not 1.
    align: u64,
    /// Pages of bounce memory; 0: as the driver has it.
    bounce: usize,
    /// Whether others of its group pause and resume the event, and whether it starts paused.
    paused: Option<Paused>,
    /// Why no ring can be mapped, several times, before one is.
    refused: Option<Refused>,
    /// What is in the name, beside the above.
    note: String,
}

/// How an event is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paused {
    /// From the start, until another resumes it.
    Start,
    /// By one and resumed by the other, over and over.
    Again,
    /// From the start, and never resumed.
    Always,
}

/// Why a driver refuses a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// Before it has anything: `fault=6`.
    Setup,
    /// When it has all its memory but the last piece: `fault=7`.
    Memory,
    /// It has fewer pages than `min=` asks for: half as many.
    Small,
}

/// `attr.aux_action`.
const START_PAUSED: u32 = 1 << 0;
const PAUSE: u32 = 1 << 1;
const RESUME: u32 = 1 << 2;

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
}

/// What refused rings would leak together.
const LEAK: u64 = 64 << 20;
/// A silent event is on for so long each time, in ns: 200 ticks.
const QUIET: u64 = 20_000_000;

/// Loops of a slow reader.
const ROUNDS: usize = 3;
/// How often a reader that should keep up may try: a guest may be without a processor when it should read.
const TRIES: u32 = 4;

const SINKS: [Sink; 3] = [Sink::Direct, Sink::Sg, Sink::Flat];
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
fn rows(sinks: &[Sink]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &sink in sinks {
        product(sink, &mut rows);
        watermarks(sink, &mut rows);
        pauses(sink, &mut rows);
        // What the first version of the driver does not have.
        if sinks.len() > 1 {
            faults(sink, &mut rows);
            refusals(sink, &mut rows);
            alignments(sink, &mut rows);
            bounces(sink, &mut rows);
        }
    }
    rows
}

/// Each mode, with rings of each size, under readers of each kind.
fn product(sink: Sink, rows: &mut Vec<Row>) {
    for pages in [smallest(sink), 16, 1024] {
        for mode in MODES {
            rows.extend(READERS.map(|reader| Row {
                watermark: match reader {
                    // Room for what comes while the reader is told.
                    Reader::KeepsUp => bytes(pages) / 4,
                    // In many pieces, so that it dies between two of them.
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

/// A paused unit generates nothing and commits nothing, so what comes is the same.
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

/// Then one is mapped, and is as good as any.
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

/// Bounce memory that is smaller than the ring, and larger.
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

/// Pages of the smallest ring there is.
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

/// Which rows to run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print their names.
    #[arg(long)]
    list: bool,
    /// Only those whose names contain one of these, or are one with `=` before it.
    filters: Vec<String>,
}

/// Runs them, and reports in KTAP.
///
/// # Errors
/// If the driver cannot be loaded.
pub fn run(args: &Args) -> Result<ExitCode> {
    module::load_all()?;
    let chosen: Vec<_> = rows(&sinks())
        .into_iter()
        .map(|row| (row.to_string(), row))
        .filter(|(name, _)| {
            args.filters.is_empty() || args.filters.iter().any(|f| chooses(f, name))
        })
        .collect();
    if args.list {
        for (name, _) in &chosen {
            println!("{name}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = crate::ktap::Report::begin(chosen.len());
    for (name, row) in &chosen {
        let start = Instant::now();
        let outcome = row.run();
        let time = start.elapsed().as_secs_f64();
        match outcome {
            Ok(note) => report.pass(name, &format!("{note} ({time:.2} s)")),
            Err(error) => report.fail(name, &format!("{error:#} ({time:.2} s)")),
        }
    }
    Ok(if report.good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Whether a filter is part of a name, or all of it: `=NAME`.
fn chooses(filter: &str, name: &str) -> bool {
    match filter.strip_prefix('=') {
        Some(whole) => name == whole,
        None => name.contains(filter),
    }
}

/// The sinks that the driver has.
fn sinks() -> Vec<Sink> {
    let caps = Path::new("/sys/bus/event_source/devices/pattern/caps/sinks");
    let said = std::fs::read_to_string(caps).unwrap_or_else(|_| "direct".into());
    let has = |sink: &&Sink| {
        let name = match sink {
            Sink::Direct => "direct",
            Sink::Sg => "sg",
            Sink::Flat => "flat",
        };
        said.contains(name)
    };
    SINKS.iter().filter(has).copied().collect()
}

/// How much of what the unit generates, and how fast.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Units of a packet.
    packet: u64,
    burst: u64,
    /// Ticks in which the ring would be full.
    ticks: u64,
}

/// Bytes that the driver has reported lost, by cause.
fn reported() -> Result<[u64; 3]> {
    Ok([
        counter("pattern", "lost_no_space")?,
        counter("pattern", "lost_gap")?,
        counter("pattern", "lost_collision")?,
    ])
}

/// What came of a row's events.
#[derive(Default)]
struct Sum {
    generated: u64,
    trace: u64,
    missing: u64,
    overwritten: u64,
    overhead: u64,
    records: usize,
    truncations: usize,
    cpus: BTreeSet<u16>,
    streams: usize,
}

impl Row {
    fn pace(&self) -> Pace {
        // Ticks that do not divide the ring; the smallest ring is of direct two pages, of which it can only use one.
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

    /// Whether nothing but the row itself starts and stops the event.
    fn is_predictable(&self) -> bool {
        matches!(self.mode, Mode::Cpu | Mode::System)
    }

    /// Whether its unit generates nothing.
    fn is_silent(&self) -> bool {
        self.paused == Some(Paused::Always) || self.fault == Fault::Start
    }

    /// How much is generated, in rings.
    fn rings(&self) -> u64 {
        if self.pages > 16 || !self.is_predictable() {
            2
        } else {
            5
        }
    }

    fn setup(&self) -> Setup {
        let Pace { packet, burst, .. } = self.pace();
        let ring = bytes(self.pages);
        let packet = packet * 64;
        // All of it must be asked for, so it is a whole number of ticks.
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

    /// The event's attribute; a tick every so many microseconds.
    fn attr(&self, tick_us: u64) -> Result<Attr> {
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

    fn run(&self) -> Result<String> {
        let mut tick_us = match self.reader {
            // A ring in 60 ms or more.
            Reader::KeepsUp => (60_000 / self.pace().ticks).max(1000),
            Reader::Dies if self.pages < 1024 => 500,
            _ if self.pages < 1024 => 100,
            _ => 1000,
        };
        for _ in 1..TRIES {
            match self.attempt(tick_us) {
                // The next one has more time.
                Ok(None) => tick_us *= 4,
                Ok(Some(seen)) => return Ok(seen),
                Err(error) => return Err(error),
            }
        }
        bail!("the reader has never kept up");
    }

    /// The events of its group that pause and resume an event.
    fn siblings(&self, probe: &Probe, cpu: i32) -> Result<Vec<Event>> {
        let actions: &[(u32, u64)] = match self.paused {
            None | Some(Paused::Always) => &[],
            Some(Paused::Start) => &[(RESUME, 1_300_000)],
            Some(Paused::Again) => &[(PAUSE, 1_300_000), (RESUME, 1_700_000)],
        };
        actions
            .iter()
            .map(|&(aux_action, period)| {
                let attr = Attr {
                    aux_action,
                    ..software(CPU_CLOCK, period)
                };
                let event = Event::open_in(&attr, -1, cpu, Some(&probe.event));
                event.context("cannot open an event that pauses or resumes another")
            })
            .collect()
    }

    /// Nothing if the reader did not keep up that should.
    fn attempt(&self, tick_us: u64) -> Result<Option<String>> {
        let setup = self.setup();
        let attr = self.attr(tick_us)?;
        let before = reported()?;
        let target = match self.mode {
            Mode::Cpu | Mode::System => None,
            Mode::Task | Mode::TaskCpu | Mode::Inherited => {
                Some(Target::start(self.mode == Mode::Inherited)?)
            }
        };
        let tid = target.as_ref().map_or(-1, |target| target.tid);
        let cpus: &[i32] = match self.mode {
            Mode::Cpu => &[1],
            Mode::Task => &[-1],
            Mode::System | Mode::TaskCpu | Mode::Inherited => &[0, 1],
        };
        let mut probes = cpus
            .iter()
            .map(|&cpu| {
                self.refuse(&attr, cpu)?;
                Probe::open(&attr, tid, cpu, self.pages, setup.overwrite)
            })
            .collect::<Result<Vec<_>>>()?;
        let siblings = probes
            .iter()
            .zip(cpus)
            .map(|(probe, cpu)| self.siblings(probe, *cpu))
            .collect::<Result<Vec<_>>>()?;

        let kept = thread::scope(|scope| {
            let threads: Vec<_> = probes
                .iter_mut()
                .zip(cpus)
                .map(|(probe, cpu)| scope.spawn(move || self.read(probe, *cpu)))
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| bail!("a reader's thread died"))
                })
                .collect::<Result<Vec<_>>>()
        });
        drop(target);
        let kept = kept?;

        let mut sum = Sum::default();
        for ((probe, files), cpu) in probes.iter_mut().zip(kept).zip(cpus) {
            let at = format!("CPU {cpu}");
            match self.check(probe, files).context(at)? {
                Some(one) => sum = sum.plus(one),
                None => return Ok(None),
            }
        }
        drop((siblings, probes));
        let after = reported()?;
        let [no_space, gap, collision] = [0, 1, 2].map(|n| after[n] - before[n]);
        let lost = no_space + gap + collision;
        ensure!(
            sum.generated == sum.trace + sum.overwritten + lost,
            "{} bytes were generated; {} are there, {} were overwritten and {lost} reported lost",
            sum.generated,
            sum.trace,
            sum.overwritten
        );
        ensure!(
            sum.missing <= lost,
            "{} bytes are missing in the stream, and {lost} were reported lost",
            sum.missing
        );
        ensure!(
            no_space == 0 || sum.truncations > 0,
            "{no_space} bytes found no room, and no record says TRUNCATED"
        );
        ensure!(
            self.is_silent() == (sum.generated == 0),
            "{} bytes were generated",
            sum.generated
        );
        Ok(Some(format!(
            "{} bytes: {} there, {} overwritten, {lost} lost; {} records, {} truncations, {} streams, CPUs {:?}",
            sum.generated,
            sum.trace,
            sum.overwritten,
            sum.records,
            sum.truncations,
            sum.streams,
            sum.cpus,
        )))
    }

    /// Traces, and reads as the row's reader does. What the file has, of a reader that has one.
    fn read(&self, probe: &mut Probe, cpu: i32) -> Result<Option<Vec<u8>>> {
        let setup = self.setup();
        let part = part(&setup);
        let goal = (self.rings() * setup.ring).min(setup.limit);
        let silent = |probe: &Probe| -> Result<bool> { Ok(probe.generated()? >= setup.limit) };
        let mut file = None;

        let path = TraceFile::new(&format!("matrix-{cpu}"));
        let recorder = match self.reader {
            Reader::Dies => Some(Recorder::start(probe, self.pages, path.path())?),
            _ => None,
        };

        if self.is_silent() {
            self.listen(probe)?;
            return Ok(None);
        }
        probe.event.enable()?;
        match self.reader {
            Reader::KeepsUp => probe.until("a ring that is read", |probe| {
                probe.wait()?;
                let cuts = probe.truncations();
                probe.read_trace(u64::MAX)?;
                probe.read_records()?;
                if probe.truncations() > cuts {
                    probe.read_trace(u64::MAX)?;
                    probe.event.enable()?;
                }
                Ok(silent(probe)? || setup.limit == u64::MAX && probe.head() >= goal)
            })?,
            Reader::Slow => {
                for round in 1.. {
                    let done = setup.limit == u64::MAX && round > ROUNDS;
                    if done || self.full(probe, round)? {
                        break;
                    }
                    probe.read_trace(part)?;
                    probe.event.enable()?;
                }
            }
            Reader::Stops => {
                self.full(probe, 1)?;
            }
            Reader::Dies => {
                // In the middle of what it does: after the first of its pieces, or a later one.
                let goal = setup.ring / 4;
                let result = probe.until("a file", |_| {
                    Ok(std::fs::metadata(path.path()).map_or(0, |file| file.len()) >= goal)
                });
                drop(recorder);
                result?;
                probe.read_records()?;
                let cuts = probe.truncations();
                // Off if it was not fast enough.
                probe.event.enable()?;
                self.full(probe, cuts + 1)?;
                let read = std::fs::read(path.path());
                file = Some(read.context("cannot read the dead reader's file")?);
            }
            Reader::Once => probe.until("trace", |probe| {
                Ok(silent(probe)? || setup.limit == u64::MAX && probe.generated()? >= goal)
            })?,
            Reader::Snapshots => {
                for step in 1..=4 {
                    probe.until("some trace", |probe| {
                        Ok(probe.generated()? >= goal / 4 * step)
                    })?;
                    probe.event.disable()?;
                    probe.snapshot()?;
                    probe.read_records()?;
                    stream::read(&probe.trace, probe.from, true)
                        .with_context(|| format!("snapshot {step}"))?;
                    probe.event.enable()?;
                }
            }
        }
        probe.event.disable()?;
        Ok(file)
    }

    /// Has rings refused, as often as would leak [`LEAK`] bytes: nothing is left of them, neither memory nor a reference.
    fn refuse(&self, attr: &Attr, cpu: i32) -> Result<()> {
        let Some(refused) = self.refused else {
            return Ok(());
        };
        let mut attr = attr.clone();
        let (fault, pages) = match refused {
            Refused::Setup => (6, self.pages),
            Refused::Memory => (7, self.pages),
            Refused::Small => (0, self.pages / 2),
        };
        attr.config1 |= fault << 4;
        let event = Event::open(&attr, -1, cpu)?;
        let references = module::references("pattern")?;
        let free = free()?;
        for _ in 0..LEAK / bytes(pages) {
            let error = match map(&event, pages, self.reader.overwrites()) {
                Ok(_) => bail!("a ring was mapped that must be refused"),
                Err(error) => error,
            };
            let errno = error.downcast_ref().and_then(Errno::from_io_error);
            ensure!(errno == Some(Errno::NOMEM), "{error:#}");
        }
        let end = Instant::now() + PATIENCE;
        // RCU frees some of it later.
        loop {
            let now = module::references("pattern")?;
            let gone = free.saturating_sub(self::free()?);
            if now == references && gone < LEAK / 4 {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "after rings that were refused {gone} bytes are gone, and {now} references are there, of {references} before"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Has a silent event on several times.
    fn listen(&self, probe: &Probe) -> Result<()> {
        let [began, refused] = ["begins", "begin_refused"].map(|name| counter("pattern", name));
        let (began, refused) = (began?, refused?);
        for round in 1.. {
            probe.event.enable()?;
            let end = Instant::now() + PATIENCE;
            // What it generates the sums will tell.
            let done = |count: Count| count.value > 0 || count.enabled >= QUIET * round;
            while !probe.event.count()?.is_some_and(done) {
                ensure!(
                    Instant::now() < end,
                    "an event is enabled, and its time stands still"
                );
                thread::sleep(Duration::from_millis(1));
            }
            probe.event.disable()?;
            if round == 3 {
                break;
            }
        }
        let began = counter("pattern", "begins")? - began;
        let refused = counter("pattern", "begin_refused")? - refused;
        let good = match self.fault {
            Fault::Start => began == 0 && refused >= 3,
            _ => began >= 3 && refused == 0,
        };
        ensure!(good, "{began} sessions began, and {refused} were refused");
        Ok(())
    }

    /// Waits until the ring was found full once more, or the unit is silent; whether it is silent.
    fn full(&self, probe: &mut Probe, round: usize) -> Result<bool> {
        let limit = self.setup().limit;
        let mut done = false;
        probe.until("a full ring", |probe| {
            // The counter first: a unit that fell silent with a full ring has said so before.
            done = probe.generated()? >= limit;
            probe.read_records()?;
            Ok(done || probe.truncations() >= round)
        })?;
        Ok(done)
    }

    /// Whether what an event has left is right; nothing if its reader should have kept up and did not.
    fn check(&self, probe: &mut Probe, file: Option<Vec<u8>>) -> Result<Option<Sum>> {
        let setup = self.setup();
        let generated = probe.generated()?;
        probe.read_records()?;
        ensure!(probe.lost_records == 0, "records were lost");
        let head = probe.head();
        let records = &probe.records;
        let begins_in_order = records.iter().all(|r| r.offset >= r.size) || !setup.overwrite;
        ensure!(begins_in_order, "a record that ends before it can begin");
        // What came: first, as it says most of what is wrong.
        let expected = self.predict();
        match &expected {
            Some(expected) if expected.records() == records => ensure!(
                generated == expected.generated(),
                "{generated} bytes were generated, and {} must be",
                expected.generated()
            ),
            Some(expected) => {
                let differs = first_difference(expected.records(), records);
                if self.reader != Reader::KeepsUp {
                    bail!(differs);
                }
                // It may not have kept up; but what came must be possible.
                Follower::new(setup, false)
                    .follow(records)
                    .context(differs)?;
                return Ok(None);
            }
            None => Follower::new(setup, true).follow(records)?,
        }

        let content = if setup.overwrite {
            probe.snapshot()?;
            let len = u64::try_from(probe.trace.len())?;
            ensure!(
                len == head.min(setup.ring),
                "a snapshot of {len} bytes at {head:#x}"
            );
            stream::read(&probe.trace, probe.from, true)?
        } else if let Some(file) = file {
            stream::read(&joined(probe, file)?, 0, false)?
        } else {
            probe.read_trace(u64::MAX)?;
            stream::read(&probe.trace, 0, false)?
        };
        ensure!(
            self.cpu_is_right(&content),
            "trace of the CPUs {:?}",
            content.cpus
        );

        let told: u64 = probe.records.iter().map(|r| r.size).sum();
        ensure!(
            setup.overwrite || told + content.padding == head,
            "the records tell of {told} bytes, {} are padding, and the head is at {head}",
            content.padding
        );
        let records = &probe.records;
        // In a ring that is overwritten, all packets without trace that there ever were.
        let overhead = match (&expected, setup.overwrite) {
            (_, false) => content.overhead,
            (Some(expected), true) => expected.overhead(),
            (None, true) => overhead(&setup, records),
        };
        let overwritten = (head - overhead)
            .checked_sub(content.trace)
            .with_context(|| format!("{} bytes of trace in {head}", content.trace))?;
        ensure!(
            overwritten == 0 || setup.overwrite,
            "{overwritten} bytes of the ring are neither trace nor packets without"
        );
        ensure!(
            self.sink != Sink::Flat || content.unmarked == 0 || self.fault != Fault::None,
            "bytes are missing at {:#x?}, and {} times no barrier says so",
            content.gaps,
            content.unmarked
        );
        if let Some(expected) = expected.filter(|_| !setup.overwrite) {
            ensure!(
                content.overhead == expected.overhead(),
                "{} bytes of packets without trace, and {} must be",
                content.overhead,
                expected.overhead()
            );
        }

        Ok(Some(Sum {
            generated,
            trace: content.trace,
            missing: content.missing,
            overwritten,
            overhead: content.overhead,
            records: records.len(),
            truncations: probe.truncations(),
            streams: content.streams.len(),
            cpus: content.cpus,
        }))
    }

    /// Whether the trace is of CPUs that the event was on.
    fn cpu_is_right(&self, content: &Content) -> bool {
        match self.mode {
            Mode::Cpu => content.cpus.iter().all(|&cpu| cpu == 1),
            Mode::Task => true,
            Mode::System | Mode::TaskCpu | Mode::Inherited => content.cpus.len() <= 1,
        }
    }

    /// What must come, where that is known.
    fn predict(&self) -> Option<Model> {
        if !self.is_predictable() {
            return None;
        }
        let setup = self.setup();
        let mut model = Model::new(setup);
        model.enable();
        match self.reader {
            _ if self.is_silent() => {}
            Reader::KeepsUp => {
                model.run_kept_up();
                if model.lost() != 0 {
                    // No reader is fast enough for this ring; when it comes after the loss is its own affair.
                    return None;
                }
            }
            Reader::Slow => {
                model.run();
                while !model.is_silent() {
                    model.drain(part(&setup));
                    model.enable();
                    model.run();
                }
            }
            Reader::Stops | Reader::Once => model.run(),
            Reader::Dies | Reader::Snapshots => return None,
        }
        model.disable();
        Some(model)
    }
}

impl Sum {
    fn plus(mut self, other: Self) -> Self {
        self.cpus.extend(other.cpus);
        Self {
            generated: self.generated + other.generated,
            trace: self.trace + other.trace,
            missing: self.missing + other.missing,
            overwritten: self.overwritten + other.overwritten,
            overhead: self.overhead + other.overhead,
            records: self.records + other.records,
            truncations: self.truncations + other.truncations,
            streams: self.streams + other.streams,
            cpus: self.cpus,
        }
    }
}

/// Bytes without trace of which these records of a ring that is overwritten tell: padding, and barriers, as packets are of
/// another length.
fn overhead(setup: &Setup, records: &[perfdata::Aux]) -> u64 {
    let of_one = |record: &perfdata::Aux| {
        let begin = record.offset - record.size;
        let pad = begin.next_multiple_of(setup.align) - begin;
        let rest = record.size.saturating_sub(pad);
        let barrier = rest > 0 && rest % setup.packet == BARRIER % setup.packet;
        pad + if barrier { BARRIER } else { 0 }
    };
    records.iter().map(of_one).sum()
}

/// What a slow reader reads at a time: no whole number of packets.
fn part(setup: &Setup) -> u64 {
    setup.ring / 2 + 40
}

/// Bytes of memory that nobody has.
fn free() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemFree:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context("/proc/meminfo has no MemFree")? * 1024)
}

fn first_difference(expected: &[perfdata::Aux], got: &[perfdata::Aux]) -> String {
    let n = expected.iter().zip(got).take_while(|(a, b)| a == b).count();
    let one = |records: &[perfdata::Aux]| records.get(n).map_or("none".to_owned(), say);
    format!(
        "AUX record {n} of {} is {}, and of {} must be {}",
        got.len(),
        one(got),
        expected.len(),
        one(expected)
    )
}

/// The trace up to the head: what a dead reader has written to its file, and what the ring still holds after that. Where
/// both have a byte, since the reader died before it gave its place back, it is the same.
fn joined(probe: &Probe, mut file: Vec<u8>) -> Result<Vec<u8>> {
    let (tail, held) = probe.peek()?;
    let tail = usize::try_from(tail)?;
    let both = file.len().checked_sub(tail).with_context(|| {
        format!(
            "the dead reader had given back {tail} bytes, and only {} are in its file",
            file.len()
        )
    })?;
    ensure!(both <= held.len(), "the file has more than was written");
    let (twice, rest) = held.split_at(both);
    ensure!(
        file.get(tail..) == Some(twice),
        "the ring has changed under its reader"
    );
    file.extend_from_slice(rest);
    Ok(file)
}

/// A thread to trace.
struct Target {
    tid: i32,
    done: std::sync::Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Target {
    /// Starts one that computes on one CPU and on the other; or has threads of its own do so.
    fn start(children: bool) -> Result<Self> {
        let done = std::sync::Arc::new(AtomicBool::new(false));
        let tid = std::sync::Arc::new(AtomicI32::new(0));
        let (theirs, told) = (done.clone(), tid.clone());
        let thread = thread::spawn(move || {
            told.store(gettid().as_raw_nonzero().get(), Ordering::Release);
            for cpu in [0, 1].into_iter().cycle() {
                if theirs.load(Ordering::Acquire) {
                    break;
                }
                let work = move || {
                    // Where it cannot be moved, it computes where it is.
                    let _ = pin(cpu);
                    spin(Duration::from_millis(3));
                };
                if children {
                    let _ = thread::spawn(work).join();
                } else {
                    work();
                }
            }
        });
        let end = Instant::now() + PATIENCE;
        while tid.load(Ordering::Acquire) == 0 {
            ensure!(Instant::now() < end, "a thread does not start");
            thread::yield_now();
        }
        Ok(Self {
            tid: tid.load(Ordering::Acquire),
            done,
            thread: Some(thread),
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The process that reads a ring and is killed. It has the event as its standard input.
struct Recorder(Child);

impl Recorder {
    fn start(probe: &Probe, pages: usize, file: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let child = Command::new(program)
            .args(["read", &pages.to_string()])
            .arg(file)
            .stdin(Stdio::from(probe.descriptor()?))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a reader")?;
        let child = Self(child);
        let end = Instant::now() + PATIENCE;
        // It makes its file when it has mapped the ring.
        while !file.exists() {
            ensure!(Instant::now() < end, "a reader does not start");
            thread::sleep(Duration::from_millis(2));
        }
        Ok(child)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // It cannot have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the reader reads and where it writes that.
#[derive(clap::Args, Debug)]
pub struct Reading {
    pages: usize,
    file: std::path::PathBuf,
}

/// Reads the trace of the event that is the standard input, until it is killed.
///
/// # Errors
/// When the file cannot be written.
pub fn read(args: &Reading) -> Result<ExitCode> {
    let (base, aux) = map(std::io::stdin(), args.pages, false)?;
    let area = AuxArea {
        base: &base,
        aux: &aux,
    };
    let mut ring = Ring::new(aux.len())?;
    let mut file = std::fs::File::create(&args.file).context("cannot make the file")?;
    loop {
        let range = ring.pending(&area)?;
        let mut got = vec![0; usize::try_from(range.end - range.start)?];
        if !got.is_empty() {
            // First to the file, then its place back: so nothing is lost, whenever this process ends.
            ring.copy(&area, range.start, &mut got);
            file.write_all(&got).context("cannot write the file")?;
            ring.release(&area, range.end);
        }
        thread::sleep(Duration::from_micros(200));
    }
}
