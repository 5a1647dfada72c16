// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The matrix of the trace unit: targets of events, sizes of the AUX area, readers, watermarks and pauses.
//!
//! In each row, the events count the bytes that the device has generated. Each byte must be read, overwritten, or reported as lost. The
//! positions of the next packets must agree, because the streams continue from one event to the next. No row depends on speed: it runs
//! until it has enough trace.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use auxrec::sys::Event;
use pattern_codec::{Header, Piece, Reader};
use perfdata::{Attr, Flags};

use super::{attr, follow, with, MODULE, PACKET};
use crate::attack::{software, Named, CPU_CLOCK};
use crate::events::probe::{bytes, Probe};
use crate::hostile::drivers::{accounted, Trace};
use crate::matrix::Target;
use crate::module::counter;
use crate::wait::wait_for;
use crate::workload::spin;

/// The CPU or thread that an event is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
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

const MODES: [(Mode, &str); 5] = [
    (Mode::Cpu, "CPU 1"),
    (Mode::System, "all CPUs"),
    (Mode::Task, "task"),
    (Mode::TaskCpu, "task on each CPU"),
    (Mode::Inherited, "task and children"),
];

/// How a ring is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// All trace, again and again.
    All,
    /// A part of the trace, each time that the ring is full.
    Slow,
    /// Only at the end.
    Stops,
    /// In overwrite mode, one snapshot at the end.
    Once,
    /// In overwrite mode, a snapshot each time that the event is disabled.
    Snapshots,
}

const READERS: [(Reads, &str); 5] = [
    (Reads::All, "read"),
    (Reads::Slow, "slow reader"),
    (Reads::Stops, "no reader"),
    (Reads::Once, "overwritten"),
    (Reads::Snapshots, "snapshots"),
];

const PAGES: [usize; 3] = [2, 16, 128];

/// How siblings in the group pause the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paused {
    /// It starts paused, until a sibling resumes it.
    Start,
    /// It starts paused; one sibling pauses it and another resumes it, over and over.
    Again,
}

/// `attr.aux_action`.
const START_PAUSED: u32 = 1 << 0;
const PAUSE: u32 = 1 << 1;
const RESUME: u32 = 1 << 2;

#[derive(Debug, Clone, Copy)]
struct Row {
    mode: Mode,
    reader: Reads,
    pages: usize,
    /// `attr.aux_watermark`; 0 for perf's default.
    watermark: u64,
    paused: Option<Paused>,
}

/// All rows, with their names.
pub fn rows() -> Vec<Named> {
    let mut rows: Vec<Named> = Vec::new();
    let mut push = |name: String, row: Row| {
        let name = format!("device, trace unit: matrix, {name}");
        rows.push((name, Box::new(move || with(|| row.run()))));
    };
    for pages in PAGES {
        for (mode, bound) in MODES {
            for (reader, how) in READERS {
                let row = Row {
                    mode,
                    reader,
                    pages,
                    watermark: 0,
                    paused: None,
                };
                push(format!("{bound}, {pages} pages, {how}"), row);
            }
        }
        let row = Row {
            mode: Mode::Cpu,
            reader: Reads::All,
            pages,
            watermark: 0,
            paused: None,
        };
        for (watermark, what) in [
            (PACKET, "a packet"),
            (bytes(pages) / 2 + 40, "no whole packets"),
            (bytes(pages) - 1, "almost all"),
        ] {
            let name = format!("CPU 1, {pages} pages, watermark of {what}");
            push(name, Row { watermark, ..row });
        }
        for (paused, how) in [
            (Paused::Start, "paused at the start"),
            (Paused::Again, "paused again and again"),
        ] {
            for (mode, bound) in [(Mode::Cpu, "CPU 1"), (Mode::System, "all CPUs")] {
                let name = format!("{bound}, {pages} pages, {how}");
                let paused = Some(paused);
                push(
                    name,
                    Row {
                        mode,
                        paused,
                        ..row
                    },
                );
            }
        }
    }
    rows
}

fn headers(trace: &[u8]) -> impl Iterator<Item = Header> + '_ {
    Reader::new(trace).filter_map(|piece| match piece {
        Piece::Packet(header, _) => Some(header),
        _ => None,
    })
}

