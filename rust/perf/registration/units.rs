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
    /// One for all, with the CPU that its events live on.
    System(Atomic<u32>),
}

/// The interrupts of a PMU's units.
#[pin_data]
pub(crate) struct Lines {
    /// Their numbers. Locked while the affinity of one is set, so that it is not freed meanwhile.
    #[pin]
    lines: Mutex<Numbers>,
}

/// The numbers of interrupts.
pub(crate) enum Numbers {
    /// Nothing is settled.
    None,
    /// That of the unit that all CPUs share.
    System(u32),
    /// That of each CPU's unit, by the CPU's number.
    Cpus(KVec<u32>),
}

impl Numbers {
    /// Has `cpu` serve the interrupt of its unit. It may be one that no other CPU can serve: then it
    /// is forwarded.
    fn settle(&self, cpu: u32) {
        let irq = match self {
            Self::None => None,
            Self::System(irq) => Some(irq),
            Self::Cpus(irqs) => usize::try_from(cpu).ok().and_then(|cpu| irqs.get(cpu)),
        };

        if let Some(&irq) = irq {
            // It takes effect perhaps only after the next interrupt.
            //
            // SAFETY: It checks both numbers.
            let _ = unsafe { bindings::rust_perf_irq_set_affinity(irq, cpu) };
        }
    }
}

impl Lines {
    // In this module only: lockdep finds the lock's class by the address of its name, too, of which
    // each driver would have its own.
    #[inline(never)]
    pub(super) fn new() -> Result<Arc<Self>> {
        let lines = pin_init!(Self {
            lines <- new_mutex!(Numbers::None),
        });

        Arc::pin_init(lines, GFP_KERNEL)
    }

    /// From now on these are served where the units of their events are.
    ///
    /// Context: task, may sleep.
    #[cfg(CONFIG_PCI)]
    pub(crate) fn follow(&self, numbers: Numbers, units: &Units) {
        let mut lines = self.lines.lock();

        *lines = numbers;
        // What is stored after this load is followed by `settle()`, which waits for the lock.
        match (&*lines, units.home()) {
            (_, Some(home)) => lines.settle(home),
            (Numbers::Cpus(irqs), None) => {
                let cpus = u32::try_from(irqs.len()).unwrap_or(u32::MAX);

                (0..cpus).for_each(|cpu| lines.settle(cpu));
            }
            _ => {}
        }
    }

    /// None is settled any more.
    ///
    /// Context: task, may sleep.
    #[cfg(CONFIG_PCI)]
    pub(crate) fn stay(&self) {
        *self.lines.lock() = Numbers::None;
    }

    /// `cpu` has come online, or the events of the unit for all CPUs have moved to it.
    ///
    /// Context: task, may sleep.
    pub(super) fn settle(&self, cpu: u32) {
        self.lines.lock().settle(cpu);
    }
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
                Self::System(Atomic::new(cpu))
            }
        })
    }

    /// The CPU that the events of a unit for all CPUs live on.
    pub(crate) fn home(&self) -> Option<u32> {
        match self {
            Self::System(home) => Some(home.load(Relaxed)),
            Self::EachCpu | Self::Cpus(_) => None,
        }
    }

    /// `cpu` is online, and no CPU comes or goes: it takes the events of a unit for all CPUs if their
    /// CPU has gone before the PMU was registered. There are none yet.
    pub(super) fn settle(&self, cpu: u32) {
        if let Self::System(home) = self {
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
