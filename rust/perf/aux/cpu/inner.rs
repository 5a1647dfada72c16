// SPDX-License-Identifier: GPL-2.0

//! The state that the guard of a CPU protects: the event that owns the unit, and its transaction.
//!
//! [`transaction`] begins and ends a transaction. This file has the operations that call it.

use super::{
    failure::Failure,
    CpuState, //
};
use crate::{
    aux::{
        core::{
            Core,
            Handle, //
        },
        ring::Cache,
        transaction::{
            Next,
            Open,
            Transaction, //
        },
        AuxPmu, //
    },
    bindings,
    context,
    event::Event,
    pmu::Counting, //
};
use auxcore::{
    guard::Pending,
    lifecycle::{
        Action,
        Begun,
        Lifecycle,
        Phase, //
    },
};
use core::{
    marker::PhantomData,
    mem,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    time::Delta, //
};

mod transaction;

/// What is left to do when the guard is released.
#[derive(Clone, Copy, Default)]
pub(super) struct After {
    /// Arm the timer at this interval.
    pub(super) arm: Option<Delta>,
    /// Arm the timer where that is allowed: in `work`.
    pub(super) arm_later: bool,
    /// Call the driver's `deferred()`, in `work`.
    pub(super) defer: bool,
}

impl After {
    /// Merges this with what a later operation has left to do.
    pub(super) fn then(self, later: Self) -> Self {
        Self {
            arm: later.arm.or(self.arm),
            arm_later: self.arm_later | later.arm_later,
            defer: self.defer | later.defer,
        }
    }
}

/// Which locks the caller of [`CpuState`] may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Locks {
    /// Only those that perf's scheduling of events holds: timers may be armed.
    Scheduling,
    /// Any raw lock, or this is an NMI.
    Any,
}

/// The state that the guard protects.
///
/// # Invariants
///
/// - `event` is [`Some`] exactly while `lifecycle` is owned; it is a live event of the PMU.
/// - `open` is [`Some`] exactly while a transaction of `event` is open on `handle`, begun on this
///   CPU.
/// - `trace` is [`Some`] exactly in [`Phase::Tracing`], and `open` is then too.
/// - `counting` is [`Some`] exactly in [`Phase::Counting`].
pub(super) struct Inner<T: AuxPmu, C: Core> {
    pub(super) lifecycle: Lifecycle,
    pub(super) event: Option<NonNull<bindings::perf_event>>,
    pub(super) handle: Handle,
    cache: Cache,
    open: Option<Open<T>>,
    /// The value that the driver's `start()` has returned.
    trace: Option<T::Trace>,
    /// Whether the unit is paused; always false if the driver cannot pause.
    paused: bool,
    counting: Option<T::Count>,
    /// The interval of the timer that the driver has asked for while counting.
    counting_timer: Option<Delta>,
    /// The interval at which the timer is armed.
    pub(super) armed: Option<Delta>,
    /// The driver has asked for `deferred()`.
    deferred: bool,
    _core: PhantomData<C>,
}

/// `event->hw.state` of an event that does not run.
// CAST: The bits are 1 and 2.
pub(super) const STOPPED: c_int =
    (bindings::PERF_HES_STOPPED | bindings::PERF_HES_UPTODATE) as c_int;

impl<T: AuxPmu, C: Core> Inner<T, C> {
    /// No event, no transaction.
    pub(super) fn new() -> Self {
        // INVARIANT: There is no event and no transaction.
        Self {
            lifecycle: Lifecycle::new(),
            event: None,
            handle: Handle::new(),
            cache: Cache::new(),
            open: None,
            trace: None,
            paused: false,
            counting: None,
            counting_timer: None,
            armed: None,
            deferred: false,
            _core: PhantomData,
        }
    }

    #[inline]
    pub(super) fn is_event(&self, event: NonNull<bindings::perf_event>) -> bool {
        self.event == Some(event)
    }

    /// Sets `event->hw.state`.
    #[inline]
    pub(super) fn set_state(&self, state: c_int) {
        if let Some(event) = self.event {
            // SAFETY: The event is live, by the type invariant; `hw.state` belongs to the PMU.
            unsafe { (*event.as_ptr()).hw.state = state };
        }
    }

    pub(super) fn disown(&mut self) {
        self.lifecycle.disown();
        self.event = None;
    }

    /// The interval of the timer that the driver has asked for.
    #[inline]
    pub(super) fn timer(&self) -> Option<Delta> {
        match &self.open {
            Some(open) => open.timer,
            None => self.counting_timer,
        }
    }

