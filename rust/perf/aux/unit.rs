// SPDX-License-Identifier: GPL-2.0

//! The trace unit of a CPU, and its transaction: begun, run, quiesced, committed.

#[cfg(any(perf_output_copy_aux, CONFIG_KUNIT = "y"))]
use super::sample::{
    Sample,
    Sampling,
    Taken, //
};
use super::{
    buffer::{
        Buffer,
        Claim,
        Live,
        Mode, //
    },
    gate::{
        Gate,
        Word, //
    },
    loss::Losses,
    output::{
        Handle,
        Output,
        Perf,
        Refusal,
        Transaction, //
    },
    window::Window,
    Counting,
    Format,
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
        Pmu, //
    },
    stats::Stats, //
};
use auxcore::ring::Pos;
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    mem,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::Delta, //
};

/// Why no session was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    /// The event has no ring at all.
    NoRing,
    /// It has no AUX ring, or that is being unmapped, or another event is writing to it.
    NotMapped,
    /// The ring is full. perf has disabled the event; user space enables it again.
    NoSpace,
    /// The ring belongs to another PMU.
    Foreign,
    /// The driver's `start()` refused.
    Refused(Error),
    /// The CPU is going offline.
    Offline,
    /// Another event has this CPU's unit.
    Busy,
}

/// Whether a session was ended and another begun in its place.
enum Begun {
    No,
    /// With the timer that the driver wants now.
    Yes(Option<Delta>),
}

/// What all events of a PMU share.
pub(crate) struct Shared<T: Pmu> {
    pub(crate) driver: T,
    pub(crate) live: Arc<Live>,
    pub(crate) stats: Stats,
}

/// The event that has the unit, from `add()` to `del()`.
///
/// # Invariants
///
/// `event` is a live event of the PMU that `shared` belongs to, which outlives it.
struct Owner<T: Pmu> {
    event: NonNull<bindings::perf_event>,
    shared: NonNull<Shared<T>>,
}

impl<T: Pmu> Clone for Owner<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pmu> Copy for Owner<T> {}

impl<T: Pmu> Owner<T> {
    fn event(&self) -> Event<'_, T> {
        // SAFETY: By the type invariant.
        unsafe { Event::from_raw(self.event) }
    }

    fn shared(&self) -> &Shared<T> {
        // SAFETY: By the type invariant.
        unsafe { self.shared.as_ref() }
    }

    /// Sets `event->hw.state`.
    fn set_state(&self, state: c_int) {
        // SAFETY: Live by the type invariant; `hw.state` belongs to the PMU.
        unsafe { (*self.event.as_ptr()).hw.state = state };
    }

    /// Whether perf wants the event paused.
    fn is_paused(&self) -> bool {
        // SAFETY: Live by the type invariant.
        unsafe { bindings::rust_perf_aux_paused(self.event.as_ptr()) }
    }

    /// Tells perf that the trace has started, so that it writes `PERF_RECORD_ITRACE_START` at the
    /// first sched-in and not at every one.
    ///
    /// C counterpart: `perf_event_itrace_started()`, which modules cannot call.
    fn itrace_started(&self) {
        if !T::CAPABILITIES.contains(Capabilities::ITRACE) {
            return;
        }

        // SAFETY: Live by the type invariant.
        let attach_state = unsafe { &raw mut (*self.event.as_ptr()).attach_state };
        // SAFETY: Aligned and live; perf's own accesses are under the context's lock, on this CPU,
        // or marked.
        let attach_state = unsafe { Atomic::from_ptr(attach_state) };

        let before = attach_state.load(Relaxed);
        // Once, at the first start, which is in `add()`: there perf's own changes are kept off.
        if before & bindings::PERF_ATTACH_ITRACE == 0 {
            attach_state.store(before | bindings::PERF_ATTACH_ITRACE, Relaxed);
        }
    }
}

/// What `event->hw.state` says of an event that is not running.
// CAST: The bits are 1 and 2.
const STOPPED: c_int = (bindings::PERF_HES_STOPPED | bindings::PERF_HES_UPTODATE) as c_int;

