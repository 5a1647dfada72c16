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
    /// All CPUs share one unit. Holds the CPU that its events run on.
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
    /// No interrupt follows its unit.
    None,
    /// The interrupt of the unit that all CPUs share.
    System(u32),
    /// The interrupt of each CPU's unit, by the CPU's number.
    Cpus(KVec<u32>),
}

impl Numbers {
    /// Sets the affinity of the unit's interrupt to `cpu`. That may fail: the driver forwards an
    /// interrupt that arrives on another CPU.
    fn settle(&self, cpu: u32) {
        let irq = match self {
            Self::None => None,
            Self::System(irq) => Some(irq),
            Self::Cpus(irqs) => usize::try_from(cpu).ok().and_then(|cpu| irqs.get(cpu)),
        };

        if let Some(&irq) = irq {
            // The affinity may change only after the next interrupt.
            //
            // SAFETY: The function checks both numbers.
            let _ = unsafe { bindings::rust_perf_irq_set_affinity(irq, cpu) };
        }
    }
}

impl Lines {
    // Not inlined, so that its code is in this module only. lockdep finds the lock's class also by
    // the address of its name, of which each driver would have its own copy.
    #[inline(never)]
    pub(super) fn new() -> Result<Arc<Self>> {
        let lines = pin_init!(Self {
            lines <- new_mutex!(Numbers::None),
        });

        Arc::pin_init(lines, GFP_KERNEL)
    }

    /// From now on, the affinity of the interrupts in `numbers` follows their units: each is served
    /// by the CPU on which the events of its unit run.
    ///
    /// Context: task, may sleep.
    #[cfg(CONFIG_PCI)]
    pub(crate) fn follow(&self, numbers: Numbers, units: &Units) {
        let mut lines = self.lines.lock();

        *lines = numbers;
        // If the unit's CPU changes after this load, `settle()` follows: it waits for the lock.
        match (&*lines, units.home()) {
            (_, Some(home)) => lines.settle(home),
            (Numbers::Cpus(irqs), None) => {
                let cpus = u32::try_from(irqs.len()).unwrap_or(u32::MAX);

                (0..cpus).for_each(|cpu| lines.settle(cpu));
            }
            _ => {}
        }
    }

    /// From now on, no interrupt follows its unit.
    ///
    /// Context: task, may sleep.
    #[cfg(CONFIG_PCI)]
    pub(crate) fn stay(&self) {
        *self.lines.lock() = Numbers::None;
    }

    /// Sets the affinity of the unit's interrupt: `cpu` has come online, or the events of the unit
    /// that all CPUs share have moved to it.
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
                // SAFETY: Reading the number of the CPU has no requirements. The task may move: any
                // CPU will do.
                let cpu = unsafe { bindings::raw_smp_processor_id() };
                Self::System(Atomic::new(cpu))
            }
        })
    }

    /// The CPU that runs the events of the unit that all CPUs share.
    pub(crate) fn home(&self) -> Option<u32> {
        match self {
            Self::System(home) => Some(home.load(Relaxed)),
            Self::EachCpu | Self::Cpus(_) => None,
        }
    }

    /// Moves the unit that all CPUs share to `cpu`, if its own CPU went offline before the PMU was
    /// registered. No event exists then. `cpu` must be online, and no CPU may come or go meanwhile.
    pub(super) fn settle(&self, cpu: u32) {
        if let Self::System(home) = self {
            // SAFETY: `home` is the number of a CPU: it is only set to that of the running CPU, or
            // of one that is online.
            if !unsafe { bindings::rust_perf_cpu_online(home.load(Relaxed)) } {
                home.store(cpu, Relaxed);
            }
        }
    }

    /// Whether `cpu` may have a unit. With [`Self::System`] any CPU may: the events can move to it.
    pub(crate) fn may_have(&self, cpu: u32) -> bool {
        match self {
            Self::EachCpu | Self::System(_) => true,
            Self::Cpus(mask) => CpuId::from_u32(cpu).is_some_and(|cpu| mask.0.test(cpu)),
        }
    }
}
