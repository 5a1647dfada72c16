// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Trace that other events pause and resume.

use std::time::Instant;

use anyhow::{ensure, Result};
use auxrec::sys::Event;

use super::{at_both, core, skip, Case};
use crate::pmu::{Place, Pmu};
use crate::rig::{bytes, patience, software, work, Mode, Rig, CPU_CLOCK};
use crate::stream::Known;

/// `aux_start_paused`.
const START: u32 = 1;
/// `aux_pause`.
const PAUSE: u32 = 2;
/// `aux_resume`.
const RESUME: u32 = 4;

pub fn cases() -> Vec<Case> {
    let rule = core(8873, "event->pmu->stop(event, PERF_EF_PAUSE);");
    let resume = core(8878, "event->pmu->start(event, PERF_EF_RESUME);");
    let start = core(13517, "event->hw.aux_paused = 1;");
    [
        at_both("pause: started paused, nothing is traced", start, paused),
        at_both("pause: a sibling pauses it", rule, pauses),
        at_both("pause: a sibling resumes it", resume, resumes),
        at_both(
            "pause: switched off and on while it is paused",
            start,
            stays,
        ),
        at_both("pause: paused and resumed all the time", rule, storm),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// An event that starts paused or not, and siblings with these actions, each with its period in ns. The siblings are enabled with their
/// leader: perf does not schedule a sibling that is enabled later, if the PMU's context is that of software events.
fn rig(pmu: &Pmu, place: Place, start: u32, actions: &[(u32, u64)]) -> Result<(Rig, Vec<Event>)> {
    if !pmu.pauses {
        return Err(skip("it cannot be paused"));
    }
    let mut attr = pmu.attr();
    attr.aux_action = start;
    let rig = Rig::with(pmu, &attr, place, pmu.pages(16), Mode::Normal)?;
    let mut others = Vec::new();
    for &(action, period) in actions {
        let mut attr = software(CPU_CLOCK, period);
        attr.aux_action = action;
        let (pid, cpu) = place.args();
        others.push(Event::open_in(&attr, pid, cpu, Some(&rig.event))?);
    }
    Ok((rig, others))
}

/// Enables an event once, works for so many stretches, disables it and reads its trace.
fn ran(pmu: &Pmu, place: Place, start: u32, actions: &[(u32, u64)], stretches: u32) -> Result<Rig> {
    let (mut rig, _others) = rig(pmu, place, start, actions)?;
    rig.event.enable()?;
    for _ in 0..stretches {
        work();
    }
    rig.event.disable()?;
    rig.read()?;
    Ok(rig)
}

/// Finds how many stretches of work an event needs that makes trace, and returns the event, too. It makes twice as much as an event that is
/// paused may, which is less than a page: a unit may write its state when it starts. So the event starts once only.
fn enough(pmu: &Pmu, place: Place, start: u32, actions: &[(u32, u64)]) -> Result<(u32, Rig)> {
    let end = Instant::now() + patience();
    let mut stretches = 10;
    loop {
        let rig = ran(pmu, place, start, actions, stretches)?;
        if rig.head() >= bytes(2) {
            return Ok((stretches, rig));
        }
        ensure!(
            Instant::now() < end,
            "tracing: not in {stretches} stretches of work, {} bytes",
            rig.head()
        );
        stretches = stretches.saturating_mul(2);
    }
}

fn paused(pmu: &Pmu, place: Place) -> Result<String> {
    let (stretches, _) = enough(pmu, place, 0, &[])?;
    let head = ran(pmu, place, START, &[], stretches)?.head();
    ensure!(
        head < bytes(1),
        "{head} bytes were traced in {stretches} stretches of work"
    );
    Ok(format!("{head} bytes in {stretches} stretches of work"))
}

fn pauses(pmu: &Pmu, place: Place) -> Result<String> {
    let (stretches, _) = enough(pmu, place, 0, &[])?;
    // The sibling overflows after 50 ms for the first time. From then on the event is paused.
    let (mut rig, _others) = rig(pmu, place, 0, &[(PAUSE, 50_000_000)])?;
    rig.event.enable()?;
    let before = rig.count()?.running;
    rig.until("waiting for the pause", |rig| {
        rig.follows()?;
        Ok(rig.count()?.running.wrapping_sub(before) > 150_000_000)
    })?;
    // This makes the earlier trace visible. The event stays paused.
    rig.event.disable()?;
    rig.read()?;
    rig.event.enable()?;
    let (counted, head) = (rig.count()?.value, rig.head());
    for _ in 0..stretches {
        work();
    }
    rig.event.disable()?;
    rig.read()?;
    let traced = rig.head().wrapping_sub(head);
    // A unit may write its state when it is configured.
    ensure!(
        traced < bytes(1),
        "it is paused, and {traced} bytes were traced"
    );
    let counted = rig.count()?.value.wrapping_sub(counted);
    ensure!(
        pmu.stream != Some(Known::Pattern) || counted == 0,
        "it is paused, and counted {counted}"
    );
    ensure!(rig.head() > 0, "nothing was traced before it was paused");
    Ok(format!("{} bytes before", rig.head()))
}

fn resumes(pmu: &Pmu, place: Place) -> Result<String> {
    let (_, mut rig) = enough(pmu, place, START, &[(RESUME, 20_000_000)])?;
    rig.settles()?;
    rig.is_exact()
}

fn stays(pmu: &Pmu, place: Place) -> Result<String> {
    let (stretches, _) = enough(pmu, place, 0, &[])?;
    let (mut rig, _) = rig(pmu, place, START, &[])?;
    for _ in 0..10 {
        rig.event.enable()?;
        for _ in 0..stretches.div_ceil(10) {
            work();
        }
        rig.event.disable()?;
    }
    rig.drain()?;
    let head = rig.head();
    ensure!(head < bytes(1), "{head} bytes were traced");
    Ok(format!("{head} bytes"))
}

fn storm(pmu: &Pmu, place: Place) -> Result<String> {
    let actions = [(PAUSE, 200_000), (RESUME, 330_000)];
    let (mut rig, _others) = rig(pmu, place, 0, &actions)?;
    rig.event.enable()?;
    for turn in 0..60 {
        work();
        rig.follows()?;
        if turn % 10 == 9 {
            rig.event.disable()?;
            rig.event.enable()?;
        }
    }
    rig.traces(1)?;
    rig.settles()?;
    rig.is_exact()
}
