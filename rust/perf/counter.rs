// SPDX-License-Identifier: GPL-2.0

//! PMUs without an AUX area: any number of their events count at the same time.

use crate::{
    bindings,
    context,
    event::Event,
    guard::AnyCpu,
    pmu::{
        Capabilities,
        Counting,
        Pmu, //
    },
    registration::{
        private,
        CpuInfo,
        Kind,
        Registered, //
    },
    stats::Stats, //
};
use auxcore::guard::{
    Guard,
    Pending, //
};
use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// The kind of PMU that has no AUX area.
pub struct Counter(());

impl private::Sealed for Counter {}

impl<T: Pmu> Kind<T> for Counter {
    /// Whether the CPU is online.
    type Cpu = Atomic<bool>;

    const CAPABILITIES: u32 = {
        assert!(
            T::HAS_COUNT_START,
            "a PMU without an AUX area counts: it has count_start() and count_stop()"
        );
        0
    };

    const DEFAULT: Capabilities = Capabilities::NONE;

    fn complete(pmu: &mut bindings::pmu) {
        pmu.add = Some(add::<T>);
        pmu.del = Some(del::<T>);
        pmu.start = Some(start::<T>);
        pmu.stop = Some(stop::<T>);
        pmu.read = Some(read::<T>);
    }

    unsafe fn cpu(
        _cpu: u32,
        _driver: NonNull<T>,
        _info: CpuInfo,
    ) -> impl PinInit<Self::Cpu, Error> {
        Ok::<_, Error>(Atomic::new(false))
    }

    fn set_online(state: Pin<&Self::Cpu>, online: bool, _cpu: &context::Cpu) {
        state.store(online, Relaxed);
    }

    fn close(_state: Pin<&Self::Cpu>) {}

    fn sync(_state: Pin<&Self::Cpu>) {}

    fn stats(_state: Pin<&Self::Cpu>) -> Option<&Stats> {
        None
    }
}

/// The state of an event that counts.
///
/// # Invariants
///
/// `count` is accessed with `guard` held, on the event's CPU with interrupts off.
pub(crate) struct Cell<T: Pmu> {
    guard: Guard<AnyCpu>,
    count: UnsafeCell<Option<T::Count>>,
}

// SAFETY: `T::Count` is `Send`; by the type invariant one context at a time accesses it.
unsafe impl<T: Pmu> Send for Cell<T> {}
// SAFETY: By the type invariant one context at a time accesses it.
unsafe impl<T: Pmu> Sync for Cell<T> {}

impl<T: Pmu> Cell<T> {
    pub(crate) fn new() -> Self {
        Self {
            guard: Guard::new(AnyCpu::new()),
            count: UnsafeCell::new(None),
        }
    }

