// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a PMU can do, found by trying: sysfs does not say which PMUs have AUX areas.

use std::fmt;
use std::io::ErrorKind;

use anyhow::{ensure, Context, Result};
use auxrec::pmu::Pmus;
use auxrec::sys::Event;
use perfdata::{Attr, Flags, Read, SampleType};
use rustix::io::Errno;

use crate::cases::skip;
use crate::rig::{map_aux, map_base, Mode, Rig};
use crate::stream::Known;

/// A PMU with an AUX area.
#[derive(Debug, Clone)]
pub struct Pmu {
    /// Its name in sysfs.
    pub name: String,
    /// What its events ask for; off, with all that [`SampleId`](crate::records::SampleId) has.
    attr: Attr,
    /// Where its events can be opened.
    pub places: Vec<Place>,
    /// The CPU where all its events are, whichever they are opened for: there is one unit for the whole machine.
    pub home: Option<u32>,
    /// Pages of the smallest area in linear mode.
    pub linear: usize,
    /// The same in overwrite mode, if it has that.
    pub overwrite: Option<usize>,
    /// Whether its events can be paused.
    pub pauses: bool,
    /// Whether samples can have AUX data of it.
    pub samples: bool,
    /// Whether a second event at the same place is refused.
    pub exclusive: bool,
    /// Whether it makes trace visible without being stopped.
    pub commits: bool,
    /// How its trace is read.
    pub stream: Option<Known>,
}

/// Where an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Whatever runs on a CPU.
    Cpu(u32),
    /// The calling thread, on any CPU.
    Task,
}

impl Place {
    /// The arguments of `perf_event_open()`.
    pub fn args(self) -> (i32, i32) {
        match self {
            Self::Cpu(cpu) => (-1, i32::try_from(cpu).unwrap_or(i32::MAX)),
            Self::Task => (0, -1),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(cpu) => write!(f, "CPU {cpu}"),
            Self::Task => f.write_str("a thread"),
        }
    }
}

impl fmt::Display for Pmu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<_> = self.places.iter().map(ToString::to_string).collect();
        write!(f, "{}: traces {}", self.name, places.join(" and "))?;
        write!(f, "; areas from {} pages on", self.linear)?;
        match self.overwrite {
            Some(pages) => write!(f, ", in overwrite mode from {pages}")?,
            None => write!(f, ", not in overwrite mode")?,
        }
        let has = |what, has| if has { what } else { "" };
        if let Some(home) = self.home {
            write!(f, "; all its events are on CPU {home}")?;
        }
        f.write_str(has("; exclusive", self.exclusive))?;
        f.write_str(has("; visible when it stops", !self.commits))?;
        f.write_str(has("; pauses", self.pauses))?;
        f.write_str(has("; AUX samples", self.samples))?;
        match self.stream {
            Some(stream) => write!(f, "; each byte is checked: {stream}"),
            None => write!(f, "; its trace is not known"),
        }
    }
}

/// All PMUs with AUX areas that this user can open.
pub fn all() -> Vec<Pmu> {
    let names = Pmus::default().names().into_iter();
    names.filter_map(|name| Pmu::named(&name).ok()).collect()
}

/// Pages of areas that are tried: some hardware needs many.
const SIZES: [usize; 14] = [
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192,
];

impl Pmu {
    /// This PMU, with terms if any stand behind its name.
    pub fn named(name: &str) -> Result<Self> {
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
        let mut pmu = Self {
            name: bare.to_owned(),
            attr,
            places: Vec::new(),
            home: None,
            linear: 0,
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
        // Some trace programs only.
        let refuses = |pmu: &Self| {
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
            match pmu.smallest(place, Mode::Linear) {
                Ok(pages) => {
                    pmu.linear = pages;
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
        pmu.overwrite = pmu.smallest(place, Mode::Overwrite).ok();
        pmu.exclusive = {
            let first = pmu.open(place)?;
            let second = pmu.open(place).err();
            drop(first);
            second.is_some_and(|error| error.kind() == ErrorKind::ResourceBusy)
        };
        pmu.commits = {
            let mut rig = Rig::open(&pmu, place, pmu.pages(4), Mode::Linear)?;
            rig.event.enable()?;
            rig.fills(1).is_ok()
        };
        pmu.pauses = {
            let mut attr = pmu.attr();
            attr.aux_action = 1;
            pmu.open_attr(&attr, place).is_ok()
        };
        pmu.samples = {
            let leader = pmu.open(place)?;
            let mut attr = crate::rig::software(crate::rig::CPU_CLOCK, 1_000_000);
            attr.sample_type |= SampleType::AUX;
            attr.aux_sample_size = 4096;
            let (pid, cpu) = place.args();
            Event::open_in(&attr, pid, cpu, Some(&leader)).is_ok()
        };
        Ok(pmu)
    }

    /// Pages of the smallest area.
    fn smallest(&self, place: Place, mode: Mode) -> Result<usize> {
        let mut last = None;
        for pages in SIZES {
            let event = self
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

    /// Checks that a reloaded driver has registered the PMU with the same type number and the same CPU.
    pub fn is_back(&self) -> Result<()> {
        let pmus = Pmus::default();
        let found = pmus.get(&self.name)?;
        let kind = self.attr.kind;
        ensure!(
            found.kind == kind,
            "{} has the number {}, and had {kind}",
            self.name,
            found.kind
        );
        let home = found.cpus.as_ref().and_then(|cpus| cpus.first().copied());
        ensure!(
            self.home.is_none() || home == self.home,
            "the events of {} are on CPU {home:?} now",
            self.name
        );
        Ok(())
    }

    /// What its events ask for.
    pub fn attr(&self) -> Attr {
        self.attr.clone()
    }

    /// Opens an event, off.
    pub fn open(&self, place: Place) -> std::io::Result<Event> {
        self.open_attr(&self.attr, place)
    }

    /// The same, with what it asks for.
    pub fn open_attr(&self, attr: &Attr, place: Place) -> std::io::Result<Event> {
        let (pid, cpu) = place.args();
        Event::open(attr, pid, cpu)
    }

    /// A place where its events can be opened.
    pub fn place(&self) -> Place {
        self.places.first().copied().unwrap_or(Place::Task)
    }

    /// The CPU where its events can be opened.
    pub fn cpu(&self) -> Result<Place> {
        let is_cpu = |place: &&Place| matches!(place, Place::Cpu(_));
        let found = self.places.iter().find(is_cpu).copied();
        found.ok_or_else(|| skip("its events are not of CPUs"))
    }

    /// The calling thread, if it can be traced.
    pub fn task(&self) -> Result<Place> {
        match self.places.contains(&Place::Task) {
            true => Ok(Place::Task),
            false => Err(skip("its events are not of threads")),
        }
    }

    /// An area that is larger than the smallest by this factor, in pages.
    pub fn pages(&self, factor: usize) -> usize {
        self.linear.saturating_mul(factor)
    }

    /// Pages of an area in overwrite mode.
    pub fn overwrites(&self, factor: usize) -> Result<usize> {
        let smallest = self
            .overwrite
            .ok_or_else(|| skip("it has no overwrite mode"))?;
        Ok(smallest.saturating_mul(factor))
    }
}
