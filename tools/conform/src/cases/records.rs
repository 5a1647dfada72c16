// SPDX-License-Identifier: GPL-2.0 OR MIT

//! AUX records: their arithmetic, their order, their task and time.

use anyhow::{ensure, Result};
use auxrec::sys::Field;

use super::{at_both, case, core, ring, Case};
use crate::pmu::{Place, Pmu};
use crate::records::{FORMAT, ITRACE_START};
use crate::rig::{bytes, rounds, unpin, work, Mode, Rig};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for factor in [1, 2, 4, 8, 16, 64] {
        cases.extend(at_each(
            &format!("records: add up, {factor} times the smallest area"),
            move |pmu, place| adds_up(pmu, place, factor, 5),
        ));
    }
    cases.extend(at_both(
        "records: add up, over many laps",
        ring(424, "handle->head = aux_head;"),
        |pmu, place| adds_up(pmu, place, 2, 40),
    ));
    cases.extend(at_both(
        "records: say who, when and where",
        core(8112, "static void __perf_event_header__init_id("),
        who,
    ));
    cases.extend(at_both(
        "records: aux_head is where the last one ends",
        ring(529, "WRITE_ONCE(rb->user_page->aux_head, rb->aux_head);"),
        head,
    ));
    cases.extend(at_both(
        "records: the area begins with zeroes behind them",
        ring(630, "page = alloc_pages_node(node, PERF_AUX_GFP, order);"),
        zeroes,
    ));
    cases.extend(at_both(
        "records: what is not read does not change",
        ring(
            437,
            "handle->size = CIRC_SPACE(aux_head, aux_tail, perf_aux_size(rb));",
        ),
        unread,
    ));
    cases.extend(at_both(
        "records: one format",
        ring(355, "handle->aux_flags |= flags;"),
        |pmu, place| {
            let mut rig = Rig::open(pmu, place, pmu.pages(4), Mode::Normal)?;
            for _ in 0..4 {
                rig.event.enable()?;
                rig.traces(1)?;
                rig.event.disable()?;
                rig.read()?;
            }
            rig.settles()?;
            Ok(format!("{:#x}", rig.ledger.flags & FORMAT))
        },
    ));
    cases.extend(at_both(
        "records: all is there when the event is off",
        ring(485, "Note: this has to be called from pmu::stop() callback"),
        flushed,
    ));
    cases.extend(at_both(
        "records: switched on and off 200 times",
        core(2492, "event->pmu->del(event, 0);"),
        |pmu, place| {
            let mut rig = Rig::open(pmu, place, pmu.pages(16), Mode::Normal)?;
            for _ in 0..200 {
                rig.event.enable()?;
                work();
                rig.event.disable()?;
                rig.read()?;
            }
            rig.settles()?;
            ensure!(rig.ledger.bytes > 0, "nothing was traced");
            rig.is_exact()
        },
    ));
    cases.extend(at_both(
        "records: ITRACE_START once for a thread that is traced",
        core(10531, "perf_event_itrace_started(struct perf_event *event)"),
        |pmu, place| {
            let mut rig = Rig::open(pmu, place, pmu.pages(4), Mode::Normal)?;
            for _ in 0..5 {
                rig.event.enable()?;
                rig.traces(1)?;
                rig.event.disable()?;
                rig.read()?;
            }
            let reported = rig
                .others
                .iter()
                .filter(|record| record.kind == ITRACE_START)
                .count();
            ensure!(
                reported <= 1,
                "{reported} times, for 5 times that it was switched on"
            );
            Ok(format!("{reported} times"))
        },
    ));
    cases.push(case(
        "records: a thread that goes from CPU to CPU",
        core(
            2469,
            "event_sched_out(struct perf_event *event, struct perf_event_context *ctx)",
        ),
        migrates,
    ));
    cases
}

/// The same as [`at_both`], for a closure.
fn at_each(name: &str, run: impl Fn(&Pmu, Place) -> Result<String> + Clone + 'static) -> [Case; 2] {
    let rule = ring(526, "perf_event_aux_event(handle->event, aux_head, size,");
    let again = run.clone();
    [
        case(format!("{name}, CPU"), rule, move |pmu| {
            run(pmu, pmu.cpu()?)
        }),
        case(format!("{name}, thread"), rule, move |pmu| {
            again(pmu, pmu.task()?)
        }),
    ]
}

fn adds_up(pmu: &Pmu, place: Place, factor: usize, laps: u64) -> Result<String> {
    let pages = pmu.pages(factor);
    let mut rig = Rig::open(pmu, place, pages, Mode::Normal)?;
    rig.event.enable()?;
    // The amount is limited, as a large area takes long. The area must wrap, and half of it must be more than a record.
    let enough = (bytes(pages) * laps).min(1 << 20);
    rig.traces(enough)?;
    rig.settles()?;
    let counted = rig.is_exact()?;
    let skipped = match rig.ledger.skipped {
        0 => String::new(),
        skipped => format!(", {skipped} bytes are in no record"),
    };
    Ok(format!(
        "{counted}{skipped}, {} times full",
        rig.ledger.truncated
    ))
}

