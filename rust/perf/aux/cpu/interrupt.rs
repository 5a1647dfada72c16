// SPDX-License-Identifier: GPL-2.0

//! Interrupts of the unit, on its CPU and on others.

use super::{
    CpuState,
    Locks, //
};
use crate::{
    aux::{
        core::Core,
        AuxPmu, //
    },
    bindings,
    context, //
};
use auxcore::guard::Pending;
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};

impl<T: AuxPmu, C: Core> CpuState<T, C> {
    /// The unit has raised its interrupt: calls the driver's `interrupt()` if a transaction is open
    /// here; false if this is not the state's CPU, or if a callback of the driver calls this.
    pub(crate) fn interrupt(self: Pin<&Self>, cpu: &context::Cpu) -> bool {
        let done = self.run(cpu, Locks::Any, |inner| inner.interrupt(&self, cpu));

        // Only an NMI can interrupt a callback, and no NMI interrupts a callback that runs in NMI.
        // In all other cases the callback itself has called this: if `interrupt()` requested
        // another `interrupt()`, there would be no end.
        done.is_some()
            || cpu.is_nmi()
                && !self.held_in_nmi.load(Relaxed)
                && self.request(Pending::INTERRUPT, cpu)
    }

    /// The unit has raised its interrupt on another CPU, which is this one: forwards it to the
    /// state's CPU, where the driver's `interrupt()` is called soon. False in NMI, after
    /// [`Self::close`], or if the state's CPU is offline.
    pub(crate) fn forward(&self, here: &context::Cpu) -> bool {
        // SAFETY: `PerCpu` makes states for CPUs below `nr_cpu_ids` only. Interrupts are off, so a
        // CPU that is online stays online.
        let is_online = unsafe { bindings::rust_perf_cpu_online(self.cpu) };

        if !is_online || here.is_nmi() || self.closed.load(Relaxed) {
            return false;
        }
        self.forwarded.store(true, Relaxed);
        // SAFETY: The call is set up, by the type invariant. Interrupts are off, by the invariant
        // of `Cpu`, and the CPU is online. `self` stays until `sync()` has returned, which waits
        // for this section and for the call.
        unsafe { bindings::rust_perf_remote_queue(self.remote.get(), self.cpu) };
        true
    }
}
