// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How events end: they are closed in any order, their module is unloaded, their CPU goes offline.

use std::path::PathBuf;

use anyhow::{ensure, Context, Result};

use super::{at_both, case, core, ring, skip, Case};
use crate::module::Module;
use crate::pmu::{Place, Pmu};
use crate::rig::{map_aux, map_base, unpin, work, Mode, Rig};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for order in [
        "event, data, area",
        "event, area, data",
        "data, event, area",
        "data, area, event",
        "area, event, data",
        "area, data, event",
    ] {
        cases.push(case(
            format!("end: closed in the order {order}"),
            ring(798, "void rb_free_aux(struct perf_buffer *rb)"),
            move |pmu| in_order(pmu, order),
        ));
    }
    cases.extend([
        case(
            "end: an event holds the driver's module",
            core(13089, "if (!try_module_get(pmu->module))"),
            |pmu| {
                let module = Module::of(pmu)?;
                let before = module.references()?;
                let event = pmu.open(pmu.place())?;
                let held = module.references()?;
                drop(event);
                ensure!(
                    held > before,
                    "{held} references with an event, {before} without"
                );
                Ok(format!("{before}, and {held} with it"))
            },
        ),
        case(
            "end: an area holds the driver's module",
            ring(742, "rb->free_aux = event->pmu->free_aux;"),
            area_holds,
        ),
        case(
            "end: nothing of the module is held when all is closed",
            core(12972, "module_put(pmu->module);"),
            |pmu| {
                let module = Module::of(pmu)?;
                let before = module.references()?;
                for n in 0..20 {
                    let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(2), Mode::Normal)?;
                    rig.event.enable()?;
                    if n % 4 == 0 {
                        rig.traces(1)?;
                    }
                    if n % 2 == 0 {
                        rig.event.disable()?;
                    }
                }
                module.returns_to(before)?;
                Ok(format!("{before} references, before and after"))
            },
        ),
    ]);
    cases.extend(at_both(
        "end: closed while it is full",
        ring(535, "perf_event_disable_inatomic(handle->event);"),
        |pmu, place| {
            for _ in 0..10 {
                let mut rig = Rig::open(pmu, place, pmu.pages(1), Mode::Normal)?;
                rig.event.enable()?;
                rig.overflows()?;
            }
            Ok("closed".to_owned())
        },
    ));
    for (name, mode) in [
        ("non-overwrite", Mode::Normal),
        ("overwrite", Mode::Overwrite),
    ] {
        cases.push(case(
            format!("end: its CPU goes while it runs, {name}"),
            core(15225, "static void perf_event_exit_cpu_context(int cpu)"),
            move |pmu| cpu_goes(pmu, mode),
        ));
    }
    cases.push(case(
        "end: its CPU goes and comes 10 times",
        core(15309, "int perf_event_exit_cpu(unsigned int cpu)"),
        |pmu| {
            let cpu = second(pmu)?;
            for _ in 0..10 {
                let rig = Rig::open(pmu, Place::Cpu(cpu), pmu.pages(4), Mode::Normal)?;
                unpin()?;
                rig.event.enable()?;
                switch(cpu, false)?;
                switch(cpu, true)?;
            }
            let mut rig = Rig::open(pmu, Place::Cpu(cpu), pmu.pages(4), Mode::Normal)?;
            rig.event.enable()?;
            rig.traces(1)?;
            rig.settles()?;
            rig.is_exact()
        },
    ));
    cases
}

fn in_order(pmu: &Pmu, order: &str) -> Result<String> {
    for n in 0..6 {
        let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
        rig.event.enable()?;
        if n % 2 == 0 {
            rig.traces(1)?;
        }
        let Rig {
            aux, base, event, ..
        } = rig;
        let (mut aux, mut base, mut event) = (aux, base, Some(event));
        for what in order.split(", ") {
            match what {
                "event" => drop(event.take()),
                "data" => drop(base.take()),
                _ => drop(aux.take()),
            }
            work();
        }
    }
    let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(4), Mode::Normal)?;
    rig.event.enable()?;
    rig.traces(1)?;
    rig.settles()?;
    rig.is_exact()
}

/// The driver frees the area even if the event is closed before. So the area must hold the driver's module.
fn area_holds(pmu: &Pmu) -> Result<String> {
    let module = Module::of(pmu)?;
    let before = module.references()?;
    let event = pmu.open(pmu.place())?;
    let base = map_base(&event)?;
    let without = module.references()?;
    let aux = map_aux(&event, &base, pmu.pages(4), Mode::Normal)?;
    let with = module.references()?;
    ensure!(
        with > without,
        "{without} references with an event, and {with} with its area: when perf takes the event from the PMU, nothing holds \
         the code that frees the area"
    );
    drop((event, base));
    let held = module.references()?;
    drop(aux);
    module.returns_to(before)?;
    Ok(format!(
        "{before}, {without} with an event, {with} with its area, {held} with that alone"
    ))
}

fn online(cpu: u32) -> PathBuf {
    PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"))
}

/// A CPU that can be taken offline, and is not the only one.
fn second(pmu: &Pmu) -> Result<u32> {
    pmu.cpu()?;
    let cpu = (1..64).find(|cpu| online(*cpu).exists());
    let cpu = cpu.ok_or_else(|| skip("no CPU can be switched off"))?;
    if pmu.open(Place::Cpu(cpu)).is_err() {
        return Err(skip(format!("its events are not of CPU {cpu}")));
    }
    let file = std::fs::OpenOptions::new().write(true).open(online(cpu));
    file.map_err(|_| skip("this user cannot switch CPUs off"))?;
    Ok(cpu)
}

fn switch(cpu: u32, on: bool) -> Result<()> {
    let what = if on { "1" } else { "0" };
    std::fs::write(online(cpu), what).with_context(|| format!("switching CPU {cpu} to {what}"))
}

fn cpu_goes(pmu: &Pmu, mode: Mode) -> Result<String> {
    let cpu = second(pmu)?;
    let pages = match mode {
        Mode::Normal => pmu.pages(16),
        Mode::Overwrite => pmu.overwrites(16)?,
    };
    let mut rig = Rig::open(pmu, Place::Cpu(cpu), pages, mode)?;
    rig.event.enable()?;
    for _ in 0..5 {
        work();
    }
    unpin()?;
    switch(cpu, false)?;
    let (head, seen) = (rig.head(), rig.drain());
    for _ in 0..3 {
        work();
    }
    let after = rig.head();
    switch(cpu, true)?;
    seen?;
    ensure!(
        after == head,
        "{} bytes of a CPU that is off",
        after.wrapping_sub(head)
    );
    ensure!(head > 0, "nothing is visible when the CPU has gone");
    if mode == Mode::Normal {
        let end = rig.ledger.end.unwrap_or(0);
        ensure!(
            end <= head && head - end < crate::rig::bytes(1),
            "aux_head is {head:#x}, and the last record ends at {end:#x}"
        );
    }
    Ok(format!("{head} bytes until then"))
}
