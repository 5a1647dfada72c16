// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hostile drivers: the PMUs of the module `hostile` do in safe code what no driver should.
//!
//! Each case loads one of these drivers, uses it beside a correct driver, as a recorder does, and unloads it. Afterwards, there must be no
//! kernel warning, the AUX records must be in order, and the other driver's trace must be complete.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::Event;
use perfdata::{Attr, AuxFlags, Flags};

use crate::attack::{attack, software, traced, unpin, Attack, Victim, CPU_CLOCK};
use crate::events::probe::Probe;
use crate::events::siblings::{PAUSE, RESUME};
use crate::hotplug;
use crate::ktap::Skip;
use crate::module::{self, counter};
use crate::wait::wait_for;
use crate::workload::{pin, spin};

/// The trace of a hostile driver, as the AUX records must show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// Each record begins where the one before ends.
    Contiguous,
    /// There may be padding between records.
    Padded,
    /// There is no trace.
    Empty,
    /// There may be trace until the PMU is unregistered.
    Gone,
}

/// A driver of the module.
struct Driver {
    /// The value of the module's parameter that selects it.
    number: u8,
    /// The name of its PMU.
    pmu: &'static str,
    trace: Trace,
    /// Another PMU of the module, which is opened on the same CPU.
    twin: Option<&'static str>,
}

const fn driver(number: u8, pmu: &'static str, trace: Trace) -> Driver {
    Driver {
        number,
        pmu,
        trace,
        twin: None,
    }
}

const DRIVERS: [Driver; 28] = [
    driver(1, "hostile_forgets", Trace::Contiguous),
    driver(2, "hostile_interrupts_off", Trace::Contiguous),
    driver(3, "hostile_overclaim", Trace::Contiguous),
    driver(4, "hostile_never_commits", Trace::Empty),
    driver(5, "hostile_flushes", Trace::Contiguous),
    driver(6, "hostile_skips", Trace::Padded),
    driver(7, "hostile_stale", Trace::Contiguous),
    driver(8, "hostile_writes_in_pause", Trace::Contiguous),
    driver(9, "hostile_reenters", Trace::Contiguous),
    Driver {
        twin: Some("hostile_twin_b"),
        // 0 selects all drivers, because this one needs its twin.
        ..driver(0, "hostile_twin_a", Trace::Contiguous)
    },
    driver(12, "hostile_timers", Trace::Contiguous),
    driver(13, "hostile_never", Trace::Contiguous),
    driver(14, "hostile_keeps", Trace::Contiguous),
    driver(15, "hostile_setup_fails", Trace::Contiguous),
    driver(16, "hostile_start_fails", Trace::Contiguous),
    driver(17, "hostile_registers", Trace::Contiguous),
    driver(20, "hostile_drop_event_init", Trace::Gone),
    driver(21, "hostile_drop_event", Trace::Gone),
    driver(22, "hostile_drop_setup_aux", Trace::Gone),
    driver(23, "hostile_drop_buffer", Trace::Gone),
    driver(24, "hostile_drop_start", Trace::Gone),
    driver(25, "hostile_drop_tick", Trace::Gone),
    driver(26, "hostile_drop_quiesce", Trace::Gone),
    driver(27, "hostile_drop_deferred", Trace::Gone),
    driver(28, "hostile_drop_pause", Trace::Gone),
    driver(29, "hostile_drop_failing", Trace::Gone),
    driver(31, "hostile_unmaps", Trace::Contiguous),
    driver(32, "hostile_rcu_reader", Trace::Contiguous),
];

macro_rules! cases {
    ($($name:literal: $index:literal,)*) => {
        [$(attack($name, || DRIVERS[$index].run()),)*
            attack("hostile driver: counter that refuses", counting),
            attack("hostile driver: frees its interrupt as its CPU goes", frees_interrupt),
            attack("hostile driver: frees its interrupt in its handler", || raised(19)),
            attack("hostile driver: leaves its interrupt to its handler", || raised(30))]
    };
}

