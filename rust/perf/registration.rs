// SPDX-License-Identifier: GPL-2.0

//! Registered PMUs.
//!
//! C counterpart: `perf_pmu_register()` and `perf_pmu_unregister()`.

mod cpus;
mod shared;
mod units;

use crate::{
    aux::dma,
    bindings,
    context::{
        self,
        DropInTask, //
    },
    hotplug,
    pmu::{
        Capabilities,
        Context,
        Description,
        Pmu, //
    },
    stats,
    suspend,
    sysfs,
    vtable, //
};
use core::ptr::NonNull;
use kernel::{
    container_of,
    debugfs,
    devres::Devres,
    error::to_result,
    module::this_module,
    prelude::*,
    str::CString,
    sync::{
        atomic::Atomic,
        rcu,
        Arc, //
    },
    types::Opaque, //
};

#[cfg(CONFIG_PCI)]
pub(crate) use units::{
    Lines,
    Numbers, //
};
pub(crate) use {
    shared::{
        CpuInfo,
        PmuId,
        Shared,
        SharedRef, //
    },
    units::Units, //
};

/// The kind of a registered PMU: a [`Counter`](crate::counter::Counter), or a PMU with an
/// [AUX area](crate::aux::Aux).
pub trait Kind<T: Pmu>: private::Sealed + Sized + Send + Sync + 'static {
    #[doc(hidden)]
    type Cpu: Send + Sync;

    /// Capabilities that follow from the driver's methods.
    #[doc(hidden)]
    const CAPABILITIES: u32;

    /// Capabilities of a description that names none.
    #[doc(hidden)]
    const DEFAULT: Capabilities;

    #[doc(hidden)]
    fn complete(pmu: &mut bindings::pmu);

    /// # Safety
    ///
    /// `driver` must outlive the state, or be live until [`Self::sync`] has returned.
    #[doc(hidden)]
    unsafe fn cpu(cpu: u32, driver: NonNull<T>, info: CpuInfo) -> impl PinInit<Self::Cpu, Error>;

    #[doc(hidden)]
    fn set_online(state: Pin<&Self::Cpu>, online: bool, cpu: &context::Cpu);

    #[doc(hidden)]
    fn close(state: Pin<&Self::Cpu>);

    /// To be called after [`Self::close`] and an RCU grace period.
    #[doc(hidden)]
    fn sync(state: Pin<&Self::Cpu>);

    #[doc(hidden)]
    fn stats(state: Pin<&Self::Cpu>) -> Option<&stats::Stats>;
}

pub(crate) mod private {
    pub trait Sealed {}
}

/// A registered PMU.
///
/// When this is dropped, the PMU is unregistered: events that are still open are stopped and report
/// `POLLHUP`. It may be dropped in any context. In a callback of a PMU, and where nothing may
/// sleep, a task unregisters the PMU soon afterwards. If a driver forgets it, the framework
/// unregisters the PMU when the module is unloaded.
///
/// In any other context, the drop takes locks of perf and of CPU hotplug, and waits for callbacks.
/// A task deadlocks if it holds the lock of CPU hotplug, or an mmap lock, for example in `mmap()`
/// of a file: perf takes mmap locks under its own. A callback that unbinds the parent deadlocks,
/// too: the parent stays bound until the PMU is unregistered.
///
/// perf may call the driver before [`Self::new`] has returned, and until the PMU is unregistered.
///
/// C counterpart: `perf_pmu_register()` and `perf_pmu_unregister()`.
///
/// # Examples
///
/// A module that is one PMU is declared with [`module_pmu!`](crate::module_pmu!). A module that has
/// to find its hardware first, or has several PMUs, holds its registrations itself: see [`Pmu`] for
/// an example.
pub struct Registration<T: Pmu, K: Kind<T>> {
    // Dropped first: callbacks use the next field.
    _owned: DropInTask<Owner<T, K>>,
    shared: SharedRef<T, K>,
}

/// The owner of the registered PMU.
enum Owner<T: Pmu, K: Kind<T>> {
    Own {
        _registered: Handle<T, K>,
    },
    /// The parent device. The PMU is unregistered when the parent is unbound, or before that when
    /// the registration is dropped.
    Parent {
        _registered: Devres<Handle<T, K>>,
    },
}

