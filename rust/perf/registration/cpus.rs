// SPDX-License-Identifier: GPL-2.0

//! CPUs that come and go, and the system's suspend.

use super::{
    Kind,
    Registered,
    Units, //
};
use crate::{
    bindings,
    context,
    hotplug,
    pmu::Pmu,
    suspend,
    vtable, //
};
use core::ptr::NonNull;
use kernel::{
    container_of,
    interrupt,
    prelude::*,
    sync::atomic::Relaxed, //
};

impl<T: Pmu, K: Kind<T>> Registered<T, K> {
    /// # Safety
    ///
    /// `node` must be the `hotplug` of a `Registered<T, K>`.
    unsafe fn of_node<'a>(node: NonNull<hotplug::Node>) -> &'a Self {
        // SAFETY: The caller guarantees that this is the `hotplug` of a `Registered<T, K>`.
        let this = unsafe { container_of!(node.as_ptr(), Self, hotplug) };

        // SAFETY: Nodes are removed before the registration is dropped.
        unsafe { &*this }
    }

    /// A CPU has come online.
    ///
    /// # Safety
    ///
    /// As for [`Self::of_node`]; on that CPU.
    pub(super) unsafe fn online(node: NonNull<hotplug::Node>, cpu: u32) -> Result {
        // SAFETY: The caller guarantees that this is the `hotplug` of a `Registered<T, K>`.
        let this = unsafe { Self::of_node(node) };

        if !this.shared.units.may_have(cpu) {
            return Ok(());
        }
        if T::HAS_CPU_ONLINE {
            vtable::in_callback(|| this.shared.driver.cpu_online(cpu))?;
        }
        this.shared.units.settle(cpu);
        if this.shared.units.home().is_none() {
            this.shared.lines.settle(cpu);
        }
        // Secondary CPUs resume before devices do.
        if !this.suspended.load(Relaxed) {
            this.set_online(true);
        }
        Ok(())
    }

    /// A CPU goes offline.
    ///
    /// # Safety
    ///
    /// As for [`Self::of_node`]; on that CPU.
    pub(super) unsafe fn offline(node: NonNull<hotplug::Node>, cpu: u32) -> Result {
        // SAFETY: The caller guarantees that this is the `hotplug` of a `Registered<T, K>`.
        let this = unsafe { Self::of_node(node) };

        // First, so that no transaction is open when the driver is called.
        this.set_online(false);
        this.migrate(cpu);
        if T::HAS_CPU_OFFLINE && this.shared.units.may_have(cpu) {
            vtable::in_callback(|| this.shared.driver.cpu_offline(cpu));
        }
        Ok(())
    }

    /// The system is about to suspend.
    ///
    /// # Safety
    ///
    /// `node` must be the `suspend` of a `Registered<T, K>`; in a task that stays on its CPU.
    pub(super) unsafe fn suspends(node: NonNull<suspend::Node>) {
        // SAFETY: The caller guarantees that this is the `suspend` of a `Registered<T, K>`, which
        // removes it before it is dropped.
        let this = unsafe { &*container_of!(node.as_ptr(), Self, suspend) };

        // Relaxed: the lock of CPU hotplug, which the caller holds, orders this with the load in
        // `online()`.
        this.suspended.store(true, Relaxed);
        this.set_online(false);
    }

    /// The system has resumed, or has not suspended.
    ///
    /// # Safety
    ///
    /// As for [`Self::suspends`].
    pub(super) unsafe fn resumes(node: NonNull<suspend::Node>) {
        // SAFETY: The caller guarantees that this is the `suspend` of a `Registered<T, K>`, which
        // removes it before it is dropped.
        let this = unsafe { &*container_of!(node.as_ptr(), Self, suspend) };
        // SAFETY: Reading the number of the current CPU has no requirements.
        let cpu = unsafe { bindings::raw_smp_processor_id() };

        this.suspended.store(false, Relaxed);
        if this.shared.units.may_have(cpu) {
            this.set_online(true);
        }
    }

