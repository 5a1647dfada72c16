// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults of the device on demand while it is traced: see "Faults on demand" in `Documentation/trace-unit.md`.
//!
//! In each row, the events count the bytes that the device generated in transactions whose length is certain. Each of these bytes must be
//! read, overwritten, or reported as lost. A transaction of uncertain length must have no bytes, and a record must report the loss.

use anyhow::{ensure, Context, Result};
use perfdata::{Attr, AuxFlags};

use super::{attr, every_byte, follow, with, MODULE, PACKET};
use crate::attack::Named;
use crate::device::kernel::messages;
use crate::events::probe::{bytes, Probe};
use crate::hostile::drivers::{accounted, Trace};
use crate::module::counter;
use crate::wait::wait_for;
use crate::workload::spin;
use std::time::{Duration, Instant};

mod registers;

use registers::Registers;

/// The kind of a fault, as the device's register encodes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind(u32);

impl Kind {
    const RELEASE: Self = Self(0);
    const INTERRUPT_LATE: Self = Self(1);
    const INTERRUPT_LOST: Self = Self(2);
    const INTERRUPT_TWICE: Self = Self(3);
    const INTERRUPT_SPURIOUS: Self = Self(4);
    const INTERRUPT_ELSEWHERE: Self = Self(5);
    const INTERRUPT_STOPPED: Self = Self(6);
    const DMA_LATE: Self = Self(7);
    const DMA_STALE: Self = Self(8);
    const DMA_WILD: Self = Self(9);
    const ENTRY: Self = Self(10);
    const WRITTEN: Self = Self(11);
    const POSITION: Self = Self(12);
    const RESTART: Self = Self(13);
    const MUTE: Self = Self(14);
    const RESET: Self = Self(15);
    const DROPPED: Self = Self(16);
}

/// The loss that the fault may cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Nothing,
    /// A gap of known length.
    Counted,
    /// A whole transaction, of unknown length.
    Transaction,
}

struct Fault {
    name: &'static str,
    kind: Kind,
    argument: u32,
    loss: Loss,
    /// The driver's message about the fault.
    says: Option<&'static str>,
}

const fn fault(name: &'static str, kind: Kind, argument: u32, loss: Loss) -> Fault {
    Fault {
        name,
        kind,
        argument,
        loss,
        says: None,
    }
}

impl Fault {
    const fn said(self, says: &'static str) -> Self {
        Self {
            says: Some(says),
            ..self
        }
    }

    /// Whether the fault is about the interrupt for a full region. In overwrite mode, there is no such interrupt.
    fn is_of_interrupt(&self) -> bool {
        matches!(
            self.kind,
            Kind::INTERRUPT_LATE
                | Kind::INTERRUPT_LOST
                | Kind::INTERRUPT_TWICE
                | Kind::INTERRUPT_ELSEWHERE
        )
    }

    /// Whether the fault is about DMA.
    fn is_of_memory(&self) -> bool {
        matches!(
            self.kind,
            Kind::DMA_LATE | Kind::DMA_STALE | Kind::DMA_WILD | Kind::ENTRY | Kind::RESTART
        )
    }

    /// Whether the fault is about a stopped unit.
    fn is_idle(&self) -> bool {
        matches!(self.kind, Kind::RESTART | Kind::DMA_STALE)
    }
}

/// A page number at which the machine has no memory.
const NOWHERE: u32 = 0xd_0000;
/// Bits of a table entry.
const RESERVED: u32 = 1 << 1;
const INT: u32 = 1 << 2;
const STOP: u32 = 1 << 4;

const LOST: &str = "was lost";
const NO_STOP: &str = "did not stop: reset";
const CONTRADICT: &str = "contradict each other";
const ERRORS: &str = "the trace unit reports errors";

