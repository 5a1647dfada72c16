// SPDX-License-Identifier: GPL-2.0

//! Which CPUs have a unit.

use crate::{
    bindings,
    pmu::Scope, //
};
use kernel::{
    cpu::CpuId,
    cpumask::CpumaskVar,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

/// A set of CPUs that does not change.
pub(crate) struct Mask(CpumaskVar);

// SAFETY: It owns the mask, which may be freed by any task.
unsafe impl Send for Mask {}
// SAFETY: Only read once made.
unsafe impl Sync for Mask {}

impl Mask {
    pub(crate) fn as_raw(&self) -> *const bindings::cpumask {
        self.0.as_raw()
    }
}

/// Which CPUs have a unit.
pub(crate) enum Units {
    EachCpu,
    Cpus(Mask),
    /// One for all.
    System(System),
}

/// A unit that all CPUs share.
pub(crate) struct System {
    /// The CPU that its events live on.
    pub(crate) home: Atomic<u32>,
    pub(crate) follower: Arc<Follower>,
}

impl System {
    pub(super) fn new(home: u32) -> Result<Self> {
        Ok(Self {
            home: Atomic::new(home),
            follower: Arc::pin_init(
                pin_init!(Follower {
                    irq <- new_mutex!(0),
                }),
                GFP_KERNEL,
            )?,
        })
    }
}

/// The interrupt that follows the events of a unit.
#[pin_data]
pub(crate) struct Follower {
    /// Its number; 0 for none. Locked while its affinity is set, so that it is not freed meanwhile.
    #[pin]
    irq: Mutex<u32>,
}

impl Follower {
    /// From now on the interrupt `irq` follows the events on `home`.
    ///
    /// Context: task, may sleep.
    #[cfg(CONFIG_PCI)]
    pub(crate) fn follow(&self, irq: u32, home: &Atomic<u32>) {
        let mut followed = self.irq.lock();

        *followed = irq;
        // What is stored after this load is followed by `go()`, which waits for the lock.
        set_affinity(irq, home.load(Relaxed));
    }

    /// None follows any more.
    ///
    /// Context: task, may sleep.
    #[cfg(CONFIG_PCI)]
    pub(crate) fn stay(&self) {
        *self.irq.lock() = 0;
    }

    /// The events have moved to `cpu`.
    ///
    /// Context: task, may sleep.
    pub(super) fn go(&self, cpu: u32) {
        let followed = self.irq.lock();

        if *followed != 0 {
            set_affinity(*followed, cpu);
        }
    }
}

/// Has `cpu` serve the interrupt `irq`, perhaps only after the next one.
fn set_affinity(irq: u32, cpu: u32) {
    // It may be one that no other CPU can serve. Then it is forwarded.
    //
    // SAFETY: It checks both numbers.
    let _ = unsafe { bindings::rust_perf_irq_set_affinity(irq, cpu) };
}

impl Units {
    pub(super) fn new(scope: Scope<'_>) -> Result<Self> {
        Ok(match scope {
            Scope::EachCpu => Self::EachCpu,
            Scope::Cpus(mask) => Self::Cpus(Mask(CpumaskVar::try_clone(mask)?)),
            Scope::System => {
                // A PCI driver's `probe()` runs on the device's node, if it has one.
                //
                // SAFETY: No requirements: any number of a CPU will do.
                let cpu = unsafe { bindings::raw_smp_processor_id() };
                Self::System(System::new(cpu)?)
            }
        })
    }

    /// The CPU that the events of a unit for all CPUs live on.
    pub(crate) fn home(&self) -> Option<u32> {
        match self {
            Self::System(system) => Some(system.home.load(Relaxed)),
            Self::EachCpu | Self::Cpus(_) => None,
        }
    }

    /// `cpu` is online, and no CPU comes or goes: it takes the events of a unit for all CPUs if their
    /// CPU has gone before the PMU was registered. There are none yet.
    pub(super) fn settle(&self, cpu: u32) {
        if let Self::System(System { home, .. }) = self {
            // SAFETY: No requirements.
            if !unsafe { bindings::rust_perf_cpu_online(home.load(Relaxed)) } {
                home.store(cpu, Relaxed);
            }
        }
    }

    /// Whether `cpu` may have a unit. With [`Self::System`] each may, one after the other.
    pub(crate) fn may_have(&self, cpu: u32) -> bool {
        match self {
            Self::EachCpu | Self::System(_) => true,
            Self::Cpus(mask) => CpuId::from_u32(cpu).is_some_and(|cpu| mask.0.test(cpu)),
        }
    }
}
