// SPDX-License-Identifier: GPL-2.0

//! The driver's own interrupt.
//!
//! A trace unit raises an interrupt when a region is full. Its handler is the driver's; what it may
//! do to the open transaction goes through an [`Entry`], with the guarantees of a callback.

#[cfg(CONFIG_PCI)]
use crate::registration::{
    Follower,
    Units, //
};
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
        Shared, //
    }, //
};
#[cfg(CONFIG_PCI)]
use kernel::{
    device::Bound,
    devres::Devres,
    error::to_result,
    irq,
    pci,
    sync::aref::ARef, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

#[cfg(CONFIG_X86_LOCAL_APIC)]
mod nmi;

#[cfg(CONFIG_X86_LOCAL_APIC)]
pub use nmi::Nmi;

/// The way of a driver's interrupt to the open transaction of this CPU.
///
/// It may be used in a hard interrupt, a per-CPU interrupt, an NMI, and a threaded handler on the
/// unit's CPU; also before the PMU is registered and after it is unregistered, when no transaction
/// is open. A callback on the CPU and an entry never run at the same time: an entry from an NMI that
/// interrupted a callback is processed when the callback returns.
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
pub struct Entry<T: AuxPmu>(Arc<Shared<T, Aux>>);

impl<T: AuxPmu> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: AuxPmu> Registration<T, Aux> {
    /// The way of the driver's interrupt to its transactions.
    pub fn entry(&self) -> Entry<T> {
        Entry(self.shared().clone())
    }
}

impl<T: AuxPmu> Entry<T> {
    /// The driver.
    pub fn driver(&self) -> &T {
        &self.0.driver
    }

    /// The unit of this CPU has raised its interrupt: has [`AuxPmu::interrupt`] called if a
    /// transaction is open here, and does what it returns. True if it was called, or will be when
    /// the callback that this NMI interrupted returns, or if no transaction is open. False in a
    /// callback of the PMU on this CPU: that returns [`Next`] itself.
    ///
    /// The interrupt of a unit that all CPUs share may arrive on any CPU: it is forwarded to the CPU
    /// that the unit's events live on. From an NMI it is not, and this returns false.
    ///
    /// Context: any, NMI included. Interrupts are turned off meanwhile.
    pub fn interrupt(&self) -> bool {
        const_assert!(T::HAS_INTERRUPT, "an interrupt needs AuxPmu::interrupt()");
        on_this_cpu(|cpu| {
            let shared = &self.0;

            match shared.units.home() {
                Some(home) if home != cpu.id() => shared
                    .cpus
                    .get(home)
                    .is_some_and(|state| state.forward(cpu)),
                _ => shared
                    .cpus
                    .this(cpu)
                    .is_some_and(|state| state.interrupt(cpu)),
            }
        })
    }

    /// Runs `f` in the transaction that is open on this CPU, and does what it returned first; what
    /// it returned besides. [`None`] if no transaction is open, and in an NMI that interrupted a
    /// callback.
    ///
    /// Context: any, NMI included. Interrupts are turned off meanwhile.
    pub fn with_transaction<R>(
        &self,
        f: impl FnOnce(&mut Transaction<'_, T>, &mut T::Trace) -> (Next, R),
    ) -> Option<R> {
        on_this_cpu(|cpu| self.0.cpus.this(cpu)?.with_transaction(cpu, f))
    }
}

/// The message-signalled interrupt of a PCI device, MSI-X or MSI, with its handler.
///
/// [`irq::Registration`] must not be forgotten, so making one is unsafe. This one is a resource of
/// the device: it is freed when it is dropped, and at the latest when the device is unbound.
///
/// C counterpart: `pci_alloc_irq_vectors()` and `request_irq()`.
///
/// # Examples
///
/// ```no_run
/// use kernel::{device::Bound, irq, pci, prelude::*};
/// use perf::{interrupt::{Entry, PciLine}, AuxPmu};
///
/// fn request<H: irq::Handler + Send + 'static, T: AuxPmu>(
///     device: &pci::Device<Bound>,
///     handler: H,
///     entry: &Entry<T>,
/// ) -> Result<PciLine<H>> {
///     PciLine::following(device, c"my_unit", handler, entry)
/// }
/// ```
#[cfg(CONFIG_PCI)]
pub struct PciLine<H: irq::Handler + Send + 'static>(Devres<Requested<H>>);

/// # Invariants
///
/// `irq` is the first vector of `device`, which is bound, and requested with the address of
/// `handler`.
#[cfg(CONFIG_PCI)]
struct Requested<H: irq::Handler + Send + 'static> {
    device: ARef<pci::Device>,
    irq: c_uint,
    handler: Pin<KBox<H>>,
    /// What follows the events of a unit by its number.
    follower: Option<Arc<Follower>>,
}

#[cfg(CONFIG_PCI)]
impl<H: irq::Handler + Send + 'static> PciLine<H> {
    /// Allocates a vector of `device` and requests it.
    ///
    /// Context: task, may sleep.
    pub fn new(device: &pci::Device<Bound>, name: &'static CStr, handler: H) -> Result<Self> {
        Self::request(device, name, handler, None)
    }

    fn request(
        device: &pci::Device<Bound>,
        name: &'static CStr,
        handler: H,
        follower: Option<Arc<Follower>>,
    ) -> Result<Self> {
        let handler = KBox::pin(handler, GFP_KERNEL)?;
        // CAST: `Device` is a transparent wrapper of `struct pci_dev`.
        let raw: *mut bindings::pci_dev = core::ptr::from_ref(device).cast_mut().cast();
        let types = bindings::PCI_IRQ_MSI | bindings::PCI_IRQ_MSIX;

        // SAFETY: `raw` is a bound device, which has a driver.
        to_result(unsafe { bindings::pci_alloc_irq_vectors(raw, 1, 1, types) })?;
        // SAFETY: `raw` is a device with one vector.
        let irq = unsafe { bindings::pci_irq_vector(raw, 0) };
        let cookie = core::ptr::from_ref(&*handler).cast_mut().cast();
        let requested = c_uint::try_from(irq)
            .map_err(|_| Error::from_errno(irq))
            .and_then(|irq| {
                // SAFETY:
                // - `handle()` gets the address of the handler, which is pinned and freed after
                //   `free_irq()`.
                // - `name` is never freed.
                // - `irq` is a number of the device's; the core checks it.
                to_result(unsafe {
                    bindings::request_threaded_irq(
                        irq,
                        Some(handle::<H>),
                        None,
                        0,
                        name.as_char_ptr(),
                        cookie,
                    )
                })?;
                Ok(irq)
            })
            .inspect_err(|_| {
                // SAFETY: Allocated above, and not requested.
                unsafe { bindings::pci_free_irq_vectors(raw) };
            })?;

        // INVARIANT: Just requested. `Devres` drops it while the device is still bound.
        let requested = Requested {
            device: device.into(),
            irq: requested,
            handler,
            follower,
        };
        Ok(Self(Devres::new(
            device.as_ref(),
            Ok::<_, Error>(requested),
        )?))
    }

    /// As [`Self::new`], and the interrupt follows the events of the PMU of `entry`, whose unit all
    /// CPUs share: the CPU that they live on serves it. User space may choose another, from which it is
    /// forwarded.
    ///
    /// [`EINVAL`] if CPUs have units of their own.
    ///
    /// Context: task, may sleep.
    ///
    /// C counterpart: `irq_set_affinity()`. `hisi_ptt_pmu_start()` calls it under the lock of perf's
    /// context, from which a CPU that changes the affinity of a threaded interrupt may wait for it.
    pub fn following<T: AuxPmu>(
        device: &pci::Device<Bound>,
        name: &'static CStr,
        handler: H,
        entry: &Entry<T>,
    ) -> Result<Self> {
        let Units::System(system) = &entry.0.units else {
            return Err(EINVAL);
        };
        let line = Self::request(device, name, handler, Some(system.follower.clone()))?;

        let irq = line.0.access(device.as_ref())?.irq;

        system.follower.follow(irq, &system.home);
        Ok(line)
    }
}

