// SPDX-License-Identifier: GPL-2.0

//! The state of one CPU: which event owns its trace unit, and the open transaction.
//!
//! All callbacks of perf, the timer and the driver's interrupt go through [`CpuState`], on its CPU
//! with interrupts off. Two parts of it are pure and tested on the host, with every interleaving:
//! [`Guard`], against an NMI that interrupts a callback, and [`Lifecycle`], which says when a
//! transaction is begun and ended (`rust/auxcore/lifecycle.rs` has the diagram). This file carries
//! out what they say.
//!
//! # Locks
//!
//! perf may call `stop()`, pause and resume from the overflow of another event: in NMI, or under any
//! raw lock whose holder passes a tracepoint or a kprobe, the hrtimer base lock included. So these
//! take no lock and do not touch the timer. A timer that stays armed finds no transaction and is not
//! armed again. What they leave to do later, an [`irq_work`](Self::work) does.

use super::{
    buffer::{
        Buffer,
        OpenBuffer, //
    },
    core::{
        Core,
        Handle,
        Perf,
        Refusal, //
    },
    loss::Losses,
    pages::Mode,
    region::Extent,
    ring::{
        Cache,
        Claim,
        Refused, //
    },
    transaction::{
        Commit,
        Format,
        Next,
        Open,
        Transaction, //
    },
    AuxPmu,
    Loss, //
};
use crate::{
    bindings,
    context,
    event::Event,
    guard::KernelWord,
    pmu::Counting,
    registration::CpuInfo,
    stats::Stats, //
};
use auxcore::{
    guard::{
        Guard,
        Pending, //
    },
    lifecycle::{
        Action,
        Begun,
        Lifecycle,
        Phase, //
    },
};
use core::{
    cell::{
        Cell,
        UnsafeCell, //
    },
    marker::PhantomData,
    mem,
    ptr::NonNull, //
};
use kernel::{
    container_of,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        barrier, //
    },
    time::Delta,
    types::Opaque, //
};

/// Why an event was not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The event has no ring buffer.
    NoRing,
    /// The ring buffer has no AUX area, or the area is being unmapped.
    NotMapped,
    /// A transaction is open on the AUX area.
    InUse,
    /// The AUX area is full. perf disables the event, and user space enables it again.
    NoSpace,
    /// The AUX area belongs to another PMU.
    Foreign,
    /// The driver's `start()` refused.
    Refused(Error),
    /// The CPU is offline.
    Offline,
    /// Another event owns the unit.
    Busy,
}

impl Failure {
    /// What `add()` returns to perf, which retries at the next rotation of the context's events and
    /// does not look at the value.
    pub(crate) fn to_errno(self) -> c_int {
        match self {
            Self::Refused(error) => error.to_errno(),
            Self::Busy | Self::InUse | Self::Foreign => EBUSY.to_errno(),
            Self::NoRing | Self::NotMapped | Self::NoSpace | Self::Offline => EAGAIN.to_errno(),
        }
    }

    /// The number in the tracepoint `rust_perf_begin`, where 0 is success.
    fn reason(self) -> c_uint {
        match self {
            Self::NoRing => 1,
            Self::NotMapped => 2,
            Self::NoSpace => 3,
            Self::Foreign => 4,
            Self::Refused(_) => 5,
            Self::Offline => 6,
            Self::InUse | Self::Busy => 7,
        }
    }
}

/// What is left to do when the guard is released.
#[derive(Clone, Copy, Default)]
struct After {
    /// Arm the timer at this interval.
    arm: Option<Delta>,
    /// Arm the timer where that is allowed: in `work`.
    arm_later: bool,
    /// Call the driver's `deferred()`, in `work`.
    defer: bool,
}

/// Which locks the caller of [`CpuState`] may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Locks {
    /// Only those that perf's scheduling of events holds: timers may be armed.
    Scheduling,
    /// Any raw lock, or this is an NMI.
    Any,
}

/// The driver's trace state of an open transaction.
struct Tracing<T: AuxPmu> {
    open: Open<T>,
    trace: T::Trace,
    /// Whether the unit is paused; always false if the driver cannot pause.
    paused: bool,
}

/// What the guard protects.
///
/// # Invariants
///
/// - `event` is [`Some`] exactly while `lifecycle` is owned; it is a live event of the PMU.
/// - `tracing` is [`Some`] exactly in [`Phase::Tracing`]: a transaction of `event` is open on
///   `handle`, begun on this CPU. Otherwise none is open.
/// - `counting` is [`Some`] exactly in [`Phase::Counting`].
struct Inner<T: AuxPmu, C: Core> {
    lifecycle: Lifecycle,
    event: Option<NonNull<bindings::perf_event>>,
    handle: Handle,
    cache: Cache,
    tracing: Option<Tracing<T>>,
    counting: Option<T::Count>,
    /// The interval of the timer that the driver has asked for while counting.
    counting_timer: Option<Delta>,
    /// The interval at which the timer is armed.
    armed: Option<Delta>,
    /// The driver has asked for `deferred()`.
    deferred: bool,
    _core: PhantomData<C>,
}

