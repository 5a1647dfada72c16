// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Predicts what perf's core does with a program: which call fails with which error, and which rings no event may write into.
//!
//! Each rule is taken from `kernel/events/core.c`, and is named where it is not obvious. The model does not know time: an event that
//! [may run](Model::may_run) may or may not make trace. So the model is exact about what must not happen, and about the numbers of errors.

mod calls;
mod tasks;
#[cfg(test)]
mod tests;

use rustix::io::Errno;

use super::op::{At, OnExec, Op, CHILDREN, CPUS, SLOTS};

/// The properties of a PMU.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Its name. Units of one PMU with different terms have the same name.
    pub name: String,
    /// Whether it traces CPUs.
    pub cpus: bool,
    /// Whether it traces threads.
    pub tasks: bool,
    /// The CPU of all its events, if there is one unit for the whole machine.
    pub home: Option<usize>,
    /// Whether it makes trace visible without being stopped.
    pub commits: bool,
    /// Whether a place can have only one event.
    pub exclusive: bool,
    /// The module of its driver.
    pub module: Option<String>,
    /// Whether the program can load that module again.
    pub reloads: bool,
    /// Whether its events have a period.
    pub samples: bool,
    /// Pages of its smallest area.
    pub normal: usize,
    /// Pages of its smallest area in overwrite mode.
    pub overwrite: Option<usize>,
}

/// The predicted outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The step is not executed: its object does not exist, or the outcome cannot be predicted.
    Nothing,
    /// It succeeds.
    Done,
    /// It fails with one of these.
    Fails(Vec<Errno>),
}

impl Outcome {
    fn fails(error: Errno) -> Self {
        Self::Fails(vec![error])
    }
}

/// The CPU or task to which a context belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Context {
    Cpu(usize),
    Me,
    /// A child, by a number that is not used again.
    Child(u32),
}

/// `perf_event.state`, without the changes that the hardware causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Off,
    On,
    /// `PERF_EVENT_STATE_EXIT`.
    Exit,
}

#[derive(Debug, Clone)]
struct Event {
    unit: Option<usize>,
    context: Context,
    /// `event->cpu`.
    cpu: Option<usize>,
    inherit: bool,
    /// Children that have inherited it.
    heirs: Vec<u32>,
    /// Whether any task has or had a copy of it. Then perf may have swapped two contexts (`perf_event_context_sched_out()`), and a task
    /// that has ended may have owned this event: its state is unknown, and the copy continues.
    inherited: bool,
    on_exec: OnExec,
    state: State,
    /// Whether it is in the list of its context.
    attached: bool,
    leader: Option<usize>,
    /// The unit whose context the group of this leader may be in. [`None`]: the group is in the software context (`in_software_context()`).
    hardware: Option<usize>,
    buffer: Option<usize>,
    /// Number of mappings through this event: of the ring, and of the area.
    bases: usize,
    areas: usize,
    /// Whether its descriptor is open.
    open: bool,
}

impl Event {
    fn mappings(&self) -> usize {
        self.bases + self.areas
    }
}

/// `struct perf_buffer`.
#[derive(Debug, Clone, Default)]
struct Buffer {
    /// Pages of the data ring.
    data: usize,
    area: Option<Area>,
    /// Number of mappings of the ring, and of the area.
    bases: usize,
    areas: usize,
    /// Whether records may be missing.
    silent: bool,
    /// Whether a hostile reader has set `aux_tail`.
    hostile: bool,
}

/// The AUX area of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Pages.
    pub pages: usize,
    /// The page at which it is mapped.
    pub at: usize,
    /// Whether it is in overwrite mode.
    pub overwrite: bool,
    /// The unit whose driver has set it up.
    unit: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Child {
    number: u32,
    frozen: bool,
}

/// The state of all events, mappings and tasks of a program.
#[derive(Debug, Clone)]
pub struct Model {
    units: Vec<Unit>,
    events: [Option<Event>; SLOTS],
    buffers: Vec<Buffer>,
    children: [Option<Child>; CHILDREN],
    born: u32,
    online: [bool; CPUS],
    /// Whether CPUs can be taken offline.
    hotplug: bool,
    /// Whether events may be redirected to rings with the AUX area of another PMU.
    foreign: bool,
}

impl Model {
    /// The state before the first step of a program.
    pub fn new(units: Vec<Unit>, cpus: usize, hotplug: bool) -> Self {
        Self {
            units,
            events: [const { None }; SLOTS],
            buffers: Vec::new(),
            children: [None; CHILDREN],
            born: 0,
            online: std::array::from_fn(|cpu| cpu < cpus),
            hotplug: hotplug && cpus >= CPUS,
            foreign: false,
        }
    }

    /// Permits or forbids programs to redirect events to rings with the AUX area of another PMU. At first it is forbidden.
    pub fn with_foreign_areas(mut self, permitted: bool) -> Self {
        self.foreign = permitted;
        self
    }