/// What a session has of its own, from the driver's `start()` to its `quiesce()`.
struct Stage<T: Pmu> {
    claim: Claim<T>,
    window: Window,
    timer: Option<Delta>,
}

impl<T: Pmu> Stage<T> {
    /// The session, for one callback.
    fn session<'a>(
        &'a mut self,
        event: &'a Event<'a, T>,
        cpu: &'a context::Cpu,
        wanted: &'a mut bool,
        transaction: Transaction<'a>,
    ) -> Session<'a, T> {
        Session {
            event,
            buffer: self.claim.data(),
            window: &mut self.window,
            cpu,
            timer: &mut self.timer,
            wanted,
            transaction,
        }
    }
}

/// An open transaction, and the driver's run.
struct Open<T: Pmu> {
    stage: Stage<T>,
    run: T::Run,
    /// Whether the unit is kept from tracing; always false if the driver cannot pause.
    paused: bool,
}

/// A run without a ring.
struct Count<T: Pmu> {
    run: T::Run,
    timer: Option<Delta>,
}

/// What the gate guards.
///
/// # Invariants
///
/// While `open` is [`Some`], so is `owner`, and `handle` holds an open transaction of that event,
/// on a ring whose `aux_priv` is claimed by `open.stage`. While it is [`None`], no transaction is
/// open. While `count` is [`Some`], `open` is [`None`].
struct Inside<T: Pmu, O: Output> {
    /// Whether the CPU may trace.
    online: bool,
    /// Whether the driver has asked for [`Pmu::deferred`], in the callback that runs.
    wanted: bool,
    owner: Option<Owner<T>>,
    handle: Handle,
    open: Option<Open<T>>,
    count: Option<Count<T>>,
    _output: PhantomData<O>,
}

/// The trace unit of one CPU: who has it, and what it is doing.
///
/// Methods that start the unit give the interval of the timer that the driver wants, for the
/// caller to start.
///
/// # Invariants
///
/// `inside` is only touched within `gate`, on CPU `cpu` with interrupts off.
pub(crate) struct Unit<T: Pmu, O: Output = Perf> {
    cpu: u32,
    pub(super) gate: Gate,
    /// Whether the driver has asked for [`Pmu::deferred`].
    wanted: Atomic<bool>,
    inside: UnsafeCell<Inside<T, O>>,
}

// SAFETY: `T::Run` and what the pointers in `Inside` lead to may be used on another CPU than the
// one that made them: `T::Run: Send`; the others are perf's own.
unsafe impl<T: Pmu, O: Output> Send for Unit<T, O> {}
// SAFETY: By the type invariants only one context at a time touches `inside`.
unsafe impl<T: Pmu, O: Output> Sync for Unit<T, O> {}

impl<T: Pmu, O: Output> Unit<T, O> {
    pub(crate) fn new(cpu: u32) -> Self {
        // INVARIANT: No transaction is open.
        Self {
            cpu,
            gate: Gate::new(),
            wanted: Atomic::new(false),
            inside: UnsafeCell::new(Inside {
                online: false,
                wanted: false,
                owner: None,
                handle: Handle::new(),
                open: None,
                count: None,
                _output: PhantomData,
            }),
        }
    }

    /// Runs `f` within the gate; [`None`] if this is an NMI that broke into a callback inside, or
    /// not the unit's CPU.
    fn enter<R>(&self, cpu: &context::Cpu, f: impl FnOnce(&mut Inside<T, O>) -> R) -> Option<R> {
        if cpu.id() != self.cpu {
            return None;
        }

        let inside = self.inside.get();
        self.gate.enter(
            || {
                // SAFETY: Within the gate, on the unit's CPU, with interrupts off: nobody else has
                // a reference, by the type invariant.
                let inside = unsafe { &mut *inside };
                let result = f(inside);

                self.note(inside);
                result
            },
            |word| {
                // SAFETY: As above; the reference that `f` had is gone.
                let inside = unsafe { &mut *inside };

                if word.has(Word::PAUSE) {
                    inside.follow_pause(cpu);
                }
                if word.has(Word::STOP) {
                    inside.stop(cpu);
                }
                self.note(inside);
            },
        )
    }