/// The state of one CPU.
///
/// # Invariants
///
/// - `inner` is accessed with `guard` held, on CPU `cpu` with interrupts off.
/// - `timer` and `work` are set up, with [`Self::expired`] and [`Self::worked`].
/// - `driver` is live until [`Self::close`] has returned.
#[repr(align(64))]
#[pin_data]
pub struct CpuState<T: AuxPmu, C: Core = Perf> {
    cpu: u32,
    guard: Guard<KernelWord>,
    info: CpuInfo,
    driver: NonNull<T>,
    inner: UnsafeCell<Inner<T, C>>,
    pub(crate) stats: Stats,
    #[pin]
    timer: Opaque<bindings::hrtimer>,
    #[pin]
    work: Opaque<bindings::irq_work>,
    /// Queues `work` from another CPU.
    #[pin]
    remote: Opaque<bindings::call_single_data_t>,
    /// `work` has to call the driver's `deferred()`.
    deferred: Atomic<bool>,
    /// The holder of the guard, or the last one, took it in NMI. For drivers with `interrupt()`.
    holder_is_nmi: Atomic<bool>,
    /// `work` has to call the driver's `interrupt()`: the interrupt arrived on another CPU.
    forwarded: Atomic<bool>,
    /// No CPU queues `work` for another one any more.
    closed: Atomic<bool>,
}

// SAFETY: `T::Trace`, `T::Count` and the buffer are `Send`; timers and works may be used on any CPU;
// the pointers are to what is `Sync`.
unsafe impl<T: AuxPmu, C: Core> Send for CpuState<T, C> {}
// SAFETY: By the type invariants one context at a time accesses `inner`; the rest is `Sync` or locks
// itself.
unsafe impl<T: AuxPmu, C: Core> Sync for CpuState<T, C> {}

/// What `event->hw.state` is for an event that does not run.
// CAST: The bits are 1 and 2.
const STOPPED: c_int = (bindings::PERF_HES_STOPPED | bindings::PERF_HES_UPTODATE) as c_int;

/// `CLOCK_MONOTONIC`, as `hrtimer_setup()` takes it.
// CAST: The constant is 1.
const MONOTONIC: bindings::clockid_t = bindings::CLOCK_MONOTONIC as bindings::clockid_t;

