// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls that no recorder makes, and any program may make.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use auxrec::sys::Field;

use super::{at_both, case, core, ring, skip, Case};
use crate::pmu::{Place, Pmu};
use crate::records::LOST;
use crate::rig::{
    beside, bytes, makes_trace, patience, pin, software, unpin, work, Mode, Rig, CPU_CLOCK,
};

pub fn cases() -> Vec<Case> {
    let rule = ring(
        437,
        "handle->size = CIRC_SPACE(aux_head, aux_tail, perf_aux_size(rb));",
    );
    let mut cases = Vec::new();
    let tails: [(&str, u64); 7] = [
        ("all ones", u64::MAX),
        ("the sign", 1 << 63),
        ("one", 1),
        ("an odd number", 0xfff),
        ("a page ahead", 4096),
        ("far ahead", 1 << 40),
        ("a pattern", 0x5555_5555_5555_5555),
    ];
    for (what, tail) in tails {
        cases.push(case(
            format!("hostile: aux_tail is {what}"),
            rule,
            move |pmu| tail_is(pmu, tail),
        ));
    }
    cases.push(case(
        "hostile: aux_tail changes all the time",
        rule,
        |pmu| {
            let pages = pmu.pages(4);
            let rig = Rig::open(pmu, pmu.place(), pages, Mode::Normal)?;
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| -> Result<()> {
                beside(scope, || {
                    let mut n = 1_u64;
                    while !done.load(Ordering::Relaxed) {
                        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        rig.set(Field::AuxTail, n);
                    }
                })?;
                let worked = (0..50).try_for_each(|_| -> Result<()> {
                    rig.event.enable()?;
                    work();
                    Ok(rig.event.disable()?)
                });
                done.store(true, Ordering::Relaxed);
                worked
            })?;
            recovers(pmu, rig)
        },
    ));
    cases.push(case(
        "hostile: the control page is filled with ones",
        core(7390, "aux_offset = READ_ONCE(rb->user_page->aux_offset);"),
        |pmu| {
            let rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
            rig.event.enable()?;
            let fields = [
                Field::DataHead,
                Field::DataTail,
                Field::AuxHead,
                Field::AuxTail,
                Field::AuxOffset,
                Field::AuxSize,
            ];
            for value in [u64::MAX, 0, 1 << 63, 0x1234_5678_9abc_def0] {
                for field in fields {
                    rig.set(field, value);
                    work();
                }
            }
            rig.event.disable()?;
            recovers(pmu, rig)
        },
    ));
    cases.extend(at_both(
        "hostile: the data ring has no reader",
        core(
            10031,
            "ret = perf_output_begin(&handle, &sample, event, rec.header.size);",
        ),
        data_full,
    ));
    cases.extend(at_both(
        "hostile: unmapped while it runs",
        core(7065, "perf_pmu_output_stop(event);"),
        |pmu, place| {
            let mut bytes = 0;
            for n in 0..20 {
                let mut rig = Rig::open(pmu, place, pmu.pages(4), Mode::Normal)?;
                rig.event.enable()?;
                if n % 2 == 0 {
                    work();
                }
                bytes += rig.head();
                drop(rig.aux.take());
                work();
                if n % 3 == 0 {
                    drop(rig.base.take());
                    work();
                }
            }
            Ok(format!("{bytes} bytes until then"))
        },
    ));
    cases.push(case(
        "hostile: enabled and disabled 2000 times at once",
        core(
            2729,
            "static void _perf_event_disable(struct perf_event *event)",
        ),
        |pmu| {
            let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(16), Mode::Normal)?;
            for n in 0..2000 {
                rig.event.enable()?;
                rig.event.disable()?;
                if n % 16 == 0 {
                    rig.follows()?;
                }
            }
            rig.follows()?;
            rig.settles()?;
            rig.is_exact()
        },
    ));
    cases.push(case(
        "hostile: enabled and disabled from another thread",
        core(281, "static int event_function(void *info)"),
        |pmu| {
            let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(16), Mode::Normal)?;
            let other = rig.event.try_clone()?;
            let done = AtomicBool::new(false);
            let toggled = std::thread::scope(|scope| {
                let toggles = beside(scope, || {
                    let _ = unpin();
                    let mut times = 0_u32;
                    while !done.load(Ordering::Relaxed) {
                        if other.enable().is_err() || other.disable().is_err() {
                            break;
                        }
                        times += 1;
                    }
                    times
                })?;
                let worked = (0..30).try_for_each(|_| {
                    work();
                    rig.follows()
                });
                done.store(true, Ordering::Relaxed);
                worked.map(|()| toggles.join().unwrap_or(0))
            })?;
            rig.settles()?;
            Ok(format!("{toggled} times; {}", rig.is_exact()?))
        },
    ));
    cases.push(case(
        "hostile: opened and closed 100 times",
        core(
            5941,
            "int perf_event_release_kernel(struct perf_event *event)",
        ),
        |pmu| {
            for n in 0..100 {
                let rig = Rig::open(pmu, pmu.place(), pmu.pages(1 << (n % 3)), Mode::Normal)?;
                rig.event.enable()?;
                if n % 10 == 0 {
                    work();
                }
            }
            Ok("closed while they run".to_owned())
        },
    ));
    cases.push(case(
        "hostile: two openers on two CPUs",
        core(
            5734,
            "static bool exclusive_event_match(struct perf_event *e1, struct perf_event *e2)",
        ),
        two_cpus,
    ));
    cases
}

