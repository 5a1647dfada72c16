// SPDX-License-Identifier: GPL-2.0

//! A CPU's transaction: begun, run, quiesced, committed. The only place that calls
//! `perf_aux_output_begin()` and `perf_aux_output_end()`.

use super::{
    buffer::{
        Buffer,
        Mode, //
    },
    gate::Gate,
    window::Window,
    Loss,
    Next,
    Session,
    Written, //
};
use crate::{
    bindings,
    context,
    event::Event,
    pmu::{
        Capabilities,
        Pmu,
        Registration, //
    }, //
};
use auxcore::ring::Pos;
use core::{
    cell::UnsafeCell,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    container_of,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Delta,
    types::Opaque, //
};

/// Why no session was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    /// The event has no AUX ring, or it is being unmapped, or another event is writing to it.
    NotMapped,
    /// The ring is full. perf has disabled the event; user space enables it again.
    NoSpace,
    /// The ring belongs to another PMU.
    Foreign,
    /// The driver's `start()` refused.
    Refused(Error),
    /// Another event has this CPU's unit.
    Busy,
}

/// A transaction of the driver's.
struct Open<T: Pmu> {
    buffer: NonNull<Buffer<T>>,
    window: Window,
    run: T::Run,
    timer: Option<Delta>,
}

/// What the gate guards.
struct Inside<T: Pmu> {
    /// The event that `add()` put here; null between `del()` and `add()`.
    owner: *mut bindings::perf_event,
    handle: bindings::perf_output_handle,
    open: Option<Open<T>>,
}

/// The trace unit of one CPU.
///
/// # Invariants
///
/// - `inside` is only touched within `gate`, on CPU `cpu` with interrupts off.
/// - While `inside.open` is [`Some`], `inside.handle` holds an open transaction of the event
///   `inside.owner`, on a ring whose `aux_priv` is `inside.open.buffer`.
/// - `timer` is set up, with [`Self::expired`] as its function.
#[pin_data]
pub(crate) struct Slot<T: Pmu> {
    cpu: u32,
    gate: Gate,
    inside: UnsafeCell<Inside<T>>,
    #[pin]
    timer: Opaque<bindings::hrtimer>,
}

// SAFETY: `T::Run` and what the pointers in `Inside` lead to may be used on another CPU than the
// one that made them: `T::Run: Send`; the others are perf's own.
unsafe impl<T: Pmu> Send for Slot<T> {}
// SAFETY: By the type invariants only one context at a time touches `inside`.
unsafe impl<T: Pmu> Sync for Slot<T> {}

