// SPDX-License-Identifier: GPL-2.0

//! The state of one CPU: which event owns its trace unit, and the open transaction.
//!
//! All callbacks of perf, the timer and the driver's interrupt go through [`CpuState`], on its CPU
//! with interrupts off. Two parts of it are pure and tested on the host, with every interleaving:
//! [`Guard`] protects it against an NMI that interrupts a callback, and [`Lifecycle`] decides when
//! a transaction is begun and ended (`rust/auxcore/lifecycle.rs` has the diagram).
//!
//! - This file: the entry points, and the work that is left when the guard is released.
//! - [`inner`]: the state that the guard protects, and the operations on it.
//! - [`interrupt`]: interrupts of the unit, on its CPU and on others.
//! - [`failure`]: why an event was not started.
//! - [`report`]: counters and tracepoints.
//!
//! # Locks
//!
//! perf may call `stop()`, pause and resume from the overflow of another event: in NMI, or under
//! any raw lock whose holder passes a tracepoint or a kprobe, the hrtimer base lock included. So
//! these take no lock and do not touch the timer. A timer that stays armed finds no transaction and
//! is not armed again. An [`irq_work`](CpuState::work) does later what they must not do.

use super::{
    core::{
        Core,
        Perf, //
    },
    transaction::{
        Next,
        Transaction, //
    },
    AuxPmu, //
};
use crate::{
    bindings,
    context,
    guard::OneCpu,
    registration::CpuInfo,
    stats::Stats, //
};
use auxcore::{
    guard::{
        Guard,
        Pending, //
    },
    lifecycle::Action, //
};
use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
use kernel::{
    container_of,
    prelude::*,
    sync::atomic::{
        Atomic,
        Full,
        Relaxed, //
    },
    time::Delta,
    types::Opaque, //
};

mod failure;
mod inner;
mod interrupt;
mod report;

pub(crate) use failure::Failure;
use inner::{
    After,
    Inner,
    Locks,
    STOPPED, //
};

/// The state of one CPU.
///
/// # Invariants
///
/// - `inner` is accessed with `guard` held, on CPU `cpu` with interrupts off.
/// - `timer` and `work` are set up, with [`Self::expired`] and [`Self::worked`], and `remote` to
///   queue `work`.
/// - `driver` is live until [`Self::sync`] has returned.
#[repr(align(64))]
#[pin_data]
pub struct CpuState<T: AuxPmu, C: Core = Perf> {
    cpu: u32,
    guard: Guard<OneCpu>,
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
    remote: Opaque<bindings::rust_perf_remote>,
    /// `work` has to call the driver's `deferred()`.
    deferred: Atomic<bool>,
    /// Whether an NMI holds the guard. For drivers with `interrupt()`.
    held_in_nmi: Atomic<bool>,
    /// An interrupt arrived on another CPU, and `work` has to call the driver's `interrupt()`.
    forwarded: Atomic<bool>,
    /// Set by `close()`: no CPU queues `work` for another one any more.
    closed: Atomic<bool>,
}

// SAFETY: `T::Trace`, `T::Count` and the buffer are `Send`; timers and works may be used on any
// CPU; the pointers are to objects that are `Sync`.
unsafe impl<T: AuxPmu, C: Core> Send for CpuState<T, C> {}
// SAFETY: By the type invariants one context at a time accesses `inner`; the rest is `Sync` or
// locks itself.
unsafe impl<T: AuxPmu, C: Core> Sync for CpuState<T, C> {}

/// `CLOCK_MONOTONIC`, as `hrtimer_setup()` takes it.
// CAST: The constant is 1.
const MONOTONIC: bindings::clockid_t = bindings::CLOCK_MONOTONIC as bindings::clockid_t;