#[cfg(CONFIG_PCI)]
impl<H: irq::Handler + Send + 'static> Drop for Requested<H> {
    fn drop(&mut self) {
        let cookie = core::ptr::from_ref(&*self.handler).cast_mut().cast();
        // CAST: `Device` is a transparent wrapper of `struct pci_dev`.
        let device = core::ptr::from_ref(&*self.device).cast_mut().cast();

        if let Some(follower) = &self.follower {
            follower.stay();
        }
        // SAFETY: Requested with this cookie, by the type invariant; this is a task: `Devres` is
        // dropped and revoked in one.
        unsafe { bindings::free_irq(self.irq, cookie) };
        // SAFETY: Allocated in `PciLine::new()`, and freed just now.
        unsafe { bindings::pci_free_irq_vectors(device) };
    }
}

/// # Safety
///
/// `handler` must be the address of an `H` that stays until `free_irq()` has returned.
#[cfg(CONFIG_PCI)]
unsafe extern "C" fn handle<H: irq::Handler>(
    _irq: c_int,
    handler: *mut core::ffi::c_void,
) -> bindings::irqreturn_t {
    // SAFETY: By the safety requirement; handlers are `Sync`.
    let handler = unsafe { &*handler.cast_const().cast::<H>() };

    match handler.handle() {
        irq::IrqReturn::Handled => bindings::irqreturn::IRQ_HANDLED,
        irq::IrqReturn::None => bindings::irqreturn::IRQ_NONE,
    }
}

/// Runs `f` with interrupts off.
#[inline]
pub(crate) fn on_this_cpu<R>(f: impl FnOnce(&context::Cpu) -> R) -> R {
    // SAFETY: No requirements; restored below.
    let flags = unsafe { bindings::rust_perf_local_irq_save() };
    // SAFETY: Interrupts are off until `f`, which borrows it, has returned.
    let cpu = unsafe { context::Cpu::current() };
    let result = f(&cpu);

    // SAFETY: From `rust_perf_local_irq_save()`, above.
    unsafe { bindings::rust_perf_local_irq_restore(flags) };
    result
}