impl<T: Pmu> Slot<T> {
    pub(crate) fn new(cpu: u32) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            cpu,
            gate: Gate::new(),
            inside: UnsafeCell::new(Inside {
                owner: ptr::null_mut(),
                // SAFETY: Pointers and integers, for which 0 is a value.
                handle: unsafe { core::mem::zeroed() },
                open: None,
            }),
            // INVARIANT: Set up here. Hard, so that it expires in hard interrupt context on
            // PREEMPT_RT too and may be started with the run queue locked; pinned, so that it
            // expires on the CPU that it was started on.
            timer <- Opaque::ffi_init(|timer| {
                // SAFETY: `timer` is valid for writes, and pinned.
                unsafe {
                    bindings::hrtimer_setup(
                        timer,
                        Some(Self::expired),
                        MONOTONIC,
                        bindings::hrtimer_mode_HRTIMER_MODE_REL_PINNED_HARD,
                    )
                }
            }),
        })
    }

    /// Runs `f` within the gate; [`None`] if this is an NMI that broke into a callback inside, or
    /// not this slot's CPU.
    fn enter<R>(
        self: Pin<&Self>,
        cpu: &context::Cpu,
        f: impl FnOnce(&mut Inside<T>) -> R,
    ) -> Option<R> {
        if cpu.id() != self.cpu {
            return None;
        }

        let inside = self.inside.get();
        self.gate.enter(
            // SAFETY: Within the gate, on the slot's CPU, with interrupts off: nobody else has a
            // reference, by the type invariant.
            || f(unsafe { &mut *inside }),
            || {
                // SAFETY: As above; the reference that `f` had is gone.
                let inside = unsafe { &mut *inside };
                inside.finish(cpu);
                inside.set_state(STOPPED);
            },
        )
    }

    /// Gives the unit to `event`, and starts it if `start` is set.
    ///
    /// # Safety
    ///
    /// `event` must be an event of `registration`, in its `add()`.
    pub(crate) unsafe fn add(
        self: Pin<&Self>,
        registration: &Registration<T>,
        event: NonNull<bindings::perf_event>,
        start: bool,
        cpu: &context::Cpu,
    ) -> Result<(), Start> {
        let added = self.enter(cpu, |inside| {
            if !inside.owner.is_null() {
                return Err(Start::Busy);
            }

            inside.owner = event.as_ptr();
            inside.set_state(STOPPED);
            if !start {
                return Ok(None);
            }

            match inside.begin(registration, cpu) {
                // perf has disabled the event already. It stays here, stopped, until that has
                // taken effect: if `add()` failed, the disable would hit at the next sched-out
                // instead, after the reader may have enabled the event again.
                Err(Start::NoSpace) => Ok(None),
                Err(error) => {
                    inside.owner = ptr::null_mut();
                    Err(error)
                }
                timer => timer,
            }
        });

        if let Some(interval) = added.unwrap_or(Err(Start::Busy))? {
            self.start_timer(interval, cpu);
        }
        Ok(())
    }

    /// Takes the unit from `event`, stopped.
    pub(crate) fn del(self: Pin<&Self>, event: NonNull<bindings::perf_event>, cpu: &context::Cpu) {
        self.stop(event, cpu);
        // `del()` runs with the context's lock held, never in NMI: the gate is free.
        self.enter(cpu, |inside| {
            if inside.owner == event.as_ptr() {
                inside.owner = ptr::null_mut();
            }
        });
    }

    /// Starts the unit for `event`, if it has it and is stopped.
    pub(crate) fn start(
        self: Pin<&Self>,
        registration: &Registration<T>,
        event: NonNull<bindings::perf_event>,
        cpu: &context::Cpu,
    ) {
        let timer = self.enter(cpu, |inside| {
            if inside.owner != event.as_ptr() || inside.open.is_some() {
                return None;
            }

            // A failure shows as the state that the event keeps: stopped.
            inside.begin(registration, cpu).ok().flatten()
        });

        if let Some(interval) = timer.flatten() {
            self.start_timer(interval, cpu);
        }
    }

    /// Ends `event`'s session, if there is one. After this no transaction of it is open, or, if
    /// this is an NMI that broke into a callback, none will be when that callback returns.
    pub(crate) fn stop(self: Pin<&Self>, event: NonNull<bindings::perf_event>, cpu: &context::Cpu) {
        let stopped = self.enter(cpu, |inside| {
            if inside.owner == event.as_ptr() {
                inside.finish(cpu);
                inside.set_state(STOPPED);
            }
        });

        if stopped.is_none() {
            self.gate.ask_to_stop();
        }

        // hrtimers take locks. What an NMI leaves armed finds no session and does not rearm.
        if !cpu.is_nmi() {
            // SAFETY: Set up, by the type invariant. Never waits; the callback cannot be running,
            // but on another CPU after this one went offline, and then it does nothing.
            unsafe { bindings::hrtimer_try_to_cancel(self.timer.get()) };
        }
    }

    fn start_timer(self: Pin<&Self>, interval: Delta, cpu: &context::Cpu) {
        // perf starts no event in NMI; were it to, this one would stay without its clock.
        if cpu.is_nmi() {
            return;
        }

        // SAFETY: Set up, by the type invariant, and pinned until `cancel_timer()`.
        unsafe {
            bindings::hrtimer_start_range_ns(
                self.timer.get(),
                interval.as_nanos(),
                0,
                bindings::hrtimer_mode_HRTIMER_MODE_REL_PINNED_HARD,
            )
        };
    }

    /// Waits until the timer's function has ended, for good.
    ///
    /// To be called when no event is left that could start it, from a task.
    pub(crate) fn cancel_timer(self: Pin<&Self>) {
        // SAFETY: Set up, by the type invariant.
        unsafe { bindings::hrtimer_cancel(self.timer.get()) };
    }

    /// The timer's function.
    ///
    /// # Safety
    ///
    /// `timer` must be the timer of a `Slot<T>`.
    unsafe extern "C" fn expired(timer: *mut bindings::hrtimer) -> bindings::hrtimer_restart {
        // SAFETY: By the safety requirement.
        let slot = unsafe { container_of!(Opaque::cast_from(timer), Self, timer) };
        // SAFETY: As above; the slot is pinned, and is not freed before `cancel_timer()`.
        let slot = unsafe { Pin::new_unchecked(&*slot) };
        // SAFETY: hrtimers in hard mode expire with interrupts off.
        let cpu = unsafe { context::Cpu::current() };

        let again = slot.enter(&cpu, |inside| inside.tick(&cpu)).flatten();

        match again {
            Some(interval) => {
                // SAFETY: This is the callback of this timer, which is not queued meanwhile.
                unsafe { bindings::rust_perf_hrtimer_forward_now(timer, interval.as_nanos()) };
                bindings::hrtimer_restart::HRTIMER_RESTART
            }
            None => bindings::hrtimer_restart::HRTIMER_NORESTART,
        }
    }
}

