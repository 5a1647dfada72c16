// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What perf's core makes of a program: which call fails and how, and which ring nobody may write.
//!
//! Each rule is read from `kernel/events/core.c`, and named where it is not plain. The model knows nothing of time: an event
//! that [may run](Model::may_run) makes trace or not. So it is exact about what must not happen, and about the numbers of errors.

use rustix::io::Errno;

use super::op::{At, MapAux, OnExec, Op, Open, Whom, CHILDREN, CPUS, SLOTS};

/// What is known of a PMU.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Its name: terms make no other PMU.
    pub name: String,
    /// Whether it traces CPUs.
    pub cpus: bool,
    /// Whether it traces threads.
    pub tasks: bool,
    /// Whether only one event is at a place.
    pub exclusive: bool,
    /// Whether its driver is a module.
    pub module: bool,
    /// Whether its events have a period.
    pub samples: bool,
    /// Pages of its smallest area.
    pub linear: usize,
    /// The same in overwrite mode.
    pub overwrite: Option<usize>,
}

/// What must come of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There is nothing that it could be done to.
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

/// Whose events a context holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Context {
    Cpu(usize),
    Me,
    /// A child, by a number that is never used again.
    Child(u32),
}

/// `perf_event.state`, as far as no hardware changes it.
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
    /// Children that have a copy of it.
    heirs: Vec<u32>,
    /// Whether any task has or had one. Then perf may have swapped the two contexts (`perf_event_context_sched_out()`), and the task that
    /// ended was the owner of this event: its state is unknown, and the copy goes on.
    inherited: bool,
    on_exec: OnExec,
    state: State,
    /// Whether it is in the list of its context.
    attached: bool,
    leader: Option<usize>,
    buffer: Option<usize>,
    /// Mappings through this event: of the ring, and of the area.
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
    /// Mappings of the ring, and of the area.
    bases: usize,
    areas: usize,
    /// Records may be missing.
    silent: bool,
    /// Somebody hostile has set `aux_tail` of the area.
    hostile: bool,
}

/// The AUX area of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Pages.
    pub pages: usize,
    /// The page where it is mapped.
    pub at: usize,
    /// Whether it is in overwrite mode.
    pub overwrite: bool,
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
    /// Whether CPUs can be taken off.
    hotplug: bool,
}

impl Model {
    /// That of a program that begins.
    pub fn new(units: Vec<Unit>, cpus: usize, hotplug: bool) -> Self {
        Self {
            units,
            events: [const { None }; SLOTS],
            buffers: Vec::new(),
            children: [None; CHILDREN],
            born: 0,
            online: std::array::from_fn(|cpu| cpu < cpus),
            hotplug: hotplug && cpus >= CPUS,
        }
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

    /// Where the area would be mapped.
    pub fn place(&self, slot: usize, at: At) -> usize {
        let data = self.buffer(slot).map_or(0, |buffer| self.data(buffer));
        match at {
            At::Far => data + 17,
            At::Inside => 1,
            At::Behind | At::Elsewhere | At::Longer => data + 1,
        }
    }

    /// The CPU of an event that traces one.
    pub fn cpu(&self, slot: usize) -> Option<usize> {
        self.event(slot)?.cpu
    }

    /// Whether it may write into its ring.
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

    /// Whether an event makes trace when it is enabled with an area that is empty, and this thread works on its CPU.
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
        is_unit.is_some_and(|unit| unit.exclusive) && area.is_some() && here && alone
    }

    /// Whether it then fills the area, and a record says so.
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

    /// Whether somebody hostile has set `aux_tail`.
    pub fn is_hostile(&self, buffer: usize) -> bool {
        self.buffers
            .get(buffer)
            .is_some_and(|buffer| buffer.hostile)
    }

    /// Whether `poll()` says that the event is at its end.
    pub fn is_hung_up(&self, slot: usize) -> bool {
        let ends = |event: &Event| event.state == State::Exit || event.buffer.is_none();
        self.event(slot).is_none_or(ends)
    }