impl<T: AuxPmu, C: Core> CpuState<T, C> {
    /// The state of CPU `cpu`, which is offline.
    ///
    /// # Safety
    ///
    /// `driver` must be live until [`Self::close`] has returned, or until `self` is dropped if no
    /// callback has run.
    pub(crate) unsafe fn new(
        cpu: u32,
        driver: NonNull<T>,
        info: CpuInfo,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            cpu,
            guard: Guard::new(KernelWord::new()),
            info,
            // INVARIANT: By the safety requirement.
            driver,
            // INVARIANT: No event, no transaction.
            inner: UnsafeCell::new(Inner {
                lifecycle: Lifecycle::new(),
                event: None,
                handle: Handle::new(),
                cache: Cache::new(),
                tracing: None,
                counting: None,
                counting_timer: None,
                armed: None,
                deferred: false,
                _core: PhantomData,
            }),
            stats: Stats::new(),
            // INVARIANT: Set up here. Hard, so that it expires in hard interrupt context on
            // PREEMPT_RT too and may be armed with the run queue locked. Pinned, so that it expires
            // on the CPU that armed it.
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
            // INVARIANT: Set up here. Hard, so that it runs in hard interrupt context on
            // PREEMPT_RT too.
            work <- Opaque::ffi_init(|work| {
                // SAFETY: `work` is valid for writes, and pinned.
                unsafe { bindings::rust_perf_irq_work_init(work, Some(Self::worked)) }
            }),
            remote <- Opaque::ffi_init(|remote| {
                let work = Opaque::cast_into(&raw const *work);
                // SAFETY: `remote` is valid for writes, and pinned; so is `work`.
                unsafe { bindings::rust_perf_remote_init(remote, work) }
            }),
            deferred: Atomic::new(false),
            holder_is_nmi: Atomic::new(false),
            forwarded: Atomic::new(false),
            closed: Atomic::new(false),
        })
    }

    #[inline]
    fn driver(&self) -> &T {
        // SAFETY: Live, by the type invariant.
        unsafe { self.driver.as_ref() }
    }

    /// Runs `f` on what the guard protects, then the requests of NMIs that arrived in the meantime.
    /// [`None`] if this is an NMI that interrupted a callback, or not the state's CPU.
    #[inline]
    fn enter<R>(
        &self,
        cpu: &context::Cpu,
        locks: Locks,
        f: impl FnOnce(&mut Inner<T, C>) -> R,
    ) -> Option<(R, After)> {
        if cpu.id() != self.cpu {
            return None;
        }

        let inner = self.inner.get();
        let after = Cell::new(After::default());
        let result = self.guard.run(
            || {
                // SAFETY: The guard is held, on this CPU with interrupts off: no other reference
                // exists, by the type invariant.
                let inner = unsafe { &mut *inner };
                if T::HAS_INTERRUPT {
                    self.holder_is_nmi.store(cpu.is_nmi(), Relaxed);
                }
                let result = f(inner);

                C::interrupt(&self.guard);
                after.set(inner.after(locks, after.get()));
                result
            },
            |pending| {
                // SAFETY: The guard is held, on this CPU; the reference above is gone.
                let inner = unsafe { &mut *inner };

                inner.process(self, pending, cpu);
                after.set(inner.after(locks, after.get()));
            },
        )?;

        Some((result, after.get()))
    }

    /// As [`Self::enter`], and does what is left to do.
    #[inline]
    fn run<R>(
        self: Pin<&Self>,
        cpu: &context::Cpu,
        locks: Locks,
        f: impl FnOnce(&mut Inner<T, C>) -> R,
    ) -> Option<R> {
        let (result, after) = self.enter(cpu, locks, f)?;

        if let Some(interval) = after.arm {
            // SAFETY: Set up, by the type invariant. `after.arm` is set for `Locks::Scheduling`
            // only, which callers give in no NMI and under no lock of the timer subsystem.
            unsafe { C::arm(&self.timer, interval) };
        }
        self.leave(after);
        Some(result)
    }

    /// Queues the work for what is left to do there.
    #[inline]
    fn leave(&self, after: After) {
        if after.defer {
            self.deferred.store(true, Relaxed);
        }
        if after.defer || after.arm_later {
            // SAFETY: Set up, by the type invariant.
            unsafe { C::queue(&self.work) };
        }
    }

    /// perf adds `event`, and starts it if `start` is set.
    ///
    /// # Safety
    ///
    /// `event` must be a live event of the PMU, in its `add()`, and stay until `del()`.
    pub(crate) unsafe fn add(
        self: Pin<&Self>,
        event: NonNull<bindings::perf_event>,
        start: bool,
        cpu: &context::Cpu,
    ) -> Result<(), Failure> {
        self.run(cpu, Locks::Scheduling, |inner| {
            let Some(action) = inner.lifecycle.add(start) else {
                self.stats.add_busy.add(1);
                return Err(Failure::Busy);
            };
            // INVARIANT: By the safety requirement.
            inner.event = Some(event);
            inner.set_state(STOPPED);

            let added = if start && !inner.lifecycle.is_online() {
                inner.report_begin(&self, Some(Failure::Offline));
                Err(Failure::Offline)
            } else {
                inner.perform(&self, action, cpu)
            };
            match added {
                // perf has queued the disable of the event. It stays here, stopped, until that has
                // taken effect. If `add()` failed, the disable would take effect at the next
                // sched-out instead, perhaps after the reader has enabled the event again.
                Err(Failure::NoSpace) => Ok(()),
                Err(failure) => {
                    inner.disown();
                    Err(failure)
                }
                Ok(()) => Ok(()),
            }
        })
        .unwrap_or(Err(Failure::Busy))
    }

    /// perf deletes `event`.
    pub(crate) fn del(self: Pin<&Self>, event: NonNull<bindings::perf_event>, cpu: &context::Cpu) {
        // `del()` runs with the context's lock held, never in NMI: the guard is free.
        self.run(cpu, Locks::Scheduling, |inner| {
            if inner.is_event(event) {
                let action = inner.lifecycle.del();

                // Ending does not fail.
                let _ = inner.perform(&self, action, cpu);
                inner.disown();
            }
        });
    }

    /// perf starts `event`, if it is stopped.
    pub(crate) fn start(
        self: Pin<&Self>,
        event: NonNull<bindings::perf_event>,
        cpu: &context::Cpu,
    ) {
        self.run(cpu, Locks::Scheduling, |inner| {
            if inner.is_event(event) {
                let action = inner.lifecycle.start();

                if !inner.lifecycle.is_online() {
                    inner.report_begin(&self, Some(Failure::Offline));
                }
                // A failure shows in the state that the event keeps: stopped.
                let _ = inner.perform(&self, action, cpu);
                if action == Action::End {
                    let action = inner.lifecycle.resume();
                    let _ = inner.perform(&self, action, cpu);
                }
            }
        });
    }

    /// perf stops `event`. No transaction of it is open afterwards. If this is an NMI that
    /// interrupted a callback, none is when that callback returns.
    pub(crate) fn stop(self: Pin<&Self>, event: NonNull<bindings::perf_event>, cpu: &context::Cpu) {
        let stopped = self.run(cpu, Locks::Any, |inner| {
            if inner.is_event(event) {
                inner.stop(&self, cpu);
            }
        });

        if stopped.is_none() {
            self.request(Pending::STOP, cpu);
        }
    }

    /// Pauses or resumes the unit as `event->hw.aux_paused` says. At any time: also before `add()`
    /// and after `del()`.
    pub(crate) fn follow_pause(
        self: Pin<&Self>,
        event: NonNull<bindings::perf_event>,
        cpu: &context::Cpu,
    ) {
        let followed = self.run(cpu, Locks::Any, |inner| {
            if inner.is_event(event) {
                inner.follow_pause(&self, cpu);
            }
        });

        if followed.is_none() {
            self.request(Pending::PAUSE, cpu);
        }
    }

    /// The unit has raised its interrupt: calls the driver's `interrupt()` if a transaction is open
    /// here; false if this is not the state's CPU, or if a callback of the driver calls this.
    pub(crate) fn interrupt(self: Pin<&Self>, cpu: &context::Cpu) -> bool {
        let done = self.run(cpu, Locks::Any, |inner| inner.interrupt(&self, cpu));

        // Only an NMI interrupts a callback, and none interrupts one that runs in NMI. All else is
        // the callback itself: a request of `interrupt()` for another `interrupt()` has no end.
        done.is_some()
            || cpu.is_nmi()
                && !self.holder_is_nmi.load(Relaxed)
                && self.request(Pending::INTERRUPT, cpu)
    }

    /// The unit has raised its interrupt on another CPU, this one: as [`Self::interrupt`], on the
    /// state's CPU, soon. False in NMI, or if the CPU is offline.
    pub(crate) fn forward(&self, _here: &context::Cpu) -> bool {
        if self.closed.load(Relaxed) {
            return false;
        }
        self.forwarded.store(true, Relaxed);
        // SAFETY: Set up, by the type invariant. Interrupts are off, by the invariant of `Cpu`, and
        // `close()` waits for this section.
        unsafe { bindings::rust_perf_remote_queue(self.remote.get(), self.cpu) }
    }

    /// Leaves a request to the callback that this NMI interrupted; false if this is not the state's
    /// CPU.
    fn request(&self, pending: Pending, cpu: &context::Cpu) -> bool {
        cpu.id() == self.cpu && self.guard.request(pending)
    }

    /// The CPU comes online, or its offline was rolled back; or it goes offline.
    pub(crate) fn set_online(self: Pin<&Self>, online: bool, cpu: &context::Cpu) {
        // Called from a task: the guard is free.
        self.run(cpu, Locks::Scheduling, |inner| {
            let action = if online {
                // A timer that was armed here when the CPU went has expired elsewhere.
                inner.armed = None;
                inner.lifecycle.online()
            } else {
                inner.lifecycle.offline()
            };

            // A failure shows in the state that the event keeps: stopped.
            let _ = inner.perform(&self, action, cpu);
        });
    }

    /// perf reads the counter of `event`.
    pub(crate) fn read(self: Pin<&Self>, event: NonNull<bindings::perf_event>, cpu: &context::Cpu) {
        if T::HAS_COUNT_READ {
            self.run(cpu, Locks::Any, |inner| {
                if inner.is_event(event) {
                    inner.in_counting(&self, cpu, |driver, counting, count| {
                        driver.count_read(counting, count);
                    });
                }
            });
        }
    }

    /// Runs `f` in the open transaction, then does what it returned. [`None`] if no transaction is
    /// open, if this is not the state's CPU, or if this is an NMI that interrupted a callback.
    pub(crate) fn with_transaction<R>(
        self: Pin<&Self>,
        cpu: &context::Cpu,
        f: impl FnOnce(&mut Transaction<'_, T>, &mut T::Trace) -> (Next, R),
    ) -> Option<R> {
        self.run(cpu, Locks::Any, |inner| {
            let (next, result) =
                inner.in_transaction(&self, cpu, |_, transaction, trace| f(transaction, trace))?;

            inner.follow(&self, next, cpu);
            Some(result)
        })
        .flatten()
    }

    /// The timer has expired. The interval after which it expires again.
    pub(crate) fn tick(&self, cpu: &context::Cpu) -> Option<Delta> {
        let ((), after) = self.enter(cpu, Locks::Scheduling, |inner| {
            inner.armed = None;
            inner.tick(self, cpu);
        })?;

        self.leave(after);
        after.arm
    }

    /// Does what the work is queued for.
    pub(crate) fn work(self: Pin<&Self>, cpu: &context::Cpu) {
        // Arms the timer, if that is due.
        self.run(cpu, Locks::Scheduling, |inner| {
            if self.forwarded.xchg(false, Relaxed) {
                inner.interrupt(&self, cpu);
            }
        });
        if T::HAS_DEFERRED && self.deferred.xchg(false, Relaxed) {
            self.driver().deferred(cpu);
        }
    }

    /// Waits for the timer's function and for the work, for good.
    ///
    /// To be called when no event is left, in a task that may sleep.
    pub(crate) fn close(self: Pin<&Self>) {
        // SAFETY: Set up, by the type invariant; this is a task.
        unsafe { bindings::hrtimer_cancel(self.timer.get()) };
        self.closed.store(true, Relaxed);
        if self.info.system {
            // SAFETY: Set up, by the type invariant; this is a task that may sleep.
            unsafe { bindings::rust_perf_remote_sync(self.remote.get()) };
        }
        // After the timer and the other CPUs, which may have queued the work.
        //
        // SAFETY: Set up, by the type invariant; this is a task that may sleep.
        unsafe { bindings::irq_work_sync(self.work.get()) };
    }

    /// The interval of the timer that the driver has asked for, and that at which it is armed.
    #[cfg(CONFIG_RUST_PERF_TESTING)]
    pub(crate) fn timers(&self, _cpu: &context::Cpu) -> (Option<Delta>, Option<Delta>) {
        let inner = self.inner.get();
        let timers = self.guard.run(
            || {
                // SAFETY: The guard is held, on this CPU with interrupts off: no other reference
                // exists, by the type invariant.
                let inner = unsafe { &*inner };

                (inner.timer(), inner.armed)
            },
            |_| (),
        );

        timers.unwrap_or((None, None))
    }

    /// Has the driver's `deferred()` called, as a driver's callback does.
    #[cfg(CONFIG_RUST_PERF_TESTING)]
    pub(crate) fn defer(&self) {
        self.leave(After {
            defer: true,
            ..After::default()
        });
    }

    /// The function of the work.
    ///
    /// # Safety
    ///
    /// `work` must be the work of a `CpuState<T, C>`.
    unsafe extern "C" fn worked(work: *mut bindings::irq_work) {
        // SAFETY: By the safety requirement.
        let this = unsafe { container_of!(Opaque::cast_from(work), Self, work) };
        // SAFETY: The state is pinned and not freed before `close()`, which waits for this.
        let this = unsafe { Pin::new_unchecked(&*this) };
        // SAFETY: Hard irq_works run with interrupts off.
        let cpu = unsafe { context::Cpu::current() };

        this.work(&cpu);
    }

    /// The timer's function.
    ///
    /// # Safety
    ///
    /// `timer` must be the timer of a `CpuState<T, C>`.
    unsafe extern "C" fn expired(timer: *mut bindings::hrtimer) -> bindings::hrtimer_restart {
        // SAFETY: By the safety requirement.
        let this = unsafe { container_of!(Opaque::cast_from(timer), Self, timer) };
        // SAFETY: The state is pinned and not freed before `close()`, which waits for this.
        let this = unsafe { &*this };
        // SAFETY: hrtimers in hard mode expire with interrupts off.
        let cpu = unsafe { context::Cpu::current() };

        match this.tick(&cpu) {
            Some(interval) => {
                // SAFETY: This is the callback of this timer, which is not queued meanwhile.
                unsafe { bindings::rust_perf_hrtimer_forward_now(timer, interval.as_nanos()) };
                bindings::hrtimer_restart::HRTIMER_RESTART
            }
            None => bindings::hrtimer_restart::HRTIMER_NORESTART,
        }
    }
}