/// `CLOCK_MONOTONIC`, as `hrtimer_setup()` takes it.
// CAST: The constant is 1.
const MONOTONIC: bindings::clockid_t = bindings::CLOCK_MONOTONIC as bindings::clockid_t;

/// What `event->hw.state` says of an event that is not running.
// CAST: The bits are 1 and 2.
const STOPPED: c_int = (bindings::PERF_HES_STOPPED | bindings::PERF_HES_UPTODATE) as c_int;

impl<T: Pmu> Inside<T> {
    /// Sets `event->hw.state` of the owner.
    fn set_state(&mut self, state: c_int) {
        if let Some(owner) = NonNull::new(self.owner) {
            // SAFETY: The owner is live between `add()` and `del()`, and its `hw.state` belongs to
            // the PMU.
            unsafe { (*owner.as_ptr()).hw.state = state };
        }
    }

    /// Opens a transaction and starts the unit. The interval of the timer that the driver wants.
    fn begin(
        &mut self,
        registration: &Registration<T>,
        cpu: &context::Cpu,
    ) -> Result<Option<Delta>, Start> {
        let owner = NonNull::new(self.owner).ok_or(Start::Busy)?;

        // Written by perf only when it has got as far as to look for space.
        self.handle.rb = ptr::null_mut();
        // SAFETY: `handle` is not in use: `open` is `None`. The event is this CPU's.
        let private = unsafe { bindings::perf_aux_output_begin(&mut self.handle, owner.as_ptr()) };

        let Some(private) = NonNull::new(private) else {
            return Err(if self.handle.rb.is_null() {
                Start::NotMapped
            } else {
                Start::NoSpace
            });
        };

        if !registration.live().contains(private) {
            self.end(0, Mode::Linear, Loss::None);
            return Err(Start::Foreign);
        }

        let mut buffer = private.cast::<Buffer<T>>();
        // SAFETY: In the live set, so one of ours; the transaction keeps it, and keeps anybody
        // else from opening one on the same ring.
        let ours = unsafe { buffer.as_mut() };

        // SAFETY: Only used in the window, which goes when the transaction is ended.
        let pages = unsafe { ours.pages.view() };
        // SAFETY: The pages of the ring of this transaction.
        let mut window = unsafe {
            Window::new(
                pages,
                head(&self.handle),
                position(self.handle.size).get(),
                position(self.handle.wakeup),
            )
        };

        let mut timer = None;
        // SAFETY: The owner is an event of this PMU, and live.
        let event = unsafe { Event::from_raw(owner) };
        let started = registration.driver().start(&mut Session {
            event: &event,
            buffer: &mut ours.data,
            window: &mut window,
            cpu,
            timer: &mut timer,
        });

        match started {
            Ok(run) => {
                // INVARIANT: The transaction is open, and `buffer` is the ring's `aux_priv`.
                self.open = Some(Open {
                    buffer,
                    window,
                    run,
                    timer,
                });
                self.set_state(0);
                // SAFETY: The owner is live.
                unsafe { itrace_started::<T>(owner) };
                Ok(timer)
            }
            Err(error) => {
                self.end(0, window.mode(), Loss::None);
                Err(Start::Refused(error))
            }
        }
    }

    /// Quiesces the unit and commits what it wrote; true if perf will now disable the event.
    /// Nothing to do if there is no session.
    fn finish(&mut self, cpu: &context::Cpu) -> bool {
        let (Some(mut open), Some(owner)) = (self.open.take(), NonNull::new(self.owner)) else {
            return false;
        };

        // SAFETY: The owner is an event of this PMU, and live.
        let event = unsafe { Event::<T>::from_raw(owner) };
        // SAFETY: The owner is live, and holds its PMU.
        let registration = unsafe { Registration::<T>::of(owner) };
        // SAFETY: Live until the transaction is ended, below, and nobody else's meanwhile.
        let buffer = unsafe { open.buffer.as_mut() };

        let Written { len, loss, .. } = registration.driver().quiesce(
            &mut Session {
                event: &event,
                buffer: &mut buffer.data,
                window: &mut open.window,
                cpu,
                timer: &mut open.timer,
            },
            open.run,
        );

        // perf does not check the length. A driver that claims more than it was given has
        // written where it must not; the reader learns of no byte that is not there.
        let (len, loss) = match open.window.space() {
            Some(space) if len > space => (space, Loss::Gap { bytes: None }),
            _ => (len, loss),
        };

        self.end(len, open.window.mode(), loss)
    }

