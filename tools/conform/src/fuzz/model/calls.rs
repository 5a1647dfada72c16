// SPDX-License-Identifier: GPL-2.0 OR MIT

//! System calls: events, mappings, ioctls.

use rustix::io::Errno;

use super::{Area, Buffer, Context, Event, Model, Outcome, State};
use crate::fuzz::op::{At, MapAux, OnExec, Open, Whom};

impl Model {
    pub(super) fn open(&mut self, open: &Open) -> Outcome {
        if self.event(open.slot).is_some() {
            return Outcome::Nothing;
        }
        let unit = open.unit.and_then(|unit| self.units.get(unit));
        let is_of_cpu = matches!(open.whom, Whom::Cpu(_) | Whom::NoCpu);
        // The driver chooses the number of this error, so it is not predicted.
        if unit.is_some_and(|unit| !(if is_of_cpu { unit.cpus } else { unit.tasks })) {
            return Outcome::Nothing;
        }
        let exclusive = unit.is_some_and(|unit| unit.exclusive);
        // A PMU that traces CPUs only may use `perf_invalid_context` or, as hisi_ptt, `perf_sw_context`: sysfs does not show it.
        let hardware = open.unit.filter(|_| unit.is_some_and(|unit| !unit.tasks));
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
            // A slot without an event cannot be named as the leader.
            Some(None) => return Outcome::Nothing,
            Some(Some(leader)) if leader.inherited => return Outcome::Nothing,
            Some(Some(leader)) => Some(leader),
        };
        if leader.is_some_and(|leader| leader.state == State::Exit) {
            return Outcome::fails(Errno::NODEV);
        }
        let (context, cpu) = match open.whom {
            // The driver sets `event->cpu` before perf looks for a context.
            Whom::Cpu(cpu) => {
                let cpu = unit.and_then(|unit| unit.home).unwrap_or(cpu);
                (Context::Cpu(cpu), Some(cpu))
            }
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
        // exclusive_event_init() comes before all checks of the context.
        if others().any(|event| matches!(event.context, Context::Cpu(_)) != is_of_cpu) {
            return Outcome::fails(Errno::BUSY);
        }
        let offline = is_of_cpu && cpu.is_some_and(|cpu| !self.is_online(cpu));
        if offline {
            // A driver that checks this itself chooses the error.
            return Outcome::Fails(vec![Errno::NODEV, Errno::INVAL]);
        }
        if let Some(leader) = leader {
            let same = leader.cpu == cpu && leader.context == context;
            if leader.leader.is_some() || !same {
                return Outcome::fails(Errno::INVAL);
            }
            // perf_event_open() refuses a group with events of two PMUs outside of the software context.
            let others = leader.hardware.filter(|_| hardware.is_some());
            if others.is_some() && self.pmu(others) != self.pmu(hardware) {
                return Outcome::Nothing;
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
            hardware,
            buffer: None,
            bases: 0,
            areas: 0,
            open: true,
        };
        if let Some(slot) = self.events.get_mut(open.slot) {
            *slot = Some(event);
        }
        // `move_group`
        if let Some(leader) = open.leader.and_then(|leader| self.event_mut(leader)) {
            leader.hardware = leader.hardware.or(hardware);
        }
        Outcome::Done
    }

    pub(super) fn close(&mut self, slot: usize) -> Outcome {
        let Some(event) = self.event_mut(slot).filter(|event| event.open) else {
            return Outcome::Nothing;
        };
        event.open = false;
        if event.mappings() == 0 {
            self.free(slot);
        }
        Outcome::Done
    }

    /// Releases the event. The other events of its group have no leader then.
    fn free(&mut self, slot: usize) {
        self.leaves_group(slot);
        if let Some(event) = self.events.get_mut(slot) {
            *event = None;
        }
    }

    /// `perf_group_detach()`.
    pub(super) fn leaves_group(&mut self, slot: usize) {
        for (at, event) in self.events.iter_mut().enumerate() {
            let Some(event) = event else { continue };
            if at == slot || event.leader == Some(slot) {
                event.leader = None;
            }
        }
    }

    pub(super) fn map(&mut self, slot: usize, pages: usize) -> Outcome {
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

    pub(super) fn map_aux(&mut self, aux: &MapAux) -> Outcome {
        let Some(event) = self.opened(aux.slot) else {
            return Outcome::Nothing;
        };
        let Some(number) = event.buffer else {
            return Outcome::fails(Errno::INVAL);
        };
        // perf_mmap_aux() counts the mappings of such an event from 0, and warns: see Documentation/upstream.
        if event.mappings() == 0 {
            return Outcome::Nothing;
        }
        let Some(buffer) = self.buffers.get(number) else {
            return Outcome::Nothing;
        };
        // `aux_offset` and `aux_size` are in the control page, which is not mapped any more.
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
                false => Some(unit.normal),
            };
            if least.is_none_or(|least| aux.pages < least) {
                return Outcome::fails(Errno::NOMEM);
            }
        }
        let unit = event.unit;
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
                unit,
            });
        }
        Outcome::Done
    }

    pub(super) fn unmap(&mut self, slot: usize, aux: bool) -> Outcome {
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
                // perf_mmap_close() detaches the ring from all events that were redirected into it.
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

    pub(super) fn turn(&mut self, slot: usize, state: State) -> Outcome {
        let Some(event) = self.event_mut(slot).filter(|event| event.open) else {
            return Outcome::Nothing;
        };
        if event.state != State::Exit {
            event.state = state;
        }
        Outcome::Done
    }

    pub(super) fn pause(&mut self, buffer: Option<usize>) -> Outcome {
        match buffer.and_then(|buffer| self.buffers.get_mut(buffer)) {
            Some(buffer) if buffer.data > 0 => {
                buffer.silent = true;
                Outcome::Done
            }
            _ => Outcome::fails(Errno::INVAL),
        }
    }

    pub(super) fn redirect(&mut self, slot: usize, to: usize) -> Outcome {
        let (Some(event), Some(other)) = (self.opened(slot), self.opened(to)) else {
            return Outcome::Nothing;
        };
        let same_task = other.cpu.is_some() || other.context == event.context;
        let software = event.unit.is_none() || other.unit.is_none();
        let units = software || self.pmu(event.unit) == self.pmu(other.unit);
        let free = event.mappings() == 0;
        match other.buffer {
            Some(buffer) if slot != to && event.cpu == other.cpu && same_task && units && free => {
                // perf permits that by way of an event without AUX: see Documentation/upstream.
                if !self.foreign && self.has_other_units(buffer, event.unit) {
                    return Outcome::Nothing;
                }
                if let Some(event) = self.event_mut(slot) {
                    event.buffer = Some(buffer);
                }
                Outcome::Done
            }
            _ => Outcome::fails(Errno::INVAL),
        }
    }

    /// Whether another PMU than this unit's has an event that writes to a ring, or has set up the ring's AUX area.
    fn has_other_units(&self, buffer: usize, unit: Option<usize>) -> bool {
        let events = self.events.iter().flatten();
        let mut others = events
            .filter(|event| event.buffer == Some(buffer))
            .map(|event| event.unit)
            .chain(self.area(buffer).map(|area| area.unit));
        unit.is_some() && others.any(|other| other.is_some() && self.pmu(other) != self.pmu(unit))
    }
}
