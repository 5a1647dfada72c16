// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens the events of a pair of rings, maps the rings, and sends the records of the events into them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use auxview::trace::Mode;
use rustix::io::Errno;

use super::opened::Opened;
use super::plan::{Plan, TRACKING};
use super::probe::Hotplug;
use super::rings::{Beside, Rings};
use super::switch::{State, Switched};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::pmu::Role;
use crate::ring::{Backward, Reader};
use crate::sys::{self, Count, Event, Field, System};

/// The events of a pair of rings while they are opened, before the rings are mapped.
pub(super) struct Opening<'a> {
    system: &'static dyn System,
    plan: &'a Arc<Plan>,
    limits: &'a Limits,
    /// Number of the event that has the rings.
    number: usize,
    cpu: Option<u32>,
    events: Vec<Opened>,
    members: Vec<Opened>,
    others: Vec<Opened>,
    tracking: Vec<Opened>,
}

impl<'a> Opening<'a> {
    pub(super) fn new(
        system: &'static dyn System,
        plan: &'a Arc<Plan>,
        limits: &'a Limits,
        number: usize,
        cpu: Option<u32>,
    ) -> Self {
        Self {
            system,
            plan,
            limits,
            number,
            cpu,
            events: Vec::new(),
            members: Vec::new(),
            others: Vec::new(),
            tracking: Vec::new(),
        }
    }

    /// Number of the event that has the rings.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Whether no event is open.
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Opens the events of a thread, or of everything on the CPU. Returns false if there is nothing to
    /// open: the thread has ended, or it is `late` and has inherited the event.
    ///
    /// A `late` thread was found after its process was listed. If it has inherited the event of its
    /// creator, the kernel refuses another one: a PMU with an AUX area is exclusive.
    pub(super) fn add(&mut self, thread: Option<u32>, late: bool) -> Result<bool> {
        let plan = self.plan;
        let Some(owner) = self.open(self.number, thread, None, late)? else {
            return Ok(false);
        };
        let cpu = self.cpu;
        let with = |wanted: Role| {
            let all = plan.events.iter().enumerate();
            all.filter(move |(number, (_, role))| *role == wanted && plan.is_on(*number, cpu))
                .map(|(number, _)| number)
        };
        for member in with(Role::Member(self.number)) {
            let member = self.open(member, thread, Some(&owner.event), false)?;
            self.members.extend(member);
        }
        self.events.push(owner);
        // One tracking event is enough: it uses the rings of the first event that writes trace. On a CPU where that event cannot be
        // opened, the tracking event has these rings.
        let first = plan.owners().next().unwrap_or(self.number);
        let only_tracks = plan.only_tracks(self.number);
        let others = if only_tracks { first } else { self.number };
        for other in with(Role::Other(others)) {
            let other = self.open(other, thread, None, false)?;
            self.others.extend(other);
        }
        if first == self.number || only_tracks {
            if self.number != plan.events.len() {
                let tracking = self.open(plan.events.len(), thread, None, false)?;
                self.tracking.extend(tracking);
            }
            if plan.code.is_some() {
                let code = self.open(plan.code_number(), thread, None, false)?;
                self.tracking.extend(code);
            }
        }
        Ok(true)
    }