    /// Runs `f` on the driver's state with the guard held. If this is an NMI that interrupted a
    /// callback, `f` does not run, and `pending` is requested from that callback.
    fn enter(
        &self,
        driver: &T,
        event: &Event<'_, T>,
        cpu: &context::Cpu,
        pending: Pending,
        f: impl FnOnce(&mut Option<T::Count>, &mut Counting<'_, T>),
    ) {
        let count = self.count.get();
        let mut timer = None;
        let mut counting = Counting::new(event, cpu, &mut timer);
        let done = self.guard.run(
            || {
                // SAFETY: The guard is held, on the event's CPU with interrupts off: no other
                // reference exists, by the type invariant.
                f(unsafe { &mut *count }, &mut counting);
            },
            |pending| {
                if pending.contains(Pending::STOP) {
                    let mut timer = None;
                    // SAFETY: The guard is held, on the event's CPU with interrupts off, and the
                    // first closure has returned with its reference: no other reference exists, by
                    // the type invariant.
                    let count = unsafe { &mut *count };

                    stop_one(driver, count, &mut Counting::new(event, cpu, &mut timer));
                }
            },
        );

        if done.is_none() && pending != Pending::NONE {
            self.guard.request(pending);
        }
    }
}

fn stop_one<T: Pmu>(driver: &T, count: &mut Option<T::Count>, counting: &mut Counting<'_, T>) {
    if let Some(count) = count.take() {
        driver.count_stop(counting, count);
    }
}

/// Calls `f` with what a callback on the event's CPU needs.
///
/// # Safety
///
/// `event` must be an event of a `Registered<T, Counter>`, on its CPU, with interrupts off.
unsafe fn on_cpu<T: Pmu, R>(
    event: *mut bindings::perf_event,
    f: impl FnOnce(&Registered<T, Counter>, &Event<'_, T>, &context::Cpu) -> R,
) -> Option<R> {
    let raw = NonNull::new(event)?;
    // SAFETY: The caller guarantees that this is an event of a `Registered<T, Counter>`. That
    // stays: `perf_pmu_unregister()` returns when no callback of its events runs.
    let registered = unsafe { Registered::<T, Counter>::of(raw) };
    // SAFETY: perf calls callbacks after `event_init()` has succeeded, and `destroy()` after them.
    let event = unsafe { Event::<T>::from_raw(raw) };
    // SAFETY: The caller guarantees that interrupts are off until the callback returns.
    let cpu = unsafe { context::Cpu::current() };

    Some(f(registered, &event, &cpu))
}

/// # Safety
///
/// Called by perf: interrupts off, on the event's CPU.
unsafe extern "C" fn add<T: Pmu>(event: *mut bindings::perf_event, flags: c_int) -> c_int {
    // CAST: The flag is bit 0.
    let starts = flags & bindings::PERF_EF_START as c_int != 0;
    let add = |registered: &Registered<T, Counter>, event: &Event<'_, T>, cpu: &_| {
        let online = registered
            .shared
            .cpus
            .this(cpu)
            .is_some_and(|online| online.load(Relaxed));

        if !online {
            return EAGAIN.to_errno();
        }
        if starts {
            start_one(registered, event, cpu)
        } else {
            0
        }
    };

    // SAFETY: perf guarantees that interrupts are off, and that this is an event of the PMU, on its
    // CPU.
    unsafe { on_cpu::<T, _>(event, add) }.unwrap_or(EINVAL.to_errno())
}

/// Starts an event that does not count yet. Returns an errno.
fn start_one<T: Pmu>(
    registered: &Registered<T, Counter>,
    event: &Event<'_, T>,
    cpu: &context::Cpu,
) -> c_int {
    let driver = &registered.shared.driver;
    let mut errno = 0;

    event
        .state()
        .counting
        .enter(driver, event, cpu, Pending::NONE, |count, counting| {
            if count.is_none() {
                match driver.count_start(counting) {
                    Ok(started) => *count = Some(started),
                    Err(error) => errno = error.to_errno(),
                }
            }
        });
    errno
}

/// # Safety
///
/// Called by perf: interrupts off, on the event's CPU.
unsafe extern "C" fn del<T: Pmu>(event: *mut bindings::perf_event, _flags: c_int) {
    // SAFETY: perf guarantees for `del()` what `stop()` requires: interrupts are off, on the
    // event's CPU.
    unsafe { stop::<T>(event, 0) };
}

/// # Safety
///
/// Called by perf: interrupts off, on the event's CPU.
unsafe extern "C" fn start<T: Pmu>(event: *mut bindings::perf_event, _flags: c_int) {
    let start = |registered: &Registered<T, Counter>, event: &Event<'_, T>, cpu: &_| {
        start_one(registered, event, cpu);
    };

    // SAFETY: perf guarantees that interrupts are off, and that this is an event of the PMU, on its
    // CPU.
    unsafe { on_cpu::<T, _>(event, start) };
}

/// # Safety
///
/// Called by perf: interrupts off, on the event's CPU, perhaps in NMI.
unsafe extern "C" fn stop<T: Pmu>(event: *mut bindings::perf_event, _flags: c_int) {
    let stop = |registered: &Registered<T, Counter>, event: &Event<'_, T>, cpu: &_| {
        let driver = &registered.shared.driver;

        event
            .state()
            .counting
            .enter(driver, event, cpu, Pending::STOP, |count, counting| {
                stop_one(driver, count, counting);
            });
    };

    // SAFETY: perf guarantees that interrupts are off, and that this is an event of the PMU, on its
    // CPU.
    unsafe { on_cpu::<T, _>(event, stop) };
}

/// # Safety
///
/// Called by perf for an active event only: interrupts off, on the event's CPU, perhaps in NMI.
unsafe extern "C" fn read<T: Pmu>(event: *mut bindings::perf_event) {
    if !T::HAS_COUNT_READ {
        return;
    }
    let read = |registered: &Registered<T, Counter>, event: &Event<'_, T>, cpu: &_| {
        let driver = &registered.shared.driver;

        event
            .state()
            .counting
            .enter(driver, event, cpu, Pending::NONE, |count, counting| {
                if let Some(count) = count {
                    driver.count_read(counting, count);
                }
            });
    };

    // SAFETY: perf guarantees that interrupts are off, and that this is an event of the PMU, on its
    // CPU.
    unsafe { on_cpu::<T, _>(event, read) };
}
