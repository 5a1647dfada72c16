// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A PMU, what it can do, and opening its events.

use std::fmt;

use anyhow::{ensure, Result};
use auxrec::pmu::Pmus;
use auxrec::sys::Event;
use perfdata::Attr;

use crate::skip::skip;
use crate::stream::Known;

/// A PMU with an AUX area.
#[derive(Debug, Clone)]
pub struct Pmu {
    /// Its name in sysfs.
    pub name: String,
    /// The attribute of its events: disabled, with all fields of [`SampleId`](crate::records::SampleId).
    pub(crate) attr: Attr,
    /// The places where its events can be opened.
    pub places: Vec<Place>,
    /// The CPU of all its events, whichever CPU they are opened for, if there is one unit for the whole machine.
    pub home: Option<u32>,
    /// Pages of the smallest area in non-overwrite mode.
    pub normal: usize,
    /// Pages of the smallest area in overwrite mode, if the PMU has this mode.
    pub overwrite: Option<usize>,
    /// Whether its events can be paused.
    pub pauses: bool,
    /// Whether samples of other events can have its trace.
    pub samples: bool,
    /// Whether a second event at the same place is refused.
    pub exclusive: bool,
    /// Whether it makes trace visible without being stopped.
    pub commits: bool,
    /// The format of its trace, if it is known.
    pub stream: Option<Known>,
}

/// The place of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A CPU, whatever runs there.
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
        write!(f, "; areas from {} pages on", self.normal)?;
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

impl Pmu {
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

    /// The attribute of its events.
    pub fn attr(&self) -> Attr {
        self.attr.clone()
    }

    /// Opens a disabled event.
    pub fn open(&self, place: Place) -> std::io::Result<Event> {
        self.open_attr(&self.attr, place)
    }

    /// Opens an event with this attribute.
    pub fn open_attr(&self, attr: &Attr, place: Place) -> std::io::Result<Event> {
        let (pid, cpu) = place.args();
        Event::open(attr, pid, cpu)
    }

    /// A place where its events can be opened.
    pub fn place(&self) -> Place {
        self.places.first().copied().unwrap_or(Place::Task)
    }

    /// A CPU on which its events can be opened.
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

    /// Pages of an area that is larger than the smallest by this factor.
    pub fn pages(&self, factor: usize) -> usize {
        self.normal.saturating_mul(factor)
    }

    /// Pages of an area in overwrite mode that is larger than the smallest by this factor.
    pub fn overwrites(&self, factor: usize) -> Result<usize> {
        let smallest = self
            .overwrite
            .ok_or_else(|| skip("it has no overwrite mode"))?;
        Ok(smallest.saturating_mul(factor))
    }
}
