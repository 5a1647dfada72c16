// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requirements of perf's core on a driver that can be tested from user space, and that no recording shows.

use std::path::Path;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{Event, Field, Mapping};
use perfdata::Flags;

use crate::attack::{
    attack, aux, base, beside, get, records, set, sleep, software, traced, unpin, Attack, Victim,
    DUMMY,
};
use crate::events::probe::bytes;
use crate::events::sampling::faults;
use crate::hotplug::{switch, ONLINE};
use crate::ktap::Skip;
use crate::module::{self, counter};
use crate::wait::{wait_for, PATIENCE};
use crate::workload::pin;

/// All cases.
pub const ALL: [Attack; 3] = [
    attack("ITRACE_START once an event", itrace_start),
    attack("failed begins, each by its cause", failed_begins),
    attack("a begin that fails as its CPU goes", offline),
];

/// perf writes an ITRACE_START record whenever the event is scheduled in, until the driver reports that the trace has started.
fn itrace_start() -> Result<String> {
    let before = of_cpu()?;
    of_task()?;
    Ok(format!("{before} before it started, 1 after"))
}

/// The number of ITRACE_START records.
fn reported(control: &Mapping) -> usize {
    const ITRACE_START: u32 = 12;
    let records = records(control);
    records.iter().filter(|&&kind| kind == ITRACE_START).count()
}

fn of_cpu() -> Result<usize> {
    let event = Event::open(&traced("pattern")?, -1, 0)?;
    let control = base(&event)?;

    // Without an AUX ring, the trace does not start.
    for _ in 0..5 {
        event.enable()?;
        event.disable()?;
    }
    let before = reported(&control);
    ensure!(
        before >= 5,
        "{before} records of 5 times that the event was scheduled in without a ring"
    );

    let _aux = aux(&event, &control, 16)?;
    for n in 1..=10 {
        event.enable()?;
        sleep(2);
        event.set_period(n)?;
        sleep(2);
        event.disable()?;
        set(&control, Field::AuxTail, get(&control, Field::AuxHead));
        ensure!(
            reported(&control) == before + 1,
            "{} records after {n} times",
            reported(&control) - before
        );
    }
    Ok(before)
}

/// Children write to the ring of their parent, whose trace has started already.
fn of_task() -> Result<()> {
    let mut attr = traced("pattern")?;
    attr.flags |= Flags::INHERIT;
    let task = Victim::open(&attr, 0, 1, 16)?;
    pin(1)?;
    task.event.enable()?;
    for _ in 0..5 {
        faults()?;
    }
    task.event.disable()?;
    unpin()?;
    let reported = reported(task.control()?);
    ensure!(reported == 1, "{reported} records of a task with children");
    Ok(())
}

/// The framework's counters of failed begins.
const CAUSES: [&str; 7] = [
    "begin_no_ring",
    "begin_not_mapped",
    "begin_no_space",
    "begin_foreign",
    "begin_refused",
    "begin_offline",
    "add_busy",
];

/// `fault=8`: the driver refuses to start.
const FAULT_START: u64 = 8 << 4;

/// The counters that have changed while `f` ran, and by how much.
fn moved(pmu: &str, f: impl FnOnce() -> Result<()>) -> Result<Vec<(&'static str, u64)>> {
    let now = || {
        CAUSES
            .into_iter()
            .map(|name| counter(pmu, name))
            .collect::<Result<Vec<u64>>>()
    };
    let before = now()?;
    f()?;
    let moved = now()?.into_iter().zip(before).map(|(now, then)| now - then);
    Ok(CAUSES
        .into_iter()
        .zip(moved)
        .filter(|&(_, by)| by > 0)
        .collect())
}

/// Checks that `f` changes this counter, and no other.
fn only(pmu: &str, cause: &'static str, f: impl FnOnce() -> Result<()>) -> Result<()> {
    let moved = moved(pmu, f).context(cause)?;
    ensure!(
        matches!(moved[..], [(name, _)] if name == cause),
        "{cause} of {pmu} was provoked, and {moved:?} moved"
    );
    Ok(())
}

