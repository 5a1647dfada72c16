// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The life of tasks and of CPUs.

use super::{Child, Context, Event, Model, Outcome, State};
use crate::fuzz::op::{OnExec, SLOTS};

impl Model {
    pub(super) fn spawn(&mut self, child: usize) -> Outcome {
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

    /// The events that a new task inherits.
    pub(super) fn inheritable(&mut self) -> impl Iterator<Item = &mut Event> {
        let is_one =
            |event: &&mut Event| event.inherit && event.attached && event.context == Context::Me;
        self.events.iter_mut().flatten().filter(is_one)
    }

    pub(super) fn exec(&mut self, child: usize) -> Outcome {
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

    pub(super) fn ends(&mut self, child: usize) -> Outcome {
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

    pub(super) fn freeze(&mut self, child: usize, freeze: bool) -> Outcome {
        match self.children.get_mut(child) {
            Some(Some(child)) if child.frozen != freeze => {
                child.frozen = freeze;
                Outcome::Done
            }
            _ => Outcome::Nothing,
        }
    }

    pub(super) fn hotplug(&mut self, cpu: usize, online: bool) -> Outcome {
        match self.online.get_mut(cpu) {
            Some(is) if self.hotplug && *is != online => *is = online,
            _ => return Outcome::Nothing,
        }
        if online {
            return Outcome::Done;
        }
        // perf_event_exit_cpu_context(): the events of the CPU leave their context for good.
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
