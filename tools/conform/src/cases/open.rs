// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opening events: calls that must succeed, and calls that must fail.

use anyhow::{ensure, Result};
use auxrec::sys::{Event, Field};
use perfdata::Flags;
use rustix::io::Errno;

use super::{at_both, case, core, refused, ring, since, skip, Case};
use crate::pmu::{Place, Pmu};
use crate::rig::{software, work, Mode, Rig, CPU_CLOCK};

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case(
            "open: neither a thread nor a CPU",
            core(13359, "if ((unsigned)cpu >= nr_cpu_ids) {"),
            |pmu| {
                refused(
                    "an event of nothing",
                    Event::open(&pmu.attr(), -1, -1),
                    Errno::INVAL,
                )?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "open: a thread that is not there",
            core(13992, "task = find_lively_task_by_vpid(pid);"),
            |pmu| {
                pmu.task()?;
                refused(
                    "an event of nobody",
                    Event::open(&pmu.attr(), i32::MAX, -1),
                    Errno::SRCH,
                )?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "open: a CPU that is not there",
            core(13359, "if ((unsigned)cpu >= nr_cpu_ids) {"),
            |pmu| match Event::open(&pmu.attr(), -1, 4095) {
                Ok(_) => anyhow::bail!("an event of CPU 4095 was not refused"),
                Err(error) => Ok(error.to_string()),
            },
        ),
        case(
            "open: a frequency that is too high",
            core(
                13932,
                "if (attr.sample_freq > sysctl_perf_event_sample_rate)",
            ),
            |pmu| {
                let mut attr = pmu.attr();
                attr.flags |= Flags::FREQ;
                attr.sample_period = u64::MAX >> 1;
                refused("it", pmu.open_attr(&attr, pmu.place()), Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "open: a period that is too long",
            core(13935, "if (attr.sample_period & (1ULL << 63))"),
            |pmu| {
                let mut attr = pmu.attr();
                attr.sample_period = 1 << 63;
                refused("it", pmu.open_attr(&attr, pmu.place()), Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "open: a frequency, refused or harmless",
            core(4481, "event->pmu->stop(event, PERF_EF_UPDATE);"),
            frequency,
        ),
        case(
            "open: bits of config that mean nothing",
            core(13084, "static int perf_try_init_event(struct pmu *pmu"),
            |pmu| config(pmu, u64::MAX, u64::MAX, u64::MAX),
        ),
        case(
            "open: each bit of config",
            core(13084, "static int perf_try_init_event(struct pmu *pmu"),
            |pmu| {
                let mut opened = 0;
                for bit in 0..64 {
                    let word = 1 << bit;
                    for [config, config1, config2] in [[word, 0, 0], [0, word, 0], [0, 0, word]] {
                        opened += u32::from(config_opens(pmu, config, config1, config2)?);
                    }
                }
                Ok(format!("{opened} of 192 are taken"))
            },
        ),
        case(
            "open: a branch stack",
            core(13622, "u64 mask = attr->branch_sample_type;"),
            |pmu| {
                let mut attr = pmu.attr();
                attr.sample_type |= perfdata::SampleType::from_bits_retain(1 << 11);
                attr.branch_sample_type = 1 << 3;
                Ok(match pmu.open_attr(&attr, pmu.place()) {
                    Ok(_) => "opened".to_owned(),
                    Err(error) => error.to_string(),
                })
            },
        ),
        case(
            "open: AUX samples without a leader that has an area",
            core(
                2328,
                "if (event->attr.aux_sample_size && !group_leader->pmu->snapshot_aux)",
            ),
            |pmu| {
                let mut attr = software(CPU_CLOCK, 1_000_000);
                attr.sample_type |= perfdata::SampleType::AUX;
                attr.aux_sample_size = 4096;
                refused("it", pmu.open_attr(&attr, pmu.place()), Errno::INVAL)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "open: output into the area of no leader",
            core(2321, "!perf_aux_output_match(event, group_leader))"),
            |pmu| {
                let mut attr = software(CPU_CLOCK, 1_000_000);
                attr.flags |= Flags::AUX_OUTPUT;
                let opened = pmu.open_attr(&attr, pmu.place());
                ensure!(opened.is_err(), "it was not refused");
                Ok("refused".to_owned())
            },
        ),
        case(
            "open: pause and resume at once",
            core(
                13511,
                "if (event->attr.aux_pause && event->attr.aux_resume)",
            ),
            |pmu| {
                let leader = pmu.open(pmu.place())?;
                let mut attr = software(CPU_CLOCK, 1_000_000);
                attr.aux_action = 2 | 4;
                let (pid, cpu) = pmu.place().args();
                let opened = Event::open_in(&attr, pid, cpu, Some(&leader));
                ensure!(opened.is_err(), "it was not refused");
                Ok("refused".to_owned())
            },
        ),
        case(
            "open: bits of aux_action that mean nothing",
            core(
                13612,
                "if (attr->__reserved_1 || attr->__reserved_2 || attr->__reserved_3)",
            ),
            |pmu| {
                let mut attr = pmu.attr();
                attr.aux_action = 8;
                ensure!(
                    pmu.open_attr(&attr, pmu.place()).is_err(),
                    "it was not refused"
                );
                Ok("refused".to_owned())
            },
        ),
        case(
            "open: start paused, if the PMU can pause",
            core(13515, "if (!(pmu->capabilities & PERF_PMU_CAP_AUX_PAUSE))"),
            |pmu| {
                since(6, 13, "AUX areas pause")?;
                let mut attr = pmu.attr();
                attr.aux_action = 1;
                let opened = pmu.open_attr(&attr, pmu.place());
                if pmu.pauses {
                    opened?;
                    return Ok("opened".to_owned());
                }
                refused("it", opened, Errno::OPNOTSUPP)?;
                Ok("refused".to_owned())
            },
        ),
        case(
            "open: a CPU's event beside a thread's",
            core(
                5712,
                "if (!atomic_dec_unless_positive(&pmu->exclusive_cnt))",
            ),
            |pmu| {
                let (cpu, task) = (pmu.cpu()?, pmu.task()?);
                for [first, second] in [[cpu, task], [task, cpu]] {
                    let held = pmu.open(first)?;
                    let opened = pmu.open(second);
                    match pmu.exclusive {
                        true => refused("the second", opened, Errno::BUSY)?,
                        false => drop(opened?),
                    }
                    drop(held);
                    pmu.open(second)?;
                }
                Ok(if pmu.exclusive {
                    "refused, both ways"
                } else {
                    "opened"
                }
                .to_owned())
            },
        ),
    ];
    cases.extend(at_both(
        "open: nothing is traced before it is enabled",
        core(
            2022,
            "event->state = event->attr.disabled ? PERF_EVENT_STATE_OFF :",
        ),
        |pmu, place| {
            let rig = Rig::open(pmu, place, pmu.pages(4), Mode::Normal)?;
            for _ in 0..5 {
                work();
            }
            ensure!(rig.head() == 0, "aux_head is {:#x}", rig.head());
            let count = rig.count()?;
            ensure!(count.running == 0, "it ran {} ns", count.running);
            Ok("nothing".to_owned())
        },
    ));
    cases.extend(at_both(
        "open: a second event at the same place",
        core(
            5744,
            "static bool exclusive_event_installable(struct perf_event *event,",
        ),
        second,
    ));
    cases.extend(at_both(
        "open: without an area nothing is traced",
        ring(393, "if (!rb_has_aux(rb))"),
        |pmu, place| {
            let event = pmu.open(place)?;
            let base = crate::rig::map_base(&event)?;
            if let Place::Cpu(cpu) = place {
                crate::rig::pin(cpu)?;
            }
            event.enable()?;
            for _ in 0..20 {
                work();
            }
            event.disable()?;
            let head = base.load(Field::AuxHead, std::sync::atomic::Ordering::Acquire);
            ensure!(head == 0, "aux_head is {head:#x}, and nothing is mapped");
            // Some drivers count without an area.
            let running = event.count()?.map_or(0, |count| count.running);
            Ok(format!("it ran {running} ns"))
        },
    ));
    cases.extend(at_both(
        "open: the id is that of its records",
        core(6654, "u64 id = primary_event_id(event);"),
        |pmu, place| {
            let mut rig = Rig::open(pmu, place, pmu.pages(4), Mode::Normal)?;
            rig.event.enable()?;
            rig.traces(1)?;
            rig.settles()?;
            let id = rig.event.id()?;
            ensure!(
                rig.count()?.id == id,
                "read() says {}, the ioctl {id}",
                rig.count()?.id
            );
            for seen in &rig.ids {
                ensure!(
                    seen.id == id,
                    "a record is of event {}, and this is {id}",
                    seen.id
                );
            }
            Ok(format!("{} records", rig.ids.len()))
        },
    ));
    cases
}

/// perf stops and starts an event with a frequency at each tick.
fn frequency(pmu: &Pmu) -> Result<String> {
    let mut attr = pmu.attr();
    attr.flags |= Flags::FREQ;
    attr.sample_period = 1000;
    let rig = Rig::with(pmu, &attr, pmu.place(), pmu.pages(16), Mode::Normal);
    let mut rig = match rig {
        Ok(rig) => rig,
        Err(error) => return Ok(format!("refused: {error:#}")),
    };
    rig.event.enable()?;
    rig.traces(crate::rig::bytes(pmu.pages(1)))?;
    for _ in 0..50 {
        work();
        rig.follows()?;
    }
    rig.settles()?;
    rig.is_exact()
}

/// An event with these words traces without harm, or is refused.
fn config(pmu: &Pmu, config: u64, config1: u64, config2: u64) -> Result<String> {
    Ok(match config_opens(pmu, config, config1, config2)? {
        true => "taken".to_owned(),
        false => "refused".to_owned(),
    })
}

fn config_opens(pmu: &Pmu, config: u64, config1: u64, config2: u64) -> Result<bool> {
    let mut attr = pmu.attr();
    (attr.config, attr.config1, attr.config2) = (config, config1, config2);
    let Ok(event) = pmu.open_attr(&attr, pmu.place()) else {
        return Ok(false);
    };
    let base = crate::rig::map_base(&event)?;
    let area = crate::rig::map_aux(&event, &base, pmu.pages(4), Mode::Normal);
    if let Place::Cpu(cpu) = pmu.place() {
        crate::rig::pin(cpu)?;
    }
    event.enable()?;
    work();
    event.disable()?;
    drop(area);
    Ok(true)
}

fn second(pmu: &Pmu, place: Place) -> Result<String> {
    let first = pmu.open(place)?;
    let opened = pmu.open(place);
    if pmu.exclusive {
        refused("it", opened, Errno::BUSY)?;
        drop(first);
        pmu.open(place)?;
        return Ok("refused, and opened when the first was closed".to_owned());
    }
    let second = opened?;
    drop((first, second));
    // Each event has its own ring, but both use one unit.
    let mut rigs = [
        Rig::open(pmu, place, pmu.pages(4), Mode::Normal)?,
        Rig::open(pmu, place, pmu.pages(4), Mode::Normal)?,
    ];
    for rig in &rigs {
        rig.event.enable()?;
    }
    for _ in 0..20 {
        work();
        for rig in &mut rigs {
            rig.follows()?;
        }
    }
    let mut seen = Vec::new();
    for rig in &mut rigs {
        rig.settles()?;
        seen.push(rig.ledger.bytes);
    }
    if seen.iter().all(|bytes| *bytes == 0) {
        return Err(skip("neither traced anything"));
    }
    Ok(format!("{seen:?} bytes"))
}