    /// Whether an event has counted all that it will, until a step of the program.
    pub fn is_still(&self, slot: usize) -> bool {
        !self.may_run(slot)
    }

    /// What comes of a step; and what is so behind it.
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
            // `TRUNCATED` has disabled it.
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
            // try_stop_module(): an event that a mapping keeps holds the module, too.
            Op::Unload(unit) => {
                let is_its = |event: &Event| self.pmu(event.unit) == self.pmu(Some(*unit));
                let used = self.events.iter().flatten().any(is_its);
                match self.units.get(*unit) {
                    Some(unit) if unit.module && used => Outcome::fails(Errno::AGAIN),
                    _ => Outcome::Nothing,
                }
            }
            Op::Online { cpu, online } => self.hotplug(*cpu, *online),
        }
    }

    fn open(&mut self, open: &Open) -> Outcome {
        if self.event(open.slot).is_some() {
            return Outcome::Nothing;
        }
        let unit = open.unit.and_then(|unit| self.units.get(unit));
        let is_of_cpu = matches!(open.whom, Whom::Cpu(_) | Whom::NoCpu);
        // Which number a driver answers is its own affair.
        if unit.is_some_and(|unit| !(if is_of_cpu { unit.cpus } else { unit.tasks })) {
            return Outcome::Nothing;
        }
        let exclusive = unit.is_some_and(|unit| unit.exclusive);
        let born = |child: usize| self.child(child).map(|child| child.number);
        let child = match open.whom {
            Whom::Child(child) => match born(child) {
                Some(number) => Some(number),
                None => return Outcome::Nothing,
            },
            _ => None,
        };
        let leader = match open.leader.map(|leader| self.opened(leader)) {
            None => None,
            // What is no event cannot be named here.
            Some(None) => return Outcome::Nothing,
            Some(Some(leader)) if leader.inherited => return Outcome::Nothing,
            Some(Some(leader)) => Some(leader),
        };
        if leader.is_some_and(|leader| leader.state == State::Exit) {
            return Outcome::fails(Errno::NODEV);
        }
        let (context, cpu) = match open.whom {
            Whom::Cpu(cpu) => (Context::Cpu(cpu), Some(cpu)),
            Whom::NoCpu => return Outcome::fails(Errno::INVAL),
            Whom::NoProcess => return Outcome::fails(Errno::SRCH),
            Whom::Me => (Context::Me, None),
            Whom::MeOn(cpu) => (Context::Me, Some(cpu)),
            Whom::Child(_) => (child.map_or(Context::Me, Context::Child), None),
        };
        if !is_of_cpu && leader.is_some_and(|leader| leader.inherit != open.inherit) {
            return Outcome::fails(Errno::INVAL);
        }
        let others = || {
            let others = self.events.iter().flatten();
            others.filter(|event| exclusive && self.pmu(event.unit) == self.pmu(open.unit))
        };
        // exclusive_event_init(), before anything is asked of the context.
        if others().any(|event| matches!(event.context, Context::Cpu(_)) != is_of_cpu) {
            return Outcome::fails(Errno::BUSY);
        }
        let offline = is_of_cpu && cpu.is_some_and(|cpu| !self.is_online(cpu));
        if offline {
            // A driver that looks for itself says what it likes.
            return Outcome::Fails(vec![Errno::NODEV, Errno::INVAL]);
        }
        if let Some(leader) = leader {
            let same = leader.cpu == cpu && leader.context == context;
            if leader.leader.is_some() || !same {
                return Outcome::fails(Errno::INVAL);
            }
        }
        // exclusive_event_installable().
        let overlap = |event: &Event| event.cpu == cpu || event.cpu.is_none() || cpu.is_none();
        let is_there = |event: &&Event| match context {
            Context::Child(child) if event.heirs.contains(&child) => true,
            _ => event.attached && event.context == context,
        };
        let mut there = others().filter(is_there);
        if there.any(overlap) {
            return Outcome::fails(Errno::BUSY);
        }
        let of_child = matches!(context, Context::Child(_));
        let event = Event {
            unit: open.unit,
            context,
            cpu,
            inherit: open.inherit,
            heirs: Vec::new(),
            inherited: false,
            on_exec: if of_child {
                open.on_exec
            } else {
                OnExec::Nothing
            },
            state: if open.off { State::Off } else { State::On },
            attached: true,
            leader: open.leader,
            buffer: None,
            bases: 0,
            areas: 0,
            open: true,
        };
        if let Some(slot) = self.events.get_mut(open.slot) {
            *slot = Some(event);
        }
        Outcome::Done
    }

    fn close(&mut self, slot: usize) -> Outcome {
        let Some(event) = self.event_mut(slot).filter(|event| event.open) else {
            return Outcome::Nothing;
        };
        event.open = false;
        if event.mappings() == 0 {
            self.free(slot);
        }
        Outcome::Done
    }

    /// The event is released: the others of its group stand alone.
    fn free(&mut self, slot: usize) {
        self.leaves_group(slot);
        if let Some(event) = self.events.get_mut(slot) {
            *event = None;
        }
    }

    /// `perf_group_detach()`.
    fn leaves_group(&mut self, slot: usize) {
        for (at, event) in self.events.iter_mut().enumerate() {
            let Some(event) = event else { continue };
            if at == slot || event.leader == Some(slot) {
                event.leader = None;
            }
        }
    }

    fn map(&mut self, slot: usize, pages: usize) -> Outcome {
        let Some(event) = self.opened(slot) else {
            return Outcome::Nothing;
        };
        let is_shape = pages == 0 || pages.is_power_of_two();
        if (event.cpu.is_none() && event.inherit) || !is_shape {
            return Outcome::fails(Errno::INVAL);
        }
        let buffer = match event.buffer {
            Some(buffer) if self.data(buffer) != pages => return Outcome::fails(Errno::INVAL),
            Some(_) if event.mappings() == 0 => return Outcome::fails(Errno::BUSY),
            Some(buffer) => buffer,
            None => {
                self.buffers.push(Buffer {
                    data: pages,
                    ..Buffer::default()
                });
                self.buffers.len() - 1
            }
        };
        if let Some(event) = self.event_mut(slot) {
            event.buffer = Some(buffer);
            event.bases += 1;
        }
        if let Some(buffer) = self.buffers.get_mut(buffer) {
            buffer.bases += 1;
        }
        Outcome::Done
    }

    fn map_aux(&mut self, aux: &MapAux) -> Outcome {
        let Some(event) = self.opened(aux.slot) else {
            return Outcome::Nothing;
        };
        let Some(number) = event.buffer else {
            return Outcome::fails(Errno::INVAL);
        };
        // perf_mmap_aux() counts the mapping of such an event from 0, and warns. Documentation/upstream says so.
        if event.mappings() == 0 {
            return Outcome::Nothing;
        }
        let Some(buffer) = self.buffers.get(number) else {
            return Outcome::Nothing;
        };
        // Nobody can say where the area is.
        if buffer.bases == 0 {
            return Outcome::Nothing;
        }
        if event.cpu.is_none() && event.inherit {
            return Outcome::fails(Errno::INVAL);
        }
        let at = self.place(aux.slot, aux.at);
        let wrong = matches!(aux.at, At::Elsewhere | At::Longer) || at <= buffer.data;
        let shape = aux.pages.is_power_of_two();
        let differs = |area: Area| area.at != at || area.pages != aux.pages;
        if wrong || !shape || buffer.area.is_some_and(differs) {
            return Outcome::fails(Errno::INVAL);
        }
        if buffer.area.is_none() {
            let Some(unit) = event.unit.and_then(|unit| self.units.get(unit)) else {
                return Outcome::fails(Errno::OPNOTSUPP);
            };
            let least = match aux.overwrite {
                true => unit.overwrite,
                false => Some(unit.linear),
            };
            if least.is_none_or(|least| aux.pages < least) {
                return Outcome::fails(Errno::NOMEM);
            }
        }
        if let Some(event) = self.event_mut(aux.slot) {
            event.areas += 1;
        }
        if let Some(buffer) = self.buffers.get_mut(number) {
            buffer.areas += 1;
            buffer.hostile &= buffer.area.is_some();
            buffer.area.get_or_insert(Area {
                pages: aux.pages,
                at,
                overwrite: aux.overwrite,
            });
        }
        Outcome::Done
    }

    fn unmap(&mut self, slot: usize, aux: bool) -> Outcome {
        let Some(event) = self.event_mut(slot) else {
            return Outcome::Nothing;
        };
        let count = if aux {
            &mut event.areas
        } else {
            &mut event.bases
        };
        let Some(left) = count.checked_sub(1) else {
            return Outcome::Nothing;
        };
        *count = left;
        let (left, open, number) = (event.mappings(), event.open, event.buffer);
        if left == 0 {
            event.buffer = None;
        }
        let buffer = number.and_then(|number| self.buffers.get_mut(number));
        if let Some(buffer) = buffer {
            if aux {
                buffer.areas = buffer.areas.saturating_sub(1);
            } else {
                buffer.bases = buffer.bases.saturating_sub(1);
            }
            if buffer.areas == 0 {
                buffer.area = None;
            }
            if buffer.areas + buffer.bases == 0 {
                // perf_mmap_close(): whoever was redirected into it has no ring now.
                for event in self.events.iter_mut().flatten() {
                    if event.buffer == number {
                        event.buffer = None;
                    }
                }
            }
        }
        if left == 0 && !open {
            self.free(slot);
        }
        Outcome::Done
    }

    fn turn(&mut self, slot: usize, state: State) -> Outcome {
        let Some(event) = self.event_mut(slot).filter(|event| event.open) else {
            return Outcome::Nothing;
        };
        if event.state != State::Exit {
            event.state = state;
        }
        Outcome::Done
    }

    fn pause(&mut self, buffer: Option<usize>) -> Outcome {
        match buffer.and_then(|buffer| self.buffers.get_mut(buffer)) {
            Some(buffer) if buffer.data > 0 => {
                buffer.silent = true;
                Outcome::Done
            }
            _ => Outcome::fails(Errno::INVAL),
        }
    }

    fn redirect(&mut self, slot: usize, to: usize) -> Outcome {
        let (Some(event), Some(other)) = (self.opened(slot), self.opened(to)) else {
            return Outcome::Nothing;
        };
        let same_task = other.cpu.is_some() || other.context == event.context;
        let software = event.unit.is_none() || other.unit.is_none();
        let units = software || self.pmu(event.unit) == self.pmu(other.unit);
        let free = event.mappings() == 0;
        match other.buffer {
            Some(buffer) if slot != to && event.cpu == other.cpu && same_task && units && free => {
                if let Some(event) = self.event_mut(slot) {
                    event.buffer = Some(buffer);
                }
                Outcome::Done
            }
            _ => Outcome::fails(Errno::INVAL),
        }
    }

    fn spawn(&mut self, child: usize) -> Outcome {
        let number = self.born;
        match self.children.get_mut(child) {
            Some(free @ None) => {
                *free = Some(Child {
                    number,
                    frozen: false,
                });
            }
            _ => return Outcome::Nothing,
        }
        self.born += 1;
        for event in self.inheritable() {
            event.heirs.push(number);
            event.inherited = true;
        }
        Outcome::Done
    }

    /// The events that a new task gets a copy of.
    fn inheritable(&mut self) -> impl Iterator<Item = &mut Event> {
        let is_one =
            |event: &&mut Event| event.inherit && event.attached && event.context == Context::Me;
        self.events.iter_mut().flatten().filter(is_one)
    }

    fn exec(&mut self, child: usize) -> Outcome {
        let number = match self.child(child) {
            Some(child) if !child.frozen => child.number,
            _ => return Outcome::Nothing,
        };
        for slot in 0..SLOTS {
            let Some(event) = self.event_mut(slot) else {
                continue;
            };
            if event.context != Context::Child(number) {
                continue;
            }
            match event.on_exec {
                OnExec::Nothing => {}
                OnExec::Enable => {
                    event.on_exec = OnExec::Nothing;
                    if event.state == State::Off {
                        event.state = State::On;
                    }
                }
                OnExec::Remove => {
                    event.state = State::Exit;
                    event.attached = false;
                    self.leaves_group(slot);
                }
            }
        }
        Outcome::Done
    }

    fn ends(&mut self, child: usize) -> Outcome {
        let Some(number) = self.child(child).map(|child| child.number) else {
            return Outcome::Nothing;
        };
        for event in self.events.iter_mut().flatten() {
            if event.context == Context::Child(number) {
                event.state = State::Exit;
                event.attached = false;
            }
        }
        if let Some(child) = self.children.get_mut(child) {
            *child = None;
        }
        Outcome::Done
    }

    fn freeze(&mut self, child: usize, freeze: bool) -> Outcome {
        match self.children.get_mut(child) {
            Some(Some(child)) if child.frozen != freeze => {
                child.frozen = freeze;
                Outcome::Done
            }
            _ => Outcome::Nothing,
        }
    }

    fn hotplug(&mut self, cpu: usize, online: bool) -> Outcome {
        match self.online.get_mut(cpu) {
            Some(is) if self.hotplug && *is != online => *is = online,
            _ => return Outcome::Nothing,
        }
        if online {
            return Outcome::Done;
        }
        // perf_event_exit_cpu_context(): its events leave the context, and never come back.
        for slot in 0..SLOTS {
            let Some(event) = self.event_mut(slot) else {
                continue;
            };
            if event.context == Context::Cpu(cpu) && event.attached {
                event.attached = false;
                event.state = State::Off;
                self.leaves_group(slot);
            }
        }
        Outcome::Done
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fuzz::parse;

    fn model() -> Model {
        let unit = Unit {
            name: "unit".to_owned(),
            cpus: true,
            tasks: true,
            exclusive: true,
            module: true,
            samples: true,
            linear: 2,
            overwrite: None,
        };
        Model::new(vec![unit], 2, true)
    }

    fn opens(slot: usize, whom: &str) -> String {
        format!(
            r#"{{"open":{{"slot":{slot},"unit":0,"whom":{whom},"off":true,"inherit":false,"on-exec":"nothing","leader":null}}}}"#
        )
    }

    fn areas(slot: usize, pages: usize, at: &str) -> String {
        format!(r#"{{"map-aux":{{"slot":{slot},"pages":{pages},"overwrite":false,"at":"{at}"}}}}"#)
    }

    /// What comes of the last step of each program.
    #[test]
    fn outcomes() {
        let cpu = r#"{"cpu":0}"#;
        let other = r#"{"cpu":1}"#;
        let map =
            |slot: usize, pages: usize| format!(r#"{{"map":{{"slot":{slot},"pages":{pages}}}}}"#);
        let redirect = r#"{"redirect":{"slot":1,"to":0}}"#.to_owned();
        let fails = |error| Outcome::Fails(vec![error]);
        let table = [
            (vec![opens(0, cpu)], Outcome::Done),
            (vec![opens(0, cpu), opens(1, cpu)], fails(Errno::BUSY)),
            (vec![opens(0, cpu), opens(1, other)], Outcome::Done),
            (vec![opens(0, cpu), opens(1, r#""me""#)], fails(Errno::BUSY)),
            (vec![opens(0, r#""no-cpu""#)], fails(Errno::INVAL)),
            (vec![opens(0, r#""no-process""#)], fails(Errno::SRCH)),
            (vec![opens(0, r#"{"child":0}"#)], Outcome::Nothing),
            (vec![opens(0, cpu), map(0, 3)], fails(Errno::INVAL)),
            (
                vec![opens(0, cpu), map(0, 8), map(0, 4)],
                fails(Errno::INVAL),
            ),
            (
                vec![opens(0, cpu), areas(0, 2, "behind")],
                fails(Errno::INVAL),
            ),
            (
                vec![opens(0, cpu), map(0, 8), areas(0, 1, "behind")],
                fails(Errno::NOMEM),
            ),
            (
                vec![opens(0, cpu), map(0, 8), areas(0, 2, "inside")],
                fails(Errno::INVAL),
            ),
            (
                vec![opens(0, cpu), map(0, 0), areas(0, 2, "inside")],
                Outcome::Done,
            ),
            (
                vec![
                    opens(0, cpu),
                    map(0, 8),
                    areas(0, 2, "behind"),
                    areas(0, 2, "far"),
                ],
                fails(Errno::INVAL),
            ),
            // The mapping keeps the event that is closed, and its place.
            (
                vec![
                    opens(0, cpu),
                    map(0, 8),
                    r#"{"close":0}"#.to_owned(),
                    opens(1, cpu),
                ],
                fails(Errno::BUSY),
            ),
            (
                vec![
                    opens(0, cpu),
                    map(0, 8),
                    r#"{"close":0}"#.to_owned(),
                    r#"{"unmap":{"slot":0,"aux":false}}"#.to_owned(),
                    opens(1, cpu),
                ],
                Outcome::Done,
            ),
            (
                vec![opens(0, cpu), opens(1, other), map(0, 8), redirect.clone()],
                fails(Errno::INVAL),
            ),
            // Its CPU was off: it is in no list, and leaves its place and its ring to another.
            (
                vec![
                    opens(0, other),
                    map(0, 8),
                    r#"{"online":{"cpu":1,"online":false}}"#.to_owned(),
                    opens(1, other),
                ],
                Outcome::Fails(vec![Errno::NODEV, Errno::INVAL]),
            ),
            (
                vec![
                    opens(0, other),
                    map(0, 8),
                    r#"{"online":{"cpu":1,"online":false}}"#.to_owned(),
                    r#"{"online":{"cpu":1,"online":true}}"#.to_owned(),
                    opens(1, other),
                    redirect,
                ],
                Outcome::Done,
            ),
            (vec![r#"{"unload":0}"#.to_owned()], Outcome::Nothing),
            (
                vec![opens(0, cpu), r#"{"unload":0}"#.to_owned()],
                fails(Errno::AGAIN),
            ),
            (
                vec![opens(0, cpu), r#"{"trace":0}"#.to_owned()],
                Outcome::Nothing,
            ),
            (
                vec![
                    opens(0, cpu),
                    map(0, 8),
                    areas(0, 2, "behind"),
                    r#"{"trace":0}"#.to_owned(),
                ],
                Outcome::Done,
            ),
        ];
        for (lines, right) in table {
            let program = parse(&lines.join("\n")).unwrap();
            let mut model = model();
            let last = program.iter().map(|op| model.step(op)).last();
            assert_eq!(last, Some(right), "{lines:#?}");
        }
    }

    /// Whether the event of the first slot may write.
    #[test]
    fn who_may_write() {
        let table = [
            (vec![], false),
            (vec![r#"{"enable":0}"#], true),
            (vec![r#"{"enable":0}"#, r#"{"disable":0}"#], false),
            (
                vec![r#"{"enable":0}"#, r#"{"online":{"cpu":1,"online":false}}"#],
                false,
            ),
            (
                vec![r#"{"online":{"cpu":1,"online":false}}"#, r#"{"enable":0}"#],
                false,
            ),
            (vec![r#"{"refresh":0}"#], true),
            (vec![r#"{"toggle":{"slot":0,"times":2}}"#], false),
        ];
        for (lines, right) in table {
            let mut model = model();
            for op in parse(&opens(0, r#"{"cpu":1}"#)).unwrap() {
                assert_eq!(model.step(&op), Outcome::Done);
            }
            for op in parse(&lines.join("\n")).unwrap() {
                model.step(&op);
            }
            assert_eq!(model.may_run(0), right, "{lines:#?}");
        }
    }

    #[test]
    fn each_step_is_read_as_it_is_printed() {
        use proptest::strategy::{Strategy, ValueTree};
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy = crate::fuzz::op::program(3, 400);
        let program = strategy.new_tree(&mut runner).unwrap().current();
        let text: Vec<_> = program.iter().map(ToString::to_string).collect();
        assert_eq!(parse(&text.join("\n")).unwrap(), program);
        parse("{\"enable\":0").unwrap_err();
    }
}