/// The current position in a CPU's stream. It does not restart with a new event.
fn position(cpu: u16) -> Result<u64> {
    let mut probe = Probe::open(&attr(20)?, -1, i32::from(cpu), 16, false)?;
    probe.event.enable()?;
    wait_for("there is a packet", || {
        spin(Duration::from_millis(1));
        probe.event.disable()?;
        probe.event.enable()?;
        Ok(probe.head() > 0)
    })?;
    probe.event.disable()?;
    probe.read_trace(u64::MAX)?;
    let first = headers(&probe.trace).next();
    Ok(first.context("the trace has no packet")?.pos)
}

/// The sums over a row's events.
#[derive(Default)]
struct Sum {
    generated: u64,
    /// Bytes that were read or are in the ring.
    there: u64,
    overwritten: u64,
    missing: u64,
    truncations: usize,
    /// The first traced position in each CPU's stream.
    begins: BTreeMap<u16, u64>,
}

impl Row {
    fn overwrites(self) -> bool {
        matches!(self.reader, Reads::Once | Reads::Snapshots)
    }

    fn run(self) -> Result<String> {
        let losses = || -> Result<[u64; 2]> {
            Ok([
                counter(MODULE, "lost_no_space")?,
                counter(MODULE, "lost_gap")?,
            ])
        };
        let before = losses()?;
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
        let attr = self.attr()?;
        let mut probes = cpus
            .iter()
            .map(|&cpu| Probe::open(&attr, tid, cpu, self.pages, self.overwrites()))
            .collect::<Result<Vec<_>>>()?;
        let siblings = probes
            .iter()
            .zip(cpus)
            .map(|(probe, &cpu)| self.siblings(probe, cpu))
            .collect::<Result<Vec<_>>>()?;

        self.trace(&mut probes)?;
        for probe in &probes {
            probe.event.disable()?;
        }
        // When the children have ended, their counts are added to those of the parents.
        drop(target);
        let mut sum = Sum::default();
        for (probe, &cpu) in probes.iter_mut().zip(cpus) {
            self.add(&mut sum, probe, cpu)
                .with_context(|| format!("the event of CPU {cpu}"))?;
        }
        drop(siblings);
        let [no_space, gap] = {
            let after = losses()?;
            [after[0] - before[0], after[1] - before[1]]
        };
        ensure!(gap == 0, "{gap} bytes are a gap");
        ensure!(
            sum.generated == sum.there + sum.overwritten + no_space,
            "{} bytes were made: {} are there, {} were overwritten, {no_space} are reported lost",
            sum.generated,
            sum.there,
            sum.overwritten
        );
        ensure!(
            sum.missing <= no_space,
            "{} bytes are missing in the streams, and {no_space} are reported lost",
            sum.missing
        );
        // The position of the next packet shows how many bytes the device has generated.
        drop(probes);
        let mut made = 0;
        for (&cpu, begins) in &sum.begins {
            made += position(cpu)? - begins;
        }
        ensure!(
            self.overwrites() || made == sum.generated,
            "the device made {made} bytes, and {} were counted",
            sum.generated
        );
        ensure!(
            no_space == 0 || sum.truncations > 0,
            "{no_space} bytes found no space, and no record says TRUNCATED"
        );
        Ok(format!(
            "{} bytes: {} there, {} overwritten, {no_space} lost",
            sum.generated, sum.there, sum.overwritten
        ))
    }

    fn attr(self) -> Result<Attr> {
        let attr = attr(20)?;
        let inherits = match self.mode {
            Mode::Inherited => Flags::INHERIT,
            _ => Flags::default(),
        };
        Ok(Attr {
            flags: attr.flags | inherits,
            aux_watermark: u32::try_from(self.watermark)?,
            aux_action: match self.paused {
                Some(_) => START_PAUSED,
                None => 0,
            },
            ..attr
        })
    }

