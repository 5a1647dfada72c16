// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every sequence of inputs up to a length, with an NMI between any two accesses of the guard.
//!
//! The explorer runs the guard and the state machine as the framework does, against a model of perf
//! that only counts open transactions. At each access of the guard's memory and at each call into
//! perf it may simulate an NMI, which stops the event or raises the unit's interrupt.
//!
//! A run is the list of its choices. The next run differs in the last choice that has another
//! alternative. So each possible run is made once.

use super::{Action, Begun, Lifecycle, Phase};
use crate::guard::{Guard, Memory, Pending};
use std::cell::{Cell, RefCell};

/// The choices of a run, and how many alternatives each had.
#[derive(Default)]
struct Script {
    choices: RefCell<Vec<(u32, u32)>>,
    at: Cell<usize>,
}

impl Script {
    /// Chooses one of `alternatives`: the scripted one, or the first behind the end of the script.
    fn choose(&self, alternatives: u32) -> u32 {
        let mut choices = self.choices.borrow_mut();
        let at = self.at.get();

        self.at.set(at + 1);
        if at == choices.len() {
            choices.push((0, alternatives));
        }
        choices[at].0
    }

    /// Prepares the next run. Returns false after the last one.
    fn advance(&self) -> bool {
        let mut choices = self.choices.borrow_mut();

        self.at.set(0);
        while let Some((choice, alternatives)) = choices.pop() {
            if choice + 1 < alternatives {
                choices.push((choice + 1, alternatives));
                return true;
            }
        }
        false
    }
}

/// The model of perf and of the hardware of one CPU.
struct World {
    script: Script,
    /// The memory of the guard.
    held: Cell<bool>,
    requests: Cell<u32>,
    lifecycle: RefCell<Lifecycle>,
    /// The number of open transactions, and of active countings.
    open: Cell<u32>,
    counting: Cell<u32>,
    /// Whether perf has queued the disable of the event.
    disabling: Cell<bool>,
    /// Whether perf's last request was a start.
    wanted: Cell<bool>,
    owned: Cell<bool>,
    online: Cell<bool>,
    /// NMIs that may still come, and whether one runs.
    nmis: Cell<u32>,
    in_nmi: Cell<bool>,
    /// Whether an NMI has left a stop to the holder of the guard.
    stop_left: Cell<bool>,
    /// Whether the unit has raised an interrupt that the driver has not handled. Interrupts merge.
    interrupt_due: Cell<bool>,
    /// The defect to inject into the code under test.
    broken: Broken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    No,
    /// A stop from NMI is dropped.
    LosesStop,
    /// A start ignores that a disable is pending.
    IgnoresDisable,
    /// The holder does not check for requests after the release.
    LooksTooEarly,
}

struct Modelled<'a>(&'a World);

impl Memory for Modelled<'_> {
    fn take(&self) -> bool {
        // As in the kernel: an NMI between the load and the store releases the guard before it
        // returns.
        self.0.maybe_nmi();
        let free = !self.0.held.get();

        self.0.maybe_nmi();
        if free {
            self.0.held.set(true);
        }
        free
    }

    fn release(&self) {
        self.0.maybe_nmi();
        self.0.held.set(false);
    }

    fn is_held(&self) -> bool {
        self.0.maybe_nmi();
        self.0.held.get()
    }

    fn add(&self, bits: u32) {
        self.0.maybe_nmi();
        self.0.requests.set(self.0.requests.get() | bits);
    }

    fn has_any(&self) -> bool {
        self.0.maybe_nmi();
        self.0.requests.get() != 0 && self.0.broken != Broken::LooksTooEarly
    }

    fn take_all(&self) -> u32 {
        self.0.maybe_nmi();
        self.0.requests.replace(0)
    }
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Add,
    Del,
    Start,
    Stop,
    Online,
    Offline,
    Flush,
    Interrupt,
    Disable,
}

const INPUTS: [Input; 9] = [
    Input::Add,
    Input::Del,
    Input::Start,
    Input::Stop,
    Input::Online,
    Input::Offline,
    Input::Flush,
    Input::Interrupt,
    Input::Disable,
];

impl World {
    fn new(nmis: u32, broken: Broken) -> Self {
        Self {
            script: Script::default(),
            held: Cell::new(false),
            requests: Cell::new(0),
            lifecycle: RefCell::new(Lifecycle::new()),
            open: Cell::new(0),
            counting: Cell::new(0),
            disabling: Cell::new(false),
            wanted: Cell::new(false),
            owned: Cell::new(false),
            online: Cell::new(false),
            nmis: Cell::new(nmis),
            in_nmi: Cell::new(false),
            stop_left: Cell::new(false),
            interrupt_due: Cell::new(false),
            broken,
        }
    }

