// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tracepoint of single steps. It must report each step with the executed instruction, and it may act on the trace of its own group.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use auxrec::pmu::Pmus;
use auxrec::sys::Event;
use perfdata::{Attr, Read, SampleType};

use super::{grows, traced, Victim, PROGRAM};
use crate::events::probe::Probe;
use crate::events::sampling::exported;
use crate::events::siblings::PAUSE;
use crate::module;
use crate::soft_pt::stepped::{waiting, Mapped, Step, Stepped, TRACEPOINT};
use crate::wait::wait_for;

/// The reasons of a step, as `Documentation/abi.md` numbers them.
const FIRST: u32 = 0;
const LEFT: u32 = 1;
const LIMIT: u32 = 2;
const OFF: u32 = 5;

/// Each step must be reported, with the instruction from the program's file and the reason, for any number of interpreted instructions.
pub(super) fn steps() -> Result<String> {
    let mut seen = Vec::new();
    for limit in [0, 5, 512] {
        module::unload("soft_pt")?;
        module::tool(
            "insmod",
            &["/modules/soft_pt.ko", &format!("interpret={limit}")],
        )?;
        let steps = program(limit).with_context(|| format!("interpret={limit}"));
        // Loads the driver with its default again.
        module::unload("soft_pt")?;
        module::load("soft_pt")?;
        seen.push(format!("{} steps with {limit}", steps?));
    }
    Ok(seen.join(", "))
}

fn program(limit: u64) -> Result<usize> {
    let mut steps = Vec::new();
    let child = waiting(&[PROGRAM, "workload", "calls"])?;
    let stepped = Stepped::run(child, |step| steps.push(*step))?;
    let reasons = |reason| steps.iter().filter(|step| step.reason == reason).count();

    ensure!(reasons(FIRST) > 0, "no step is the first one");
    if limit == 0 {
        ensure!(
            stepped.interpreted == 0 && reasons(FIRST) + reasons(OFF) == steps.len(),
            "{} instructions were interpreted",
            stepped.interpreted
        );
    } else {
        ensure!(reasons(LEFT) > 0, "no instruction is left to the processor");
        ensure!(reasons(LIMIT) > 0, "the limit was never reached");
        let max = steps.iter().map(|step| step.interpreted).max();
        ensure!(
            max == Some(limit),
            "{max:?} instructions were interpreted between two steps, at most"
        );
    }
    compare(&steps, &stepped.maps)?;
    Ok(steps.len())
}

/// Compares the instruction of each step with the file from which it was executed.
fn compare(steps: &[Step], maps: &[Mapped]) -> Result<()> {
    let mut files = HashMap::new();
    let mut compared = 0_usize;
    for step in steps {
        let map = maps.iter().rev().find(|map| {
            let at = step.address.checked_sub(map.address);
            at.is_some_and(|at| at < map.len)
        });
        let map = map.with_context(|| format!("{step:x?} is in no mapping"))?;
        // The vDSO is not in a file.
        if !map.path.starts_with('/') {
            continue;
        }
        if !files.contains_key(&map.path) {
            let file = fs::read(&map.path).with_context(|| format!("cannot read {}", map.path))?;
            files.insert(map.path.clone(), file);
        }
        let offset = usize::try_from(step.address - map.address + map.offset)?;
        let text = files.get(&map.path).and_then(|file| file.get(offset..));
        let text = text.context("a step is behind the end of its file")?;
        ensure!(
            step.len > 0 && text.starts_with(step.text.get(..step.len).unwrap_or_default()),
            "{step:x?} is not what {} has at {offset:#x}",
            map.path
        );
        compared += 1;
    }
    ensure!(
        compared > steps.len() / 2,
        "{compared} of {} steps are in files",
        steps.len()
    );
    Ok(())
}

/// Tests an event of the tracepoint in the group of the trace. It overflows while the driver writes to the AUX area.
pub(super) fn acts() -> Result<String> {
    let pmus = Pmus::at(Path::new("/sys/bus/event_source/devices"));
    let tracepoint = Attr {
        read_format: Read::FORMAT,
        ..pmus.event(TRACEPOINT)?.attr()
    };

    // The event pauses the trace, and nothing resumes it.
    let child = Victim::new()?;
    let probe = Probe::open(&traced()?, child.id()?, -1, 64, false)?;
    let attr = Attr {
        sample_period: 100,
        aux_action: PAUSE,
        ..tracepoint.clone()
    };
    let open = |attr: &Attr, probe: &Probe| {
        Event::open_in(attr, child.id()?, -1, Some(&probe.event))
            .context("cannot open the tracepoint in the group")
    };
    let sibling = open(&attr, &probe)?;
    probe.event.enable()?;
    let count = || {
        sibling
            .count()?
            .map(|count| count.value)
            .context("no count")
    };
    wait_for("an overflow of the tracepoint", || Ok(count()? >= 100))?;
    let paused = (count()?, probe.generated()?);
    thread::sleep(Duration::from_millis(100));
    ensure!(
        (count()?, probe.generated()?) == paused,
        "it traces on after it was paused"
    );
    drop(sibling);
    drop(probe);

    let mut outcome = format!("paused after {} steps", paused.0);

    // The event samples the AUX area.
    if exported()? {
        let mut probe = Probe::open(&traced()?, child.id()?, -1, 64, false)?;
        let attr = Attr {
            sample_type: SampleType::AUX,
            aux_sample_size: 4096,
            ..tracepoint
        };
        let sibling = open(&attr, &probe)?;
        probe.event.enable()?;
        grows(&mut probe, 4096)?;
        let samples = sibling.count()?.map_or(0, |count| count.value);
        ensure!(samples > 0, "no step was reported");
        outcome += &format!(", {samples} samples of the AUX area");
    } else {
        outcome += "; this kernel does not export perf_output_copy_aux()";
    }
    child.ends()?;
    Ok(outcome)
}