#[cfg(any(perf_output_copy_aux, CONFIG_RUST_PERF_TESTING))]
impl<T: AuxPmu, C: super::sample::Sampling> CpuState<T, C> {
    /// Copies the newest `size` bytes of `event`'s trace into a sample; how many it were. perf fills
    /// up with zeroes.
    ///
    /// # Safety
    ///
    /// `record` and `size` must be what perf passes to `snapshot_aux()`, whose call this is in.
    pub(crate) unsafe fn snapshot(
        self: Pin<&Self>,
        event: NonNull<bindings::perf_event>,
        record: NonNull<bindings::perf_output_handle>,
        size: u64,
        cpu: &context::Cpu,
    ) -> c_long {
        // SAFETY:
        // - By the safety requirement; it is gone when the driver's `snapshot()` has returned.
        // - The transactions of this state are begun with `C`.
        let sample = unsafe { super::Sample::new(record, size, C::copy) };
        let taken = self
            .run(cpu, Locks::Any, |inner| {
                if !T::HAS_SNAPSHOT || !inner.is_event(event) {
                    return None;
                }
                inner.in_transaction(&self, cpu, |driver, transaction, trace| {
                    driver.snapshot(transaction, trace, sample)
                })
            })
            .flatten()
            .map_or(0, super::Copied::get);

        match taken {
            0 => self.stats.samples_missed.add_any(1),
            _ => self.stats.samples.add_any(1),
        }
        taken
    }
}

