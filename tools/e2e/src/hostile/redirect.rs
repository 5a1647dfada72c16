// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events that are redirected to the rings of another event (`PERF_EVENT_IOC_SET_OUTPUT`).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{page_size, Event, Field, Mapping};
use perfdata::Flags;

use crate::attack::{aux, base, get, sleep, software, traced, unpin, Victim, DUMMY};
use crate::events::probe::{area, Probe};
use crate::ktap::Skip;
use crate::module;
use crate::stream;
use crate::wait::wait_for;
use crate::workload::{pin, spin};

/// Redirects an event of one PMU with AUX to the ring of another PMU, by way of an event without AUX. The two trace in turn;
/// [`two_writers`] tests both at the same time.
pub fn two_pmus() -> Result<String> {
    let Some((pmu, module)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    let seen = turns(pmu);
    // No event of it is open any more.
    module::unload(module)?;
    seen
}

fn turns(second: &'static str) -> Result<String> {
    const TIMES: u32 = 20;
    let before =
        module::counter(second, "begin_foreign")? + module::counter("pattern", "begin_foreign")?;

    for n in 0..TIMES {
        // The PMU that owns the ring, and the PMU of the redirected event.
        let names = if n % 2 == 0 {
            ["pattern", second]
        } else {
            [second, "pattern"]
        };
        let mut owner = Victim::open(&traced(names[0])?, -1, 0, 4)?;
        // perf refuses to redirect one event to the other directly, but not by way of a third one.
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

/// Two events write to one ring at the same time: of two PMUs on one CPU, and of one PMU on both CPUs. perf warns if a driver begins a
/// transaction on a ring that has an open one. The console must not show that warning.
pub fn two_writers() -> Result<String> {
    let Some((pmu, module)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    // perf warns only once. An earlier warning must not suppress one of this case.
    let _ = std::fs::write("/sys/kernel/debug/clear_warn_once", "1");
    let seen = nested(["pattern", pmu])
        .and_then(|one| Ok(one + nested([pmu, "pattern"])?))
        .and_then(|one| Ok((one, inherited()?)));
    unpin()?;
    // No event of it is open any more.
    module::unload(module)?;
    let (one, both) = seen?;
    Ok(format!("refused {one} times on one CPU, {both} on two"))
}

/// The counters of failed begins for which the other writer of the ring can be the cause.
const REFUSALS: [&str; 3] = ["begin_not_mapped", "begin_foreign", "begin_in_use"];

/// How often begins of a PMU failed for these causes.
fn refusals(pmu: &str) -> u64 {
    // A cause without a counter in this version of the framework is left out.
    REFUSALS
        .into_iter()
        .filter_map(|name| module::counter(pmu, name).ok())
        .sum()
}

/// A ring with an AUX area that a dummy event has mapped. Events of one or two PMUs are redirected to it.
struct Shared(Probe);

impl Shared {
    /// Makes the ring with an event of this PMU.
    fn new(pmu: &str, cpu: i32, pages: usize) -> Result<Self> {
        const DATA_PAGES: usize = 64;
        let ring = Event::open(&software(DUMMY, 0), 0, cpu)?;
        let control = Mapping::new(&ring, 0, (1 + DATA_PAGES) * page_size(), true)
            .context("cannot map a data ring")?;
        let attr = traced(pmu)?;
        let maker = Event::open(&attr, 0, cpu)?;
        maker.set_output(&ring)?;
        let made =
            area(&maker, &control, pages, false).context("cannot map AUX by a redirected event")?;
        let aux = area(&ring, &control, pages, false).context("cannot map AUX by another event")?;
        drop((made, maker));
        Ok(Self(Probe::of(ring, &attr, control, aux, false)?))
    }

    /// Opens an event of this thread that writes to the ring.
    fn writer(&self, pmu: &str, cpu: i32, flags: Flags) -> Result<Event> {
        let mut attr = traced(pmu)?;
        attr.flags |= flags;
        let event = Event::open(&attr, 0, cpu)?;
        event.set_output(&self.0.event).context("cannot redirect")?;
        Ok(event)
    }

    /// Reads all records and all trace.
    fn read(&mut self) -> Result<()> {
        self.0.read_records()?;
        self.0.read_trace(u64::MAX)?;
        Ok(())
    }

    /// Checks that each byte belongs to exactly one record, and that the trace consists of correct streams of `pattern`.
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

/// Both events run on CPU 0. The second one finds that the first has an open transaction. Returns how often begins failed.
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
        // Restarts the owner until there is trace.
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

/// perf does not map a task's inherited event, but it can be redirected to a mapped one. Then its children write to one ring from all CPUs,
/// although perf's count of transactions is for a single CPU. Returns how often begins failed.
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
                        // Each time that the thread is scheduled in, its transaction begins anew.
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

/// Maps an AUX ring through a redirected event, and closes and unmaps everything in different orders.
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
