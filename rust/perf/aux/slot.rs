// SPDX-License-Identifier: GPL-2.0

//! A CPU's unit and the timer that is its clock.

use super::{
    unit::{
        Shared,
        Start,
        Unit, //
    },
    Next,
    Session, //
};
use crate::{
    bindings,
    context,
    pmu::Pmu, //
};
use core::ptr::NonNull;
use kernel::{
    container_of,
    prelude::*,
    time::Delta,
    types::Opaque, //
};

/// The trace unit of one CPU, with its timer, and with what its driver defers.
///
/// # Invariants
///
/// - `timer` is set up, with [`Self::expired`] as its function.
/// - `work` is set up, with [`Self::deferred`] as its function.
/// - `shared` is live until [`Self::close`] has returned.
#[pin_data]
pub(crate) struct Slot<T: Pmu> {
    unit: Unit<T>,
    shared: NonNull<Shared<T>>,
    #[pin]
    timer: Opaque<bindings::hrtimer>,
    #[pin]
    work: Opaque<bindings::irq_work>,
}

// SAFETY: An hrtimer and an irq_work may be used on any CPU, and so may what all share.
unsafe impl<T: Pmu> Send for Slot<T> {}
// SAFETY: They need no lock, or lock themselves.
unsafe impl<T: Pmu> Sync for Slot<T> {}

