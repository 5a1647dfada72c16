// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events whose rings are another's (`PERF_EVENT_IOC_SET_OUTPUT`).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{page_size, Event, Field, Mapping};
use perfdata::Flags;

use crate::attack::{aux, base, bytes, get, set, sleep, software, traced, unpin, Victim, DUMMY};
use crate::events::probe::Probe;
use crate::ktap::Skip;
use crate::module;
use crate::stream;
use crate::wait::wait_for;
use crate::workload::{pin, spin};

/// A second PMU with AUX writes to the ring of the first, both redirected to an event without. In turn: what perf says of
/// both at a time is perf's own.
pub fn two_pmus() -> Result<String> {
    let Some((pmu, module)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    let seen = turns(pmu);
    // Nothing of it is open any more.
    module::unload(module)?;
    seen
}

fn turns(second: &'static str) -> Result<String> {
    const TIMES: u32 = 20;
    let before =
        module::counter(second, "begin_foreign")? + module::counter("pattern", "begin_foreign")?;

    for n in 0..TIMES {
        // The event that owns the ring, and the one that is redirected to it.
        let names = if n % 2 == 0 {
            ["pattern", second]
        } else {
            [second, "pattern"]
        };
        let mut owner = Victim::open(&traced(names[0])?, -1, 0, 4)?;
        // perf refuses to redirect one of them to the other, but not by way of a third.
        let between = Event::open(&software(DUMMY, 0), -1, 0)?;
        between.set_output(&owner.event)?;
        let stranger = Event::open(&traced(names[1])?, -1, 0)?;
        ensure!(
            stranger.set_output(&owner.event).is_err(),
            "perf takes two PMUs with AUX into one ring"
        );
        stranger.set_output(&between).context("cannot redirect")?;

        for _ in 0..3 {
            owner.traces()?;
            stranger.enable()?;
            sleep(1);
            stranger.disable()?;
        }
        stranger.enable()?;
        drop(owner.aux.take());
        stranger.disable()?;
        stranger.enable()?;
    }

    let after =
        module::counter(second, "begin_foreign")? + module::counter("pattern", "begin_foreign")?;
    let refused = after - before;
    ensure!(
        refused >= u64::from(TIMES),
        "a stranger was refused {refused} times only: it has used what another driver made"
    );
    Ok(format!("a stranger was refused {refused} times"))
}

/// Two events that write to one ring at the same time: of two PMUs on one CPU, and of one PMU on both. perf warns where a
/// driver begins a transaction on a ring that has one open, so the console must not show that warning.
pub fn two_writers() -> Result<String> {
    let Some((pmu, module)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    // What an earlier case made the kernel warn of must not hide a warning now.
    let _ = std::fs::write("/sys/kernel/debug/clear_warn_once", "1");
    let seen = nested(["pattern", pmu])
        .and_then(|one| Ok(one + nested([pmu, "pattern"])?))
        .and_then(|one| Ok((one, inherited()?)));
    unpin()?;
    // Nothing of it is open any more.
    module::unload(module)?;
    let (one, both) = seen?;
    Ok(format!("refused {one} times on one CPU, {both} on two"))
}

/// Why a transaction was not begun, as far as the ring's other writer can be the cause.
const REFUSALS: [&str; 3] = ["begin_not_mapped", "begin_foreign", "begin_in_use"];

/// How often a PMU's transactions were not begun.
fn refusals(pmu: &str) -> u64 {
    // A cause that the framework does not tell apart has no counter.
    REFUSALS
        .into_iter()
        .filter_map(|name| module::counter(pmu, name).ok())
        .sum()
}

/// A ring with an AUX area that is mapped by an event that is no trace's, for an event of the PMU, and for both.
struct Shared(Probe);

impl Shared {
    /// The ring is made by a PMU of this name.
    fn new(pmu: &str, cpu: i32, pages: usize) -> Result<Self> {
        const DATA_PAGES: usize = 64;
        let ring = Event::open(&software(DUMMY, 0), 0, cpu)?;
        let control = Mapping::new(&ring, 0, (1 + DATA_PAGES) * page_size(), true)
            .context("cannot map a data ring")?;
        let attr = traced(pmu)?;
        let maker = Event::open(&attr, 0, cpu)?;
        maker.set_output(&ring)?;
        let at = bytes(1 + DATA_PAGES);
        set(&control, Field::AuxOffset, at);
        set(&control, Field::AuxSize, bytes(pages));
        let area = |event: &Event| Mapping::new(event, at, pages * page_size(), true);
        let made = area(&maker).context("cannot map AUX by a redirected event")?;
        let aux = area(&ring).context("cannot map AUX by another event")?;
        drop((made, maker));
        Ok(Self(Probe::of(ring, &attr, control, aux, false)?))
    }

    /// An event of this thread that writes to it.
    fn writer(&self, pmu: &str, cpu: i32, flags: Flags) -> Result<Event> {
        let mut attr = traced(pmu)?;
        attr.flags |= flags;
        let event = Event::open(&attr, 0, cpu)?;
        event.set_output(&self.0.event).context("cannot redirect")?;
        Ok(event)
    }

    /// Reads what there is.
    fn read(&mut self) -> Result<()> {
        self.0.read_records()?;
        self.0.read_trace(u64::MAX)?;
        Ok(())
    }

    /// That each byte is of one record, and the trace that of `pattern` events, each going on where it was.
    fn verify(&mut self) -> Result<()> {
        self.read()?;
        let lost = self.0.lost_records;
        ensure!(lost == 0, "{lost} records lost");
        let mut end = 0;
        for record in &self.0.records {
            ensure!(
                record.offset == end,
                "a record of the trace from {:#x} on, where the last ended at {end:#x}",
                record.offset
            );
            end += record.size;
        }
        let head = self.0.head();
        ensure!(
            head == end,
            "aux_head is {head:#x}, and the records end at {end:#x}"
        );
        stream::read(&self.0.trace, self.0.from, false)?;
        Ok(())
    }
}

/// Both run on CPU 0: who comes second finds a transaction open that is not its own. How often.
fn nested(names: [&str; 2]) -> Result<u64> {
    const TIMES: u64 = 10;
    let failed = || refusals(names[0]) + refusals(names[1]);
    pin(0)?;
    let before = failed();
    for n in 0..TIMES {
        let mut shared = Shared::new(names[0], 0, 16)?;
        let owner = shared.writer(names[0], 0, Flags::empty())?;
        let stranger = shared.writer(names[1], 0, Flags::empty())?;
        let order = if n % 2 == 0 {
            [&owner, &stranger]
        } else {
            [&stranger, &owner]
        };
        for event in order {
            event.enable()?;
            spin(Duration::from_millis(3));
        }
        // Both are taken off and put on again, until there is trace.
        wait_for("trace of the owner", || {
            if shared.0.head() != 0 {
                return Ok(true);
            }
            sleep(1);
            spin(Duration::from_millis(3));
            owner.disable()?;
            owner.enable()?;
            Ok(false)
        })?;
        stranger.disable()?;
        owner.disable()?;
        if names[0] == "pattern" {
            shared.verify()?;
        }
    }
    let refused = failed() - before;
    ensure!(refused >= TIMES, "{refused} begins failed only");
    Ok(refused)
}

/// A task's event that is inherited cannot be mapped, but it can be redirected to one that is: then its children write to one
/// ring from all CPUs. perf's count of transactions is made for one CPU. How often one was refused.
fn inherited() -> Result<u64> {
    const TIMES: u32 = 6;
    let before = refusals("pattern");
    let mut bytes_seen = 0;
    for _ in 0..TIMES {
        let mut shared = Shared::new("pattern", -1, 16)?;
        let event = shared.writer("pattern", -1, Flags::INHERIT)?;
        event.enable()?;
        let end = Instant::now() + Duration::from_millis(150);
        thread::scope(|scope| -> Result<()> {
            for cpu in [0, 1, 0, 1] {
                scope.spawn(move || -> Result<()> {
                    pin(cpu)?;
                    while Instant::now() < end {
                        // Off and on: each time it begins anew.
                        spin(Duration::from_micros(300));
                        thread::yield_now();
                    }
                    Ok(())
                });
            }
            let mut last = 0;
            while Instant::now() < end {
                shared.read()?;
                let head = shared.0.head();
                ensure!(
                    head >= last,
                    "aux_head went from {last:#x} back to {head:#x}"
                );
                last = head;
                event.enable()?;
                sleep(1);
            }
            Ok(())
        })?;
        event.disable()?;
        shared.verify().context("of children on two CPUs")?;
        bytes_seen += shared.0.head();
    }
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    let refused = refusals("pattern") - before;
    ensure!(refused > 0, "no redirection was refused");
    Ok(refused)
}

/// An AUX ring that is mapped through an event whose ring is another's, and that goes in every order.
pub fn redirected() -> Result<String> {
    const TIMES: u64 = 12;
    let mut bytes_seen = 0;

    for n in 0..TIMES {
        let ring = Event::open(&software(DUMMY, 0), -1, 0)?;
        let control = base(&ring)?;
        let event = Event::open(&traced("pattern")?, -1, 0)?;
        event.set_output(&ring)?;
        let area = aux(&event, &control, 4).context("cannot map AUX through a redirected event")?;
        event.enable()?;
        sleep(4);
        if n % 2 == 0 {
            event.disable()?;
        }
        bytes_seen += get(&control, Field::AuxHead);
        match n % 4 {
            0 => drop((event, area, control, ring)),
            1 => drop((ring, control, area, event)),
            2 => drop((area, event, ring, control)),
            _ => drop((control, event, area, ring)),
        }
    }
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{bytes_seen} bytes in {TIMES} rings"))
}