/// The cases.
pub const ALL: [Attack; 32] = cases! {
    "hostile driver: forgets its registration": 0,
    "hostile driver: drops its registration with interrupts off at exit": 1,
    "hostile driver: claims more than it wrote": 2,
    "hostile driver: never commits": 3,
    "hostile driver: flushes at every callback": 4,
    "hostile driver: skips everything": 5,
    "hostile driver: commits another transaction's bytes": 6,
    "hostile driver: writes while paused": 7,
    "hostile driver: re-enters from every callback": 8,
    "hostile driver: mixes two PMUs": 9,
    "hostile driver: timers of no time": 10,
    "hostile driver: timer of all time": 11,
    "hostile driver: keeps memory beyond the AUX area": 12,
    "hostile driver: fails in setup_aux": 13,
    "hostile driver: fails in start": 14,
    "hostile driver: registers in callbacks": 15,
    "hostile driver: drops its registration in event_init": 16,
    "hostile driver: drops its registration with an event": 17,
    "hostile driver: drops its registration in setup_aux": 18,
    "hostile driver: drops its registration in free_aux": 19,
    "hostile driver: drops its registration in start": 20,
    "hostile driver: drops its registration in tick": 21,
    "hostile driver: drops its registration in quiesce": 22,
    "hostile driver: drops its registration in deferred": 23,
    "hostile driver: drops its registration in pause": 24,
    "hostile driver: drops its registration where setup_aux fails": 25,
    "hostile driver: unmaps its AUX area in quiesce": 26,
    "hostile driver: drops its registration as an RCU reader at exit": 27,
};

const MODULE: &str = "hostile";

/// Loads the module with one driver, or all with 0. Unloads it after `what`.
fn with<T>(number: u8, what: impl FnOnce() -> Result<T>) -> Result<T> {
    let file = format!("/modules/{MODULE}.ko");
    if !Path::new(&file).exists() {
        bail!(Skip("its driver was not built for this kernel"));
    }
    module::tool("insmod", &[&file, &format!("driver={number}")])?;
    let seen = what();
    let unused = wait_for("the end of all references to the module", || {
        Ok(module::references(MODULE)? == 0)
    });
    let unloaded = unused.and_then(|()| module::unload(MODULE));
    // The error of the case comes first: it may explain why the module cannot be unloaded.
    let seen = seen?;
    unloaded.context("something holds the hostile driver")?;
    Ok(seen)
}

fn is_registered(pmu: &str) -> bool {
    Path::new("/sys/bus/event_source/devices")
        .join(pmu)
        .exists()
}

impl Driver {
    fn run(&self) -> Result<String> {
        // A forgotten registration is a leak, which kmemleak would report.
        if self.number == 1 && module::is_debug_kernel() {
            bail!(Skip("what a driver forgets is leaked"));
        }
        with(self.number, || self.attacked())
    }

    fn attacked(&self) -> Result<String> {
        let attr = Attr {
            // Each packet has its position in the stream. 512 KiB/s.
            config: 512,
            ..traced("pattern")?
        };
        pin(0)?;
        let lost = counter("pattern", "lost_no_space")?;
        let mut beside = Probe::open(&attr, -1, 0, 64, false)?;
        beside.event.enable()?;
        let seen = self.used(&mut beside);
        // A driver that is gone at once leaves the other one no time.
        wait_for("trace of the driver beside it", || {
            Ok(beside.generated()? > 0)
        })?;
        beside.event.disable()?;
        unpin()?;

        beside.read_records()?;
        while beside.read_trace(u64::MAX)? > 0 {}
        let bytes = accounted(&beside, Trace::Padded).context("the driver beside it")?;
        let lost = counter("pattern", "lost_no_space")? - lost;
        let generated = beside.generated()?;
        ensure!(
            generated == bytes + lost,
            "the driver beside it generated {generated} bytes: {bytes} are there, {lost} lost"
        );
        ensure!(bytes > 0, "the driver beside it has no trace");
        drop(beside);

        let seen = seen?;
        if self.trace == Trace::Gone {
            wait_for("unregistering", || Ok(!is_registered(self.pmu)))?;
        }
        Ok(format!("{seen}; beside it {bytes} bytes"))
    }

    /// Uses the driver in all ways that user space has.
    fn used(&self, beside: &mut Probe) -> Result<String> {
        let mut sum = 0;
        for overwrite in [false, true] {
            let seen = self.recorded(overwrite, beside);
            match seen {
                Ok(bytes) => sum += bytes,
                // The PMU is unregistered while it is used, so any step may fail.
                Err(_) if self.trace == Trace::Gone => {}
                Err(error) => return Err(error),
            }
        }
        for step in [Self::unmapped, Self::paused, Self::forked] {
            match step(self, beside) {
                Err(error) if self.trace != Trace::Gone => return Err(error),
                _ => {}
            }
        }
        match self.trace {
            Trace::Empty => ensure!(sum == 0, "{sum} bytes that nothing committed"),
            Trace::Gone => {}
            _ => ensure!(sum > 0, "it has no trace"),
        }
        Ok(format!("{sum} bytes"))
    }

