// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds PMUs with AUX areas, and tries what they can do: sysfs does not show it.

use std::io::ErrorKind;

use anyhow::{ensure, Context, Result};
use auxrec::pmu::Pmus;
use auxrec::sys::Event;
use perfdata::{Flags, Read, SampleType};
use rustix::io::Errno;

use crate::pmu::{Place, Pmu};
use crate::rig::{map_aux, map_base, software, with_patience, Mode, Rig, CPU_CLOCK};
use crate::stream::Known;

/// All PMUs with AUX areas that this user can open.
pub fn all() -> Vec<Pmu> {
    let names = Pmus::default().names().into_iter();
    names.filter_map(|name| named(&name).ok()).collect()
}

/// Numbers of pages of the areas that are tried. Some hardware needs many.
const SIZES: [usize; 14] = [
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192,
];

/// How long discovery waits for trace, in seconds. Some drivers make no trace visible while they run.
const COMMITS: u64 = 20;

/// Examines this PMU. Terms may follow its name.
pub fn named(name: &str) -> Result<Pmu> {
    let bare = name.split('/').next().unwrap_or_default();
    let pmus = Pmus::default();
    let found = pmus.get(bare)?;
    let event = match name.contains('/') {
        true => name.to_owned(),
        false => format!("{name}//"),
    };
    let mut attr = pmus.event(&event)?.attr();
    attr.sample_type =
        SampleType::TID | SampleType::TIME | SampleType::CPU | SampleType::IDENTIFIER;
    attr.read_format = Read::FORMAT;
    attr.flags |= Flags::DISABLED | Flags::SAMPLE_ID_ALL;
    let mut pmu = Pmu {
        name: bare.to_owned(),
        attr,
        places: Vec::new(),
        home: None,
        normal: 0,
        overwrite: None,
        pauses: false,
        samples: false,
        exclusive: false,
        commits: true,
        stream: Known::of(bare),
    };
    let cpu = match &found.cpus {
        Some(cpus) => cpus.first().copied().context("its cpumask has no CPU")?,
        None => 0,
    };
    // Some PMUs trace user space only.
    let refuses = |pmu: &Pmu| {
        let opened = pmu
            .open(Place::Task)
            .err()
            .and_then(|error| error.raw_os_error());
        opened == Some(Errno::OPNOTSUPP.raw_os_error())
    };
    if refuses(&pmu) {
        pmu.attr.flags |= Flags::EXCLUDE_KERNEL;
    }
    let mut last = None;
    for place in [Place::Cpu(cpu), Place::Task] {
        match smallest(&pmu, place, Mode::Normal) {
            Ok(pages) => {
                pmu.normal = pages;
                pmu.places.push(place);
            }
            Err(error) => last = Some(error),
        }
    }
    let Some(&place) = pmu.places.first() else {
        let error = last.unwrap_or_else(|| anyhow::anyhow!("no place was tried"));
        return Err(error.context(format!("no AUX area of {name} can be mapped")));
    };
    let alone = found.cpus.as_ref().is_some_and(|cpus| cpus.len() == 1);
    if alone && pmu.open(Place::Cpu(u32::from(cpu == 0))).is_ok() {
        pmu.home = Some(cpu);
    }
    pmu.overwrite = smallest(&pmu, place, Mode::Overwrite).ok();
    pmu.exclusive = {
        let first = pmu.open(place)?;
        let second = pmu.open(place).err();
        drop(first);
        second.is_some_and(|error| error.kind() == ErrorKind::ResourceBusy)
    };
    pmu.commits = {
        let mut rig = Rig::open(&pmu, place, pmu.pages(4), Mode::Normal)?;
        rig.event.enable()?;
        with_patience(COMMITS, || rig.fills(1)).is_ok()
    };
    pmu.pauses = {
        let mut attr = pmu.attr();
        attr.aux_action = 1;
        pmu.open_attr(&attr, place).is_ok()
    };
    pmu.samples = {
        let leader = pmu.open(place)?;
        let mut attr = software(CPU_CLOCK, 1_000_000);
        attr.sample_type |= SampleType::AUX;
        attr.aux_sample_size = 4096;
        let (pid, cpu) = place.args();
        Event::open_in(&attr, pid, cpu, Some(&leader)).is_ok()
    };
    Ok(pmu)
}

/// Pages of the smallest area.
fn smallest(pmu: &Pmu, place: Place, mode: Mode) -> Result<usize> {
    let mut last = None;
    for pages in SIZES {
        let event = pmu
            .open(place)
            .with_context(|| format!("opening an event of {place}"))?;
        let base = map_base(&event).context("mapping a data ring")?;
        match map_aux(&event, &base, pages, mode) {
            Ok(_) => return Ok(pages),
            Err(error) => {
                let is_none = error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error());
                ensure!(!is_none, "it has no AUX area");
                last = Some(error);
            }
        }
    }
    let last = last.context("no size was tried")?;
    Err(last).with_context(|| format!("mapping an area {mode}, of 1 to {} pages", 8192))
}