    fn event(&self, slot: usize) -> Option<&Event> {
        self.events.get(slot)?.as_ref()
    }

    fn event_mut(&mut self, slot: usize) -> Option<&mut Event> {
        self.events.get_mut(slot)?.as_mut()
    }

    /// The event, if its descriptor is open.
    fn opened(&self, slot: usize) -> Option<&Event> {
        self.event(slot).filter(|event| event.open)
    }

    /// The name of a unit's PMU.
    fn pmu(&self, unit: Option<usize>) -> Option<&str> {
        Some(self.units.get(unit?)?.name.as_str())
    }

    /// Whether an event holds the module of a unit's driver.
    pub fn is_used(&self, unit: usize) -> bool {
        let module = |unit: usize| self.units.get(unit)?.module.as_ref();
        let its = module(unit);
        let holds = |event: &Event| event.unit.and_then(module) == its;
        its.is_some() && self.events.iter().flatten().any(holds)
    }

    /// `is_sampling_event()`.
    fn has_period(&self, event: &Event) -> bool {
        let unit = event.unit.and_then(|unit| self.units.get(unit));
        unit.is_some_and(|unit| unit.samples)
    }

    fn child(&self, child: usize) -> Option<Child> {
        *self.children.get(child)?
    }

    fn is_online(&self, cpu: usize) -> bool {
        self.online.get(cpu).copied().unwrap_or(false)
    }

    /// The ring of an event.
    pub fn buffer(&self, slot: usize) -> Option<usize> {
        self.event(slot)?.buffer
    }

    /// Pages of a data ring.
    pub fn data(&self, buffer: usize) -> usize {
        self.buffers.get(buffer).map_or(0, |buffer| buffer.data)
    }

    /// The AUX area of a ring.
    pub fn area(&self, buffer: usize) -> Option<Area> {
        self.buffers.get(buffer)?.area
    }

    /// The page at which the area would be mapped.
    pub fn place(&self, slot: usize, at: At) -> usize {
        let data = self.buffer(slot).map_or(0, |buffer| self.data(buffer));
        match at {
            At::Far => data + 17,
            At::Inside => 1,
            At::Behind | At::Elsewhere | At::Longer => data + 1,
        }
    }

    /// The CPU of an event, if it is bound to one.
    pub fn cpu(&self, slot: usize) -> Option<usize> {
        self.event(slot)?.cpu
    }

    /// Whether an event may write into its ring.
    pub fn may_run(&self, slot: usize) -> bool {
        let Some(event) = self.event(slot) else {
            return false;
        };
        let leads = |leader| {
            let leader: Option<&Event> = self.event(leader);
            leader.is_none_or(|leader| leader.state == State::On)
        };
        event.state == State::On && event.attached && event.leader.is_none_or(leads)
    }

    /// Whether none of the events of a ring may write into its area.
    pub fn is_quiet(&self, buffer: usize) -> bool {
        !(0..SLOTS).any(|slot| self.buffer(slot) == Some(buffer) && self.may_run(slot))
    }

    /// Whether an event must make trace when it is enabled with an empty area, and this thread works on its CPU.
    pub fn must_trace(&self, slot: usize) -> bool {
        let Some(event) = self.opened(slot) else {
            return false;
        };
        let is_unit = event.unit.and_then(|unit| self.units.get(unit));
        let area = event.buffer.and_then(|buffer| self.area(buffer));
        let here = match event.context {
            Context::Cpu(_) | Context::Me => event.cpu.is_none_or(|cpu| self.is_online(cpu)),
            Context::Child(_) => false,
        };
        let alone = event.leader.is_none() && event.state != State::Exit && event.attached;
        // A driver that copies trace when it stops may do so only when the last event of its unit has stopped.
        let shares = |other: usize| {
            let unit = self.event(other).and_then(|event| event.unit);
            other != slot && self.may_run(other) && self.pmu(unit) == self.pmu(event.unit)
        };
        let is_there = |unit: &Unit| unit.exclusive && (unit.commits || !(0..SLOTS).any(shares));
        // A driver must not begin a transaction in an area that another one has set up.
        let owns = |area: Area| self.pmu(area.unit) == self.pmu(event.unit);
        is_unit.is_some_and(is_there) && area.is_some_and(owns) && here && alone
    }

    /// Whether the event must then fill the area, and a record must report that.
    pub fn must_fill(&self, slot: usize) -> bool {
        let buffer = self.event(slot).filter(|event| !event.inherit);
        let buffer = buffer.and_then(|event| self.buffers.get(event.buffer?));
        let is_one = |buffer: &Buffer| {
            let fits = |area: Area| !area.overwrite && area.pages == 16;
            buffer.area.is_some_and(fits) && buffer.bases > 0 && buffer.data >= 8
        };
        let clean = |buffer: &Buffer| !buffer.silent && !buffer.hostile;
        self.must_trace(slot) && buffer.is_some_and(|buffer| is_one(buffer) && clean(buffer))
    }