    fn attr(&self) -> Result<Attr> {
        Ok(Attr {
            config: 0,
            ..traced(self.pmu)?
        })
    }

    /// Opens an event. `setup_aux()` may fail every other time.
    fn open(&self, attr: &Attr, overwrite: bool) -> Result<Probe> {
        Probe::open(attr, -1, 0, 4, overwrite).or_else(|_| Probe::open(attr, -1, 0, 4, overwrite))
    }

    /// Records in this mode, together with the twin, if there is one.
    fn recorded(&self, overwrite: bool, beside: &mut Probe) -> Result<u64> {
        let twin = match self.twin {
            Some(pmu) => {
                let attr = Attr {
                    config: 0,
                    ..traced(pmu)?
                };
                Some(Probe::open(&attr, -1, 0, 4, overwrite)?)
            }
            None => None,
        };
        let attr = self.attr()?;
        let mut probe = self.open(&attr, overwrite)?;
        if let Some(twin) = &twin {
            twin.event.enable()?;
        }
        for n in 0..12 {
            probe.event.enable()?;
            spin(Duration::from_millis(6));
            probe.read_records()?;
            if !overwrite {
                probe.read_trace(u64::MAX)?;
            }
            read(beside)?;
            // This makes perf stop and start the event.
            probe.event.set_period(n + 2)?;
            if n % 3 == 0 {
                probe.event.disable()?;
            }
        }
        probe.event.disable()?;
        if let Some(mut twin) = twin {
            twin.event.disable()?;
            twin.read_records()?;
            if !overwrite {
                while twin.read_trace(u64::MAX)? > 0 {}
                accounted(&twin, self.trace).context("its twin")?;
            }
        }
        probe.read_records()?;
        if overwrite {
            // In overwrite mode, the driver determines the head, so it is not checked.
            return Ok(0);
        }
        while probe.read_trace(u64::MAX)? > 0 {}
        accounted(&probe, self.trace)
    }

    /// Unmaps the rings while the event runs, in each order.
    fn unmapped(&self, beside: &mut Probe) -> Result<()> {
        for n in 0..6 {
            let opened = Victim::open(&self.attr()?, -1, 0, 4);
            let mut victim = match opened {
                Ok(victim) => victim,
                Err(_) => Victim::open(&self.attr()?, -1, 0, 4)?,
            };
            victim.event.enable()?;
            spin(Duration::from_millis(3));
            read(beside)?;
            if n % 3 == 0 {
                drop(victim.unmap());
                spin(Duration::from_millis(2));
            } else if n % 3 == 1 {
                let Victim { aux, base, event } = victim;
                drop(event);
                drop(base);
                drop(aux);
            }
        }
        Ok(())
    }

    /// Lets siblings pause and resume the event.
    fn paused(&self, beside: &mut Probe) -> Result<()> {
        let victim = Victim::open(&self.attr()?, -1, 0, 8)
            .or_else(|_| Victim::open(&self.attr()?, -1, 0, 8))?;
        let sibling = |period, aux_action| {
            let attr = Attr {
                aux_action,
                ..software(CPU_CLOCK, period)
            };
            Event::open_in(&attr, -1, 0, Some(&victim.event))
        };
        let _siblings = [sibling(1_300_000, PAUSE)?, sibling(1_700_000, RESUME)?];
        for _ in 0..20 {
            victim.event.enable()?;
            spin(Duration::from_millis(4));
            victim.release();
            victim.read();
            read(beside)?;
        }
        victim.event.disable()?;
        Ok(())
    }

    /// Lets children inherit the event.
    fn forked(&self, beside: &mut Probe) -> Result<()> {
        let mut attr = self.attr()?;
        attr.flags |= Flags::INHERIT;
        let open = || Victim::open(&attr, 0, 0, 4);
        let victim = open().or_else(|_| open())?;
        victim.event.enable()?;
        for _ in 0..4 {
            Command::new("true").status().context("cannot start true")?;
            victim.release();
            victim.read();
            read(beside)?;
        }
        victim.event.disable()?;
        Ok(())
    }
}