    /// Ends the transaction; true if perf will now disable the event.
    fn end(&mut self, len: u64, mode: Mode, loss: Loss) -> bool {
        let (flags, disables) = match (loss, mode) {
            (Loss::None, _) => (0, false),
            (Loss::NoSpace { .. }, Mode::Linear) => (bindings::PERF_AUX_FLAG_TRUNCATED, true),
            (Loss::Gap { .. } | Loss::NoSpace { .. }, _) => {
                (bindings::PERF_AUX_FLAG_PARTIAL, false)
            }
            (Loss::Collision { .. }, _) => (bindings::PERF_AUX_FLAG_COLLISION, false),
        };

        if flags != 0 {
            // SAFETY: A transaction is open on the handle.
            unsafe { bindings::perf_aux_output_flag(&mut self.handle, u64::from(flags)) };
        }
        if mode == Mode::Overwrite {
            // Monotonic, so that a reader knows by arithmetic how often the ring went round.
            self.handle.__bindgen_anon_2.head = bytes(head(&self.handle).advance(len).get());
        }

        // SAFETY: A transaction is open on the handle, begun on this CPU; `len` is within its
        // space. What was written is visible: that is what `Written` proves (B).
        unsafe { bindings::perf_aux_output_end(&mut self.handle, bytes(len)) };

        disables
    }

    /// The clock of the unit has ticked; how long until the next tick.
    fn tick(&mut self, cpu: &context::Cpu) -> Option<Delta> {
        let open = self.open.as_mut()?;
        let owner = NonNull::new(self.owner)?;

        // SAFETY: The owner is an event of this PMU, and live.
        let event = unsafe { Event::<T>::from_raw(owner) };
        // SAFETY: The owner is live, and holds its PMU.
        let registration = unsafe { Registration::<T>::of(owner) };
        // SAFETY: Live while the transaction is open, and nobody else's meanwhile.
        let buffer = unsafe { open.buffer.as_mut() };

        let next = registration.driver().tick(
            &mut Session {
                event: &event,
                buffer: &mut buffer.data,
                window: &mut open.window,
                cpu,
                timer: &mut open.timer,
            },
            &mut open.run,
        );

        match next {
            Next::Continue => open.timer,
            Next::Commit => {
                let disabled = self.finish(cpu);
                self.set_state(STOPPED);

                if disabled {
                    // Until perf's irq_work has disabled the event, nothing may be begun.
                    return None;
                }
                self.begin(registration, cpu).ok().flatten()
            }
        }
    }
}

/// Tells perf that the event's trace has started, so that it writes `PERF_RECORD_ITRACE_START` at
/// the first sched-in and not at every one.
///
/// C counterpart: `perf_event_itrace_started()`, which modules cannot call.
///
/// # Safety
///
/// `event` must be a live event on this CPU, with interrupts off.
unsafe fn itrace_started<T: Pmu>(event: NonNull<bindings::perf_event>) {
    if !T::CAPABILITIES.contains(Capabilities::ITRACE) {
        return;
    }

    // SAFETY: Live by the safety requirement.
    let attach_state = unsafe { &raw mut (*event.as_ptr()).attach_state };
    // SAFETY: Aligned and live; perf's own accesses are under the context's lock, on this CPU, or
    // marked.
    let attach_state = unsafe { Atomic::from_ptr(attach_state) };

    attach_state.store(
        attach_state.load(Relaxed) | bindings::PERF_ATTACH_ITRACE,
        Relaxed,
    );
}

/// `handle->head`, of an AUX transaction.
fn head(handle: &bindings::perf_output_handle) -> Pos {
    // SAFETY: Both halves of the union are as wide; for AUX it is `head`.
    position(unsafe { handle.__bindgen_anon_2.head })
}

/// A position or a length as C's `unsigned long` has it.
const fn position(bytes: c_ulong) -> Pos {
    // CAST: Both have 64 bits: the crate refuses to be built for others.
    Pos::new(bytes as u64)
}

/// A length or a position, for C.
const fn bytes(len: u64) -> c_ulong {
    // CAST: As in `position()`.
    len as c_ulong
}
