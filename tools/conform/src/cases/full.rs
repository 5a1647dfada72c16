// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Areas that are full: TRUNCATED, and how the trace continues.

use anyhow::{ensure, Result};
use auxrec::sys::Field;

use super::{at_both, case, ring, since, Case};
use crate::pmu::{Place, Pmu};
use crate::rig::{bytes, rounds, work, Mode, Rig};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for factor in [1, 2, 8] {
        let rule = ring(534, "if (handle->aux_flags & PERF_AUX_FLAG_TRUNCATED)");
        cases.push(case(
            format!("full: TRUNCATED, {factor} times the smallest area"),
            rule,
            move |pmu| truncates(pmu, pmu.place(), factor),
        ));
    }
    cases.extend(at_both(
        "full: it is off then",
        ring(535, "perf_event_disable_inatomic(handle->event);"),
        off,
    ));
    cases.extend(at_both(
        "full: goes on where it ended",
        ring(424, "handle->head = aux_head;"),
        goes_on,
    ));
    cases.extend(at_both(
        "full: enabled, and nothing was read",
        ring(444, "if (!handle->size) { /* A, matches D */"),
        no_space,
    ));
    cases.extend(at_both(
        "full: no TRUNCATED where there is space",
        ring(
            346,
            "perf_aux_output_flag(struct perf_output_handle *handle, u64 flags)",
        ),
        space,
    ));
    for (name, part) in [("a byte", 0_u64), ("a page", 1), ("half of it", 2)] {
        let rule = ring(434, "aux_tail = READ_ONCE(rb->user_page->aux_tail);");
        cases.push(case(format!("full: {name} was read"), rule, move |pmu| {
            partly(pmu, part)
        }));
    }
    cases.push(case(
        "full: again and again, 50 times",
        ring(535, "perf_event_disable_inatomic(handle->event);"),
        |pmu| {
            turns_off()?;
            let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(1), Mode::Normal)?;
            for _ in 0..50 {
                rig.event.enable()?;
                rig.overflows()?;
                rig.read()?;
            }
            rig.settles()?;
            ensure!(
                rig.ledger.truncated <= 51,
                "{} records have TRUNCATED, for 50 times",
                rig.ledger.truncated
            );
            rig.is_exact()
        },
    ));
    cases
}

/// Skips the case if perf's core forgets to turn an event off. Linux 6.1 stores the number of the CPU in `pending_disable`, and reads it as
/// a flag.
fn turns_off() -> Result<()> {
    since(6, 16, "perf's core turns a full event of CPU 0 off")
}

fn truncates(pmu: &Pmu, place: Place, factor: usize) -> Result<String> {
    let pages = pmu.pages(factor);
    let mut rig = Rig::open(pmu, place, pages, Mode::Normal)?;
    rig.event.enable()?;
    rig.overflows()?;
    for _ in 0..5 {
        work();
    }
    rig.drain()?;
    ensure!(
        rig.ledger.truncated == 1,
        "{} records have TRUNCATED, and the event was not enabled again",
        rig.ledger.truncated
    );
    rig.settles()?;
    Ok(format!(
        "{} of {} bytes; {}",
        rig.ledger.bytes,
        bytes(pages),
        rig.is_exact()?
    ))
}

fn off(pmu: &Pmu, place: Place) -> Result<String> {
    turns_off()?;
    let mut rig = Rig::open(pmu, place, pmu.pages(2), Mode::Normal)?;
    rig.event.enable()?;
    rig.overflows()?;
    work();
    let before = (rig.count()?.enabled, rig.head());
    // There is space now, but the event is off.
    rig.read()?;
    for _ in 0..10 {
        work();
    }
    rig.drain()?;
    let now = (rig.count()?.enabled, rig.head());
    ensure!(
        now == before,
        "it was enabled for {} ns, and aux_head has moved by {}",
        now.0.wrapping_sub(before.0),
        now.1.wrapping_sub(before.1)
    );
    Ok("off".to_owned())
}

