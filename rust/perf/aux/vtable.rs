// SPDX-License-Identifier: GPL-2.0

//! The callbacks of `struct pmu` for PMUs with an AUX area.

use super::{
    cpu::{
        CpuState,
        Failure, //
    },
    AuxPmu,
    Buffer,
    Pages, //
};
use crate::{
    bindings,
    context,
    event::Event,
    module_ref,
    pmu::Capabilities,
    registration::{
        private,
        CpuInfo,
        Kind,
        Registered, //
    },
    stats::Stats,
    vtable::in_callback, //
};
use core::{
    ffi::c_void,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::prelude::*;

/// The kind of PMU that has an AUX area.
pub struct Aux(());

impl private::Sealed for Aux {}

impl<T: AuxPmu> Kind<T> for Aux {
    type Cpu = CpuState<T>;

    const CAPABILITIES: u32 = {
        assert!(
            !core::mem::needs_drop::<T::Trace>(),
            "AuxPmu::Trace must be plain data: it may be dropped in NMI"
        );
        assert!(
            T::HAS_PAUSE == T::HAS_RESUME,
            "a driver that can pause can resume, and the other way round"
        );

        if T::HAS_PAUSE {
            bindings::PERF_PMU_CAP_AUX_PAUSE
        } else {
            0
        }
    };

    const DEFAULT: Capabilities = Capabilities::EXCLUSIVE;

    fn complete(pmu: &mut bindings::pmu) {
        pmu.add = Some(add::<T>);
        pmu.del = Some(del::<T>);
        pmu.start = Some(start::<T>);
        pmu.stop = Some(stop::<T>);
        pmu.read = Some(read::<T>);
        pmu.setup_aux = Some(setup_aux::<T>);
        pmu.free_aux = Some(module_ref::free_aux);
        #[cfg(perf_output_copy_aux)]
        if T::HAS_SNAPSHOT {
            pmu.snapshot_aux = Some(snapshot_aux::<T>);
        }
    }

    unsafe fn cpu(cpu: u32, driver: NonNull<T>, info: CpuInfo) -> impl PinInit<Self::Cpu, Error> {
        // SAFETY: The caller gives what the callee requires: both have the same safety requirement.
        unsafe { CpuState::new(cpu, driver, info) }
    }

    fn set_online(state: Pin<&Self::Cpu>, online: bool, cpu: &context::Cpu) {
        state.set_online(online, cpu);
    }

    fn close(state: Pin<&Self::Cpu>) {
        state.close();
    }

    fn sync(state: Pin<&Self::Cpu>) {
        state.sync();
    }

    fn stats(state: Pin<&Self::Cpu>) -> Option<&Stats> {
        Some(&state.get_ref().stats)
    }
}

/// Calls `f` with what a callback on the event's CPU needs.
///
/// # Safety
///
/// `event` must be an event of a `Registered<T, Aux>` whose `event_init()` has succeeded, and
/// interrupts off.
#[inline]
unsafe fn on_cpu<T: AuxPmu, R>(
    event: *mut bindings::perf_event,
    f: impl FnOnce(Pin<&CpuState<T>>, NonNull<bindings::perf_event>, &context::Cpu) -> R,
) -> Option<R> {
    let event = NonNull::new(event)?;
    // SAFETY: The caller guarantees that this is an event of a `Registered<T, Aux>`. That stays:
    // `perf_pmu_unregister()` returns when no callback of its events runs.
    let registered = unsafe { Registered::<T, Aux>::of(event) };
    // SAFETY: The caller guarantees that interrupts are off until the callback returns.
    let cpu = unsafe { context::Cpu::current() };
    let state = registered.shared.cpus.this(&cpu)?;

    Some(f(state, event, &cpu))
}

/// # Safety
///
/// Called by perf: interrupts off, the context's lock held, on the event's CPU.
unsafe extern "C" fn add<T: AuxPmu>(event: *mut bindings::perf_event, flags: c_int) -> c_int {
    // CAST: The flag is bit 0.
    let start = flags & bindings::PERF_EF_START as c_int != 0;
    let add = |state: Pin<&CpuState<T>>, event, cpu: &_| {
        // SAFETY: perf calls this as `add()` of an event of this PMU, and calls `del()` before the
        // event is freed.
        unsafe { state.add(event, start, cpu) }
    };

    // SAFETY: perf guarantees that interrupts are off, and that this is an event of the PMU whose
    // `event_init()` has succeeded.
    match unsafe { on_cpu::<T, _>(event, add) } {
        Some(Ok(())) => 0,
        Some(Err(failure)) => failure.to_errno(),
        None => Failure::Offline.to_errno(),
    }
}

/// # Safety
///
/// Called by perf: interrupts off, the context's lock held, on the event's CPU.
unsafe extern "C" fn del<T: AuxPmu>(event: *mut bindings::perf_event, _flags: c_int) {
    let del = |state: Pin<&CpuState<T>>, event, cpu: &_| state.del(event, cpu);

    // SAFETY: perf guarantees that interrupts are off, and that this is an event of the PMU whose
    // `event_init()` has succeeded.
    unsafe { on_cpu::<T, _>(event, del) };
}

/// # Safety
///
/// Called by perf: interrupts off, on the event's CPU; with `PERF_EF_RESUME` perhaps in NMI.
unsafe extern "C" fn start<T: AuxPmu>(event: *mut bindings::perf_event, flags: c_int) {
    // `PERF_EF_RELOAD` means nothing to a trace unit: it has no period.
    let start = |state: Pin<&CpuState<T>>, event, cpu: &_| {
        // CAST: The flag is bit 4.
        if flags & bindings::PERF_EF_RESUME as c_int != 0 {
            state.follow_pause(event, cpu);
        } else {
            state.start(event, cpu);
        }
    };

    // SAFETY: perf guarantees that interrupts are off, and that this is an event of the PMU whose
    // `event_init()` has succeeded.
    unsafe { on_cpu::<T, _>(event, start) };
}

/// # Safety
///
/// Called by perf: interrupts off, on the event's CPU, perhaps in NMI.
unsafe extern "C" fn stop<T: AuxPmu>(event: *mut bindings::perf_event, flags: c_int) {
    let stop = |state: Pin<&CpuState<T>>, event, cpu: &_| {
        // CAST: The flag is bit 3.
        if flags & bindings::PERF_EF_PAUSE as c_int != 0 {
            state.follow_pause(event, cpu);
        } else {
            // With and without `PERF_EF_UPDATE`: perf may free the AUX area after this.
            state.stop(event, cpu);
        }
    };

    // SAFETY: perf guarantees that interrupts are off, and that this is an event of the PMU whose
    // `event_init()` has succeeded.
    unsafe { on_cpu::<T, _>(event, stop) };
}

/// # Safety
///
/// Called by perf for an active event only: interrupts off, on the event's CPU, perhaps in NMI.
/// perf does not check that it exists.
unsafe extern "C" fn read<T: AuxPmu>(event: *mut bindings::perf_event) {
    if T::HAS_COUNT_READ {
        let read = |state: Pin<&CpuState<T>>, event, cpu: &_| state.read(event, cpu);

        // SAFETY: perf guarantees that interrupts are off, and that this is an event of the PMU
        // whose `event_init()` has succeeded.
        unsafe { on_cpu::<T, _>(event, read) };
    }
}

/// # Safety
///
/// Called by perf: interrupts off, on the event's CPU, perhaps in NMI, with the handle of a record
/// that has space for `size` bytes.
#[cfg(perf_output_copy_aux)]
unsafe extern "C" fn snapshot_aux<T: AuxPmu>(
    event: *mut bindings::perf_event,
    record: *mut bindings::perf_output_handle,
    size: c_ulong,
) -> c_long {
    let Some(record) = NonNull::new(record) else {
        return 0;
    };
    // CAST: Lossless, both have 64 bits.
    let size = size as u64;
    let snapshot = |state: Pin<&CpuState<T>>, event, cpu: &_| {
        // SAFETY: perf calls this as `snapshot_aux()`, with these arguments.
        unsafe { state.snapshot(event, record, size, cpu) }
    };

    // SAFETY: perf guarantees that interrupts are off, and that this is an event of the PMU whose
    // `event_init()` has succeeded.
    unsafe { on_cpu::<T, _>(event, snapshot) }.unwrap_or(0)
}

/// # Safety
///
/// Called by perf with an event of a `Registered<T, Aux>`, the array of the AUX area's pages and
/// their number.
unsafe extern "C" fn setup_aux<T: AuxPmu>(
    event: *mut bindings::perf_event,
    pages: *mut *mut c_void,
    nr_pages: c_int,
    overwrite: bool,
) -> *mut c_void {
    let setup = || -> Result<*mut c_void> {
        let raw = NonNull::new(event).ok_or(EINVAL)?;
        // SAFETY: The arguments that perf passes. The pages go into the `Buffer`, or are dropped
        // right here.
        let pages = unsafe { Pages::new(pages, nr_pages, overwrite)? };
        // SAFETY: An event of this PMU, whose file is being mapped.
        let registered = unsafe { Registered::<T, Aux>::of(raw) };
        // SAFETY: An event of a registered PMU, live while its file is being mapped.
        let node = unsafe { bindings::rust_perf_event_node(raw.as_ptr()) };
        // SAFETY: The node of a device or of a CPU that is there, or none; this is `setup_aux()`.
        let pages = unsafe { pages.of_unit(node, registered.domain()) };
        // SAFETY: An event of this PMU, live while its file is being mapped.
        let event = unsafe { Event::<T>::from_raw(raw) };
        let shared = &registered.shared;
        // SAFETY: The caller guarantees that this is an event of this PMU, which lives during the
        // callback.
        let key = unsafe { <super::core::Perf as super::core::Core>::ring(raw) };

        let data = shared.driver.setup_aux(&event, &pages)?;
        Buffer::<T>::into_foreign(data, pages, shared.id, key)
    };

    // This includes the drop of the driver's data on failure. perf takes null for `ENOMEM`.
    in_callback(setup).unwrap_or(ptr::null_mut())
}
