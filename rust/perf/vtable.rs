// SPDX-License-Identifier: GPL-2.0

//! The callbacks of `struct pmu` that all kinds of PMU have.
//!
//! Each is a thin shim: it converts perf's arguments to types, and an error to an errno.

use crate::{
    bindings,
    event::{
        Attr,
        State, //
    },
    filter,
    pmu::Pmu,
    registration::{
        Kind,
        Registered,
        Units, //
    },
    sysfs, //
};
use core::{
    mem::MaybeUninit,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    error::from_result,
    prelude::*,
    sync::atomic::Relaxed, //
};

/// Sets the callbacks.
pub(crate) fn complete<T: Pmu, K: Kind<T>>(pmu: &mut bindings::pmu) {
    pmu.event_init = Some(event_init::<T, K>);
    if let Some(validate) = validator::<T>(pmu.nr_addr_filters) {
        pmu.addr_filters_validate = Some(validate);
        pmu.addr_filters_sync = Some(addr_filters_sync::<T>);
    }
    if T::HAS_AUX_OUTPUT_MATCH {
        pmu.aux_output_match = Some(aux_output_match::<T>);
        // CAST: The flag is one of the low bits.
        pmu.capabilities |= bindings::PERF_PMU_CAP_AUX_OUTPUT as c_int;
    }
}

/// The sysfs files beside the directories.
pub(crate) fn root_files<T: Pmu, K: Kind<T>>(cpumask: bool) -> &'static [sysfs::Attribute] {
    struct Files<T, K>(T, K);

    impl<T: Pmu, K: Kind<T>> Files<T, K> {
        const CPUMASK: &'static [sysfs::Attribute] = &[sysfs::Attribute::with_show(
            c"cpumask",
            cpumask_show::<T, K>,
        )];
    }

    if cpumask {
        Files::<T, K>::CPUMASK
    } else {
        &[]
    }
}

/// Runs `f`, which calls the driver in a task that may sleep. A registration that the driver drops
/// meanwhile is unregistered later.
pub(crate) fn in_callback<R>(f: impl FnOnce() -> R) -> R {
    let mut callback = MaybeUninit::<bindings::rust_perf_callback>::uninit();

    // SAFETY: The callback is valid for writes, and stays on this stack until
    // `rust_perf_leave_callback()`.
    unsafe { bindings::rust_perf_enter_callback(callback.as_mut_ptr()) };
    let result = f();
    // SAFETY: This task has entered the callback, with `rust_perf_enter_callback()`.
    unsafe { bindings::rust_perf_leave_callback(callback.as_mut_ptr()) };
    result
}

/// # Safety
///
/// `event` must be a new event that perf tries on a `Registered<T, K>`.
unsafe extern "C" fn event_init<T: Pmu, K: Kind<T>>(event: *mut bindings::perf_event) -> c_int {
    from_result(|| {
        let event = NonNull::new(event).ok_or(EINVAL)?;
        // SAFETY: perf has set `pmu`, and holds it while it calls.
        let registered = unsafe { Registered::<T, K>::of(event) };

        // perf tries every PMU for an event whose type it does not know.
        //
        // SAFETY: perf calls `event_init()` with a live event.
        let asked = unsafe { (*event.as_ptr()).attr.type_ };
        if u32::try_from(registered.type_()) != Ok(asked) {
            return Err(ENOENT);
        }

        let shared = &registered.shared;
        // SAFETY: perf calls this function as the event's `event_init()`.
        unsafe { place(event, &shared.units)? };
        // This includes the parsing of the driver's terms, and the drop of its data on failure.
        let state = in_callback(|| {
            // SAFETY: perf calls this function as the event's `event_init()`.
            let attr = unsafe { Attr::<T::Config>::new(event)? };
            let data = shared.driver.event_init(&attr)?;
            let state = State::<T>::new(attr.into_config(), shared.filters, data)?;

            Ok::<_, Error>(KBox::new(state, GFP_KERNEL)?)
        })?;

        // SAFETY: perf calls `event_init()` with a live event; `pmu_private` is the PMU's.
        unsafe { (*event.as_ptr()).pmu_private = KBox::into_raw(state).cast() };
        // Last: perf calls it even if `event_init()` fails after this.
        //
        // SAFETY: perf calls `event_init()` with a live event.
        unsafe { (*event.as_ptr()).destroy = Some(destroy::<T>) };
        Ok(0)
    })
}

/// Refuses an event on a CPU that has no unit. If all CPUs share a unit, refuses an event of a
/// task, and moves an event of a CPU to the unit's CPU.
///
/// # Safety
///
/// `event` must be an event in its `event_init()`.
unsafe fn place(event: NonNull<bindings::perf_event>, units: &Units) -> Result {
    // SAFETY: The caller guarantees that the event is in its `event_init()`, and thus live.
    let cpu = u32::try_from(unsafe { (*event.as_ptr()).cpu }).ok();
    // SAFETY: The caller guarantees that the event is in its `event_init()`, and thus live.
    let attach_state = unsafe { (*event.as_ptr()).attach_state };

    match units {
        Units::EachCpu => Ok(()),
        Units::Cpus(_) => match cpu {
            Some(cpu) if !units.may_have(cpu) => Err(ENODEV),
            _ => Ok(()),
        },
        Units::System(_) if attach_state & bindings::PERF_ATTACH_TASK != 0 => Err(EOPNOTSUPP),
        Units::System(home) => {
            let home = home.load(Relaxed);

            // SAFETY: The caller guarantees that the event is in its `event_init()`; perf reads the
            // field only after that.
            unsafe { (*event.as_ptr()).cpu = home.try_into()? };
            Ok(())
        }
    }
}

