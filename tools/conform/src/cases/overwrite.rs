// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Areas in overwrite mode: snapshots.

use anyhow::{ensure, Context, Result};
use auxrec::sys::Field;

use super::{case, ring, Case};
use crate::pmu::{Place, Pmu};
use crate::records::OVERWRITE;
use crate::rig::{bytes, makes_trace, patience, work, Mode, Rig};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for factor in [1, 4, 16] {
        let rule = ring(496, "if (rb->aux_overwrite) {");
        let name = format!("overwrite: {factor} times the smallest area");
        cases.push(case(format!("{name}, CPU"), rule, move |pmu| {
            laps(pmu, pmu.cpu()?, factor)
        }));
        cases.push(case(format!("{name}, thread"), rule, move |pmu| {
            laps(pmu, pmu.task()?, factor)
        }));
    }
    cases.push(case(
        "overwrite: the head goes on, or is an offset",
        ring(499, "aux_head = handle->head;"),
        head,
    ));
    cases.push(case(
        "overwrite: aux_tail has no effect",
        ring(433, "if (!rb->aux_overwrite) {"),
        |pmu| {
            let rig = Rig::open(pmu, pmu.place(), pmu.overwrites(4)?, Mode::Overwrite)?;
            let base = rig.base.as_ref().context("there is no ring")?;
            for tail in [u64::MAX, 1, 1 << 40, 0] {
                rig.set(Field::AuxTail, tail);
                // The head moves with each tail.
                makes_trace(&rig.event, base)?;
            }
            Ok(format!("aux_head is {:#x}", rig.head()))
        },
    ));
    cases.push(case(
        "overwrite: a snapshot does not change",
        ring(786, "rb->aux_overwrite = overwrite;"),
        still,
    ));
    cases.push(case(
        "overwrite: 100 snapshots",
        ring(496, "if (rb->aux_overwrite) {"),
        |pmu| {
            let pages = pmu.overwrites(4)?;
            let mut rig = Rig::open(pmu, pmu.place(), pages, Mode::Overwrite)?;
            let mut moved = 0;
            for _ in 0..100 {
                let before = rig.head();
                rig.event.enable()?;
                work();
                rig.event.disable()?;
                rig.drain()?;
                moved += u32::from(rig.head() != before);
            }
            ensure!(moved > 0, "no snapshot has anything new");
            Ok(format!("{moved} have something new"))
        },
    ));
    cases
}

/// The number of bytes by which a head has moved. In some drivers the head counts all bytes, in others it is an offset in the area.
fn moved(from: u64, to: u64, len: u64) -> u64 {
    match to.checked_sub(from) {
        Some(moved) => moved,
        None => len.saturating_sub(from % len) + to,
    }
}

fn laps(pmu: &Pmu, place: Place, factor: usize) -> Result<String> {
    let pages = pmu.overwrites(factor)?;
    let len = bytes(pages);
    let mut rig = Rig::open(pmu, place, pages, Mode::Overwrite)?;
    rig.event.enable()?;
    let mut total = 0;
    let mut last = 0;
    let end = std::time::Instant::now() + patience();
    let enough = (3 * len).min(1 << 20);
    while total < enough {
        for _ in 0..4 {
            work();
        }
        // The driver commits its trace when it stops.
        rig.event.disable()?;
        rig.drain()?;
        let head = rig.head();
        total += moved(last, head, len);
        last = head;
        rig.event.enable()?;
        ensure!(
            std::time::Instant::now() < end,
            "{total} bytes in {} s of work",
            patience().as_secs()
        );
    }
    rig.settles()?;
    ensure!(rig.ledger.records > 0, "no record says anything");
    ensure!(rig.ledger.flags & OVERWRITE != 0, "no record has OVERWRITE");
    Ok(format!(
        "{total} bytes in an area of {len}, {} records",
        rig.ledger.records
    ))
}

fn head(pmu: &Pmu) -> Result<String> {
    let pages = pmu.overwrites(1)?;
    let len = bytes(pages);
    let mut rig = Rig::open(pmu, pmu.place(), pages, Mode::Overwrite)?;
    let (mut last, mut back, mut max) = (0, 0, 0);
    let mut same = 0;
    for _ in 0..60 {
        rig.event.enable()?;
        for _ in 0..3 {
            work();
        }
        rig.event.disable()?;
        rig.drain()?;
        let head = rig.head();
        back += u32::from(head < last);
        same += u32::from(head == last);
        max = max.max(head);
        last = head;
    }
    ensure!(same < 60, "it never moves");
    ensure!(
        back == 0 || max <= len,
        "it goes back {back} times, and is up to {max:#x} in an area of {len:#x}"
    );
    Ok(match back {
        0 => format!("it goes on, to {max:#x}, in an area of {len:#x}"),
        _ => format!("it is an offset, up to {max:#x}, in an area of {len:#x}"),
    })
}

fn still(pmu: &Pmu) -> Result<String> {
    let pages = pmu.overwrites(4)?;
    let mut rig = Rig::open(pmu, pmu.place(), pages, Mode::Overwrite)?;
    let mut dirty = 0;
    for _ in 0..10 {
        rig.event.enable()?;
        for _ in 0..5 {
            work();
        }
        rig.event.disable()?;
        rig.drain()?;
        let before = rig.bytes(0, bytes(pages))?;
        work();
        work();
        ensure!(
            rig.bytes(0, bytes(pages))? == before,
            "it changes while the event is off"
        );
        dirty = before.iter().filter(|byte| **byte != 0).count();
    }
    ensure!(dirty > 0, "the area is empty");
    Ok(format!("{dirty} bytes are not zero"))
}
