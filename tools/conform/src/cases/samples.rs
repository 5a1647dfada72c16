// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Samples of other events that contain trace.

use anyhow::{ensure, Context, Result};
use auxrec::sys::{Event, Field, Mapping};
use perfdata::{Attr, Flags, SampleType};
use rustix::io::Errno;

use super::{case, core, refused, skip, Case};
use crate::pmu::Pmu;
use crate::records::number;
use crate::rig::{bytes, map_base, rounds, software, work, Mode, Rig, CPU_CLOCK, DATA_PAGES};

pub fn cases() -> Vec<Case> {
    let rule = core(7988, "perf_prepare_sample_aux(struct perf_event *event,");
    let mut cases = Vec::new();
    for size in [8_u32, 256, 4096, 16384] {
        cases.push(case(
            format!("samples: {size} bytes of trace at most"),
            rule,
            move |pmu| sampled(pmu, size),
        ));
    }
    cases.push(case(
        "samples: none, if the PMU has none",
        core(
            2328,
            "if (event->attr.aux_sample_size && !group_leader->pmu->snapshot_aux)",
        ),
        |pmu| {
            if pmu.samples {
                return Err(skip("it has"));
            }
            let leader = pmu.open(pmu.place())?;
            let (pid, cpu) = pmu.place().args();
            let sampler = Event::open_in(&sampler(4096), pid, cpu, Some(&leader));
            refused("a sampler of its trace", sampler, Errno::INVAL)?;
            // A sampler without trace is a sibling like others.
            Event::open_in(&software(CPU_CLOCK, 500_000), pid, cpu, Some(&leader))?;
            Ok("refused".to_owned())
        },
    ));
    cases
}

/// The attribute of an event whose samples have so many bytes of its leader's trace.
fn sampler(size: u32) -> Attr {
    let mut attr = software(CPU_CLOCK, 500_000);
    attr.sample_type |= SampleType::AUX;
    attr.aux_sample_size = size;
    attr.flags |= Flags::DISABLED;
    attr
}

fn sampled(pmu: &Pmu, size: u32) -> Result<String> {
    if !pmu.samples {
        return Err(skip("it has no AUX samples"));
    }
    let rig = Rig::open(pmu, pmu.place(), pmu.overwrites(16)?, Mode::Overwrite)?;
    let (pid, cpu) = pmu.place().args();
    let sampler = Event::open_in(&sampler(size), pid, cpu, Some(&rig.event))?;
    let base = map_base(&sampler)?;
    // perf may not schedule a sibling that is enabled after its leader, while the leader runs: see Documentation/upstream.
    sampler.enable()?;
    rig.event.enable()?;
    rounds(20, || {
        work();
        Ok(samples(&base, size)?.1 > 0)
    })?;
    sampler.disable()?;
    rig.event.disable()?;
    let (count, with) = samples(&base, size)?;
    ensure!(count > 0, "no sample was taken");
    ensure!(with > 0, "none of {count} samples has any trace");
    Ok(format!("{with} of {count} samples have trace"))
}

/// The number of samples, and of samples with trace. Each sample ends with the length of its trace, and the trace.
fn samples(base: &Mapping, max: u32) -> Result<(usize, usize)> {
    let page = usize::try_from(bytes(1))?;
    let end = base.load(Field::DataHead, std::sync::atomic::Ordering::Acquire);
    let end = usize::try_from(end.min(bytes(DATA_PAGES)))?;
    let (mut at, mut count, mut with) = (0, 0, 0);
    while at + 8 <= end {
        let mut header = [0; 8];
        base.copy_out(page + at, &mut header)
            .context("the data ring")?;
        let kind = number(&header, 0, 4)?;
        let len = usize::try_from(number(&header, 6, 2)?)?;
        if at + len > end {
            break;
        }
        let mut record = vec![0; len];
        base.copy_out(page + at, &mut record)
            .context("the data ring")?;
        if kind == u64::from(crate::records::SAMPLE) {
            // Before this field: header, identifier, pid and tid, time, CPU.
            let size = number(&record, 40, 8)?;
            ensure!(
                size <= u64::from(max) && size % 8 == 0 && 48 + size == u64::try_from(len)?,
                "a sample of {len} bytes says that {size} bytes are trace, and {max} were asked for"
            );
            count += 1;
            with += usize::from(size > 0);
        }
        at += len.max(8);
    }
    Ok((count, with))
}