    /// Takes over what the driver has asked for.
    fn note(&self, inside: &mut Inside<T, O>) {
        if T::HAS_DEFERRED && mem::take(&mut inside.wanted) {
            self.wanted.store(true, Relaxed);
        }
    }

    /// Whether the driver has asked for [`Pmu::deferred`] since this was asked last.
    pub(crate) fn take_wanted(&self) -> bool {
        T::HAS_DEFERRED && self.wanted.load(Relaxed) && self.wanted.xchg(false, Relaxed)
    }

    /// Gives the unit to `event`, and starts it if `start` is set.
    ///
    /// # Safety
    ///
    /// - `event` must be a live event of the PMU that `shared` belongs to, in its `add()`.
    /// - Both must stay until `del()`.
    pub(crate) unsafe fn add(
        &self,
        shared: &Shared<T>,
        event: NonNull<bindings::perf_event>,
        start: bool,
        cpu: &context::Cpu,
    ) -> Result<Option<Delta>, Start> {
        self.enter(cpu, |inside| {
            if inside.owner.is_some() {
                shared.stats.add_busy.add(1);
                return Err(Start::Busy);
            }

            // INVARIANT: By the safety requirement.
            let owner = Owner {
                event,
                shared: shared.into(),
            };
            owner.set_state(STOPPED);
            inside.owner = Some(owner);
            if !start {
                return Ok(None);
            }

            match inside.begin(cpu) {
                // perf has disabled the event already. It stays here, stopped, until that has
                // taken effect: if `add()` failed, the disable would hit at the next sched-out
                // instead, after the reader may have enabled the event again.
                Err(Start::NoSpace) => Ok(None),
                Err(error) => {
                    inside.owner = None;
                    Err(error)
                }
                timer => timer,
            }
        })
        .unwrap_or(Err(Start::Busy))
    }

    /// The CPU comes online, or goes: then the session is ended, and none begun any more.
    pub(crate) fn set_online(&self, online: bool, cpu: &context::Cpu) {
        // Called from a task: the gate is free.
        self.enter(cpu, |inside| {
            inside.online = online;
            if !online {
                inside.stop(cpu);
            }
        });
    }

    /// Takes the unit from `event`, stopped.
    pub(crate) fn del(&self, event: NonNull<bindings::perf_event>, cpu: &context::Cpu) {
        // `del()` runs with the context's lock held, never in NMI: the gate is free.
        self.enter(cpu, |inside| {
            if inside.is_owner(event) {
                inside.stop(cpu);
                inside.owner = None;
            }
        });
    }

    /// Starts the unit for `event`, if it has it and is stopped.
    pub(crate) fn start(
        &self,
        event: NonNull<bindings::perf_event>,
        cpu: &context::Cpu,
    ) -> Option<Delta> {
        self.enter(cpu, |inside| {
            if !inside.is_owner(event) || inside.open.is_some() {
                return None;
            }
            // Stopped, if it has run without a ring: now it may have one.
            inside.stop(cpu);

            // A failure shows as the state that the event keeps: stopped.
            inside.begin(cpu).ok().flatten()
        })
        .flatten()
    }

    /// Ends `event`'s session, if there is one. After this no transaction of it is open, or, if
    /// this is an NMI that broke into a callback, none will be when that callback returns.
    pub(crate) fn stop(&self, event: NonNull<bindings::perf_event>, cpu: &context::Cpu) {
        let stopped = self.enter(cpu, |inside| {
            if inside.is_owner(event) {
                inside.stop(cpu);
            }
        });

        if stopped.is_none() && cpu.id() == self.cpu {
            self.gate.leave_word(Word::STOP);
        }
    }

    /// Lets the unit trace, or keeps it from it, as `event->hw.aux_paused` says. At any time: the
    /// event may not have got the unit yet, or have it no more.
    pub(crate) fn follow_pause(&self, event: NonNull<bindings::perf_event>, cpu: &context::Cpu) {
        let followed = self.enter(cpu, |inside| {
            if inside.is_owner(event) {
                inside.follow_pause(cpu);
            }
        });

        if followed.is_none() && cpu.id() == self.cpu {
            self.gate.leave_word(Word::PAUSE);
        }
    }