/// # Safety
///
/// `event` must be an event whose [`event_init`] has succeeded, and this must be its last callback.
unsafe extern "C" fn destroy<T: Pmu>(event: *mut bindings::perf_event) {
    // SAFETY: The caller guarantees that the event is live and that no other callback of it runs.
    // `pmu_private` is the PMU's.
    let private = unsafe { ptr::replace(&raw mut (*event).pmu_private, ptr::null_mut()) };
    // SAFETY: The state is from `KBox::into_raw()` in `event_init()`; perf does not use the event
    // any more.
    let state = unsafe { KBox::from_raw(private.cast::<State<T>>()) };

    in_callback(|| drop(state));
}

type Validate = unsafe extern "C" fn(*mut bindings::list_head) -> c_int;

/// The callback for a PMU with `filters` address filters; [`None`] for one without.
///
/// perf passes it neither the event nor the PMU, and indexes an array of `pmu->nr_addr_filters`
/// entries with what it accepts. So there is a function for each number.
fn validator<T: Pmu>(filters: u32) -> Option<Validate> {
    if !T::HAS_FILTERS_VALIDATE {
        return None;
    }
    macro_rules! by_number {
        ($($number:literal)*) => {
            match filters {
                $($number => Some(addr_filters_validate::<T, $number> as Validate),)*
                _ => None,
            }
        };
    }

    by_number!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
}

/// # Safety
///
/// Called by perf with a list of filters for an event whose PMU has `N` address filters.
unsafe extern "C" fn addr_filters_validate<T: Pmu, const N: usize>(
    filters: *mut bindings::list_head,
) -> c_int {
    from_result(|| {
        let filters = NonNull::new(filters).ok_or(EINVAL)?;
        // SAFETY: perf calls this as `addr_filters_validate()`, with this list.
        let filters = unsafe { filter::of_list(filters, N)? };

        in_callback(|| T::filters_validate(&filters)).map(|()| 0)
    })
}

/// # Safety
///
/// Called by `perf_event_addr_filters_sync()`, with the filters locked: before a transaction.
unsafe extern "C" fn addr_filters_sync<T: Pmu>(event: *mut bindings::perf_event) {
    let Some(event) = NonNull::new(event) else {
        return;
    };
    // SAFETY: perf passes a live event of this PMU. A child has its parent's list, and ranges of
    // its own.
    let list = unsafe { bindings::rust_perf_addr_filters(event.as_ptr()) };
    // SAFETY: perf passes a live event of this PMU.
    let ranges = unsafe { (*event.as_ptr()).addr_filter_ranges };
    // SAFETY: perf passes a live event of this PMU, whose `event_init()` has set the field.
    let state = unsafe { (*event.as_ptr()).pmu_private }.cast::<State<T>>();
    // SAFETY: `destroy()` frees the state, and comes after this callback.
    let state = unsafe { &*state };

    if let Some(list) = NonNull::new(list) {
        // SAFETY:
        // - The event's list, which perf has locked, and the array that perf keeps for it.
        // - Only `Inner::try_begin()` has perf call this: no transaction of the event is open, and
        //   interrupts are off on its CPU.
        unsafe { state.filters.sync(list, ranges) };
    }
}

/// # Safety
///
/// Called by perf with the leader of the group that an event of this PMU is to join.
unsafe extern "C" fn aux_output_match<T: Pmu>(leader: *mut bindings::perf_event) -> c_int {
    // perf asks the event's own PMU about the leader, but passes the leader only.
    //
    // SAFETY: perf passes a live event, whose type is set for good.
    let leader = unsafe { (*leader).attr.type_ };

    in_callback(|| T::aux_output_match(leader)).into()
}

/// # Safety
///
/// Called by sysfs with the device of a registered `Registered<T, K>` and a page.
unsafe extern "C" fn cpumask_show<T: Pmu, K: Kind<T>>(
    device: *mut bindings::device,
    _attribute: *mut bindings::device_attribute,
    page: *mut c_char,
) -> isize {
    // SAFETY: perf sets the device's data to the PMU.
    let pmu = unsafe { bindings::dev_get_drvdata(device) }.cast::<bindings::pmu>();
    // SAFETY: The PMU of a `Registered<T, K>`, by the safety requirement; the device is removed
    // before the PMU.
    let registered = unsafe { Registered::<T, K>::of_pmu(pmu) };

    match &registered.shared.units {
        Units::EachCpu => 0,
        Units::Cpus(mask) => {
            // SAFETY: sysfs passes a page; the mask stays as long as the registration.
            unsafe { bindings::rust_perf_cpumask_emit(page, mask.as_raw()) }
        }
        Units::System(home) => {
            // SAFETY: sysfs passes a page.
            unsafe { bindings::rust_perf_cpu_emit(page, home.load(Relaxed)) }
        }
    }
}