impl<T: AuxPmu, C: Core> CpuState<T, C> {
    /// The state of CPU `cpu`, which is offline.
    ///
    /// # Safety
    ///
    /// `driver` must be live until [`Self::sync`] has returned, or until `self` is dropped if no
    /// callback has run.
    pub(crate) unsafe fn new(
        cpu: u32,
        driver: NonNull<T>,
        info: CpuInfo,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            cpu,
            guard: Guard::new(OneCpu::new()),
            info,
            // INVARIANT: By the safety requirement.
            driver,
            inner: UnsafeCell::new(Inner::new()),
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
            held_in_nmi: Atomic::new(false),
            forwarded: Atomic::new(false),
            closed: Atomic::new(false),
        })
    }

    #[inline]
    fn driver(&self) -> &T {
        // SAFETY: The driver is live, by the type invariant.
        unsafe { self.driver.as_ref() }
    }

    /// Runs `f` with the guard held, then processes the requests of NMIs that arrived in the
    /// meantime. [`None`] if a callback holds the guard, or if this is not the state's CPU.
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
        let mut later = After::default();
        let in_nmi = T::HAS_INTERRUPT && cpu.is_nmi();
        // The flag is set only while an NMI holds the guard, and no NMI interrupts that one. So an
        // NMI that interrupts another holder finds it cleared, at any point.
        let mark = |held| {
            if in_nmi {
                self.held_in_nmi.store(held, Relaxed);
            }
        };
        let (result, after) = self.guard.run(
            || {
                // SAFETY: The guard is held, on this CPU with interrupts off: no other reference
                // exists, by the type invariant.
                let inner = unsafe { &mut *inner };

                mark(true);
                let result = f(inner);

                C::interrupt(&self.guard);
                mark(false);
                (result, inner.after(locks))
            },
            |pending| {
                // SAFETY: The guard is held, on this CPU with interrupts off, and the first closure
                // has returned with its reference: no other reference exists, by the type
                // invariant.
                let inner = unsafe { &mut *inner };

                mark(true);
                inner.process(self, pending, cpu);
                mark(false);
                later = later.then(inner.after(locks));
            },
        )?;

        Some((result, after.then(later)))
    }

    /// As [`Self::enter`]. Then arms the timer and queues the work, if they are due.
    #[inline]
    fn run<R>(
        self: Pin<&Self>,
        cpu: &context::Cpu,
        locks: Locks,
        f: impl FnOnce(&mut Inner<T, C>) -> R,
    ) -> Option<R> {
        let (result, after) = self.enter(cpu, locks, f)?;

        if let Some(interval) = after.arm {
            // SAFETY: The timer is set up, by the type invariant. `Cpu` guarantees that interrupts
            // are off. `after.arm` is set for `Locks::Scheduling` only, which callers give in no
            // NMI and under no lock of the timer subsystem.
            unsafe { C::arm(&self.timer, interval) };
        }
        self.leave(after);
        Some(result)
    }

    /// Queues the work, if something is left for it.
    #[inline]
    fn leave(&self, after: After) {
        if after.defer {
            self.deferred.store(true, Relaxed);
        }
        if after.defer || after.arm_later {
            // SAFETY: The work is set up, by the type invariant.
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
                inner.report_failure(&self, Failure::Offline);
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

                if action == Action::None && !inner.lifecycle.is_online() {
                    inner.report_failure(&self, Failure::Offline);
                }
                // If this fails, the event stays stopped, as `event->hw.state` shows.
                let _ = inner.perform(&self, action, cpu);
                if action == Action::End {
                    let action = inner.lifecycle.resume();
                    let _ = inner.perform(&self, action, cpu);
                }
            }
        });
    }

    /// perf stops `event`. No transaction of it is open afterwards. If this is an NMI that
    /// interrupted a callback, the transaction ends when that callback returns.
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

    /// Pauses or resumes the unit as `event->hw.aux_paused` says. May be called at any time, also
    /// before `add()` and after `del()`.
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

    /// Leaves a request to the callback that this NMI interrupted; false if this is not the state's
    /// CPU.
    fn request(&self, pending: Pending, cpu: &context::Cpu) -> bool {
        cpu.id() == self.cpu && self.guard.request(pending)
    }

    /// The CPU comes online, or its offline was rolled back, if `online` is set. Otherwise it goes
    /// offline.
    pub(crate) fn set_online(self: Pin<&Self>, online: bool, cpu: &context::Cpu) {
        // Called from a task: the guard is free.
        self.run(cpu, Locks::Scheduling, |inner| {
            let action = if online {
                // A timer that was armed here when the CPU went offline has expired elsewhere.
                inner.armed = None;
                inner.lifecycle.online()
            } else {
                inner.lifecycle.offline()
            };

            // If this fails, the event stays stopped, as `event->hw.state` shows.
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

    /// Runs `f` in the open transaction, then carries out the [`Next`] that it returned. [`None`]
    /// if no transaction is open, if this is not the state's CPU, or if a callback holds the guard.
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

    /// The timer has expired. Returns the interval after which it expires again.
    pub(crate) fn tick(&self, cpu: &context::Cpu) -> Option<Delta> {
        let ((), after) = self.enter(cpu, Locks::Scheduling, |inner| {
            inner.armed = None;
            inner.tick(self, cpu);
        })?;

        self.leave(after);
        after.arm
    }

    /// Does the work for which `work` is queued.
    pub(crate) fn work(self: Pin<&Self>, cpu: &context::Cpu) {
        // Arms the timer, if that is due.
        self.run(cpu, Locks::Scheduling, |inner| {
            // Full ordering: with `rust_perf_remote_queue()`, which may have merged a request.
            if self.forwarded.xchg(false, Full) {
                inner.interrupt(&self, cpu);
            }
        });
        if T::HAS_DEFERRED && self.deferred.xchg(false, Relaxed) {
            self.driver().deferred(cpu);
        }
    }

    /// Waits for the timer's function, which does not run again, and refuses interrupts that arrive
    /// on other CPUs.
    ///
    /// To be called when no event is left, in a task that may sleep.
    pub(crate) fn close(self: Pin<&Self>) {
        // SAFETY: The timer is set up, by the type invariant. This is a task, not the timer's
        // function, so the wait ends.
        unsafe { bindings::hrtimer_cancel(self.timer.get()) };
        self.closed.store(true, Relaxed);
    }

    /// Waits for the work, which does not run again.
    ///
    /// To be called after [`Self::close`] and an RCU grace period, in a task that may sleep.
    pub(crate) fn sync(self: Pin<&Self>) {
        // SAFETY: The call is set up, by the type invariant. `forward()` runs with interrupts off,
        // as an RCU reader: after the grace period no call of it runs, or it finds the state
        // closed.
        unsafe { bindings::rust_perf_remote_sync(self.remote.get()) };
        // After the timer and the other CPUs, which may have queued the work.
        //
        // SAFETY: The work is set up, by the type invariant; this is a task that may sleep.
        unsafe { bindings::irq_work_sync(self.work.get()) };
    }

    /// The interval of the timer that the driver has asked for, and the interval at which it is
    /// armed.
    #[cfg(CONFIG_RUST_PERF_TESTING)]
    pub(crate) fn timers(&self, cpu: &context::Cpu) -> (Option<Delta>, Option<Delta>) {
        if cpu.id() != self.cpu {
            return (None, None);
        }
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

    /// Requests a call of the driver's `deferred()`, as a driver's callback does.
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
        // SAFETY: The caller guarantees that this is the work of a `CpuState<T, C>`.
        let this = unsafe { container_of!(Opaque::cast_from(work), Self, work) };
        // SAFETY: The state is pinned and not freed before `sync()`, which waits for this.
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
        // SAFETY: The caller guarantees that this is the timer of a `CpuState<T, C>`.
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
    /// Copies the newest `size` bytes of `event`'s trace into a sample. Returns how many were
    /// copied. With the first of `Documentation/patches`, perf fills the rest with zeroes.
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
        // - By the safety requirement; the sample is gone when the driver's `snapshot()` has
        //   returned.
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
            0 => self.stats.samples_missed.add(1),
            _ => self.stats.samples.add(1),
        }
        taken
    }
}
