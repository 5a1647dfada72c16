// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Wakeups: `poll()` returns when the watermark is reached.

use anyhow::{bail, ensure, Result};

use super::{at_both, case, ring, skip, Case};
use crate::pmu::Pmu;
use crate::rig::{bytes, rounds, work, Mode, Rig};

pub fn cases() -> Vec<Case> {
    let rule = ring(
        471,
        "if (rb->aux_head - rb->aux_wakeup >= rb->aux_watermark) {",
    );
    let mut cases = Vec::new();
    for (name, part) in [("a quarter", 4), ("half", 2)] {
        cases.push(case(
            format!("watermark: {name} of the area, records are no longer"),
            rule,
            move |pmu| length(pmu, part),
        ));
        cases.push(case(
            format!("watermark: {name} of the area, the reader is woken"),
            rule,
            move |pmu| wakes(pmu, part),
        ));
    }
    cases.push(case("watermark: more than the area", rule, |pmu| {
        let mut attr = pmu.attr();
        attr.aux_watermark = u32::MAX;
        let mut rig = Rig::with(pmu, &attr, pmu.place(), pmu.pages(4), Mode::Normal)?;
        rounds(10, || {
            rig.event.enable()?;
            work();
            // A driver that copies trace when it is woken or stopped has not copied any before.
            rig.event.disable()?;
            rig.read()?;
            Ok(rig.ledger.bytes > 0)
        })?;
        rig.settles()?;
        ensure!(rig.ledger.bytes > 0, "nothing was traced");
        rig.is_exact()
    }));
    cases.push(case("watermark: a byte", rule, |pmu| {
        let mut attr = pmu.attr();
        attr.aux_watermark = 1;
        let mut rig = Rig::with(pmu, &attr, pmu.place(), pmu.pages(4), Mode::Normal)?;
        rig.event.enable()?;
        rig.traces(bytes(pmu.pages(8)))?;
        rig.settles()?;
        rig.is_exact()
    }));
    cases.extend(at_both(
        "watermark: the reader is woken when the area is full",
        ring(536, "perf_output_wakeup(handle);"),
        |pmu, place| {
            let mut attr = pmu.attr();
            // No area is as long, so perf wakes the reader only when the area is full.
            attr.aux_watermark = u32::MAX;
            let mut rig = Rig::with(pmu, &attr, place, pmu.pages(2), Mode::Normal)?;
            ensure!(
                !rig.is_readable()?,
                "it is readable before anything was traced"
            );
            // A unit without an interrupt publishes trace at the watermark or when it stops. No watermark is reached here. The event is not
            // enabled again when the area is full: perf wakes the reader then, too.
            let number = rounds(1, || {
                rig.event.enable()?;
                work();
                rig.event.disable()?;
                rig.drain()?;
                Ok(rig.ledger.truncated > 0)
            })?;
            ensure!(
                rig.ledger.truncated > 0,
                "no TRUNCATED without a reader, in {number} stretches of work: {:?}",
                rig.ledger
            );
            ensure!(
                rig.is_readable()?,
                "the area is full, and poll() does not return"
            );
            Ok("readable".to_owned())
        },
    ));
    cases
}

/// An event with a watermark of `1 / part` of its area, which is many pages. Also returns the watermark.
fn rig(pmu: &Pmu, part: usize) -> Result<(Rig, u64)> {
    let pages = pmu.pages(16);
    let watermark = bytes(pages / part);
    let mut attr = pmu.attr();
    attr.aux_watermark = u32::try_from(watermark)?;
    let rig = Rig::with(pmu, &attr, pmu.place(), pages, Mode::Normal)?;
    Ok((rig, watermark))
}

/// How often an area is filled at most, until none of its records is too long. A unit continues to write until its interrupt is taken,
/// which is late on a busy machine.
const ATTEMPTS: usize = 10;

fn length(pmu: &Pmu, part: usize) -> Result<String> {
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let (mut rig, watermark) = rig(pmu, part)?;
        rig.event.enable()?;
        rig.overflows()?;
        rig.settles()?;
        // A unit that can stop only at the end of a page may be a page late. The bytes that a unit writes at once come in addition.
        let max = watermark + watermark / 2 + bytes(2);
        let longest = rig.ledger.longest;
        if longest <= max {
            return Ok(format!("{longest} bytes at most, watermark {watermark}"));
        }
        seen.push(longest);
    }
    bail!("in {ATTEMPTS} runs the longest records have {seen:?} bytes, and the watermark is 1/{part} of the area: the driver ignores the watermark")
}

fn wakes(pmu: &Pmu, part: usize) -> Result<String> {
    let (mut rig, watermark) = rig(pmu, part)?;
    rig.event.enable()?;
    let mut woken = None;
    rig.until("waiting for the watermark", |rig| {
        if woken.is_none() && rig.is_readable()? {
            woken = Some(rig.head());
        }
        rig.drain()?;
        Ok(rig.head() >= watermark)
    })?;
    if rig.ledger.truncated > 0 {
        return Err(skip("the area is full before this program looks"));
    }
    if woken.is_none() {
        woken = rig.is_readable()?.then(|| rig.head());
    }
    let at = woken.ok_or_else(|| {
        anyhow::anyhow!(
            "aux_head is {:#x}, the watermark {watermark:#x}, and poll() does not return",
            rig.head()
        )
    })?;
    Ok(format!("at {at:#x}, watermark {watermark:#x}"))
}