    /// Resets all but the script to the state of a new CPU.
    fn reset(&self, nmis: u32) {
        self.held.set(false);
        self.requests.set(0);
        *self.lifecycle.borrow_mut() = Lifecycle::new();
        for cell in [&self.open, &self.counting] {
            cell.set(0);
        }
        for cell in [
            &self.disabling,
            &self.wanted,
            &self.owned,
            &self.online,
            &self.stop_left,
            &self.interrupt_due,
        ] {
            cell.set(false);
        }
        self.nmis.set(nmis);
    }

    fn guard(&self) -> Guard<Modelled<'_>> {
        Guard::new(Modelled(self))
    }

    fn maybe_nmi(&self) {
        if self.in_nmi.get() || self.nmis.get() == 0 || !self.owned.get() {
            return;
        }
        let choice = self.script.choose(3);
        if choice == 0 {
            return;
        }
        self.nmis.set(self.nmis.get() - 1);
        self.in_nmi.set(true);
        if choice == 1 {
            self.wanted.set(false);
            self.stop();
        } else {
            self.interrupt_due.set(true);
            self.interrupt();
        }
        self.in_nmi.set(false);
    }

    /// Runs a callback as the framework does: with the guard held, then the pending requests.
    fn enter<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        self.guard().run(f, |pending| {
            if pending.contains(Pending::INTERRUPT) {
                self.raise();
            }
            if pending.contains(Pending::STOP) && self.broken != Broken::LosesStop {
                let action = self.lifecycle.borrow_mut().stop();
                self.perform(action);
            }
            self.stop_left.set(false);
        })
    }

    fn stop(&self) {
        let done = self.enter(|| {
            let action = self.lifecycle.borrow_mut().stop();
            self.perform(action);
        });
        if done.is_none() {
            assert!(self.guard().request(Pending::STOP));
            self.stop_left.set(true);
        } else {
            assert_eq!(
                self.open.get() + self.counting.get(),
                0,
                "open after stop()"
            );
        }
    }

    fn interrupt(&self) {
        if self.enter(|| self.raise()).is_none() {
            assert!(self.guard().request(Pending::INTERRUPT));
        }
    }

    /// The driver's interrupt handler. If a transaction is open, it may commit.
    fn raise(&self) {
        self.interrupt_due.set(false);
        if self.lifecycle.borrow().phase() == Phase::Tracing && self.script.choose(2) == 1 {
            self.flush();
        }
    }

    fn flush(&self) {
        let action = self.lifecycle.borrow_mut().flush();
        if action == Action::End {
            self.perform(action);
            let action = self.lifecycle.borrow().resume();
            self.perform(action);
        }
    }

    fn perform(&self, action: Action) {
        match action {
            Action::None => {}
            Action::Begin => {
                let begun = self.begin();
                self.lifecycle.borrow_mut().began(begun);
            }
            Action::End => {
                let truncated = self.end();
                self.lifecycle.borrow_mut().ended(truncated);
            }
        }
    }

    /// perf opens a transaction, starts to count, or fails.
    fn begin(&self) -> Begun {
        assert_eq!(self.open.get() + self.counting.get(), 0, "nested begin");
        assert!(
            self.owned.get() && self.online.get(),
            "begun without an event or a CPU"
        );
        assert!(!self.disabling.get(), "begun while the disable is pending");
        self.maybe_nmi();
        match self.script.choose(4) {
            0 => {
                self.open.set(1);
                Begun::Traced
            }
            1 => {
                self.counting.set(1);
                Begun::Counted
            }
            2 => {
                self.disabling.set(true);
                Begun::NoSpace
            }
            _ => Begun::Failed,
        }
    }

    fn end(&self) -> bool {
        assert_eq!(self.open.get() + self.counting.get(), 1, "ended twice");
        self.maybe_nmi();
        let truncated = self.open.get() == 1 && self.script.choose(2) == 1;
        self.open.set(0);
        self.counting.set(0);
        if truncated {
            self.disabling.set(true);
        }
        truncated
    }

    fn feed(&self, input: Input) {
        match input {
            Input::Add if !self.owned.get() => {
                self.owned.set(true);
                self.enter(|| {
                    // A stop from an NMI before this point precedes the add, so it has no effect.
                    self.wanted.set(true);
                    let action = self.lifecycle.borrow_mut().add(true);
                    self.perform(action.expect("it is not owned"));
                });
            }
            Input::Add => assert_eq!(self.lifecycle.borrow_mut().add(true), None),
            Input::Del if self.owned.get() => self.delete(),
            Input::Start if self.owned.get() => {
                self.enter(|| {
                    self.wanted.set(true);
                    let action = if self.broken == Broken::IgnoresDisable {
                        Action::Begin
                    } else {
                        self.lifecycle.borrow_mut().start()
                    };
                    self.perform(action);
                    if action == Action::End {
                        let action = self.lifecycle.borrow().resume();
                        self.perform(action);
                    }
                });
            }
            Input::Stop if self.owned.get() => {
                self.wanted.set(false);
                self.stop();
            }
            Input::Online => {
                self.online.set(true);
                self.enter(|| {
                    let action = self.lifecycle.borrow_mut().online();
                    self.perform(action);
                });
            }
            Input::Offline => {
                self.enter(|| {
                    let action = self.lifecycle.borrow_mut().offline();
                    self.perform(action);
                });
                self.online.set(false);
                assert_eq!(
                    self.open.get() + self.counting.get(),
                    0,
                    "open while offline"
                );
            }
            Input::Flush => {
                self.enter(|| self.flush());
            }
            Input::Interrupt => {
                self.interrupt_due.set(true);
                self.interrupt();
            }
            // perf's irq_work deletes the event.
            Input::Disable if self.disabling.get() && self.owned.get() => self.delete(),
            _ => {}
        }
        self.settled();
    }

    fn delete(&self) {
        self.enter(|| {
            let action = self.lifecycle.borrow_mut().del();
            self.perform(action);
            self.lifecycle.borrow_mut().disown();
            self.owned.set(false);
        });
        self.disabling.set(false);
        self.wanted.set(false);
        assert_eq!(self.open.get() + self.counting.get(), 0, "open after del()");
    }

    /// Checks what must hold whenever no callback runs on the CPU.
    fn settled(&self) {
        assert!(!self.held.get(), "the guard is held for ever");
        assert_eq!(self.requests.get(), 0, "a request is left over");
        assert!(!self.interrupt_due.get(), "an interrupt is lost");
        if !self.wanted.get() {
            assert_eq!(
                self.open.get() + self.counting.get(),
                0,
                "open though perf stopped it"
            );
        }
        let lifecycle = *self.lifecycle.borrow();
        assert_eq!(lifecycle.phase() == Phase::Tracing, self.open.get() == 1);
        assert_eq!(
            lifecycle.phase() == Phase::Counting,
            self.counting.get() == 1
        );
        assert_eq!(lifecycle.is_owned(), self.owned.get());
        assert_eq!(lifecycle.is_online(), self.online.get());
    }
}