    /// The unit's clock has ticked; how long until the next tick.
    pub(crate) fn tick(&self, cpu: &context::Cpu) -> Option<Delta> {
        self.enter(cpu, |inside| inside.tick(cpu)).flatten()
    }

    /// Runs `f` in the session that is open, if one is, and commits if it says so; the timer to
    /// start, and what `f` returned.
    ///
    /// [`None`] too if this broke into a callback.
    pub(crate) fn with_session<R>(
        &self,
        cpu: &context::Cpu,
        f: impl FnOnce(&mut Session<'_, T>, &mut T::Run) -> (Next, R),
    ) -> Option<(Option<Delta>, R)> {
        let (begun, result) = self
            .enter(cpu, |inside| inside.with_session(cpu, f))
            .flatten()?;

        match begun {
            Begun::No => Some((None, result)),
            Begun::Yes(timer) => Some((timer, result)),
        }
    }
}

#[cfg(any(perf_output_copy_aux, CONFIG_KUNIT = "y"))]
impl<T: Pmu, O: Sampling> Unit<T, O> {
    /// Copies the newest `size` bytes of `event`'s trace into a sample; how many it were. None if
    /// there is no session, or if this is an NMI that broke into a callback: perf fills up with
    /// zeroes.
    ///
    /// # Safety
    ///
    /// - `shared` must be that of the event's PMU.
    /// - `record` and `size` must be what perf passes to `snapshot_aux()`, whose call this is in.
    pub(crate) unsafe fn snapshot(
        &self,
        shared: &Shared<T>,
        event: NonNull<bindings::perf_event>,
        record: NonNull<bindings::perf_output_handle>,
        size: u64,
        cpu: &context::Cpu,
    ) -> c_long {
        // SAFETY:
        // - By the safety requirement; it is gone when the driver's `snapshot()` has returned.
        // - The transactions of this unit are begun with `O`.
        let sample = unsafe { Sample::new(record, size, O::copy) };

        let taken = self
            .enter(cpu, |inside| {
                if inside.is_owner(event) {
                    inside.snapshot(sample, cpu)
                } else {
                    None
                }
            })
            .flatten()
            .map_or(0, Taken::get);

        match taken {
            0 => shared.stats.samples_missed.add(1),
            _ => shared.stats.samples.add(1),
        }
        taken
    }
}

impl<T: Pmu, O: Output> Inside<T, O> {
    fn is_owner(&self, event: NonNull<bindings::perf_event>) -> bool {
        self.owner.is_some_and(|owner| owner.event == event)
    }

    /// Opens a transaction and starts the unit. The interval of the timer that the driver wants.
    ///
    /// To be called while none is open.
    fn begin(&mut self, cpu: &context::Cpu) -> Result<Option<Delta>, Start> {
        let owner = self.owner.ok_or(Start::Busy)?;
        let begun = self.try_begin(&owner, cpu);

        self.tell_begin(&owner, begun.err());
        match begun {
            Err(Start::NoRing | Start::NotMapped) if T::HAS_COUNT_START => {
                self.start_count(&owner, cpu)
            }
            begun => begun,
        }
    }

    /// Starts the unit without a ring. The interval of the timer that the driver wants.
    fn start_count(
        &mut self,
        owner: &Owner<T>,
        cpu: &context::Cpu,
    ) -> Result<Option<Delta>, Start> {
        let mut timer = None;
        let run = owner
            .shared()
            .driver
            .count_start(&mut Counting {
                event: &owner.event(),
                cpu,
                timer: &mut timer,
            })
            .map_err(Start::Refused)?;

        self.count = Some(Count { run, timer });
        owner.set_state(0);
        Ok(timer)
    }

    /// Stops the unit, if it runs without a ring.
    fn stop_count(&mut self, owner: &Owner<T>, cpu: &context::Cpu) {
        if let (true, Some(mut count)) = (T::HAS_COUNT_STOP, self.count.take()) {
            owner.shared().driver.count_stop(
                &mut Counting {
                    event: &owner.event(),
                    cpu,
                    timer: &mut count.timer,
                },
                count.run,
            );
        }
    }