impl<T: Pmu> Slot<T> {
    /// # Safety
    ///
    /// `shared` must stay until [`Self::close`] has returned, or until the slot is dropped if no
    /// callback has run.
    pub(crate) unsafe fn new(cpu: u32, shared: NonNull<Shared<T>>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            unit: Unit::new(cpu),
            // INVARIANT: By the safety requirement.
            shared,
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
            // INVARIANT: Set up here; hard, so that it runs in hard interrupt context on PREEMPT_RT
            // too.
            work <- Opaque::ffi_init(|work| {
                // SAFETY: `work` is valid for writes, and pinned.
                unsafe { bindings::rust_perf_irq_work_init(work, Some(Self::deferred)) }
            }),
        })
    }

    /// Runs `f` on the unit, and then sees to what the driver has asked for meanwhile.
    fn on_unit<R>(self: Pin<&Self>, f: impl FnOnce(&Unit<T>) -> R) -> R {
        let result = f(&self.unit);

        if self.unit.take_wanted() {
            self.defer();
        }
        result
    }

    /// Has the driver's `deferred()` called on this CPU, soon.
    pub(crate) fn defer(self: Pin<&Self>) {
        // SAFETY: Set up, by the type invariant, and pinned until `close()`. May be called in NMI.
        unsafe { bindings::irq_work_queue(self.work.get()) };
    }

    /// As [`Unit::add`].
    ///
    /// # Safety
    ///
    /// As for [`Unit::add`].
    pub(crate) unsafe fn add(
        self: Pin<&Self>,
        shared: &Shared<T>,
        event: NonNull<bindings::perf_event>,
        start: bool,
        cpu: &context::Cpu,
    ) -> Result<(), Start> {
        // SAFETY: By the safety requirement.
        let timer = self.on_unit(|unit| unsafe { unit.add(shared, event, start, cpu) })?;

        self.start_timer(timer, cpu);
        Ok(())
    }

    /// As [`Unit::del`].
    pub(crate) fn del(self: Pin<&Self>, event: NonNull<bindings::perf_event>, cpu: &context::Cpu) {
        self.on_unit(|unit| unit.del(event, cpu));
        self.stop_timer(cpu);
    }

    /// As [`Unit::start`].
    pub(crate) fn start(
        self: Pin<&Self>,
        event: NonNull<bindings::perf_event>,
        cpu: &context::Cpu,
    ) {
        let timer = self.on_unit(|unit| unit.start(event, cpu));

        self.start_timer(timer, cpu);
    }

    /// As [`Unit::stop`].
    pub(crate) fn stop(self: Pin<&Self>, event: NonNull<bindings::perf_event>, cpu: &context::Cpu) {
        self.on_unit(|unit| unit.stop(event, cpu));
        self.stop_timer(cpu);
    }

    /// As [`Unit::follow_pause`].
    pub(crate) fn follow_pause(
        self: Pin<&Self>,
        event: NonNull<bindings::perf_event>,
        cpu: &context::Cpu,
    ) {
        self.on_unit(|unit| unit.follow_pause(event, cpu));
    }

    /// As [`Unit::snapshot`].
    ///
    /// # Safety
    ///
    /// As for [`Unit::snapshot`].
    #[cfg(perf_output_copy_aux)]
    pub(crate) unsafe fn snapshot(
        self: Pin<&Self>,
        shared: &Shared<T>,
        event: NonNull<bindings::perf_event>,
        record: NonNull<bindings::perf_output_handle>,
        size: u64,
        cpu: &context::Cpu,
    ) -> c_long {
        // SAFETY: By the safety requirement.
        self.on_unit(|unit| unsafe { unit.snapshot(shared, event, record, size, cpu) })
    }

    /// As [`Unit::with_session`].
    pub(crate) fn with_session<R>(
        self: Pin<&Self>,
        cpu: &context::Cpu,
        f: impl FnOnce(&mut Session<'_, T>, &mut T::Run) -> (Next, R),
    ) -> Option<R> {
        let (timer, result) = self.on_unit(|unit| unit.with_session(cpu, f))?;

        self.start_timer(timer, cpu);
        Some(result)
    }

    /// As [`Unit::set_online`].
    pub(crate) fn set_online(self: Pin<&Self>, online: bool, cpu: &context::Cpu) {
        self.on_unit(|unit| unit.set_online(online, cpu));
        if !online {
            self.stop_timer(cpu);
        }
    }

    fn start_timer(self: Pin<&Self>, interval: Option<Delta>, cpu: &context::Cpu) {
        // hrtimers take locks. perf starts no event in NMI; were it to, this one would stay
        // without its clock.
        if let (Some(interval), false) = (interval, cpu.is_nmi()) {
            // SAFETY: Set up, by the type invariant, and pinned until `close()`.
            unsafe {
                bindings::hrtimer_start_range_ns(
                    self.timer.get(),
                    interval.as_nanos(),
                    0,
                    bindings::hrtimer_mode_HRTIMER_MODE_REL_PINNED_HARD,
                )
            };
        }
    }

    fn stop_timer(self: Pin<&Self>, cpu: &context::Cpu) {
        // What an NMI leaves armed finds no session and does not rearm.
        if !cpu.is_nmi() {
            // SAFETY: Set up, by the type invariant. Never waits; the callback cannot be running,
            // but on another CPU after this one went offline, and then it does nothing.
            unsafe { bindings::hrtimer_try_to_cancel(self.timer.get()) };
        }
    }

    /// Waits until neither the timer's function nor what was deferred runs any more, for good.
    ///
    /// To be called when no event is left that could start them, from a task that may sleep.
    pub(crate) fn close(self: Pin<&Self>) {
        // SAFETY: Set up, by the type invariant.
        unsafe { bindings::hrtimer_cancel(self.timer.get()) };
        // After the timer: its function may have queued the work.
        //
        // SAFETY: Set up, by the type invariant; this is a task that may sleep.
        unsafe { bindings::irq_work_sync(self.work.get()) };
    }

    /// The function of what is deferred.
    ///
    /// # Safety
    ///
    /// `work` must be the work of a `Slot<T>`.
    unsafe extern "C" fn deferred(work: *mut bindings::irq_work) {
        if !T::HAS_DEFERRED {
            return;
        }

        // SAFETY: By the safety requirement.
        let slot = unsafe { container_of!(Opaque::cast_from(work), Self, work) };
        // SAFETY: As above; the slot is not freed before `close()`.
        let slot = unsafe { &*slot };
        // SAFETY: By the type invariant: `close()` waits for this.
        let shared = unsafe { slot.shared.as_ref() };
        // SAFETY: Hard irq_works run with interrupts off.
        let cpu = unsafe { context::Cpu::current() };

        shared.driver.deferred(&cpu);
    }

    /// The timer's function.
    ///
    /// # Safety
    ///
    /// `timer` must be the timer of a `Slot<T>`.
    unsafe extern "C" fn expired(timer: *mut bindings::hrtimer) -> bindings::hrtimer_restart {
        // SAFETY: By the safety requirement.
        let slot = unsafe { container_of!(Opaque::cast_from(timer), Self, timer) };
        // SAFETY: As above; the slot is pinned, and not freed before `close()`.
        let slot = unsafe { Pin::new_unchecked(&*slot) };
        // SAFETY: hrtimers in hard mode expire with interrupts off.
        let cpu = unsafe { context::Cpu::current() };

        match slot.on_unit(|unit| unit.tick(&cpu)) {
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