fn failed_begins() -> Result<String> {
    let Some((second, module)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    let seen = causes(second);
    // No event of it is open any more.
    module::unload(module)?;
    seen?;
    Ok("each alone".to_owned())
}

fn causes(second: &str) -> Result<()> {
    let once = |event: &Event| -> Result<()> {
        event.enable()?;
        sleep(2);
        Ok(event.disable()?)
    };

    for pmu in ["pattern", second] {
        let attr = traced(pmu)?;
        let event = Event::open(&attr, -1, 0)?;
        only(pmu, "begin_no_ring", || once(&event))?;

        let control = base(&event)?;
        only(pmu, "begin_not_mapped", || once(&event))?;

        let area = aux(&event, &control, 4)?;
        let traced = || -> Result<()> {
            wait_for("trace", || {
                once(&event)?;
                Ok(get(&control, Field::AuxHead) != 0)
            })
        };
        let none = moved(pmu, traced)?;
        ensure!(none.is_empty(), "{none:?} moved where there is a ring");

        // A full ring, as a reader that does not read leaves it; and rings with an invalid `aux_tail`.
        let head = get(&control, Field::AuxHead);
        let tails = [
            head.wrapping_sub(bytes(4) - 1),
            head.wrapping_add(1),
            head.wrapping_sub(bytes(4)),
        ];
        for tail in tails {
            set(&control, Field::AuxTail, tail);
            only(pmu, "begin_no_space", || once(&event))?;
            let now = get(&control, Field::AuxHead);
            ensure!(now == head, "{} bytes without space", now - head);
        }

        // After the unmapping, there is no AUX area, as at first.
        drop(area);
        only(pmu, "begin_not_mapped", || once(&event))?;
        drop((control, event));
    }

    let mut attr = traced("pattern")?;
    attr.config1 = FAULT_START;
    let victim = Victim::open(&attr, -1, 0, 4)?;
    only("pattern", "begin_refused", || once(&victim.event))?;
    drop(victim);

    for [owner, stranger] in [["pattern", second], [second, "pattern"]] {
        let victim = Victim::open(&traced(owner)?, -1, 0, 4)?;
        let between = Event::open(&software(DUMMY, 0), -1, 0)?;
        between.set_output(&victim.event)?;
        let event = Event::open(&traced(stranger)?, -1, 0)?;
        event.set_output(&between).context("cannot redirect")?;
        only(stranger, "begin_foreign", || once(&event))?;
    }
    Ok(())
}

/// There is little time between the framework's teardown and perf's own. Only an interrupt from another CPU can start an event in it, so
/// this test may miss it. KUnit tests of the framework cover the same code reliably.
fn offline() -> Result<String> {
    if !Path::new(ONLINE).exists() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    pin(0)?;
    let met = meets_teardown();
    unpin()?;
    match met? {
        Some(times) => Ok(format!("after {times} times that a CPU went")),
        None => bail!(Skip("no event was started in that moment")),
    }
}

/// Takes CPU 1 offline again and again, until an event is started during the teardown. Returns how often it was tried.
fn meets_teardown() -> Result<Option<u32>> {
    let end = Instant::now() + PATIENCE;
    for times in 1.. {
        let victim = Victim::open(&traced("pattern")?, -1, 1, 16)?;
        victim.event.enable()?;
        let seen = moved("pattern", || {
            let other = |k: u64| {
                // Stops and starts the event.
                let _ = victim.event.set_period(k + 1);
                victim.release();
            };
            beside(other, || switch(false))
        });
        switch(true)?;
        match seen?[..] {
            [("begin_offline", _)] => return Ok(Some(times)),
            [] if Instant::now() < end => (),
            [] => break,
            ref seen => bail!("begin_offline was provoked {times} times, and {seen:?} moved"),
        }
    }
    Ok(None)
}