    /// The clock of a unit without a ring has ticked; how long until the next tick.
    fn tick_count(&mut self, owner: &Owner<T>, cpu: &context::Cpu) -> Option<Delta> {
        if !T::HAS_COUNT_TICK {
            return None;
        }

        // perf tells nobody that a ring was mapped. That there is none yet is no news.
        match self.try_begin(owner, cpu) {
            Err(Start::NoRing | Start::NotMapped) => (),
            begun => {
                self.tell_begin(owner, begun.err());
                if begun.is_err() {
                    self.stop(cpu);
                }
                return begun.ok().flatten();
            }
        }

        let paused = T::HAS_PAUSE && owner.is_paused();
        let count = self.count.as_mut()?;
        if !paused {
            owner.shared().driver.count_tick(
                &mut Counting {
                    event: &owner.event(),
                    cpu,
                    timer: &mut count.timer,
                },
                &mut count.run,
            );
        }
        count.timer
    }

    /// Counts a begin, and traces it.
    fn tell_begin(&self, owner: &Owner<T>, failure: Option<Start>) {
        let stats = &owner.shared().stats;
        let (counter, reason) = match failure {
            None => (&stats.begins, 0),
            Some(Start::NoRing) => (&stats.begin_no_ring, 1),
            Some(Start::NotMapped) => (&stats.begin_not_mapped, 2),
            Some(Start::NoSpace) => (&stats.begin_no_space, 3),
            Some(Start::Foreign) => (&stats.begin_foreign, 4),
            Some(Start::Refused(_)) => (&stats.begin_refused, 5),
            Some(Start::Offline) => (&stats.begin_offline, 6),
            Some(Start::Busy) => return,
        };
        let (head, space) = (self.handle.head().get(), self.handle.space());

        counter.add(1);
        // SAFETY: The owner is live. May be called from any context.
        unsafe { bindings::rust_perf_trace_begin(owner.event.as_ptr(), head, space, reason) };
    }

    fn try_begin(&mut self, owner: &Owner<T>, cpu: &context::Cpu) -> Result<Option<Delta>, Start> {
        let shared = owner.shared();

        if !self.online {
            return Err(Start::Offline);
        }

        // A driver that commits from NMI goes on with the filters that it had: the list has a lock.
        if T::NR_FILTERS != 0 && !cpu.is_nmi() {
            // SAFETY: The owner is live, this is its CPU with interrupts off and not in NMI, and no
            // session is open.
            unsafe { bindings::perf_event_addr_filters_sync(owner.event.as_ptr()) };
        }

        // SAFETY:
        // - No transaction is open: the callers have checked, and the type invariant.
        // - The owner is live, by its invariant, and this is its CPU, since `add()` was called
        //   here; interrupts are off, by the invariant of `Cpu`.
        let private = unsafe { O::begin(&mut self.handle, owner.event) }.map_err(|e| match e {
            Refusal::NoRing => Start::NoRing,
            Refusal::NotMapped => Start::NotMapped,
            Refusal::NoSpace => Start::NoSpace,
        })?;

        if !shared.live.contains(private) {
            self.end(owner, 0, Mode::Linear, Losses::default(), Format::default());
            return Err(Start::Foreign);
        }

        // SAFETY: In the live set, so one of ours, which perf keeps while the transaction is open.
        let claim = unsafe { Claim::new(private.cast::<Buffer<T>>()) };
        let Some(claim) = claim else {
            self.end(owner, 0, Mode::Linear, Losses::default(), Format::default());
            return Err(Start::NotMapped);
        };

        // SAFETY: Only used in the window, which goes when the transaction is ended.
        let pages = unsafe { claim.pages().view() };
        let (head, space, wakeup) = (
            self.handle.head(),
            self.handle.space(),
            self.handle.wakeup(),
        );
        self.stop_count(owner, cpu);

        // SAFETY: The pages of the ring of this transaction.
        let window = unsafe { Window::new(pages, head, space, wakeup) };
        let mut stage = Stage {
            claim,
            window,
            timer: None,
        };

        // SAFETY: Open, and begun here; it is ended after the session.
        let transaction = unsafe { Transaction::new::<O>(&mut self.handle) };
        let started = shared.driver.start(&mut stage.session(
            &owner.event(),
            cpu,
            &mut self.wanted,
            transaction,
        ));

        match started {
            Ok(run) => {
                // INVARIANT: The transaction is open, and the claim is of the ring's `aux_priv`. The
                // run without a ring has been stopped.
                self.open = Some(Open {
                    stage,
                    run,
                    // A driver that can pause starts paused.
                    paused: T::HAS_PAUSE,
                });
                self.follow_pause(cpu);
                owner.set_state(0);
                owner.itrace_started();
                Ok(self.open.as_ref().and_then(|open| open.stage.timer))
            }
            Err(error) => {
                let Stage { claim, window, .. } = stage;

                drop(claim);
                self.end(
                    owner,
                    0,
                    window.mode(),
                    Losses::default(),
                    Format::default(),
                );
                Err(Start::Refused(error))
            }
        }
    }