impl<T: Pmu, K: Kind<T>> Registration<T, K> {
    /// Registers `driver` as the PMU that `description` describes. The PMU then appears in
    /// `/sys/bus/event_source/devices/`, and user space can open events.
    ///
    /// [`EEXIST`] if another PMU has this name, [`EINVAL`] or [`E2BIG`] for an invalid description;
    /// the kernel log says why. [`ENXIO`] if the parent is being unbound. [`EDEADLK`] in a callback
    /// of a PMU, since perf calls some of them with locks held that registration takes, and where
    /// nothing may sleep.
    ///
    /// Context: task, may sleep.
    pub fn new(description: Description<'_>, driver: T) -> Result<Self> {
        const {
            assert!(
                !core::mem::needs_drop::<T::Count>(),
                "Pmu::Count must be plain data: it may be dropped in NMI"
            );
            assert!(
                T::HAS_COUNT_START == T::HAS_COUNT_STOP && T::HAS_COUNT_START >= T::HAS_COUNT_TICK,
                "a driver that starts counting stops counting, and ticks only then"
            );
        }
        // SAFETY: Reading the context has no requirements.
        if !unsafe { bindings::rust_perf_may_unregister() } {
            pr_err!(
                "cannot register {}: this is a callback of a PMU, or must not sleep\n",
                description.name
            );
            return Err(EDEADLK);
        }
        description.check(T::HAS_FILTERS_VALIDATE)?;

        let parent = description.parent;
        let registered = KBox::pin_init(Registered::init(description, driver)?, GFP_KERNEL)?;
        let shared = SharedRef::new(registered.shared.clone());
        let handle = Handle(Some(registered));

        let owned = match parent {
            None => Owner::Own {
                _registered: handle,
            },
            Some(parent) => Owner::Parent {
                _registered: Devres::new(parent, Ok::<_, Error>(handle))?,
            },
        };
        let module = this_module::<T::OwnerModule>().as_ptr();

        Ok(Self {
            // SAFETY: `this_module()` is the module into which this is compiled.
            _owned: unsafe { DropInTask::new(owned, module)? },
            shared,
        })
    }

    /// The driver.
    pub fn driver(&self) -> &T {
        &self.shared.driver
    }

    pub(crate) fn shared(&self) -> &SharedRef<T, K> {
        &self.shared
    }

    /// `pmu->type`, which user space opens events with.
    #[cfg(CONFIG_RUST_PERF_TESTING)]
    fn type_(&self) -> c_int {
        match &*self._owned {
            Owner::Own { _registered } => _registered.0.as_ref().map_or(-1, |r| r.type_()),
            Owner::Parent { .. } => -1,
        }
    }
}

/// Unregisters when it is dropped, now or later. It is dropped only in tasks that may sleep.
///
/// With a parent, the handle is a resource of the parent. So the parent and the registry could both
/// end a registration that the driver forgets. Only one of them does: when the module's exit
/// function unregisters a bus driver, the driver core unbinds all its devices. That drops this
/// handle, and takes the registration off the registry's list. The registry ends only afterwards
/// what the module has left behind. See `registry.c` for a parent that is still bound then.
struct Handle<T: Pmu, K: Kind<T>>(Option<Pin<KBox<Registered<T, K>>>>);

impl<T: Pmu, K: Kind<T>> Drop for Handle<T, K> {
    fn drop(&mut self) {
        let Some(registered) = self.0.take() else {
            return;
        };

        // SAFETY: Reading the context has no requirements.
        if unsafe { bindings::rust_perf_may_unregister() } {
            // SAFETY: `Registered::init()` has initialised the entry.
            match unsafe { bindings::rust_perf_registration_claim(registered.entry.get()) } {
                true => drop(registered),
                // The module is being unloaded: the registry ends the registration and frees the
                // box.
                false => core::mem::forget(registered),
            }
            return;
        }
        // This is a callback, which cannot wait for its own end.
        //
        // SAFETY: The box is neither moved out of nor freed before `Registered::end()`.
        let registered = KBox::leak(unsafe { Pin::into_inner_unchecked(registered) });
        // SAFETY: `Registered::init()` has initialised the entry. It is ended once: the box was
        // taken.
        unsafe { bindings::rust_perf_registration_end_later(registered.entry.get()) };
    }
}

/// A registered PMU, as perf sees it: perf has pointers to it.
///
/// # Invariants
///
/// - `pmu` is registered with perf, with callbacks for `T` and `K`, for as long as `self` exists.
/// - The other fields are initialised before it is, and dropped after it was unregistered.
#[pin_data(PinnedDrop)]
pub(crate) struct Registered<T: Pmu, K: Kind<T>> {
    #[pin]
    pmu: Opaque<bindings::pmu>,
    #[pin]
    entry: Opaque<bindings::rust_perf_registration>,
    #[pin]
    hotplug: hotplug::Node,
    #[pin]
    suspend: suspend::Node,
    /// Whether the system suspends, is suspended, or resumes.
    suspended: Atomic<bool>,
    pub(crate) shared: Arc<Shared<T, K>>,
    groups: sysfs::Groups,
    name: CString,
    #[pin]
    files: debugfs::Scope<Arc<Shared<T, K>>>,
    // Dropped last: from then on the parent may be unbound.
    user: Option<dma::User>,
}