/// Reads all records and all trace.
fn read(probe: &mut Probe) -> Result<()> {
    probe.read_records()?;
    probe.read_trace(u64::MAX)?;
    Ok(())
}

/// Checks that the records cover exactly the trace that was read. Returns how many bytes they cover.
pub fn accounted(probe: &Probe, trace: Trace) -> Result<u64> {
    ensure!(
        probe.lost_records == 0,
        "{} records are lost",
        probe.lost_records
    );
    let mut end = 0;
    let mut sum = 0;
    for record in &probe.records {
        let padded = trace == Trace::Padded && record.offset > end;
        ensure!(
            record.offset == end || padded,
            "a record begins at {:#x}, and the one before ends at {end:#x}",
            record.offset
        );
        ensure!(
            !record.flags.contains(AuxFlags::OVERWRITE),
            "a record of a ring that is read says that it was overwritten"
        );
        end = record.offset + record.size;
        sum += record.size;
    }
    let head = probe.head();
    ensure!(
        head == end || trace == Trace::Padded && head > end,
        "aux_head is {head:#x}, and the last record ends at {end:#x}"
    );
    ensure!(
        u64::try_from(probe.trace.len())? == head,
        "{} bytes were read, and aux_head is {head:#x}",
        probe.trace.len()
    );
    Ok(sum)
}

/// A counter whose callbacks fail and which counts without bounds.
fn counting() -> Result<String> {
    with(3, || {
        let attr = Attr {
            config: 0,
            ..traced("hostile_counter")?
        };
        let events = [
            Event::open(&attr, -1, 0)?,
            Event::open(&attr, -1, 0)?,
            Event::open(&attr, 0, -1)?,
        ];
        let mut read = 0;
        for n in 0..40 {
            for event in &events {
                event.enable()?;
            }
            spin(Duration::from_millis(1));
            for event in &events {
                event.count()?;
                read += 1;
                if n % 3 == 0 {
                    event.disable()?;
                }
            }
        }
        Ok(format!("read {read} times"))
    })
}

/// A driver frees its interrupt in `cpu_offline()`, which perf's core calls with the lock of CPU hotplug held.
fn frees_interrupt() -> Result<String> {
    let served = || Ok::<_, anyhow::Error>(line_interrupts()?.is_some());
    if !Path::new(hotplug::ONLINE).exists() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    // The unit's events are on the CPU where the PMU was registered. CPU 0 cannot go offline, so CPU 1 registers it.
    pin(1)?;
    let outcome = with(18, || {
        unpin()?;
        ensure!(is_registered(LINE), "the driver found no device");
        ensure!(served()?, "there is no interrupt");
        let attr = Attr {
            config: 0,
            sample_period: 0,
            ..traced(LINE)?
        };
        let opened = Victim::open(&attr, -1, 1, 4)?;
        opened.event.enable()?;
        hotplug::switch(false)?;
        ensure!(!served()?, "the interrupt is still there");
        hotplug::switch(true)?;
        drop(opened);
        Ok("freed".to_owned())
    });
    unpin()?;
    // Even if the case failed, the next case needs two CPUs.
    hotplug::switch(true)?;
    outcome
}

/// A driver whose interrupt comes at once. The interrupt must exist until the driver is unbound.
fn raised(driver: u8) -> Result<String> {
    let seen = with(driver, || {
        ensure!(is_registered(LINE), "the driver found no device");
        wait_for("the interrupt", || Ok(line_interrupts()? == Some(1)))?;
        Ok("an interrupt".to_owned())
    })?;
    ensure!(line_interrupts()?.is_none(), "the interrupt is still there");
    Ok(seen)
}

/// The PMU and the interrupt of the hostile driver of a device.
const LINE: &str = "hostile_line";

/// How often the interrupt has come; [`None`] if it does not exist.
fn line_interrupts() -> Result<Option<u64>> {
    let text =
        std::fs::read_to_string("/proc/interrupts").context("cannot read /proc/interrupts")?;
    let line = text.lines().find(|line| line.ends_with(LINE));
    let counts = |line: &str| {
        let words = line.split_whitespace().skip(1);
        words.map_while(|word| word.parse::<u64>().ok()).sum()
    };
    Ok(line.map(counts))
}