static FAULTS: [Fault; 21] = [
    fault(
        "an interrupt is late",
        Kind::INTERRUPT_LATE,
        0,
        Loss::Nothing,
    ),
    fault(
        "an interrupt is lost",
        Kind::INTERRUPT_LOST,
        0,
        Loss::Nothing,
    )
    .said(LOST),
    fault(
        "an interrupt comes twice",
        Kind::INTERRUPT_TWICE,
        0,
        Loss::Nothing,
    ),
    fault(
        "an interrupt without a reason",
        Kind::INTERRUPT_SPURIOUS,
        0,
        Loss::Nothing,
    ),
    fault(
        "an interrupt as another CPU's",
        Kind::INTERRUPT_ELSEWHERE,
        0,
        Loss::Nothing,
    ),
    fault(
        "an interrupt as no CPU's",
        Kind::INTERRUPT_ELSEWHERE,
        99,
        Loss::Nothing,
    )
    .said(LOST),
    fault(
        "an interrupt after the unit is disabled",
        Kind::INTERRUPT_STOPPED,
        0,
        Loss::Nothing,
    ),
    fault("DMA is late", Kind::DMA_LATE, 100, Loss::Nothing),
    fault(
        "DMA never ends",
        Kind::DMA_LATE,
        u32::MAX,
        Loss::Transaction,
    )
    .said(NO_STOP),
    fault(
        "DMA after the unit is disabled",
        Kind::DMA_STALE,
        0,
        Loss::Nothing,
    ),
    fault("DMA to no memory", Kind::DMA_WILD, NOWHERE, Loss::Counted).said(ERRORS),
    fault("an entry is none", Kind::ENTRY, RESERVED, Loss::Counted).said(ERRORS),
    fault("an entry stops the unit", Kind::ENTRY, STOP, Loss::Nothing),
    fault(
        "an entry raises an interrupt",
        Kind::ENTRY,
        INT,
        Loss::Nothing,
    ),
    fault("WRITTEN is ahead", Kind::WRITTEN, 256, Loss::Transaction).said(CONTRADICT),
    fault(
        "WRITTEN is behind",
        Kind::WRITTEN,
        256u32.wrapping_neg(),
        Loss::Transaction,
    )
    .said(CONTRADICT),
    fault(
        "DROPPED is below 0",
        Kind::DROPPED,
        256u32.wrapping_neg(),
        Loss::Transaction,
    )
    .said(CONTRADICT),
    fault("POSITION jumps", Kind::POSITION, 1, Loss::Transaction).said(CONTRADICT),
    fault(
        "the unit is enabled, but not by the driver",
        Kind::RESTART,
        0,
        Loss::Nothing,
    )
    .said(ERRORS),
    fault(
        "the device does not answer",
        Kind::MUTE,
        0,
        Loss::Transaction,
    ),
    fault(
        "the device has lost its registers",
        Kind::RESET,
        0,
        Loss::Transaction,
    ),
];

/// The traced CPUs, and the mode of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// CPU 1, whose unit has the fault.
    Read,
    /// Both CPUs.
    System,
    Overwritten,
}

const MODES: [(Mode, &str); 3] = [
    (Mode::Read, "read"),
    (Mode::System, "all CPUs"),
    (Mode::Overwritten, "overwritten"),
];

/// The rows, with their names.
pub fn rows() -> Vec<Named> {
    let mut rows: Vec<Named> = Vec::new();
    for fault in &FAULTS {
        for (mode, how) in MODES {
            if mode == Mode::Overwritten && fault.is_of_interrupt() {
                continue;
            }
            let name = format!("device, trace unit: fault, {}, {how}", fault.name);
            rows.push((name, Box::new(move || with(|| fault.run(mode)))));
        }
    }
    rows
}

/// The rows for a guest where an IOMMU translates the unit's DMA.
pub fn translated() -> Vec<Named> {
    let mut rows: Vec<Named> = Vec::new();
    for fault in FAULTS.iter().filter(|fault| fault.is_of_memory()) {
        let name = format!("device, trace unit: fault, {}, read", fault.name);
        rows.push((name, Box::new(move || with(|| fault.run(Mode::Read)))));
    }
    let name = "device, trace unit: fault, DMA after the AUX area is freed";
    rows.push((name.to_owned(), Box::new(|| with(freed))));
    rows
}

/// A unit writes again to its last address, after the AUX area is freed. The IOMMU must prevent that.
fn freed() -> Result<String> {
    let registers = Registers::open()?;
    let mut probe = Probe::open(&attr(RATE)?, -1, i32::try_from(CPU)?, PAGES, false)?;
    wait_for("the unit stops within a page", || {
        probe.event.enable()?;
        spin(Duration::from_millis(5));
        probe.event.disable()?;
        probe.read_records()?;
        while probe.read_trace(u64::MAX)? > 0 {}
        Ok(is_within_page(&probe))
    })?;
    drop(probe);
    let before = said(ERRORS)?;
    registers.ask(Kind::DMA_STALE, 0)?;
    wait_for("the driver says so", || Ok(said(ERRORS)? > before))?;
    every_byte()
}

/// The CPU whose unit has the fault.
const CPU: u32 = 1;
/// Pages of a ring in normal mode. The unit does not reach its end during a fault.
const PAGES: usize = 1024;
/// Pages of a ring in overwrite mode.
const FEW: usize = 8;
/// Microseconds for each KiB.
const RATE: u64 = 200;
/// How long a case waits for a fault's effect before it requests the fault again.
const AGAIN: Duration = Duration::from_secs(1);
/// Bytes of trace between two steps of a case.
const PIECE: u64 = 64 * 1024;

