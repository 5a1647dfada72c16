// SPDX-License-Identifier: GPL-2.0

//! The state that the callbacks of a PMU and the driver's interrupt handlers share.

use super::{
    units::Lines,
    Kind,
    Units, //
};
use crate::{
    bindings,
    context::{
        may_sleep,
        Later, //
    },
    percpu::PerCpu,
    pmu::Pmu,
    stats, //
};
use core::{
    mem::ManuallyDrop,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    container_of,
    module::this_module,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// Identifies a PMU. No other PMU ever has its number: an AUX area can outlive its PMU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PmuId(u64);

impl PmuId {
    pub(crate) fn new() -> Self {
        static LAST: Atomic<u64> = Atomic::new(0);

        Self(LAST.fetch_add(1, Relaxed))
    }
}

/// Properties of the PMU that the state of each CPU needs.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct CpuInfo {
    /// Identifies the PMU.
    pub(crate) id: PmuId,
    /// `PERF_PMU_CAP_ITRACE`.
    pub(crate) itrace: bool,
    /// Whether the PMU has address filters.
    pub(crate) filters: bool,
}

/// The state that the callbacks of a PMU share. Each [`Entry`](crate::interrupt::Entry) has a
/// reference to it.
///
/// # Invariants
///
/// `later` has [`Self::free`].
#[pin_data]
pub(crate) struct Shared<T: Pmu, K: Kind<T>> {
    pub(crate) driver: T,
    pub(crate) units: Units,
    pub(crate) lines: Arc<Lines>,
    pub(crate) filters: usize,
    pub(crate) cpus: PerCpu<K::Cpu>,
    /// Identifies the PMU.
    pub(crate) id: PmuId,
    /// The address of the `struct pmu`, from before it is registered until it is about to be
    /// unregistered; else 0.
    pmu: Atomic<usize>,
    #[pin]
    later: Later,
}

impl<T: Pmu, K: Kind<T>> Shared<T, K> {
    pub(crate) fn new(
        driver: T,
        units: Units,
        filters: u32,
        itrace: bool,
    ) -> impl PinInit<Self, Error> {
        let id = PmuId::new();

        try_pin_init!(&this in Self {
            driver,
            units,
            lines: Lines::new()?,
            pmu: Atomic::new(0),
            filters: usize::try_from(filters)?,
            id,
            cpus: {
                // SAFETY: `this` is pinned and valid for writes.
                let driver = unsafe { &raw mut (*this.as_ptr()).driver };
                // SAFETY: The address of a field is not null.
                let driver = unsafe { NonNull::new_unchecked(driver) };
                let info = CpuInfo {
                    id: *id,
                    itrace,
                    filters: *filters != 0,
                };

                PerCpu::new(|cpu| {
                    // SAFETY: The initialiser sets the driver before the states. It is pinned, and
                    // dropped together with the states, when no callback runs any more.
                    unsafe { K::cpu(cpu, driver, info) }
                })?
            },
            // SAFETY: `this_module()` is the module into which this is compiled, with `free()`.
            later <- unsafe {
                Later::new(this_module::<T::OwnerModule>().as_ptr(), Self::free)
            },
        })
    }

    /// Drops the last reference.
    ///
    /// # Safety
    ///
    /// `later` must be that of a state of which a reference was leaked.
    unsafe extern "C" fn free(later: *mut bindings::rust_perf_later) {
        // SAFETY: The caller guarantees that this is the `later` of a state. `Later` is a
        // transparent wrapper.
        let this = unsafe { container_of!(later.cast::<Later>(), Self, later) };

        // SAFETY: The caller guarantees that a reference was leaked. This takes it back, once.
        drop(unsafe { Arc::from_raw(this) });
    }

    /// Sets the address of the PMU before it is registered, and null before it is unregistered.
    pub(crate) fn set_pmu(&self, pmu: *const bindings::pmu) {
        // Relaxed: synchronize_srcu() in `perf_pmu_unregister()` orders the store before events are
        // freed. It pairs with the SRCU section in which `Attr::leader()` loads it.
        self.pmu.store(pmu.addr(), Relaxed);
    }

    /// Whether `pmu` is this PMU, and is not about to be unregistered.
    pub(crate) fn is_of(&self, pmu: *const bindings::pmu) -> bool {
        !pmu.is_null() && self.pmu.load(Relaxed) == pmu.addr()
    }
}

/// A reference to the state, which a driver may drop in any context. If it is the last one, and
/// nothing may sleep, a worker drops the state.
pub(crate) struct SharedRef<T: Pmu, K: Kind<T>>(ManuallyDrop<Arc<Shared<T, K>>>);

impl<T: Pmu, K: Kind<T>> SharedRef<T, K> {
    pub(crate) fn new(shared: Arc<Shared<T, K>>) -> Self {
        Self(ManuallyDrop::new(shared))
    }
}

impl<T: Pmu, K: Kind<T>> Clone for SharedRef<T, K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Pmu, K: Kind<T>> Deref for SharedRef<T, K> {
    type Target = Shared<T, K>;

    #[inline]
    fn deref(&self) -> &Shared<T, K> {
        &self.0
    }
}

impl<T: Pmu, K: Kind<T>> Drop for SharedRef<T, K> {
    fn drop(&mut self) {
        // SAFETY: The field is not used after this: `self` is being dropped.
        let shared = unsafe { ManuallyDrop::take(&mut self.0) };

        if may_sleep() {
            return drop(shared);
        }
        if let Some(last) = Arc::into_unique_or_drop(shared) {
            let last = Arc::into_raw(Arc::from(last));
            // SAFETY: The state is live: the last reference was just leaked.
            let later = unsafe { &raw const (*last).later };

            // SAFETY: Nothing else refers to the state. `Shared::free()`, which `later` has by the
            // type invariant, drops the leaked reference.
            unsafe { Later::run(later) };
        }
    }
}

impl<T: Pmu, K: Kind<T>> stats::Sum for Arc<Shared<T, K>> {
    fn sum(&self, counter: fn(&stats::Stats) -> u64) -> u64 {
        self.cpus
            .iter()
            .filter_map(K::stats)
            .fold(0, |sum, stats| sum.wrapping_add(counter(stats)))
    }
}