impl<T: AuxPmu, C: Core> Inner<T, C> {
    #[inline]
    fn is_event(&self, event: NonNull<bindings::perf_event>) -> bool {
        self.event == Some(event)
    }

    /// Sets `event->hw.state`.
    #[inline]
    fn set_state(&self, state: c_int) {
        if let Some(event) = self.event {
            // SAFETY: Live by the type invariant; `hw.state` belongs to the PMU.
            unsafe { (*event.as_ptr()).hw.state = state };
        }
    }

    fn disown(&mut self) {
        self.lifecycle.disown();
        self.event = None;
    }

    /// The interval of the timer that the driver has asked for.
    #[inline]
    fn timer(&self) -> Option<Delta> {
        match &self.tracing {
            Some(tracing) => tracing.open.timer,
            None => self.counting_timer,
        }
    }

    /// What is left to do, added to `after`.
    #[inline]
    fn after(&mut self, locks: Locks, mut after: After) -> After {
        let timer = self.timer();

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
            after.defer |= mem::take(&mut self.deferred);
        }
        after
    }

    /// Processes the requests of NMIs that interrupted a callback.
    fn process(&mut self, state: &CpuState<T, C>, pending: Pending, cpu: &context::Cpu) {
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

    fn stop(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        let action = self.lifecycle.stop();

        // Ending does not fail.
        let _ = self.perform(state, action, cpu);
    }

    /// Carries out what the state machine says, and reports to it.
    fn perform(
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
    fn begin(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) -> Result<(), Failure> {
        let mut result = self.try_begin(state, cpu);

        self.report_begin(state, result.err());
        let begun = match result {
            Ok(()) => Begun::Traced,
            Err(Failure::NoRing | Failure::NotMapped) if T::HAS_COUNT_START => {
                result = self.start_counting(state, cpu);
                match result {
                    Ok(()) => Begun::Counted,
                    Err(_) => Begun::Failed,
                }
            }
            Err(Failure::NoSpace) => Begun::NoSpace,
            Err(_) => Begun::Failed,
        };
        self.lifecycle.began(begun);
        if result.is_ok() {
            self.set_state(0);
        }
        result
    }

    /// Ends the transaction, or counting.
    fn end(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        let truncated = match self.tracing.take() {
            Some(tracing) => self.commit(state, tracing, cpu),
            None => {
                self.stop_counting(state, cpu);
                false
            }
        };

        self.lifecycle.ended(truncated);
        self.set_state(STOPPED);
    }

    /// Runs `f` in counting mode, if the event counts.
    fn in_counting<R>(
        &mut self,
        state: &CpuState<T, C>,
        cpu: &context::Cpu,
        f: impl FnOnce(&T, &mut Counting<'_, T>, &mut T::Count) -> R,
    ) -> Option<R> {
        // SAFETY: Live, by the type invariant, and its `destroy()` does not run before `del()`.
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
        // SAFETY: Live, by the type invariant, and its `destroy()` does not run before `del()`.
        let event = unsafe { Event::<T>::from_raw(self.event.ok_or(Failure::Busy)?) };

        self.counting_timer = None;
        let count = state
            .driver()
            .count_start(&mut Counting::new(&event, cpu, &mut self.counting_timer))
            .map_err(Failure::Refused)?;
        self.counting = Some(count);
        Ok(())
    }

    fn stop_counting(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        if !T::HAS_COUNT_STOP {
            return;
        }
        if let (Some(count), Some(event)) = (self.counting.take(), self.event) {
            // SAFETY: Live, by the type invariant, and its `destroy()` does not run before `del()`.
            let event = unsafe { Event::<T>::from_raw(event) };
            let mut timer = None;

            state
                .driver()
                .count_stop(&mut Counting::new(&event, cpu, &mut timer), count);
        }
        self.counting_timer = None;
    }

    /// A tick while counting: looks for an AUX area, since perf reports no mapping.
    fn tick_counting(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        match self.try_begin(state, cpu) {
            // Not reported: nothing has changed.
            Err(Failure::NoRing | Failure::NotMapped) => {
                let paused = T::HAS_PAUSE && self.is_paused();

                if T::HAS_COUNT_TICK && !paused {
                    self.in_counting(state, cpu, |driver, counting, count| {
                        driver.count_tick(counting, count);
                    });
                }
            }
            result => {
                self.report_begin(state, result.err());
                match result {
                    Ok(()) => self.lifecycle.began(Begun::Traced),
                    Err(failure) => {
                        self.stop_counting(state, cpu);
                        self.set_state(STOPPED);
                        self.lifecycle.began(match failure {
                            Failure::NoSpace => Begun::NoSpace,
                            _ => Begun::Failed,
                        });
                    }
                }
            }
        }
    }

    /// The timer has expired.
    fn tick(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
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
    fn interrupt(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        if !T::HAS_INTERRUPT {
            return;
        }
        let next = self.in_transaction(state, cpu, |driver, transaction, trace| {
            driver.interrupt(transaction, trace)
        });
        self.follow(state, next.unwrap_or(Next::Continue), cpu);
    }

    /// Does what a callback has returned.
    fn follow(&mut self, state: &CpuState<T, C>, next: Next, cpu: &context::Cpu) {
        let action = match next {
            Next::Continue => Action::None,
            Next::Flush => self.lifecycle.flush(),
        };

        if action == Action::End {
            // Ending does not fail.
            let _ = self.perform(state, action, cpu);
            let action = self.lifecycle.resume();
            // A failure shows in the state that the event keeps: stopped.
            let _ = self.perform(state, action, cpu);
        }
    }

    /// Whether perf wants the event paused.
    fn is_paused(&self) -> bool {
        let Some(event) = self.event else {
            return false;
        };

        // SAFETY: Live, by the type invariant.
        unsafe { bindings::rust_perf_aux_paused(event.as_ptr()) }
    }

    /// Pauses or resumes the unit, if it is not as perf wants it.
    fn follow_pause(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) {
        if !T::HAS_PAUSE {
            return;
        }
        let paused = self.is_paused();
        let Some(tracing) = self.tracing.as_mut() else {
            return;
        };
        if mem::replace(&mut tracing.paused, paused) == paused {
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
    fn in_transaction<R>(
        &mut self,
        state: &CpuState<T, C>,
        cpu: &context::Cpu,
        f: impl FnOnce(&T, &mut Transaction<'_, T>, &mut T::Trace) -> R,
    ) -> Option<R> {
        // SAFETY: Live, by the type invariant, and its `destroy()` does not run before `del()`.
        let event = unsafe { Event::<T>::from_raw(self.event?) };
        let tracing = self.tracing.as_mut()?;
        // SAFETY: `tracing` is there: a transaction is open on `handle`, begun on this CPU with
        // `C`, by the type invariant. Only `commit()` ends it, which cannot run while `self` is
        // borrowed.
        let mut transaction = unsafe {
            Transaction::new(
                &event,
                cpu,
                &mut tracing.open,
                &mut self.handle,
                &mut self.deferred,
                C::skip,
            )
        };

        Some(f(state.driver(), &mut transaction, &mut tracing.trace))
    }

    /// Opens a transaction and starts the unit. To be called while none is open.
    fn try_begin(&mut self, state: &CpuState<T, C>, cpu: &context::Cpu) -> Result<(), Failure> {
        let event = self.event.ok_or(Failure::Busy)?;

        // A driver that flushes from NMI keeps the filters that it had: perf's list has a lock.
        if state.info.filters && !cpu.is_nmi() {
            // SAFETY: The event is live, by the type invariant; this is its CPU with interrupts off
            // and not in NMI, and no transaction is open, so the driver does not look at them.
            unsafe { bindings::perf_event_addr_filters_sync(event.as_ptr()) };
        }

        // SAFETY: Live, by the type invariant.
        let key = unsafe { C::ring(event) };
        if key.is_null() {
            return Err(Failure::NoRing);
        }
        // SAFETY: Interrupts are off, by the invariant of `Cpu`, until the callback has returned.
        // Until then the claim is dropped, or a transaction is open on the ring buffer. `commit()`
        // drops it in the callback that ends the transaction.
        let claim = unsafe { Claim::new(key, state.info.id, &mut self.cache) };
        let claim = claim.map_err(|refused| match refused {
            Refused::NotMapped => Failure::NotMapped,
            Refused::Foreign => Failure::Foreign,
            Refused::InUse => Failure::InUse,
        })?;

        // SAFETY:
        // - No transaction is open: this is called in no other phase than `Idle` and `Counting`.
        // - The event is live, by the type invariant, and this is its CPU, since `add()` was called
        //   here; interrupts are off, by the invariant of `Cpu`.
        let private = unsafe { C::begin(&mut self.handle, event) }.map_err(|e| match e {
            Refusal::NotMapped => Failure::NotMapped,
            Refusal::NoSpace => Failure::NoSpace,
        })?;
        if private.as_ptr() != claim.private() || self.handle.ring() != key {
            // User space has redirected the event between the two looks.
            //
            // SAFETY: A transaction is open on the handle, begun here; nothing is written.
            unsafe { C::end(&mut self.handle, 0) };
            return Err(Failure::NotMapped);
        }

        // SAFETY: A transaction is open on the area of `claim`, whose `aux_priv` is one of this PMU:
        // a `Buffer<T>`. `commit()` or the error path below ends it, after `into_claim()`.
        let buffer = unsafe { OpenBuffer::<T>::new(claim, private.cast::<Buffer<T>>()) };
        let mut open = Open {
            extent: Extent::new(&self.handle, buffer.pages()),
            buffer,
            timer: None,
        };
        self.stop_counting(state, cpu);
        if T::HAS_DMA {
            if let Some(mapping) = state.driver().dma(open.buffer.data()) {
                mapping.sync_for_device();
            }
        }

        // SAFETY: Live, by the type invariant, and its `destroy()` does not run before `del()`.
        let traced = unsafe { Event::<T>::from_raw(event) };
        // SAFETY: A transaction is open on `handle`, begun above with `C`, on this CPU.
        let mut transaction = unsafe {
            Transaction::new(
                &traced,
                cpu,
                &mut open,
                &mut self.handle,
                &mut self.deferred,
                C::skip,
            )
        };
        match state.driver().start(&mut transaction) {
            Ok(trace) => {
                // INVARIANT: The transaction is open. Counting was stopped.
                self.tracing = Some(Tracing {
                    open,
                    trace,
                    // A driver that can pause starts paused.
                    paused: T::HAS_PAUSE,
                });
                self.follow_pause(state, cpu);
                if state.info.itrace {
                    itrace_started(event);
                }
                Ok(())
            }
            Err(error) => {
                let claim = open.buffer.into_claim();

                // SAFETY: A transaction is open on the handle, begun above; nothing is published.
                unsafe { C::end(&mut self.handle, 0) };
                drop(claim);
                Err(Failure::Refused(error))
            }
        }
    }

    /// Quiesces the unit and commits what it wrote; true if perf has queued the disable of the event.
    fn commit(&mut self, state: &CpuState<T, C>, tracing: Tracing<T>, cpu: &context::Cpu) -> bool {
        let Tracing {
            mut open, trace, ..
        } = tracing;
        let Some(event) = self.event else {
            return false;
        };
        // SAFETY: Live, by the type invariant, and its `destroy()` does not run before `del()`.
        let traced = unsafe { Event::<T>::from_raw(event) };
        // SAFETY: `tracing` was there: a transaction is open on `handle`, begun on this CPU with `C`,
        // by the type invariant. It is ended below.
        let mut transaction = unsafe {
            Transaction::new(
                &traced,
                cpu,
                &mut open,
                &mut self.handle,
                &mut self.deferred,
                C::skip,
            )
        };
        let Commit {
            len,
            mut losses,
            format,
        } = state.driver().quiesce(&mut transaction, trace);

        // perf does not check the length. A driver that claims more than it was given has written
        // where it must not; the reader learns of no byte that is not there.
        let mode = open.buffer.pages().mode();
        let limit = open.extent.limit(len);
        if limit < len {
            state.stats.overclaimed.add(1);
            losses = losses.and(Loss::Gap { bytes: None });
        }

        if T::HAS_DMA {
            if let Some(mapping) = state.driver().dma(open.buffer.data()) {
                mapping.sync_for_cpu();
            }
        }
        // (B): orders the stores of trace before the store of `aux_head` in
        // `perf_aux_output_end()`. Pairs with (C), user space's load barrier between its load of
        // `aux_head` and its loads of trace. What a device stores is in memory when `quiesce()`
        // returns.
        barrier::smp_mb(barrier::Write);
        let claim = open.buffer.into_claim();
        let truncated = self.publish(state, event, limit, mode, losses, format);
        // Last: the next writer of this AUX area must not find the transaction open.
        drop(claim);
        truncated
    }

    /// Ends the transaction; true if perf has queued the disable of the event.
    fn publish(
        &mut self,
        state: &CpuState<T, C>,
        event: NonNull<bindings::perf_event>,
        len: u64,
        mode: Mode,
        losses: Losses,
        format: Format,
    ) -> bool {
        let flags = losses.flags(mode) | format.flags();
        let head = self.handle.head();

        if flags != 0 {
            // SAFETY: A transaction is open on the handle: the caller has it.
            unsafe { C::flag(&mut self.handle, flags) };
        }
        if mode == Mode::Overwrite {
            // Monotonic, so that a reader knows by arithmetic how often the area wrapped.
            self.handle.set_head(head.advance(len));
        }
        // SAFETY:
        // - A transaction is open on the handle, begun on this CPU: the caller has it.
        // - `len` is within its space: the caller has limited it; (B) stands in the caller.
        unsafe { C::end(&mut self.handle, len) };

        report_commit(state, event, head.get(), len, flags, losses);
        flags & u64::from(bindings::PERF_AUX_FLAG_TRUNCATED) != 0
    }

    /// Counts and traces a begin.
    fn report_begin(&self, state: &CpuState<T, C>, failure: Option<Failure>) {
        let stats = &state.stats;
        let counter = match failure {
            None => &stats.begins,
            Some(Failure::NoRing) => &stats.begin_no_ring,
            Some(Failure::NotMapped) => &stats.begin_not_mapped,
            Some(Failure::InUse) => &stats.begin_in_use,
            Some(Failure::NoSpace) => &stats.begin_no_space,
            Some(Failure::Foreign) => &stats.begin_foreign,
            Some(Failure::Refused(_)) => &stats.begin_refused,
            Some(Failure::Offline) => &stats.begin_offline,
            Some(Failure::Busy) => return,
        };

        counter.add(1);
        if let Some(event) = self.event {
            let reason = failure.map_or(0, Failure::reason);
            let (head, space) = (self.handle.head().get(), self.handle.space());

            // SAFETY: The event is live, by the type invariant. Any context.
            unsafe { bindings::rust_perf_trace_begin(event.as_ptr(), head, space, reason) };
        }
    }
}

/// Counts and traces a commit of a live event.
fn report_commit<T: AuxPmu, C: Core>(
    state: &CpuState<T, C>,
    event: NonNull<bindings::perf_event>,
    head: u64,
    len: u64,
    flags: u64,
    losses: Losses,
) {
    let stats = &state.stats;

    stats.commits.add(1);
    stats.bytes.add(len);
    // SAFETY: The event is live: the caller has it from `Inner`. Any context.
    unsafe { bindings::rust_perf_trace_commit(event.as_ptr(), head, len, flags) };

    if flags == 0 {
        return;
    }
    for (counter, flag) in [
        (&stats.truncated, bindings::PERF_AUX_FLAG_TRUNCATED),
        (&stats.partial, bindings::PERF_AUX_FLAG_PARTIAL),
        (&stats.collision, bindings::PERF_AUX_FLAG_COLLISION),
    ] {
        counter.add((flags & u64::from(flag) != 0).into());
    }
    for loss in losses.iter() {
        let (cause, bytes) = match loss {
            Loss::None => continue,
            Loss::Gap { bytes } => (1, bytes),
            Loss::NoSpace { bytes } => (2, bytes),
            Loss::Collision { bytes } => (3, bytes),
        };
        let known = bytes.is_some();
        let bytes = bytes.unwrap_or(0);

        stats.lost(loss);
        // SAFETY: The event is live: the caller has it from `Inner`. Any context.
        unsafe { bindings::rust_perf_trace_loss(event.as_ptr(), cause, known, bytes) };
    }
}

/// Reports to perf that the trace of a live event has started, so that perf writes
/// `PERF_RECORD_ITRACE_START` at the first sched-in and not at every one.
///
/// C counterpart: `perf_event_itrace_started()`, which modules cannot call.
fn itrace_started(event: NonNull<bindings::perf_event>) {
    // SAFETY: Live: the caller has it from `Inner`.
    let attach_state = unsafe { &raw mut (*event.as_ptr()).attach_state };
    // SAFETY: Aligned and live. perf's own accesses are under the context's lock, on this CPU, or
    // marked.
    let attach_state = unsafe { Atomic::from_ptr(attach_state) };

    let before = attach_state.load(Relaxed);
    // Once, at the first start, which is in `add()`, where perf does not change it.
    if before & bindings::PERF_ATTACH_ITRACE == 0 {
        attach_state.store(before | bindings::PERF_ATTACH_ITRACE, Relaxed);
    }
}