/// How often the driver has reported this.
fn said(what: &str) -> Result<usize> {
    let is = |line: &&str| line.contains("trace_unit") && line.contains(what);
    Ok(messages()?.lines().filter(is).count())
}

/// Whether the unit has stopped within a page. Stale DMA writes only to the page where the unit wrote last.
fn is_within_page(probe: &Probe) -> bool {
    probe.head() % bytes(1) != 0
}

/// Whether a record reports that trace is missing, of unknown length.
fn tells(probe: &Probe) -> bool {
    let partial = |record: &perfdata::Aux| record.flags.contains(AuxFlags::PARTIAL);
    probe.records.iter().any(partial)
}

struct Losses {
    no_space: u64,
    gap: u64,
    unknown: u64,
}

impl Losses {
    fn now() -> Result<Self> {
        Ok(Self {
            no_space: counter(MODULE, "lost_no_space")?,
            gap: counter(MODULE, "lost_gap")?,
            unknown: counter(MODULE, "lost_unknown")?,
        })
    }

    fn since(self) -> Result<Self> {
        let now = Self::now()?;
        Ok(Self {
            no_space: now.no_space - self.no_space,
            gap: now.gap - self.gap,
            unknown: now.unknown - self.unknown,
        })
    }
}

/// An event and its ring.
struct Traced {
    probe: Probe,
    mode: Mode,
    cpu: u16,
}

impl Traced {
    /// Reads the records and, in normal mode, the trace. Enables the event again.
    fn step(&mut self) -> Result<()> {
        self.probe.read_records()?;
        if self.mode == Mode::Overwritten {
            // In overwrite mode, only a disable ends a transaction.
            self.probe.event.disable()?;
            spin(Duration::from_millis(5));
        } else {
            while self.probe.read_trace(u64::MAX)? > 0 {}
        }
        Ok(self.probe.event.enable()?)
    }
}

/// Reads until each event has `len` more bytes of trace.
fn more(all: &mut [Traced], len: u64) -> Result<()> {
    let goals: Vec<_> = all.iter().map(|one| one.probe.head() + len).collect();
    wait_for("there is more trace", || {
        let mut done = true;
        for (one, goal) in all.iter_mut().zip(&goals) {
            one.step()?;
            done &= one.probe.head() >= *goal;
        }
        Ok(done)
    })
}

fn step(all: &mut [Traced]) -> Result<()> {
    all.iter_mut().try_for_each(Traced::step)
}

/// Restarts all events. Only this starts a unit that could not be started before.
fn begin_anew(all: &[Traced]) -> Result<()> {
    all.iter().try_for_each(|one| {
        one.probe.event.disable()?;
        Ok(one.probe.event.enable()?)
    })
}

/// The framework's counters, for an error message.
fn state() -> String {
    [
        "begins",
        "commits",
        "partial",
        "begin_no_space",
        "begin_refused",
        "lost_unknown",
    ]
    .map(|name| format!("{name} {}", counter(MODULE, name).unwrap_or(0)))
    .join(", ")
}

impl Fault {
    fn run(&self, mode: Mode) -> Result<String> {
        let registers = Registers::open()?;
        let before = Losses::now()?;
        let said_before = self.says.map(said).transpose()?;
        let attr = Attr {
            aux_watermark: match mode {
                Mode::Overwritten => 0,
                _ => u32::try_from(PIECE / 4)?,
            },
            ..attr(RATE)?
        };
        let cpus: &[u16] = match mode {
            Mode::System => &[0, 1],
            _ => &[1],
        };
        let overwrite = mode == Mode::Overwritten;
        let open = |&cpu: &u16| -> Result<Traced> {
            let pages = if overwrite { FEW } else { PAGES };
            let probe = Probe::open(&attr, -1, i32::from(cpu), pages, overwrite)?;
            Ok(Traced { probe, mode, cpu })
        };
        let mut all = cpus.iter().map(open).collect::<Result<Vec<_>>>()?;

        more(&mut all, PIECE)?;
        let outcome = self.happens(&registers, &mut all);
        // In any case, the device must be usable for the next row.
        registers.ask(Kind::RELEASE, 0)?;
        outcome.with_context(state)?;
        begin_anew(&all)?;
        more(&mut all, PIECE)?;
        for one in &all {
            one.probe.event.disable()?;
        }
        let seen = self.sums(&mut all, &before.since()?)?;
        drop(all);
        if let (Some(says), Some(before)) = (self.says, said_before) {
            wait_for("the driver says so", || Ok(said(says)? > before))?;
        }
        Ok(seen)
    }