    fn siblings(self, probe: &Probe, cpu: i32) -> Result<Vec<Event>> {
        let actions: &[(u32, u64)] = match self.paused {
            None => &[],
            Some(Paused::Start) => &[(RESUME, 1_300_000)],
            Some(Paused::Again) => &[(PAUSE, 1_300_000), (RESUME, 1_700_000)],
        };
        let open = |&(aux_action, period): &(u32, u64)| {
            let attr = Attr {
                aux_action,
                ..software(CPU_CLOCK, period)
            };
            let event = Event::open_in(&attr, -1, cpu, Some(&probe.event));
            event.context("cannot open an event that pauses or resumes another")
        };
        actions.iter().map(open).collect()
    }

    /// Traces until each ring has been full, or has wrapped a few times.
    fn trace(self, probes: &mut [Probe]) -> Result<()> {
        let ring = bytes(self.pages);
        let goal = match self.reader {
            Reads::Stops => 0,
            _ => 3 * ring,
        };
        wait_for("enough trace", || {
            let mut done = true;
            for probe in &mut *probes {
                let cuts = probe.truncations();
                probe.read_records()?;
                match self.reader {
                    Reads::All => while probe.read_trace(u64::MAX)? > 0 {},
                    Reads::Slow if probe.truncations() > cuts => {
                        probe.read_trace(ring / 2 + 40)?;
                    }
                    Reads::Slow | Reads::Stops => {}
                    Reads::Once => probe.event.disable()?,
                    Reads::Snapshots => {
                        probe.event.disable()?;
                        self.newest(probe)?;
                    }
                }
                let wants = match self.reader {
                    Reads::Stops => probe.truncations() == 0,
                    _ => probe.head() < goal,
                };
                done &= !wants;
                if wants {
                    // A full ring disables the event.
                    probe.event.enable()?;
                }
            }
            if self.overwrites() {
                spin(Duration::from_millis(5));
            }
            Ok(done)
        })
    }

    /// Takes a snapshot of an event that is disabled, so that the device does not write meanwhile.
    ///
    /// perf can leave a clone of an inherited event enabled ([`Probe::until`]). Then the event is disabled again.
    fn snapshot(self, probe: &mut Probe) -> Result<()> {
        wait_for("the device writes nothing", || {
            probe.snapshot()?;
            let (from, trace) = (probe.from, mem::take(&mut probe.trace));
            probe.snapshot()?;
            let still = from == probe.from && trace == probe.trace;
            ensure!(
                still || self.mode == Mode::Inherited,
                "the event is disabled, and its ring changes"
            );
            if !still {
                probe.event.disable()?;
            }
            Ok(still)
        })
    }

    /// Checks the streams in a snapshot, which must have no gaps. Returns the number of its bytes.
    fn newest(self, probe: &mut Probe) -> Result<u64> {
        self.snapshot(probe)?;
        // The oldest packet may be half overwritten.
        let skip = usize::try_from(probe.from.next_multiple_of(PACKET) - probe.from)?;
        let newest = probe.trace.get(skip..).unwrap_or_default();
        let missing: u64 = follow(newest)?.values().sum();
        ensure!(missing == 0, "{missing} bytes are missing in a snapshot");
        Ok(u64::try_from(probe.trace.len())?)
    }

    fn add(self, sum: &mut Sum, probe: &mut Probe, cpu: i32) -> Result<()> {
        sum.generated += probe.generated()?;
        probe.read_records()?;
        sum.truncations += probe.truncations();
        if self.overwrites() {
            let newest = self.newest(probe)?;
            sum.there += newest;
            sum.overwritten += probe.head() - newest;
            return Ok(());
        }
        while probe.read_trace(u64::MAX)? > 0 {}
        sum.there += accounted(probe, Trace::Contiguous)?;
        for header in headers(&probe.trace) {
            let begins = sum.begins.entry(header.cpu).or_insert(header.pos);
            *begins = header.pos.min(*begins);
        }
        let streams: BTreeMap<u16, u64> = follow(&probe.trace)?;
        ensure!(
            cpu < 0 || streams.keys().all(|&of| i32::from(of) == cpu),
            "trace of the CPUs {:?}",
            streams.keys()
        );
        sum.missing += streams.values().sum::<u64>();
        Ok(())
    }
}
