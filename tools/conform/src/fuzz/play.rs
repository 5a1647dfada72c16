// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes a program, and compares each step with the prediction of the [model](super::model).
//!
//! Besides the outcome of a call it checks that
//!
//! - `aux_head` of a ring that no event may write into does not move, and there is no new AUX record;
//! - AUX records follow each other, and come from an event of that ring, on its CPU;
//! - each byte of a stream of a known format is right;
//! - the count of an event that alone writes into a ring is what was recorded, plus what records report as lost;
//! - a disabled event counts nothing.

mod rings;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{anyhow, bail, ensure, Context, Result};
use auxrec::sys::{page_size, Event, Field, Mapping};
use perfdata::{Attr, Flags};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{kill_process, waitpid, Signal, WaitOptions};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use super::child::Child;
use super::model::{Model, Outcome};
use super::op::{At, MapAux, OnExec, Op, Open, Whom, CHILDREN, SLOTS};
use super::times::Times;
use crate::module::Module;
use crate::pmu::Pmu;
use crate::records::Ledger;
use crate::rig::{self, bytes, pin, software, work, DUMMY};
use crate::stream::Stream;

/// A program that is being executed.
pub struct Play<'a> {
    pmus: &'a [Pmu],
    modules: &'a [Option<Module>],
    model: Model,
    slots: [Slot; SLOTS],
    rings: BTreeMap<usize, Ring>,
    children: [Option<Child>; CHILDREN],
    /// CPUs that are offline.
    off: BTreeSet<usize>,
    /// Number of steps. A step that repeats a call counts with each call.
    operations: AtomicU64,
}

/// An event. The order of the fields matters: the rings are unmapped before the event is closed.
#[derive(Default)]
struct Slot {
    areas: Vec<Mapping>,
    bases: Vec<Mapping>,
    event: Option<Event>,
    unit: Option<usize>,
    id: u64,
    /// Its count while it is disabled.
    counted: Option<u64>,
}

/// What is known of the contents of a ring.
#[derive(Default)]
struct Ring {
    /// The ledger of its current area.
    ledger: Option<Ledger>,
    stream: Option<Stream>,
    tail: u64,
    /// `aux_head`, while no event may write into the ring.
    head: Option<u64>,
    /// Whether records may be missing.
    silent: bool,
    /// The only event that writes into the ring, if it had counted nothing before.
    alone: Option<usize>,
    /// The events that may have written it, and their CPUs.
    ids: BTreeMap<u64, Option<usize>>,
}

impl<'a> Play<'a> {
    /// Prepares a program.
    pub fn new(pmus: &'a [Pmu], modules: &'a [Option<Module>], model: Model) -> Self {
        Self {
            pmus,
            modules,
            model,
            slots: std::array::from_fn(|_| Slot::default()),
            rings: BTreeMap::new(),
            children: [const { None }; CHILDREN],
            off: BTreeSet::new(),
            operations: AtomicU64::new(0),
        }
    }

