// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events that write into the rings of others.

use std::sync::atomic::Ordering;

use anyhow::{ensure, Result};
use auxrec::sys::{Event, Field};
use perfdata::Flags;
use rustix::io::Errno;

use super::{case, core, refused, ring, skip, Case};
use crate::pmu::{Place, Pmu};
use crate::records::SAMPLE;
use crate::rig::{map_aux, map_base, pin, software, work, Mode, Rig, CPU_CLOCK, DUMMY};

pub fn cases() -> Vec<Case> {
    vec![
        case(
            "output: into itself",
            core(13731, "if (event == output_event)"),
            |pmu| {
                let rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
                refused("it", rig.event.set_output(&rig.event), Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "output: into the ring of another CPU",
            core(13737, "if (output_event->cpu != event->cpu)"),
            |pmu| {
                let Place::Cpu(cpu) = pmu.cpu()? else {
                    return Err(skip("its events are not of CPUs"));
                };
                let rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
                let other = Event::open(&software(DUMMY, 0), -1, i32::from(cpu == 0))
                    .map_err(|_| skip("this machine has one CPU"))?;
                refused("it", other.set_output(&rig.event), Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "output: of an event that has a ring",
            core(
                13775,
                "/* Can't redirect output if we've got an active mmap() */",
            ),
            |pmu| {
                let rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
                let (pid, cpu) = pmu.place().args();
                let other = Event::open(&software(DUMMY, 0), pid, cpu)?;
                let _ring = map_base(&other)?;
                refused("it", other.set_output(&rig.event), Errno::INVAL)?;
                refused("the other way", rig.event.set_output(&other), Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "output: with another clock",
            core(13749, "if (output_event->clock != event->clock)"),
            |pmu| {
                let rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
                let mut attr = software(DUMMY, 0);
                attr.flags |= Flags::USE_CLOCKID;
                attr.clockid = 1;
                let (pid, cpu) = pmu.place().args();
                let other = Event::open(&attr, pid, cpu)?;
                refused("it", other.set_output(&rig.event), Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "output: a software event's samples beside the trace",
            core(13795, "ring_buffer_attach(event, rb);"),
            beside,
        ),
        case(
            "output: an area in the ring of a software event",
            ring(698, "if (!has_aux(event))"),
            into_other,
        ),
        case(
            "output: ended while it runs",
            core(
                6899,
                "static void ring_buffer_attach(struct perf_event *event,",
            ),
            |pmu| {
                let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
                let (pid, cpu) = pmu.place().args();
                rig.event.enable()?;
                for _ in 0..20 {
                    let other = Event::open(&software(CPU_CLOCK, 100_000), pid, cpu)?;
                    other.set_output(&rig.event)?;
                    work();
                    drop(other);
                    rig.follows()?;
                }
                rig.settles()?;
                rig.is_exact()
            },
        ),
        case(
            "output: two events of the PMU, one area",
            ring(410, "nest = READ_ONCE(rb->aux_nest);"),
            two,
        ),
    ]
}

fn beside(pmu: &Pmu) -> Result<String> {
    let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(8), Mode::Normal)?;
    let (pid, cpu) = pmu.place().args();
    let mut attr = software(CPU_CLOCK, 300_000);
    attr.flags |= Flags::DISABLED;
    let other = Event::open(&attr, pid, cpu)?;
    other.set_output(&rig.event)?;
    rig.event.enable()?;
    other.enable()?;
    for _ in 0..20 {
        work();
        rig.follows()?;
    }
    other.disable()?;
    rig.traces(1)?;
    rig.settles()?;
    let samples = rig
        .others
        .iter()
        .filter(|record| record.kind == SAMPLE)
        .count();
    ensure!(samples > 0, "no sample of the other event");
    Ok(format!("{samples} samples; {}", rig.is_exact()?))
}

/// The software event has no area, whatever writes into its ring.
fn into_other(pmu: &Pmu) -> Result<String> {
    let (pid, cpu) = pmu.place().args();
    let owner = Event::open(&software(DUMMY, 0), pid, cpu)?;
    let base = map_base(&owner)?;
    let event = pmu.open(pmu.place())?;
    event.set_output(&owner)?;
    let area = map_aux(&owner, &base, pmu.pages(4), Mode::Normal);
    refused("an area of an event that has none", area, Errno::OPNOTSUPP)?;
    if let Place::Cpu(cpu) = pmu.place() {
        pin(cpu)?;
    }
    event.enable()?;
    for _ in 0..5 {
        work();
    }
    event.disable()?;
    let head = base.load(Field::AuxHead, Ordering::Acquire);
    ensure!(head == 0, "{head} bytes without an area");
    Ok("refused".to_owned())
}

/// perf refuses the second event of an exclusive PMU. With any other PMU two events use one area, which must not harm the kernel.
fn two(pmu: &Pmu) -> Result<String> {
    let place = pmu.place();
    let mut rig = Rig::open(pmu, place, pmu.pages(8), Mode::Normal)?;
    let second = match pmu.open(place) {
        Ok(second) => second,
        Err(error) => return Ok(format!("the second is refused: {error}")),
    };
    second.set_output(&rig.event)?;
    rig.event.enable()?;
    second.enable()?;
    for _ in 0..20 {
        work();
        rig.drain()?;
    }
    second.disable()?;
    rig.event.disable()?;
    rig.drain()?;
    Ok(format!("{} bytes", rig.ledger.bytes))
}