    /// Pauses or resumes the unit, if it is not as `event->hw.aux_paused` says.
    fn follow_pause(&mut self, cpu: &context::Cpu) {
        let (true, Some(owner), Some(open)) = (T::HAS_PAUSE, self.owner, self.open.as_mut()) else {
            return;
        };
        let paused = owner.is_paused();
        if open.paused == paused {
            return;
        }

        open.paused = paused;
        self.in_session(cpu, |driver, session, run| {
            if paused {
                driver.pause(session, run);
            } else {
                driver.resume(session, run);
            }
        });
    }

    /// Calls the driver in the session, if there is one.
    fn in_session<R>(
        &mut self,
        cpu: &context::Cpu,
        f: impl FnOnce(&T, &mut Session<'_, T>, &mut T::Run) -> R,
    ) -> Option<R> {
        let owner = self.owner?;
        let open = self.open.as_mut()?;
        // SAFETY: Open, since there is a session, by the type invariant, and begun on the unit's
        // CPU.
        let transaction = unsafe { Transaction::new::<O>(&mut self.handle) };

        Some(f(
            &owner.shared().driver,
            &mut open
                .stage
                .session(&owner.event(), cpu, &mut self.wanted, transaction),
            &mut open.run,
        ))
    }

    /// Ends the session, if there is one, and says so to perf; true if perf will now disable the
    /// event.
    fn stop(&mut self, cpu: &context::Cpu) -> bool {
        let Some(owner) = self.owner else {
            return false;
        };

        self.stop_count(&owner, cpu);
        let disables = self.finish(&owner, cpu);
        owner.set_state(STOPPED);
        disables
    }

    /// Quiesces the unit and commits what it wrote; true if perf will now disable the event.
    fn finish(&mut self, owner: &Owner<T>, cpu: &context::Cpu) -> bool {
        let Some(Open { mut stage, run, .. }) = self.open.take() else {
            return false;
        };

        // SAFETY: Open until it is ended, below, and begun on the unit's CPU.
        let transaction = unsafe { Transaction::new::<O>(&mut self.handle) };
        let Written {
            len,
            losses,
            format,
            ..
        } = owner.shared().driver.quiesce(
            &mut stage.session(&owner.event(), cpu, &mut self.wanted, transaction),
            run,
        );
        let Stage { claim, window, .. } = stage;

        // perf does not check the length. A driver that claims more than it was given has
        // written where it must not; the reader learns of no byte that is not there.
        let (len, losses) = match window.space() {
            Some(space) if len > space => {
                owner.shared().stats.overclaimed.add(1);
                (space, losses.and(Loss::Gap { bytes: None }))
            }
            _ => (len, losses),
        };

        // perf may free the ring when the transaction is ended.
        drop(claim);

        self.end(owner, len, window.mode(), losses, format)
    }

    /// Ends the transaction that is open; true if perf will now disable the event.
    fn end(
        &mut self,
        owner: &Owner<T>,
        len: u64,
        mode: Mode,
        losses: Losses,
        format: Format,
    ) -> bool {
        let flags = losses.flags(mode) | format.flags();
        let head = self.handle.head();

        if flags != 0 {
            // SAFETY: A transaction is open on the handle.
            unsafe { O::flag(&mut self.handle, flags) };
        }
        if mode == Mode::Overwrite {
            // Monotonic, so that a reader knows by arithmetic how often the ring went round.
            self.handle.set_head(head.advance(len));
        }

        // SAFETY:
        // - A transaction is open on the handle, begun on this CPU.
        // - `len` is within its space, and visible: `Written` is the proof of (B).
        unsafe { O::end(&mut self.handle, len) };

        tell_end(owner, head, len, flags, losses);
        flags & u64::from(bindings::PERF_AUX_FLAG_TRUNCATED) != 0
    }

    /// Has the driver fill a sample; [`None`] without a session.
    #[cfg(any(perf_output_copy_aux, CONFIG_KUNIT = "y"))]
    fn snapshot(&mut self, sample: Sample<'_>, cpu: &context::Cpu) -> Option<Taken> {
        if !T::HAS_SNAPSHOT {
            return None;
        }

        self.in_session(cpu, |driver, session, run| {
            driver.snapshot(session, run, sample)
        })
    }

    /// The unit's clock has ticked; how long until the next tick.
    fn tick(&mut self, cpu: &context::Cpu) -> Option<Delta> {
        if self.count.is_some() {
            let owner = self.owner?;
            return self.tick_count(&owner, cpu);
        }
        if !T::HAS_TICK {
            return None;
        }

        let ticked = self.in_session(cpu, |driver, session, run| {
            let next = driver.tick(session, run);
            (next, *session.timer)
        })?;

        match self.follow(cpu, ticked) {
            (Begun::No, interval) => interval,
            (Begun::Yes(timer), _) => timer,
        }
    }

    /// Runs `f` in the session, if there is one, and then does what it wants done.
    fn with_session<R>(
        &mut self,
        cpu: &context::Cpu,
        f: impl FnOnce(&mut Session<'_, T>, &mut T::Run) -> (Next, R),
    ) -> Option<(Begun, R)> {
        let ran = self.in_session(cpu, |_, session, run| f(session, run))?;

        Some(self.follow(cpu, ran))
    }

    /// Does what a callback wants done next.
    fn follow<R>(&mut self, cpu: &context::Cpu, (next, result): (Next, R)) -> (Begun, R) {
        let begun = match next {
            Next::Continue => Begun::No,
            // Until perf's irq_work has disabled the event, nothing may be begun.
            Next::Commit if self.stop(cpu) => Begun::Yes(None),
            Next::Commit => Begun::Yes(self.begin(cpu).ok().flatten()),
        };

        (begun, result)
    }
}

/// Counts a commit, and traces it.
fn tell_end<T: Pmu>(owner: &Owner<T>, head: Pos, len: u64, flags: u64, losses: Losses) {
    let stats = &owner.shared().stats;
    let is = |flag| flags & u64::from(flag) != 0;

    stats.commits.add(1);
    stats.bytes.add(len);
    stats
        .truncated
        .add(is(bindings::PERF_AUX_FLAG_TRUNCATED).into());
    stats
        .partial
        .add(is(bindings::PERF_AUX_FLAG_PARTIAL).into());
    stats
        .collision
        .add(is(bindings::PERF_AUX_FLAG_COLLISION).into());

    let event = owner.event.as_ptr();
    // SAFETY: The owner is live. May be called from any context.
    unsafe { bindings::rust_perf_trace_commit(event, head.get(), len, flags) };

    for loss in losses.iter() {
        let (cause, bytes) = match loss {
            Loss::None => continue,
            Loss::Gap { bytes } => (1, bytes),
            Loss::NoSpace { bytes } => (2, bytes),
            Loss::Collision { bytes } => (3, bytes),
        };
        let known = bytes.is_some();

        stats.lost(loss);
        // SAFETY: As above.
        unsafe { bindings::rust_perf_trace_loss(event, cause, known, bytes.unwrap_or(0)) };
    }
}