    /// Opens one event; [`None`] if the thread has ended, or is `late` and has the event already.
    fn open(
        &self,
        number: usize,
        thread: Option<u32>,
        leader: Option<&Event>,
        late: bool,
    ) -> Result<Option<Opened>> {
        let (plan, limits, cpu) = (self.plan, self.limits, self.cpu);
        let signed = |n: Option<u32>| n.map_or(-1, |n| i32::try_from(n).unwrap_or(-1));
        let attr = plan.attr_in(self.number, number);
        let of = plan.of(signed(thread));
        let opened = Event::of(self.system, &attr, of, signed(cpu), leader);
        let opened = opened.and_then(|event| {
            Ok(Opened {
                id: event.id()?,
                event,
                number,
                thread,
            })
        });
        let error = match opened {
            Ok(opened) => return Ok(Some(opened)),
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::SRCH) if thread.is_some() => return Ok(None),
            Some(Errno::BUSY) if late => return Ok(None),
            _ => {}
        }
        let what = match (thread, cpu) {
            (None, Some(cpu)) => format!("all of CPU {cpu}"),
            (Some(thread), None) => format!("thread {thread}"),
            (Some(thread), Some(cpu)) => format!("thread {thread} on CPU {cpu}"),
            (None, None) => "neither a thread nor a CPU".to_owned(),
        };
        Err(match plan.events.get(number) {
            Some((event, _)) if plan.is_probe(number) => {
                limits.explain_trigger(&error, &event.text, &what)
            }
            Some((event, Role::Member(leader))) => {
                let pmu = plan
                    .events
                    .get(*leader)
                    .map_or("", |(event, _)| &event.pmu.name);
                limits.explain_member(&error, event, pmu, &what)
            }
            _ if plan.cgroup.is_some() => limits.explain_cgroup(&error, plan.name(number), &what),
            _ => limits.explain_open(&error, plan.name(number), &what),
        })
    }

    /// Maps the rings, the pair with the number `idx`. All rings together have `all` bytes.
    pub(super) fn map(self, idx: u32, all: u64) -> Result<Rings> {
        let page = sys::page_size();
        let Self {
            system,
            plan,
            limits,
            number,
            cpu,
            events,
            members,
            others,
            tracking,
        } = self;
        let Some(owner) = events.first() else {
            return Err(Error::usage("there is no thread to record"));
        };
        let thread = owner.thread.filter(|_| cpu.is_none());

        let ring = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        let map =
            |offset: usize, len: usize, writable| owner.event.map(ring(offset), len, writable);
        let base = map(0, page + plan.data, true)
            .map_err(|e| limits.explain_mmap(&e, "data ring", ring(page + plan.data), all))?;
        let map_aux = || {
            // The kernel reads the offset and length of the AUX area from these words, when it is mapped.
            let aux_at = page + plan.data;
            base.store(Field::AuxOffset, ring(aux_at), Ordering::Relaxed);
            base.store(Field::AuxSize, ring(plan.aux), Ordering::Relaxed);
            // A read-only mapping selects overwrite mode.
            map(aux_at, plan.aux, plan.mode == Mode::Normal)
                .map_err(|e| limits.explain_mmap(&e, "AUX area", ring(plan.aux), all))
        };
        let area = if plan.only_tracks(number) {
            0
        } else {
            plan.aux
        };
        let aux_map = (area != 0).then(map_aux).transpose()?;
        let join = |opened: &Opened, owner: &Event| {
            let set = opened.event.set_output(owner);
            set.map_err(|e| {
                Error::failed(format!(
                    "cannot send the records of two events to one ring ({e})"
                ))
            })
        };
        let is_trigger = |opened: &&Opened| plan.trigger == Some(opened.number);
        let of_trace = events.iter().skip(1).chain(&members);
        let of_trace = of_trace.chain(others.iter().filter(is_trigger));
        let sideband = others.iter().filter(|opened| !is_trigger(opened));
        let sideband: Vec<&Opened> = sideband.chain(&tracking).collect();
        for opened in of_trace {
            join(opened, &owner.event)?;
        }
        let beside = match sideband.split_first() {
            Some((first, rest)) if plan.overwrite => {
                let len = page + plan.data;
                let map = first.event.map(0, len, false);
                let map = map.map_err(|e| limits.explain_mmap(&e, "data ring", ring(len), all))?;
                for opened in rest {
                    join(opened, &first.event)?;
                }
                Some(Beside {
                    map,
                    owner: first.event.try_clone().map_err(|e| {
                        Error::failed(format!("cannot keep the event of a ring ({e})"))
                    })?,
                    reader: Backward::new(plan.data)?,
                })
            }
            _ => {
                for opened in sideband {
                    join(opened, &owner.event)?;
                }
                None
            }
        };
        if let Some(filter) = &plan.filter {
            for opened in &events {
                let set = opened.event.set_filter(filter);
                set.map_err(|e| limits.explain_filter(&e, filter, plan.name(number)))?;
            }
        }
        let probe = match (cpu, &plan.threads) {
            (Some(cpu), None) => Some(i32::try_from(cpu).unwrap_or(-1)),
            _ => None,
        };
        let again = probe.map(|cpu| {
            let hotplug = Hotplug::open(system, plan, cpu);
            hotplug.map_err(|e| limits.explain_open(&e, TRACKING, "a CPU"))
        });
        let all = events.iter().chain(&members).chain(&others);
        let known = all.chain(&tracking).map(Opened::known).collect();
        let events: Arc<[Opened]> = events.into();
        Ok(Rings {
            idx,
            number,
            event: (plan.owners().count() > 1).then(|| plan.name(number).to_owned()),
            cpu,
            thread,
            data: Reader::new(plan.data)?,
            // Where there is no area, its head stays 0.
            aux: Reader::new(area.max(1))?,
            aux_map,
            base,
            before: vec![Count::default(); events.len()],
            switched: Switched(Arc::new(Mutex::new(State {
                on: false,
                events: events.clone(),
                others: others.into_iter().map(|opened| (opened, false)).collect(),
            }))),
            first: events,
            members,
            tracking,
            beside,
            known,
            hits: 0,
            renamed: Vec::new(),
            again: again.transpose()?,
        })
    }
}