    /// Moves the events of a unit that all CPUs share away from `cpu`.
    fn migrate(&self, cpu: u32) {
        let Units::System(home) = &self.shared.units else {
            return;
        };
        // SAFETY: `cpu` is the number of a CPU: the hotplug core passes it.
        let next = unsafe { bindings::rust_perf_any_online_but(cpu) };
        // SAFETY: The kernel writes `nr_cpu_ids` at boot only.
        let none = next >= unsafe { bindings::nr_cpu_ids };
        // If there is no other CPU, the PMU is being unregistered: no event is left, and no CPU
        // goes offline.
        if home.load(Relaxed) != cpu || none {
            return;
        }

        home.store(next, Relaxed);
        self.shared.lines.settle(next);
        if let (Ok(from), Ok(to)) = (c_int::try_from(cpu), c_int::try_from(next)) {
            // SAFETY: The PMU is registered, or has no events: then perf only compares its address.
            // This is a task that may sleep, in a callback of CPU hotplug, so that neither CPU
            // comes or goes.
            unsafe { bindings::perf_pmu_migrate_context(self.pmu.get(), from, to) };
        }
    }

    /// Allows the events of this CPU to run, or forbids it and ends an open transaction.
    fn set_online(&self, online: bool) {
        let _irq = interrupt::local_interrupt_disable();
        // SAFETY: Interrupts are off until `_irq` is dropped, after `cpu`.
        let cpu = unsafe { context::Cpu::current() };

        if let Some(state) = self.shared.cpus.this(&cpu) {
            K::set_online(state, online, &cpu);
        }
    }
}

#[cfg(CONFIG_RUST_PERF_TESTING)]
#[kunit_tests(rust_perf_registration_cpus)]
mod tests {
    use super::*;
    use crate::{
        counter::Counter,
        pmu::{
            Description,
            Scope, //
        },
        registration::{
            tests::Steady,
            Owner, //
        }, //
    };
    use core::ptr;
    use kernel::{
        cpu::CpuId,
        cpumask::CpumaskVar,
        sync::atomic::Atomic, //
    };

    /// A PMU of which only CPU 0 has a unit, and the number of CPUs that were in a wrong state.
    struct Suspended<'a> {
        registered: &'a Registered<Steady, Counter>,
        wrong: Atomic<i32>,
    }

    /// Suspends and resumes the CPU that this runs on, which comes online in between.
    ///
    /// # Safety
    ///
    /// `data` must be a [`Suspended`]. This must run in a task that stays on its CPU, during which
    /// no CPU comes or goes.
    unsafe extern "C" fn suspend(data: *mut c_void) -> c_int {
        // SAFETY: The caller guarantees that this is a `Suspended`.
        let Suspended { registered, wrong } = unsafe { &*data.cast_const().cast() };
        // SAFETY: Reading the number of the current CPU has no requirements.
        let cpu = unsafe { bindings::raw_smp_processor_id() };
        let runs = || {
            let state = registered.shared.cpus.get(cpu);
            state.is_some_and(|state| state.load(Relaxed))
        };
        let node = NonNull::from(&registered.suspend);

        // SAFETY: The node of a registration. The caller guarantees that this task stays on its
        // CPU, and that no CPU comes or goes.
        unsafe { Registered::<Steady, Counter>::suspends(node) };
        let mut good = !runs();
        let hotplug = NonNull::from(&registered.hotplug);
        // SAFETY: The node of a registration, on this CPU, where the task stays.
        good &= unsafe { Registered::<Steady, Counter>::online(hotplug, cpu) }.is_ok();
        good &= !runs();
        // SAFETY: The node of a registration. The caller guarantees that this task stays on its
        // CPU, and that no CPU comes or goes.
        unsafe { Registered::<Steady, Counter>::resumes(node) };
        good &= runs() == (cpu == 0);

        wrong.fetch_add(i32::from(!good), Relaxed);
        0
    }

    /// No event runs while the system is suspended, and none on a CPU without a unit afterwards.
    #[test]
    fn units_stay_where_they_are_in_a_suspend() -> Result {
        let mut first = CpumaskVar::new_zero(GFP_KERNEL)?;
        first.set(CpuId::from_u32(0).ok_or(EINVAL)?);
        let description = Description::new(c"kunit_suspend").scope(Scope::Cpus(&first));
        let pmu = crate::Registration::new(description, Steady)?;
        let Owner::Own {
            _registered: handle,
        } = &*pmu._owned
        else {
            return Err(EINVAL);
        };
        let suspended = Suspended {
            registered: handle.0.as_ref().ok_or(EINVAL)?,
            wrong: Atomic::new(0),
        };
        let data = ptr::from_ref(&suspended).cast_mut().cast();

        // SAFETY: `suspend()` gets a `Suspended`, which stays until the call returns, in a task on
        // each CPU that is online. No CPU comes or goes meanwhile.
        unsafe { bindings::rust_perf_on_each_cpu(Some(suspend), data) };
        assert_eq!(suspended.wrong.load(Relaxed), 0);
        Ok(())
    }
}