    /// Returns what is left to do when the guard is released.
    #[inline]
    pub(super) fn after(&mut self, locks: Locks) -> After {
        let timer = self.timer();
        let mut after = After::default();

        if timer.is_some() && timer != self.armed {
            match locks {
                Locks::Scheduling => {
                    self.armed = timer;
                    after.arm = timer;
                }
                Locks::Any => after.arm_later = true,
            }
        }
        if T::HAS_DEFERRED {
            after.defer = mem::take(&mut self.deferred);
        }
        after
    }

    /// Processes the requests of NMIs that interrupted a callback.
    #[cold]
    pub(super) fn process(&mut self, state: &CpuState<T, C>, pending: Pending, cpu: &context::Cpu) {
        if pending.contains(Pending::PAUSE) {
            self.follow_pause(state, cpu);
        }
        if pending.contains(Pending::INTERRUPT) {
            self.interrupt(state, cpu);
        }
        if pending.contains(Pending::STOP) {
            self.stop(state, cpu);
        }
    }

    pub(super) fn stop(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        let action = self.lifecycle.stop();

        // Ending does not fail.
        let _ = self.perform(state, action, cpu);
    }

    /// Carries out an action of the state machine, and reports the outcome to it.
    #[inline]
    pub(super) fn perform(
        &mut self,
        state: &CpuState<T, C>,
        action: Action,
        cpu: &context::Cpu,
    ) -> Result<(), Failure> {
        match action {
            Action::None => Ok(()),
            Action::Begin => self.begin(state, cpu),
            Action::End => {
                self.end(state, cpu);
                Ok(())
            }
        }
    }

    /// Begins a transaction, or counting where there is no AUX area.
    #[inline]
    fn begin(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) -> Result<(), Failure> {
        let result = match self.try_begin(state, cpu) {
            Ok(()) => {
                self.report_begun(state);
                self.lifecycle.began(Begun::Traced);
                Ok(())
            }
            Err(failure) => self.not_begun(failure, state, cpu),
        };

        if result.is_ok() {
            self.set_state(0);
        }
        result
    }

    /// No transaction was begun: counts where there is no AUX area, if the driver can.
    #[cold]
    fn not_begun(
        &mut self,
        failure: Failure,
        state: &CpuState<T, C>,
        cpu: &context::Cpu,
    ) -> Result<(), Failure> {
        self.report_failure(state, failure);

        let (begun, result) = match failure {
            Failure::NoRing | Failure::NotMapped if T::HAS_COUNT_START => {
                match self.start_counting(state, cpu) {
                    Ok(()) => (Begun::Counted, Ok(())),
                    Err(failure) => (Begun::Failed, Err(failure)),
                }
            }
            Failure::NoSpace => (Begun::NoSpace, Err(failure)),
            _ => (Begun::Failed, Err(failure)),
        };
        self.lifecycle.began(begun);
        result
    }

    /// Ends the transaction, or counting.
    #[inline(never)]
    fn end(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        let truncated = match self.trace.take() {
            Some(trace) => self.commit(state, trace, cpu),
            None => {
                self.stop_counting(state, cpu);
                false
            }
        };

        self.lifecycle.ended(truncated);
        self.set_state(STOPPED);
    }