// SAFETY: A PMU may be unregistered by another task than the one that registered it.
unsafe impl<T: Pmu, K: Kind<T>> Send for Registered<T, K> {}
// SAFETY: perf locks what it changes in `pmu`; the other fields are `Sync`, or not accessed.
unsafe impl<T: Pmu, K: Kind<T>> Sync for Registered<T, K> {}

impl<T: Pmu, K: Kind<T>> Registered<T, K> {
    fn init(
        description: Description<'_>,
        driver: T,
    ) -> Result<impl PinInit<Self, Error> + use<'_, T, K>> {
        let Description {
            name,
            parent,
            capabilities,
            filters,
            scope,
            context,
            events,
            caps,
            more_events,
            more_caps,
            more_files,
        } = description;
        let capabilities = capabilities.unwrap_or(K::DEFAULT);
        let itrace = capabilities.contains(Capabilities::ITRACE);
        let units = Units::new(scope)?;
        let cpumask = !matches!(units, Units::EachCpu);
        let context = match units {
            Units::System(_) => Context::CpuOnly,
            _ => context,
        };
        let shared = Arc::pin_init(Shared::new(driver, units, filters, itrace), GFP_KERNEL)?;
        let directory = CString::try_from_fmt(fmt!("perf-{name}"))?;
        // Before the registration becomes a resource of the parent: devres releases resources in
        // reverse order.
        let user = parent.map(dma::User::new).transpose()?;
        let files = shared.clone();

        // SAFETY: All pointers and integers of `struct pmu` may be 0.
        let mut pmu: bindings::pmu = unsafe { core::mem::zeroed() };
        pmu.module = this_module::<T::OwnerModule>().as_ptr();
        // CAST: The flags use the low bits.
        pmu.capabilities = (capabilities.0 | K::CAPABILITIES) as c_int;
        pmu.task_ctx_nr = context.as_raw();
        pmu.nr_addr_filters = filters;
        if let Some(parent) = parent {
            // CAST: `Device` is a transparent wrapper of `struct device`.
            pmu.parent = core::ptr::from_ref(parent).cast_mut().cast();
        }
        vtable::complete::<T, K>(&mut pmu);
        K::complete(&mut pmu);