    /// Whether a hostile reader has set `aux_tail`.
    pub fn is_hostile(&self, buffer: usize) -> bool {
        self.buffers
            .get(buffer)
            .is_some_and(|buffer| buffer.hostile)
    }

    /// Whether `poll()` must report that the event has ended.
    pub fn is_hung_up(&self, slot: usize) -> bool {
        let ends = |event: &Event| event.state == State::Exit || event.buffer.is_none();
        self.event(slot).is_none_or(ends)
    }

    /// Whether the count of an event stays the same until another step of the program.
    pub fn is_still(&self, slot: usize) -> bool {
        !self.may_run(slot)
    }

    /// Predicts the outcome of a step, and changes the state accordingly.
    pub fn step(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Open(open) => self.open(open),
            Op::Close(slot) => self.close(*slot),
            Op::Map { slot, pages } => self.map(*slot, *pages),
            Op::MapAux(aux) => self.map_aux(aux),
            Op::Unmap { slot, aux } => self.unmap(*slot, *aux),
            Op::Enable(slot) => self.turn(*slot, State::On),
            Op::Disable(slot) | Op::Toggle { slot, .. } => self.turn(*slot, State::Off),
            Op::Race { slot, during } => match during.as_ref() {
                Op::Unmap { .. }
                | Op::MapAux(_)
                | Op::Redirect { .. }
                | Op::Close(_)
                | Op::Period(_)
                | Op::Follow(_)
                | Op::Work(_)
                    if self.opened(*slot).is_some() =>
                {
                    self.inheritable().for_each(|event| event.inherited = true);
                    let outcome = self.step(during);
                    if outcome != Outcome::Nothing {
                        self.turn(*slot, State::Off);
                    }
                    outcome
                }
                _ => Outcome::Nothing,
            },
            Op::Trace(slot) if self.must_trace(*slot) => self.turn(*slot, State::On),
            // `TRUNCATED` has disabled the event.
            Op::Fill(slot) if self.must_fill(*slot) => self.turn(*slot, State::Off),
            Op::Trace(_) | Op::Fill(_) => Outcome::Nothing,
            Op::Reset(slot) | Op::Count(slot) | Op::Poll(slot) => match self.opened(*slot) {
                Some(_) => Outcome::Done,
                None => Outcome::Nothing,
            },
            Op::Refresh(slot) => match self.opened(*slot) {
                Some(event) if event.inherit || !self.has_period(event) => {
                    Outcome::fails(Errno::INVAL)
                }
                _ => self.turn(*slot, State::On),
            },
            Op::Period(slot) => match self.opened(*slot) {
                Some(event) if self.has_period(event) => Outcome::Done,
                Some(_) => Outcome::fails(Errno::INVAL),
                None => Outcome::Nothing,
            },
            Op::Filter(slot) => match self.opened(*slot) {
                Some(_) => Outcome::fails(Errno::INVAL),
                None => Outcome::Nothing,
            },
            Op::Redirect { slot, to } => self.redirect(*slot, *to),
            Op::Pause { slot, .. } => match self.opened(*slot).map(|event| event.buffer) {
                Some(buffer) => self.pause(buffer),
                None => Outcome::Nothing,
            },
            Op::Follow(slot) | Op::Tail { slot, .. } => {
                let number = self.buffer(*slot);
                let buffer = number.and_then(|number| self.buffers.get_mut(number));
                match buffer.filter(|buffer| buffer.area.is_some()) {
                    Some(buffer) => {
                        buffer.hostile |= matches!(op, Op::Tail { .. }) && buffer.bases > 0;
                        Outcome::Done
                    }
                    None => Outcome::Nothing,
                }
            }
            Op::Work(_) => Outcome::Done,
            Op::Move(cpu) if self.is_online(*cpu) => Outcome::Done,
            Op::Move(_) => Outcome::Nothing,
            Op::Spawn(child) => self.spawn(*child),
            Op::Run(child) => match self.child(*child) {
                Some(child) if !child.frozen => Outcome::Done,
                _ => Outcome::Nothing,
            },
            Op::Exec(child) => self.exec(*child),
            Op::Exit(child) => match self.child(*child) {
                Some(Child { frozen: false, .. }) => self.ends(*child),
                _ => Outcome::Nothing,
            },
            Op::Kill(child) => self.ends(*child),
            Op::Freeze(child) => self.freeze(*child, true),
            Op::Thaw(child) => self.freeze(*child, false),
            // try_stop_module(): an event that only a mapping keeps also holds the module.
            Op::Unload(unit) if self.is_used(*unit) => Outcome::fails(Errno::AGAIN),
            Op::Unload(unit) => match self.units.get(*unit) {
                Some(unit) if unit.reloads => Outcome::Done,
                _ => Outcome::Nothing,
            },
            Op::Online { cpu, online } => self.hotplug(*cpu, *online),
        }
    }
}