    /// Runs `f` in counting mode, if the event counts.
    pub(super) fn in_counting<R>(
        &mut self,
        state: &CpuState<T, C>,
        cpu: &context::Cpu,
        f: impl FnOnce(&T, &mut Counting<'_, T>, &mut T::Count) -> R,
    ) -> Option<R> {
        // SAFETY: The event is live, by the type invariant, and its `destroy()` does not run before
        // `del()`.
        let event = unsafe { Event::<T>::from_raw(self.event?) };
        let count = self.counting.as_mut()?;

        Some(f(
            state.driver(),
            &mut Counting::new(&event, cpu, &mut self.counting_timer),
            count,
        ))
    }

    fn start_counting(
        &mut self,
        state: &CpuState<T, C>,
        cpu: &context::Cpu,
    ) -> Result<(), Failure> {
        // SAFETY: The event is live, by the type invariant, and its `destroy()` does not run before
        // `del()`.
        let event = unsafe { Event::<T>::from_raw(self.event.ok_or(Failure::Busy)?) };

        self.counting_timer = None;
        let mut counting = Counting::new(&event, cpu, &mut self.counting_timer);
        match state.driver().count_start(&mut counting) {
            Ok(count) => {
                self.counting = Some(count);
                Ok(())
            }
            Err(error) => {
                // Without a count, `end_counting()` would not stop it.
                self.counting_timer = None;
                Err(Failure::Refused(error))
            }
        }
    }

    #[inline]
    fn stop_counting(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        if T::HAS_COUNT_STOP && self.counting.is_some() {
            self.end_counting(state, cpu);
        }
    }

    fn end_counting(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        if let (Some(count), Some(event)) = (self.counting.take(), self.event) {
            // SAFETY: The event is live, by the type invariant, and its `destroy()` does not run
            // before `del()`.
            let event = unsafe { Event::<T>::from_raw(event) };
            let mut timer = None;

            state
                .driver()
                .count_stop(&mut Counting::new(&event, cpu, &mut timer), count);
        }
        self.counting_timer = None;
    }

    /// A tick while counting: checks for an AUX area, since perf does not report a mapping to the
    /// PMU.
    fn tick_counting(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        match self.try_begin(state, cpu) {
            // Not reported: nothing has changed.
            Err(Failure::NoRing | Failure::NotMapped) => {
                let paused = T::HAS_PAUSE && self.event.is_some_and(is_paused);

                if T::HAS_COUNT_TICK && !paused {
                    self.in_counting(state, cpu, |driver, counting, count| {
                        driver.count_tick(counting, count);
                    });
                }
            }
            Ok(()) => {
                self.report_begun(state);
                self.lifecycle.began(Begun::Traced);
            }
            Err(failure) => {
                self.report_failure(state, failure);
                self.stop_counting(state, cpu);
                self.set_state(STOPPED);
                self.lifecycle.began(match failure {
                    Failure::NoSpace => Begun::NoSpace,
                    _ => Begun::Failed,
                });
            }
        }
    }

    /// The timer has expired.
    pub(super) fn tick(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        match self.lifecycle.phase() {
            Phase::Idle => {}
            Phase::Counting => self.tick_counting(state, cpu),
            Phase::Tracing => {
                if !T::HAS_TICK {
                    return;
                }
                let next = self.in_transaction(state, cpu, |driver, transaction, trace| {
                    driver.tick(transaction, trace)
                });
                self.follow(state, next.unwrap_or(Next::Continue), cpu);
            }
        }
    }

    /// The unit has raised its interrupt.
    pub(super) fn interrupt(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        if !T::HAS_INTERRUPT {
            return;
        }
        let next = self.in_transaction(state, cpu, |driver, transaction, trace| {
            driver.interrupt(transaction, trace)
        });
        self.follow(state, next.unwrap_or(Next::Continue), cpu);
    }

    /// Carries out the [`Next`] that a callback has returned.
    pub(super) fn follow(&mut self, state: &CpuState<T, C>, next: Next, cpu: &context::Cpu) {
        let action = match next {
            Next::Continue => Action::None,
            Next::Flush => self.lifecycle.flush(),
        };

        if action == Action::End {
            // Ending does not fail.
            let _ = self.perform(state, action, cpu);
            let action = self.lifecycle.resume();
            // If this fails, the event stays stopped, as `event->hw.state` shows.
            let _ = self.perform(state, action, cpu);
        }
    }

    /// Pauses or resumes the unit, if its state differs from what perf wants.
    pub(super) fn follow_pause(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        if !T::HAS_PAUSE {
            return;
        }
        let paused = self.event.is_some_and(is_paused);
        if self.trace.is_none() || mem::replace(&mut self.paused, paused) == paused {
            return;
        }

        self.in_transaction(state, cpu, |driver, transaction, trace| {
            if paused {
                driver.pause(transaction, trace);
            } else {
                driver.resume(transaction, trace);
            }
        });
    }

    /// Runs `f` in the open transaction, if there is one.
    #[inline]
    pub(super) fn in_transaction<R>(
        &mut self,
        state: &CpuState<T, C>,
        cpu: &context::Cpu,
        f: impl FnOnce(&T, &mut Transaction<'_, T>, &mut T::Trace) -> R,
    ) -> Option<R> {
        // SAFETY: The event is live, by the type invariant, and its `destroy()` does not run before
        // `del()`.
        let event = unsafe { Event::<T>::from_raw(self.event?) };
        let open = self.open.as_mut()?;
        let trace = self.trace.as_mut()?;
        // SAFETY: `open` is there: a transaction is open on `handle`, begun on this CPU with `C`,
        // by the type invariant. Only `commit()` ends it, which cannot run while `self` is
        // borrowed.
        let mut transaction = unsafe {
            Transaction::new(
                &event,
                cpu,
                open,
                &mut self.handle,
                &mut self.deferred,
                C::skip,
            )
        };

        Some(f(state.driver(), &mut transaction, trace))
    }
}

/// Whether perf wants a live event paused.
#[inline]
fn is_paused(event: NonNull<bindings::perf_event>) -> bool {
    // CAST: An offset in the structure.
    let offset = bindings::rust_perf_offset_RUST_PERF_AUX_PAUSED as usize;
    // SAFETY: The field is there. The event is live by the invariant of `Inner`, from which the
    // caller has it.
    let paused = unsafe { event.byte_add(offset) }.cast::<c_uint>();

    // SAFETY: `paused` is a field of a live event. perf writes it marked; this read is volatile, so
    // it is a `READ_ONCE()`.
    unsafe { paused.read_volatile() != 0 }
}