        Ok(try_pin_init!(&this in Self {
            pmu: Opaque::new(pmu),
            entry <- Opaque::ffi_init(|entry| {
                let module = this_module::<T::OwnerModule>().as_ptr();
                // SAFETY: `entry` is valid for writes, and pinned.
                unsafe {
                    bindings::rust_perf_registration_init(entry, module, Some(Self::end))
                }
            }),
            hotplug: hotplug::Node::new(Self::online, Self::offline),
            suspend: suspend::Node::new(Self::suspends, Self::resumes),
            suspended: Atomic::new(false),
            shared,
            groups: sysfs::Groups::new([
                (
                    c"format",
                    <T::Config as crate::format::Config>::attributes(),
                    KVec::new(),
                ),
                (c"events", events, more_events),
                (c"caps", caps, more_caps),
                (c"", vtable::root_files::<T, K>(cpumask), more_files),
            ])?,
            name: CString::try_from_fmt(fmt!("{name}"))?,
            files <- debugfs::Scope::dir(files, &directory, |shared, dir| {
                stats::show(shared, dir)
            }),
            user,
            _: {
                // SAFETY: `this` is pinned, and all its fields are initialised.
                unsafe { this.as_ref() }.register()?;
            },
        }))
    }

    /// Registers the PMU with perf. This is the last step: from here on perf calls the callbacks.
    fn register(&self) -> Result {
        // SAFETY: The PMU is not registered yet, so no other code has a reference to it.
        unsafe { (*self.pmu.get()).attr_groups = self.groups.as_raw() };

        // SAFETY: `self` is pinned. The node is removed if registering fails, or when `self` is
        // dropped.
        unsafe { self.hotplug.add()? };

        self.shared.set_pmu(self.pmu.get());
        // INVARIANT: All other fields are initialised.
        //
        // SAFETY:
        // - `pmu` is pinned and, but for what perf fills in, complete.
        // - The callbacks are for events of a `Registered<T, K>`, which this is, and may be called
        //   at once: all fields are initialised.
        // - It is unregistered before it is dropped.
        to_result(unsafe {
            bindings::perf_pmu_register(self.pmu.get(), self.name.as_char_ptr(), -1)
        })
        .inspect_err(|error| {
            pr_err!(
                "cannot register {}: error {}\n",
                &*self.name,
                error.to_errno()
            );
            self.shared.set_pmu(core::ptr::null());
            // SAFETY: `self.hotplug.add()` has succeeded.
            unsafe { self.hotplug.remove() };
            self.close();
        })?;
        // SAFETY: The node is added once; `self` is pinned, and the node is removed when it is
        // dropped.
        unsafe { self.suspend.add() };
        // SAFETY: The entry is initialised, pinned, and removed when `self` is dropped.
        unsafe { bindings::rust_perf_registry_add(self.entry.get()) };
        Ok(())
    }

    /// Waits for the timers and works of all CPUs, which do not run again. No event is left.
    fn close(&self) {
        for state in self.shared.cpus.iter() {
            K::close(state);
        }
        rcu::synchronize_rcu();
        for state in self.shared.cpus.iter() {
            K::sync(state);
        }
    }

    /// Unregisters and frees.
    ///
    /// # Safety
    ///
    /// `entry` must be that of a leaked box, which must not be used after this call.
    unsafe extern "C" fn end(entry: *mut bindings::rust_perf_registration) {
        // SAFETY: The caller guarantees that this is the entry of a leaked box.
        let this = unsafe { container_of!(Opaque::cast_from(entry), Self, entry) };

        // SAFETY: The caller guarantees that the box was leaked, and is not used after this. It is
        // pinned, and not moved out of.
        drop(unsafe { Pin::new_unchecked(KBox::from_raw(this.cast_mut())) });
    }

    /// The registration of an event's PMU.
    ///
    /// # Safety
    ///
    /// `event` must be an event of a PMU that is a `Registered<T, K>`, and hold it (as every event
    /// does until it is freed or the PMU is unregistered) during the lifetime that the caller
    /// picks.
    #[inline]
    pub(crate) unsafe fn of<'a>(event: NonNull<bindings::perf_event>) -> &'a Self {
        // SAFETY: The caller guarantees that the event is live.
        let pmu = unsafe { (*event.as_ptr()).pmu };

        // SAFETY: The PMU of a `Registered<T, K>`, which stays, by the safety requirement.
        unsafe { Self::of_pmu(pmu) }
    }

    /// The registration of a PMU.
    ///
    /// # Safety
    ///
    /// `pmu` must be that of a `Registered<T, K>`, which stays during the lifetime that the caller
    /// picks.
    #[inline]
    pub(crate) unsafe fn of_pmu<'a>(pmu: *mut bindings::pmu) -> &'a Self {
        // SAFETY: The caller guarantees that this is the `pmu` of a `Registered<T, K>`.
        let this = unsafe { container_of!(Opaque::cast_from(pmu), Self, pmu) };

        // SAFETY: The caller guarantees that the registration stays during `'a`. It was initialised
        // before the PMU was registered.
        unsafe { &*this }
    }

    /// The memory that is mapped for the PMU's parent device, if it has one.
    pub(crate) fn domain(&self) -> Option<&Arc<dma::Domain>> {
        self.user.as_ref().map(dma::User::domain)
    }

    /// `pmu->type`.
    pub(crate) fn type_(&self) -> c_int {
        // SAFETY: Only `perf_pmu_register()` writes the field.
        unsafe { (*self.pmu.get()).type_ }
    }
}

#[pinned_drop]
impl<T: Pmu, K: Kind<T>> PinnedDrop for Registered<T, K> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The entry is initialised. It may have been removed already.
        unsafe { bindings::rust_perf_registry_del(self.entry.get()) };
        // From here on `Attr::leader()` does not find its events.
        self.shared.set_pmu(core::ptr::null());
        // Events that are still open are stopped, and become REVOKED. This fails only for PMUs with
        // `event_unmapped()`, which no PMU of the framework has.
        //
        // SAFETY: The PMU is registered, by the type invariant. This is a task that may sleep and
        // is in none of the PMU's callbacks: `Handle` and the registry ensure that.
        unsafe { bindings::perf_pmu_unregister(self.pmu.get()) };
        // SAFETY: `register()` has added the node.
        unsafe { self.suspend.remove() };
        // SAFETY: `register()` has added the node.
        unsafe { self.hotplug.remove() };
        self.close();
    }
}

#[cfg(CONFIG_RUST_PERF_TESTING)]
mod tests;