fn who(pmu: &Pmu, place: Place) -> Result<String> {
    let mut rig = Rig::open(pmu, place, pmu.pages(4), Mode::Normal)?;
    rig.event.enable()?;
    rig.traces(bytes(pmu.pages(8)))?;
    rig.settles()?;
    let pid = u32::try_from(rustix::process::getpid().as_raw_nonzero().get())?;
    let mut before = 0;
    for id in &rig.ids {
        match place {
            Place::Cpu(cpu) => ensure!(id.cpu == cpu, "{id:?} of an event of CPU {cpu}"),
            Place::Task => ensure!(id.pid == pid, "{id:?} of an event of process {pid}"),
        }
        ensure!(
            id.time >= before,
            "{id:?} comes behind a record of {before}"
        );
        before = id.time;
    }
    Ok(format!("{} records", rig.ids.len()))
}

fn head(pmu: &Pmu, place: Place) -> Result<String> {
    let mut rig = Rig::open(pmu, place, pmu.pages(8), Mode::Normal)?;
    let mut times = 0;
    for _ in 0..10 {
        rig.event.enable()?;
        rig.traces(1)?;
        rig.event.disable()?;
        rig.read()?;
        let (head, end) = (rig.head(), rig.ledger.end.unwrap_or(0));
        // Bytes that a driver skips are in no record. It skips less than a page, for alignment.
        ensure!(
            head.wrapping_sub(end) < bytes(1),
            "aux_head is {head:#x}, and the last record ends at {end:#x}"
        );
        times += 1;
    }
    Ok(format!("{times} times"))
}

fn zeroes(pmu: &Pmu, place: Place) -> Result<String> {
    let pages = pmu.pages(16);
    let mut rig = Rig::open(pmu, place, pages, Mode::Normal)?;
    let all = rig.bytes(0, bytes(pages))?;
    ensure!(all.iter().all(|byte| *byte == 0), "the area is not empty");
    rig.event.enable()?;
    rig.traces(1)?;
    rig.settles()?;
    let head = rig.head();
    if head >= bytes(pages) {
        return Ok("it was once around at once".to_owned());
    }
    // Some units write whole lines, but all of them write less than a page beyond the head.
    let behind = rig.bytes(head, bytes(pages))?;
    let dirty = behind
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    ensure!(
        bytes(1) > u64::try_from(dirty)?,
        "{dirty} bytes behind aux_head are not zero"
    );
    Ok(format!("{dirty} bytes behind {head:#x} were written"))
}

fn unread(pmu: &Pmu, place: Place) -> Result<String> {
    let pages = pmu.pages(4);
    let mut rig = Rig::open(pmu, place, pages, Mode::Normal)?;
    rig.event.enable()?;
    rig.fills(1)?;
    rig.event.disable()?;
    rig.drain()?;
    let mut before = rig.bytes(0, rig.ledger.end.unwrap_or(0))?;
    for _ in 0..10 {
        rig.event.enable()?;
        work();
        work();
        rig.event.disable()?;
        rig.drain()?;
        let now = rig.bytes(0, rig.ledger.end.unwrap_or(0))?;
        let mut pairs = now.iter().zip(&before);
        let at = pairs.position(|(now, before)| now != before);
        ensure!(
            at.is_none(),
            "byte {at:x?} of {:#x} that was not read has changed; {:?}",
            before.len(),
            rig.ledger
        );
        before = now;
    }
    Ok(format!("{:#x} bytes, to {:#x}", before.len(), rig.head()))
}

fn flushed(pmu: &Pmu, place: Place) -> Result<String> {
    let mut rig = Rig::open(pmu, place, pmu.pages(16), Mode::Normal)?;
    let mut total = 0;
    let number = rounds(10, || {
        let before = rig.head();
        rig.event.enable()?;
        // The trace is less than any watermark, so only disabling the event makes it visible.
        let counted = rig.count()?.value;
        work();
        work();
        rig.event.disable()?;
        let now = rig.count()?.value;
        let moved = rig.head().wrapping_sub(before);
        if rig.stream.is_some() && pmu.stream == Some(crate::stream::Known::Pattern) {
            ensure!(
                now.wrapping_sub(counted) <= moved.wrapping_add(bytes(1)),
                "{} bytes were counted, and aux_head has moved by {moved}",
                now.wrapping_sub(counted)
            );
        }
        total += moved;
        rig.follows()?;
        Ok(moved > 0)
    })?;
    rig.settles()?;
    ensure!(
        total > 0,
        "nothing is visible when the event is off, {number} times"
    );
    ensure!(rig.get(Field::AuxHead) == total, "aux_head is not the sum");
    rig.is_exact()
}

fn migrates(pmu: &Pmu) -> Result<String> {
    let place = pmu.task()?;
    // Cases before this one may have kept the thread on a CPU.
    unpin()?;
    let cpus = std::thread::available_parallelism()?.get();
    if cpus < 2 {
        return Err(super::skip("this machine has one CPU"));
    }
    let mut rig = Rig::open(pmu, place, pmu.pages(64), Mode::Normal)?;
    rig.event.enable()?;
    for turn in 0..40 {
        crate::rig::pin(u32::try_from(turn % cpus.min(4))?)?;
        work();
        rig.follows()?;
    }
    unpin()?;
    rig.settles()?;
    let mut seen: Vec<_> = rig.ids.iter().map(|id| id.cpu).collect();
    seen.sort_unstable();
    seen.dedup();
    ensure!(seen.len() > 1, "all records are of CPUs {seen:?}");
    Ok(format!("CPUs {seen:?}: {}", rig.is_exact()?))
}