/// Makes all runs of `length` inputs. Returns the number of runs.
fn explore(length: usize, nmis: u32, broken: Broken) -> u64 {
    let world = World::new(nmis, broken);
    let mut runs = 0;

    loop {
        world.reset(nmis);
        // Each run begins with a CPU that is online and has an event.
        world.feed(Input::Online);
        world.feed(Input::Add);
        for _ in 0..length {
            let choice = world.script.choose(INPUTS.len().try_into().unwrap());
            world.feed(INPUTS[usize::try_from(choice).unwrap()]);
        }
        runs += 1;
        if !world.script.advance() {
            return runs;
        }
    }
}

#[test]
fn no_sequence_breaks_the_contract() {
    // Long runs without an NMI, and short runs with one or two NMIs at any point.
    for (length, nmis, least) in [(4, 0, 10_000), (2, 1, 10_000), (1, 2, 1_000)] {
        let runs = explore(length, nmis, Broken::No);

        assert!(runs >= least, "{length} inputs, {nmis} NMIs: {runs} runs");
    }
}

#[test]
#[should_panic(expected = "open though perf stopped it")]
fn a_stop_that_is_lost_is_noticed() {
    explore(1, 1, Broken::LosesStop);
}

#[test]
#[should_panic(expected = "a request is left over")]
fn a_request_that_is_not_looked_at_is_noticed() {
    explore(1, 1, Broken::LooksTooEarly);
}

#[test]
#[should_panic]
fn a_begin_while_disabling_is_noticed() {
    explore(2, 0, Broken::IgnoresDisable);
}

/// When an offline is rolled back, the event begins again, unless perf has stopped it meanwhile.
#[test]
fn offline_is_rolled_back() {
    for (stopped, expected) in [(false, Action::Begin), (true, Action::None)] {
        let mut cpu = Lifecycle::new();

        assert_eq!(cpu.online(), Action::None);
        assert_eq!(cpu.add(true), Some(Action::Begin));
        cpu.began(Begun::Traced);
        assert_eq!(cpu.offline(), Action::End);
        cpu.ended(false);
        assert_eq!(cpu.start(), Action::None);
        if stopped {
            assert_eq!(cpu.stop(), Action::None);
        }
        assert_eq!(cpu.online(), expected);
    }
}