    /// Requests the fault, and reads until it has taken effect.
    fn happens(&self, registers: &Registers, all: &mut [Traced]) -> Result<()> {
        let before = registers.happened()?;
        if self.is_idle() {
            wait_for("the unit stops within a page", || {
                step(all)?;
                let mut within = true;
                for one in &mut *all {
                    one.probe.event.disable()?;
                    one.probe.read_records()?;
                    while !one.is_overwritten() && one.probe.read_trace(u64::MAX)? > 0 {}
                    within &= is_within_page(&one.probe);
                }
                Ok(within)
            })?;
        }
        let said_before = self.says.map(said).transpose()?;
        registers.ask(self.kind, self.argument)?;
        if self.kind == Kind::RESTART {
            // The unit's source generates something soon.
            wait_for("the unit fails", || {
                Ok(self.says.map(said).transpose()? > said_before)
            })?;
        }
        wait_for("it happens", || {
            step(all)?;
            Ok(registers.happened()? != before)
        })?;
        match self.loss {
            Loss::Transaction => {
                // A fault between two transactions affects neither of them, so it is requested again.
                let mut asked = Instant::now();
                wait_for("a record tells", || {
                    step(all)?;
                    if asked.elapsed() > AGAIN {
                        registers.ask(Kind::RELEASE, 0)?;
                        begin_anew(all)?;
                        registers.ask(self.kind, self.argument)?;
                        asked = Instant::now();
                    }
                    let wrong = |one: &&Traced| u32::from(one.cpu) == CPU;
                    Ok(all.iter().find(wrong).is_some_and(|one| tells(&one.probe)))
                })
            }
            _ => more(all, PIECE),
        }
    }

    fn sums(&self, all: &mut [Traced], lost: &Losses) -> Result<String> {
        let (mut generated, mut there, mut missing) = (0, 0, 0);
        for one in &mut *all {
            generated += one.probe.generated()?;
            one.probe.read_records()?;
            if one.is_overwritten() {
                one.probe.snapshot()?;
                there += one.probe.head();
                // The oldest packet may be half overwritten.
                let from = one.probe.from;
                let skip = usize::try_from(from.next_multiple_of(PACKET) - from)?;
                let newest = one.probe.trace.get(skip..).unwrap_or_default();
                let gap: u64 = follow(newest)?.values().sum();
                ensure!(gap == 0, "{gap} bytes are missing in the newest trace");
                ensure!(from >= bytes(FEW), "the ring has not gone round");
            } else {
                while one.probe.read_trace(u64::MAX)? > 0 {}
                there += accounted(&one.probe, Trace::Contiguous)?;
                let streams = follow(&one.probe.trace)?;
                ensure!(
                    streams.keys().all(|&cpu| cpu == one.cpu),
                    "trace of the CPUs {:?}",
                    streams.keys()
                );
                missing += streams.values().sum::<u64>();
            }
            // In overwrite mode, the bytes that a stopped unit drops until the driver restarts it are reported in the same way.
            let dropped = one.is_overwritten() && lost.no_space > 0;
            let may = self.loss != Loss::Nothing || dropped;
            ensure!(may || !tells(&one.probe), "a record says PARTIAL");
        }
        let &Losses {
            no_space,
            gap,
            unknown,
        } = lost;
        ensure!(
            generated == there + no_space + gap,
            "{generated} bytes were made: {there} are there, {no_space} found no space, {gap} are a gap"
        );
        // The trace of a unit that the driver has not enabled belongs to no event.
        let missing = if self.kind == Kind::RESTART {
            0
        } else {
            missing
        };
        match self.loss {
            Loss::Nothing => ensure!(
                gap == 0 && unknown == 0 && missing <= no_space,
                "{gap} bytes are a gap, {missing} are missing, {unknown} losses have no length"
            ),
            Loss::Counted => ensure!(
                gap > 0 && unknown == 0 && missing <= gap + no_space,
                "{gap} bytes are a gap, {missing} are missing, {unknown} losses have no length"
            ),
            Loss::Transaction => ensure!(unknown > 0, "no loss without a length"),
        }
        Ok(format!(
            "{there} bytes, {no_space} found no space, {gap} in gaps, {unknown} losses without a length"
        ))
    }
}

impl Traced {
    fn is_overwritten(&self) -> bool {
        self.mode == Mode::Overwritten
    }
}
