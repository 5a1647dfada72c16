// SPDX-License-Identifier: GPL-2.0

//! Which CPUs have a unit.

use crate::{
    bindings,
    pmu::Scope, //
};
use kernel::{
    cpu::CpuId,
    cpumask::CpumaskVar,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
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
    /// One for all, on this CPU now.
    System(Atomic<u32>),
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