fn goes_on(pmu: &Pmu, place: Place) -> Result<String> {
    let mut rig = Rig::open(pmu, place, pmu.pages(8), Mode::Normal)?;
    for _ in 0..5 {
        rig.event.enable()?;
        rig.overflows()?;
        work();
        rig.read()?;
        let (end, skipped) = (rig.ledger.end, rig.ledger.skipped);
        rig.event.enable()?;
        rig.traces(1)?;
        // A unit skips the rest of a page or of a buffer if it cannot write there.
        let skipped = rig.ledger.skipped.saturating_sub(skipped);
        ensure!(
            skipped < bytes(2),
            "it ended at {end:x?}, and skips {skipped} bytes"
        );
        rig.event.disable()?;
        rig.read()?;
    }
    rig.settles()?;
    rig.is_exact()
}

fn no_space(pmu: &Pmu, place: Place) -> Result<String> {
    let pages = pmu.pages(2);
    let mut rig = Rig::open(pmu, place, pages, Mode::Normal)?;
    rig.event.enable()?;
    rig.overflows()?;
    work();
    rig.drain()?;
    // Sets a tail that leaves no space at all. Otherwise some bytes may be free for a unit that stops before the area is full.
    let head = rig.head();
    let tail = head.wrapping_sub(bytes(pages) - 1);
    rig.set(Field::AuxTail, tail);
    for _ in 0..5 {
        rig.event.enable()?;
        work();
        work();
        rig.event.disable()?;
    }
    ensure!(
        rig.head() == head,
        "aux_head has moved by {} without space",
        rig.head().wrapping_sub(head)
    );
    rig.set(Field::AuxTail, rig.tail());
    rig.read()?;
    rig.event.enable()?;
    rig.traces(1)?;
    rig.settles()?;
    rig.is_exact()
}

fn space(pmu: &Pmu, place: Place) -> Result<String> {
    let pages = pmu.pages(64);
    let mut rig = Rig::open(pmu, place, pages, Mode::Normal)?;
    rig.event.enable()?;
    for _ in 0..30 {
        work();
        rig.follows()?;
        // A unit that stops at the end of a page or a block leaves the rest of the space unused.
        ensure!(
            rig.ledger.space <= bytes(pages) / 4,
            "TRUNCATED with space for {} of {} bytes",
            rig.ledger.space,
            bytes(pages)
        );
    }
    rig.settles()?;
    ensure!(
        rig.ledger.truncated == 0 || rig.ledger.space <= bytes(pages) / 4,
        "TRUNCATED with space for {} of {} bytes",
        rig.ledger.space,
        bytes(pages)
    );
    rig.is_exact()
}

fn partly(pmu: &Pmu, part: u64) -> Result<String> {
    let pages = pmu.pages(4);
    let mut rig = Rig::open(pmu, pmu.place(), pages, Mode::Normal)?;
    rig.event.enable()?;
    rig.overflows()?;
    work();
    rig.event.disable()?;
    rig.drain()?;
    let end = rig.ledger.end.unwrap_or(0);
    let some = match part {
        0 => 1,
        1 => bytes(1),
        _ => bytes(pages) / 2,
    };
    let kept = rig.bytes(some.min(end), end)?;
    rig.set(Field::AuxTail, some);
    rounds(3, || {
        rig.event.enable()?;
        work();
        rig.event.disable()?;
        // All bytes after `some` are unread, so the head must stay within one area length of it.
        let head = rig.head();
        ensure!(
            head.wrapping_sub(some) < bytes(pages),
            "aux_head is {head:#x}, and what lies behind {some:#x} is not read"
        );
        let now = rig.bytes(some.min(end), end)?;
        ensure!(now == kept, "bytes that were not read have changed");
        // In less space than half of the area, a unit may be unable to begin.
        Ok(part < 2 || head > end)
    })?;
    let more = rig.head().wrapping_sub(end);
    ensure!(
        part < 2 || more > 0,
        "{some} bytes are read, and their space is not used"
    );
    Ok(format!("{more} more"))
}