    /// Number of executed steps. A step that repeats a call counts with each call.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    fn counts(&self, times: u64) {
        self.operations.fetch_add(times, Ordering::Relaxed);
    }

    /// Executes the program. Returns how many steps did something.
    pub fn run(&mut self, program: &[Op], times: &mut Times) -> Result<u64> {
        let mut done = 0;
        for (number, op) in program.iter().enumerate() {
            let foreseen = self.model.step(op);
            if foreseen == Outcome::Nothing {
                continue;
            }
            done += 1;
            let step = || format!("step {number}, {op}");
            let (begin, before) = (Instant::now(), self.operations());
            let seen = self.does(op).with_context(step)?;
            if self.operations() == before {
                self.counts(1);
            }
            match (&foreseen, seen) {
                (Outcome::Done, Ok(())) => {}
                (Outcome::Fails(right), Err(error)) if is_one(right, &error) => {}
                (Outcome::Fails(right), Err(error)) => {
                    bail!("{}: {error}; {right:?} is right", step())
                }
                (Outcome::Fails(right), Ok(())) => {
                    bail!("{}: it succeeds; {right:?} is right", step())
                }
                (_, Err(error)) => bail!("{}: {error}; it must succeed", step()),
                (Outcome::Nothing, Ok(())) => {}
            }
            self.still().with_context(step)?;
            times.add(op, begin);
        }
        let begin = Instant::now();
        self.ends().context("at the end")?;
        times.add_other("end", begin);
        Ok(done)
    }

    /// Executes a step. Returns the result of the call, or an error if something is wrong.
    fn does(&mut self, op: &Op) -> Result<io::Result<()>> {
        match op {
            Op::Open(open) => return self.open(open),
            Op::Close(slot) => {
                self.loses(*slot);
                if let Some(slot) = self.slots.get_mut(*slot) {
                    slot.event = None;
                }
            }
            Op::Map { slot, pages } => return self.map(*slot, *pages),
            Op::MapAux(aux) => return self.map_aux(aux),
            Op::Unmap { slot, aux } => {
                let slot = self.slots.get_mut(*slot).context("a slot")?;
                let views = if *aux {
                    &mut slot.areas
                } else {
                    &mut slot.bases
                };
                drop(views.pop());
                self.forgets();
            }
            Op::Enable(slot) => return self.with(*slot, Event::enable),
            Op::Disable(slot) => return self.with(*slot, Event::disable),
            Op::Toggle { slot, times } => {
                self.moves();
                self.counts((2 * u64::from(*times)).saturating_sub(1));
                return self.with(*slot, |event| {
                    for _ in 0..*times {
                        event.enable()?;
                        event.disable()?;
                    }
                    Ok(())
                });
            }
            Op::Race { slot, during } => return self.race(*slot, during),
            Op::Reset(slot) => {
                self.loses(*slot);
                return self.with(*slot, Event::reset);
            }
            Op::Refresh(slot) => return self.with(*slot, |event| event.refresh(1)),
            Op::Period(slot) => return self.with(*slot, |event| event.set_period(1)),
            Op::Filter(slot) => return self.with(*slot, |event| event.set_filter(c"no filter")),
            Op::Redirect { slot, to } => return self.redirect(*slot, *to),
            Op::Pause { slot, pause } => {
                if let Some(ring) = self.ring(*slot) {
                    ring.silent = true;
                    ring.alone = None;
                }
                return self.with(*slot, |event| event.pause_output(*pause));
            }
            Op::Count(slot) => self.count(*slot)?,
            Op::Poll(slot) => self.poll(*slot)?,
            Op::Follow(slot) => self.follow(*slot)?,
            Op::Trace(slot) => self.trace(*slot)?,
            Op::Fill(slot) => {
                self.moves();
                self.fill(*slot)?;
            }
            Op::Tail { slot, value } => {
                let buffer = self.model.buffer(*slot);
                if let Some(ring) = self.ring(*slot) {
                    ring.alone = None;
                }
                if let Some(base) = buffer.and_then(|buffer| self.base(buffer)) {
                    base.store(Field::AuxTail, *value, Ordering::Release);
                }
            }
            Op::Work(times) => (0..*times).for_each(|_| work()),
            Op::Move(cpu) => pin(u32::try_from(*cpu)?)?,
            Op::Spawn(child) => *self.child(*child)? = Some(Child::begin()?),
            Op::Run(child) => self.tells(*child, "work")?,
            Op::Exec(child) => self.tells(*child, "exec")?,
            Op::Exit(child) => {
                let child = self.child(*child)?.take().context("a child")?;
                child.ends()?;
            }
            Op::Kill(child) => drop(self.child(*child)?.take()),
            Op::Freeze(child) => {
                let pid = self.child(*child)?.as_ref().context("a child")?.pid()?;
                kill_process(pid, Signal::STOP)?;
                waitpid(Some(pid), WaitOptions::UNTRACED)?;
            }
            Op::Thaw(child) => {
                let pid = self.child(*child)?.as_ref().context("a child")?.pid()?;
                kill_process(pid, Signal::CONT)?;
            }
            Op::Unload(unit) => {
                let module = self.modules.get(*unit).and_then(Option::as_ref);
                let module = module.context("no module")?;
                if self.model.is_used(*unit) {
                    return Ok(module.unload());
                }
                // The driver of a unit for all CPUs puts its events on the CPU where it is loaded.
                let here = sched_getaffinity(None)?;
                pin(0)?;
                let reloaded = module.reload();
                sched_setaffinity(None, &here)?;
                if let Err(error) = reloaded {
                    return Ok(Err(error));
                }
                self.pmus.get(*unit).context("no PMU")?.is_back()?;
            }
            Op::Online { cpu, online } => {
                if *online {
                    self.off.remove(cpu);
                } else {
                    pin(0)?;
                    self.off.insert(*cpu);
                }
                return Ok(online_is(*cpu, *online));
            }
        }
        Ok(Ok(()))
    }

    fn with(
        &self,
        slot: usize,
        call: impl FnOnce(&Event) -> io::Result<()>,
    ) -> Result<io::Result<()>> {
        let event = self.slots.get(slot).and_then(|slot| slot.event.as_ref());
        self.counts(1);
        Ok(call(event.context("the event is not open")?))
    }

    /// Executes a step while another thread enables and disables an event, which is disabled in the end.
    fn race(&mut self, slot: usize, during: &Op) -> Result<io::Result<()>> {
        self.moves();
        let event = self.slots.get(slot).and_then(|slot| slot.event.as_ref());
        let event = event.context("the event is not open")?.try_clone()?;
        let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        let seen = std::thread::scope(|scope| {
            let other = rig::beside(scope, || -> Result<()> {
                rig::unpin()?;
                loop {
                    event.enable()?;
                    event.disable()?;
                    calls.fetch_add(2, Ordering::Relaxed);
                    if done.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                }
            })?;
            let seen = self.does(during);
            done.store(true, Ordering::Relaxed);
            let other = other.join().map_err(|_| anyhow!("a thread has panicked"))?;
            other.context("a thread that enables and disables it")?;
            seen
        });
        self.counts(calls.into_inner() + 1);
        seen
    }

    fn child(&mut self, child: usize) -> Result<&mut Option<Child>> {
        self.children.get_mut(child).context("a child")
    }

    fn tells(&mut self, child: usize, what: &str) -> Result<()> {
        let child = self.child(child)?.as_mut().context("a child")?;
        child.tell(what)
    }

    fn ring(&mut self, slot: usize) -> Option<&mut Ring> {
        let buffer = self.model.buffer(slot)?;
        Some(self.rings.entry(buffer).or_default())
    }

    /// Forgets heads and counts. An event that is disabled before and after a step may make trace during it, and so may others of its
    /// group.
    fn moves(&mut self) {
        self.rings.values_mut().for_each(|ring| ring.head = None);
        self.slots.iter_mut().for_each(|slot| slot.counted = None);
    }

    /// From now on the count of this event does not describe the content of its ring.
    fn loses(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.counted = None;
        }
        for ring in self.rings.values_mut() {
            if ring.alone == Some(slot) {
                ring.alone = None;
            }
        }
    }

    /// A mapping of a ring, through any of its events.
    fn base(&self, buffer: usize) -> Option<&Mapping> {
        self.view(buffer, |slot| &slot.bases)
    }

    fn view(&self, buffer: usize, which: fn(&Slot) -> &Vec<Mapping>) -> Option<&Mapping> {
        let mut slots = self.slots.iter().enumerate();
        slots.find_map(|(number, slot)| {
            let is_its = self.model.buffer(number) == Some(buffer);
            which(slot).last().filter(|_| is_its)
        })
    }

    /// Forgets the contents of areas that are gone.
    fn forgets(&mut self) {
        for (buffer, ring) in &mut self.rings {
            if self.model.area(*buffer).is_none() {
                ring.ledger = None;
                ring.stream = None;
                ring.alone = None;
            }
        }
    }

    fn open(&mut self, open: &Open) -> Result<io::Result<()>> {
        let pmu = open.unit.and_then(|unit| self.pmus.get(unit));
        let mut attr = pmu.map_or_else(|| software(DUMMY, 0), Pmu::attr);
        attr.flags.set(Flags::DISABLED, open.off);
        attr.flags.set(Flags::INHERIT, open.inherit);
        let (pid, cpu) = match open.whom {
            Whom::Cpu(cpu) => (-1, i32::try_from(cpu)?),
            Whom::Me => (0, -1),
            Whom::MeOn(cpu) => (0, i32::try_from(cpu)?),
            Whom::Child(child) => {
                match open.on_exec {
                    OnExec::Nothing => {}
                    OnExec::Enable => attr.flags |= Flags::ENABLE_ON_EXEC,
                    OnExec::Remove => attr.flags |= Flags::REMOVE_ON_EXEC,
                }
                let child = self.child(child)?.as_ref().context("a child")?;
                (child.pid()?.as_raw_nonzero().get(), -1)
            }
            Whom::NoCpu => (-1, 99_999),
            Whom::NoProcess => (i32::MAX, -1),
        };
        self.opens(open, &attr, pid, cpu)
    }

    fn opens(&mut self, open: &Open, attr: &Attr, pid: i32, cpu: i32) -> Result<io::Result<()>> {
        let leader = open.leader.and_then(|leader| self.slots.get(leader));
        let leader = leader.and_then(|leader| leader.event.as_ref());
        let event = match Event::open_in(attr, pid, cpu, leader) {
            Ok(event) => event,
            Err(error) => return Ok(Err(error)),
        };
        let id = event.id()?;
        let slot = self.slots.get_mut(open.slot).context("a slot")?;
        *slot = Slot {
            id,
            unit: open.unit,
            event: Some(event),
            ..Slot::default()
        };
        Ok(Ok(()))
    }

    fn map(&mut self, slot: usize, pages: usize) -> Result<io::Result<()>> {
        let at = self.slots.get_mut(slot).context("a slot")?;
        let event = at.event.as_ref().context("the event is not open")?;
        match Mapping::new(event, 0, (1 + pages) * page_size(), true) {
            Ok(base) => at.bases.push(base),
            Err(error) => return Ok(Err(error)),
        }
        self.may_write(slot);
        Ok(Ok(()))
    }

    /// From now on records of this event may be in its ring.
    fn may_write(&mut self, slot: usize) {
        let cpu = self.model.cpu(slot);
        let id = self.slots.get(slot).map_or(0, |slot| slot.id);
        if let Some(ring) = self.ring(slot) {
            ring.ids.insert(id, cpu);
            if ring.alone != Some(slot) {
                ring.alone = None;
            }
        }
    }

    fn map_aux(&mut self, aux: &MapAux) -> Result<io::Result<()>> {
        let slot = aux.slot;
        let at = self.model.place(slot, aux.at);
        let mut stored = (bytes(at), bytes(aux.pages));
        match aux.at {
            At::Elsewhere => stored.0 += bytes(1),
            At::Longer => stored.1 += bytes(1),
            At::Behind | At::Far | At::Inside => {}
        }
        let Some(buffer) = self.model.buffer(slot) else {
            let event = self.slots.get(slot).and_then(|slot| slot.event.as_ref());
            let event = event.context("the event is not open")?;
            let view = Mapping::new(event, bytes(at), aux.pages * page_size(), !aux.overwrite);
            return Ok(view.map(drop));
        };
        let is_new = self
            .rings
            .get(&buffer)
            .is_none_or(|ring| ring.ledger.is_none());
        let mut head = 0;
        if let Some(base) = self.base(buffer) {
            base.store(Field::AuxOffset, stored.0, Ordering::Relaxed);
            base.store(Field::AuxSize, stored.1, Ordering::Relaxed);
            head = base.load(Field::AuxHead, Ordering::Acquire);
            if is_new {
                base.store(Field::AuxTail, head, Ordering::Release);
            }
        }
        if is_new {
            // Discards the records of an area that is gone.
            self.drain(buffer)?;
        }
        let at_slot = self.slots.get(slot).context("a slot")?;
        let event = at_slot.event.as_ref().context("the event is not open")?;
        let len = aux.pages * page_size();
        let view = match Mapping::new(event, bytes(at), len, !aux.overwrite) {
            Ok(view) => view,
            Err(error) => return Ok(Err(error)),
        };
        // If the event has never run and no other event writes here, its counter and this area must agree.
        let fresh = event.count()?.is_some_and(|count| count.running == 0);
        let stream = at_slot.unit.and_then(|unit| self.pmus.get(unit)?.stream);
        self.slots.get_mut(slot).context("a slot")?.areas.push(view);
        let Some(area) = self.model.area(buffer) else {
            return Ok(Ok(()));
        };
        let others =
            (0..SLOTS).any(|other| other != slot && self.model.buffer(other) == Some(buffer));
        let ring = self.rings.entry(buffer).or_default();
        if is_new {
            ring.ledger = Some(Ledger::new(bytes(area.pages), area.overwrite));
            ring.stream = stream.filter(|_| !area.overwrite).map(Stream::new);
            ring.tail = head;
            ring.alone = Some(slot).filter(|_| fresh && !others && head == 0 && !ring.silent);
        }
        Ok(Ok(()))
    }

    fn redirect(&mut self, slot: usize, to: usize) -> Result<io::Result<()>> {
        let event = |slot: usize| {
            let slot = self.slots.get(slot)?;
            slot.event.as_ref()
        };
        let event_to = event(to).context("the event is not open")?;
        let result = event(slot)
            .context("the event is not open")?
            .set_output(event_to);
        if result.is_ok() {
            self.loses(slot);
            self.may_write(slot);
        }
        Ok(result)
    }

    fn count(&mut self, slot: usize) -> Result<()> {
        let still = self.model.is_still(slot);
        let slot = self.slots.get_mut(slot).context("a slot")?;
        let event = slot.event.as_ref().context("the event is not open")?;
        let mut count = event.count()?.context("read() gives nothing")?;
        if count.running > count.enabled {
            // perf loads the two values one after the other, while another CPU may change both: see Documentation/upstream.
            count = event.count()?.context("read() gives nothing")?;
        }
        ensure!(count.id == slot.id, "id {} for {}", count.id, slot.id);
        ensure!(
            count.running <= count.enabled,
            "it ran for {} ns, and was enabled for {}",
            count.running,
            count.enabled
        );
        if let Some(counted) = slot.counted {
            ensure!(
                count.value == counted,
                "it is off, and has counted {} more",
                count.value.wrapping_sub(counted)
            );
        }
        slot.counted = Some(count.value).filter(|_| still);
        Ok(())
    }

    fn poll(&self, slot: usize) -> Result<()> {
        let event = self.slots.get(slot).and_then(|slot| slot.event.as_ref());
        let event = event.context("the event is not open")?;
        let mut fds = [PollFd::new(event, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).context("poll")?;
        let seen = fds.first().map_or(PollFlags::empty(), PollFd::revents);
        let is = seen.contains(PollFlags::HUP);
        let right = self.model.is_hung_up(slot);
        ensure!(is == right, "poll() says {seen:?}; POLLHUP is {right} ");
        Ok(())
    }
}

impl Drop for Play<'_> {
    fn drop(&mut self) {
        for cpu in &self.off {
            let _ = online_is(*cpu, true);
        }
    }
}

fn is_one(right: &[Errno], error: &io::Error) -> bool {
    let mut numbers = right.iter().map(|error| error.raw_os_error());
    numbers.any(|number| error.raw_os_error() == Some(number))
}

/// Takes a CPU offline, or brings it online.
pub fn online_is(cpu: usize, online: bool) -> io::Result<()> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    std::fs::write(path, if online { "1" } else { "0" })
}
