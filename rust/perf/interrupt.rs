// SPDX-License-Identifier: GPL-2.0

//! The driver's own interrupt.
//!
//! A trace unit raises an interrupt when a region is full. The handler belongs to the driver. It
//! accesses the open transaction through an [`Entry`], with the guarantees of a callback.

use crate::{
    aux::{
        Aux,
        AuxPmu,
        Next,
        Transaction, //
    },
    bindings,
    context,
    registration::{
        Registration,
        SharedRef, //
    }, //
};
use kernel::prelude::*;

#[cfg(CONFIG_X86_LOCAL_APIC)]
mod nmi;
#[cfg(CONFIG_PCI)]
mod pci;

#[cfg(CONFIG_X86_LOCAL_APIC)]
pub use nmi::Nmi;
#[cfg(CONFIG_PCI)]
pub use pci::PciLines;

/// Access from the driver's interrupt handler to the open transaction of this CPU.
///
/// It may be used in a hard interrupt, a per-CPU interrupt, an NMI, and a threaded handler on the
/// unit's CPU. A callback on the CPU and an entry never run at the same time: an
/// [`interrupt`](Self::interrupt) from an NMI that interrupted a callback is processed when the
/// callback returns.
///
/// It may outlive the PMU: no transaction is open then. It may be dropped in any context. If it is
/// the last one, a task drops the driver.
///
/// C counterpart: `this_cpu_ptr()` of a driver's `struct perf_output_handle`.
///
/// # Examples
///
/// ```
/// use kernel::{irq, prelude::*};
/// use perf::{interrupt::Entry, AuxPmu};
///
/// /// The handler of a unit's interrupt.
/// struct Handler<T: AuxPmu>(Entry<T>);
///
/// impl<T: AuxPmu> irq::Handler for Handler<T> {
///     fn handle(&self) -> irq::IrqReturn {
///         match self.0.interrupt() {
///             true => irq::IrqReturn::Handled,
///             false => irq::IrqReturn::None,
///         }
///     }
/// }
/// ```
pub struct Entry<T: AuxPmu>(SharedRef<T, Aux>);

impl<T: AuxPmu> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: AuxPmu> Registration<T, Aux> {
    /// Returns an entry for the driver's interrupt handler.
    pub fn entry(&self) -> Entry<T> {
        Entry(self.shared().clone())
    }
}

impl<T: AuxPmu> Entry<T> {
    /// The driver.
    pub fn driver(&self) -> &T {
        &self.0.driver
    }

    /// Whether `pmu` is the PMU of this entry, and is not being unregistered.
    ///
    /// If this is called in an SRCU section in which perf creates events, and returns true, then
    /// `perf_pmu_unregister()` waits for the end of that section before it frees events.
    pub(crate) fn is_of(&self, pmu: *const bindings::pmu) -> bool {
        self.0.is_of(pmu)
    }

    /// The unit of this CPU has raised its interrupt. If a transaction is open here, the framework
    /// calls [`AuxPmu::interrupt`] and carries out the [`Next`] that it returns.
    ///
    /// Returns true if `AuxPmu::interrupt` was called, or if no transaction is open. Also returns
    /// true in an NMI that interrupted a callback: `AuxPmu::interrupt` is called when that callback
    /// returns. Returns false in a callback of the PMU on this CPU: the callback returns a [`Next`]
    /// itself.
    ///
    /// The interrupt of a unit that all CPUs share may arrive on any CPU. It is forwarded to the
    /// CPU on which the unit's events run. This returns false if it cannot be forwarded: in NMI, if
    /// that CPU is offline, or after the PMU has been unregistered.
    ///
    /// Context: any, NMI included. Interrupts are turned off meanwhile.
    pub fn interrupt(&self) -> bool {
        const_assert!(T::HAS_INTERRUPT, "an interrupt needs AuxPmu::interrupt()");
        on_this_cpu(|cpu| self.unit_of(self.0.units.home(), cpu))
    }

    /// As [`Self::interrupt`], for the unit of the CPU `unit`. If the interrupt arrives on another
    /// CPU, it is forwarded to `unit`.
    ///
    /// Context: any, NMI included. Interrupts are turned off meanwhile.
    pub fn interrupt_of(&self, unit: u32) -> bool {
        const_assert!(T::HAS_INTERRUPT, "an interrupt needs AuxPmu::interrupt()");
        on_this_cpu(|cpu| self.unit_of(Some(unit), cpu))
    }

    /// The unit of the CPU `unit` has raised its interrupt; [`None`] is the unit of this CPU.
    fn unit_of(&self, unit: Option<u32>, cpu: &context::Cpu) -> bool {
        let cpus = &self.0.cpus;

        match unit {
            Some(unit) if unit != cpu.id() => {
                cpus.get(unit).is_some_and(|state| state.forward(cpu))
            }
            _ => cpus.this(cpu).is_some_and(|state| state.interrupt(cpu)),
        }
    }

    /// Runs `f` in the transaction that is open on this CPU, and carries out the [`Next`] that it
    /// returns. Returns the other value that `f` returned. [`None`] if no transaction is open, or
    /// if this interrupted a callback or is called by one.
    ///
    /// Context: any, NMI included. Interrupts are turned off meanwhile.
    pub fn with_transaction<R>(
        &self,
        f: impl FnOnce(&mut Transaction<'_, T>, &mut T::Trace) -> (Next, R),
    ) -> Option<R> {
        on_this_cpu(|cpu| self.0.cpus.this(cpu)?.with_transaction(cpu, f))
    }
}

/// Runs `f` with interrupts off.
#[inline]
pub(crate) fn on_this_cpu<R>(f: impl FnOnce(&context::Cpu) -> R) -> R {
    // SAFETY: Interrupts may be switched off anywhere. This function restores them.
    let flags = unsafe { bindings::rust_perf_local_irq_save() };
    // SAFETY: Interrupts are off until `f`, which borrows it, has returned.
    let cpu = unsafe { context::Cpu::current() };
    let result = f(&cpu);

    // SAFETY: The flags are those that `rust_perf_local_irq_save()` has returned to this function,
    // on this CPU.
    unsafe { bindings::rust_perf_local_irq_restore(flags) };
    result
}