fn tail_is(pmu: &Pmu, tail: u64) -> Result<String> {
    let pages = pmu.pages(4);
    let rig = Rig::open(pmu, pmu.place(), pages, Mode::Normal)?;
    for _ in 0..5 {
        rig.set(Field::AuxTail, tail);
        let before = rig.head();
        rig.event.enable()?;
        work();
        work();
        rig.event.disable()?;
        let moved = rig.head().wrapping_sub(before);
        // The space with this tail, for all commits of the driver together.
        let space = tail.wrapping_sub(before).wrapping_sub(1) & (bytes(pages) - 1);
        ensure!(
            moved <= space,
            "aux_head has moved by {moved}, and there was space for {space}"
        );
    }
    recovers(pmu, rig)
}

/// Checks that another area of the PMU works as before.
fn recovers(pmu: &Pmu, rig: Rig) -> Result<String> {
    drop(rig);
    let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
    rig.event.enable()?;
    rig.traces(1)?;
    rig.settles()?;
    rig.is_exact()
}

fn data_full(pmu: &Pmu, place: Place) -> Result<String> {
    let mut rig = Rig::open(pmu, place, pmu.pages(64), Mode::Normal)?;
    let (pid, cpu) = place.args();
    let noise = auxrec::sys::Event::open(&software(CPU_CLOCK, 50_000), pid, cpu)?;
    noise.set_output(&rig.event)?;
    // Samples of the other event fill the ring, and no record is read. An AUX record has 64 bytes, and perf keeps one free.
    let full = bytes(crate::rig::DATA_PAGES);
    let end = Instant::now() + patience();
    while rig.get(Field::DataHead) + 64 < full {
        work();
        ensure!(Instant::now() < end, "the data ring does not fill");
    }
    drop(noise);
    let base = rig.base.as_ref().context("there is no ring")?;
    let head = makes_trace(&rig.event, base)?;
    rig.drain()?;
    ensure!(
        rig.ledger.records == 0,
        "{} AUX records in a ring that was full",
        rig.ledger.records
    );
    // No record has this trace, nor says whether the area was full.
    rig.ledger.goes_to(head);
    rig.read()?;
    if let Some(stream) = &mut rig.stream {
        stream.may_begin_anew();
    }
    // The first record behind the loss reports it.
    rig.event.enable()?;
    rig.traces(1)?;
    rig.settles()?;
    let lost = rig
        .others
        .iter()
        .filter(|record| record.kind == LOST)
        .count();
    ensure!(
        lost > 0,
        "the record of {head} bytes was lost, and no record says so"
    );
    Ok(format!("{lost} records of loss, {head} bytes of trace"))
}

fn two_cpus(pmu: &Pmu) -> Result<String> {
    let Place::Cpu(first) = pmu.cpu()? else {
        return Err(skip("its events are not of CPUs"));
    };
    let second = u32::from(first == 0);
    let each = |cpu: u32| -> Result<u64> {
        let mut rig = Rig::open(pmu, Place::Cpu(cpu), pmu.pages(16), Mode::Normal)?;
        pin(cpu)?;
        rig.event.enable()?;
        for _ in 0..20 {
            work();
            rig.follows()?;
        }
        rig.traces(1)?;
        rig.settles()?;
        rig.is_exact()?;
        Ok(rig.ledger.bytes)
    };
    if let Err(error) = pmu.open(Place::Cpu(second)) {
        return Err(skip(format!("no event of CPU {second}: {error}")));
    }
    let (mine, other) = std::thread::scope(|scope| {
        let other = beside(scope, || each(second))?;
        let mine = each(first);
        anyhow::Ok((mine, other.join()))
    })?;
    let other = other.map_err(|_| anyhow::anyhow!("a thread has panicked"))?;
    Ok(format!("{} and {} bytes", mine?, other?))
}
