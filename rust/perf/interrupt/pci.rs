// SPDX-License-Identifier: GPL-2.0

//! Interrupts of PCI devices.

use super::Entry;
use crate::{
    aux::AuxPmu,
    bindings,
    context::may_sleep,
    registration::{
        Lines,
        Numbers, //
    }, //
};
use kernel::{
    device::{
        Bound,
        DeviceContext, //
    },
    devres,
    error::to_result,
    irq,
    new_mutex,
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    }, //
};

/// The message-signalled interrupts of a PCI device, MSI-X or MSI, with their handlers.
///
/// [`irq::Registration`] must not be forgotten, so making one is unsafe. These interrupts are a
/// resource of the device: they are freed when this is dropped, and at the latest when the device
/// is unbound. If this is dropped where nothing may sleep, for example in a handler of its own,
/// they stay until the device is unbound: `free_irq()` waits for the handlers. A small allocation
/// stays until the device is unbound in any case.
///
/// C counterpart: `pci_alloc_irq_vectors()` and `request_irq()`.
///
/// # Examples
///
/// ```no_run
/// use kernel::{cpu, device::Bound, irq, pci, prelude::*};
/// use perf::{interrupt::{Entry, PciLines}, AuxPmu};
///
/// /// Vector 0 is the device's own; the others are those of the CPUs' units.
/// fn request<H: irq::Handler + Send + 'static, T: AuxPmu>(
///     device: &pci::Device<Bound>,
///     mut handler: impl FnMut(Option<u32>) -> H,
///     entry: &Entry<T>,
/// ) -> Result<PciLines<H>> {
///     let mut handlers = KVec::new();
///
///     handlers.push(handler(None), GFP_KERNEL)?;
///     for cpu in 0..cpu::nr_cpu_ids() {
///         handlers.push(handler(Some(cpu)), GFP_KERNEL)?;
///     }
///     PciLines::following(device, c"my_unit", handlers, 1, entry)
/// }
/// ```
pub struct PciLines<H: irq::Handler + Send + 'static>(Arc<Kept<H>>);

/// The interrupts, which [`PciLines`] and the device share.
#[pin_data]
struct Kept<H: irq::Handler + Send + 'static> {
    /// [`None`] once they are freed.
    #[pin]
    requested: Mutex<Option<Requested<H>>>,
}

/// Frees the interrupts when the device is unbound.
struct Resource<H: irq::Handler + Send + 'static>(Arc<Kept<H>>);

/// # Invariants
///
/// - `device` has vectors, and is bound: [`Resource`] waits for the lock when it is unbound.
/// - Each of `irqs` is requested with the address of the handler of the same number. They are the
///   interrupts of the first vectors.
struct Requested<H: irq::Handler + Send + 'static> {
    device: ARef<pci::Device>,
    irqs: KVec<c_uint>,
    handlers: Arc<KVec<H>>,
    /// Sets the affinity of the interrupts, if they follow the units.
    lines: Option<Arc<Lines>>,
}

impl<H: irq::Handler + Send + 'static> PciLines<H> {
    /// Allocates a vector of `device` for each handler, in order, and requests it. [`ENOSPC`] if
    /// the device has fewer.
    ///
    /// Context: task, may sleep.
    pub fn new(
        device: &pci::Device<Bound>,
        name: &'static CStr,
        handlers: KVec<H>,
    ) -> Result<Self> {
        Self::keep(device, Requested::new(device, name, handlers, None)?)
    }

    /// As [`Self::new`]. The vectors from `first` on are those of the units of the PMU of `entry`:
    /// one if all CPUs share a unit, otherwise that of CPU 0, of CPU 1 and so on.
    ///
    /// The affinity of a unit's interrupt is set to the unit's CPU, or to the CPU on which the
    /// events of a shared unit run. User space may choose another CPU, and so does the kernel while
    /// the CPU is offline. So the handler calls [`Entry::interrupt_of`], which forwards the
    /// interrupt, or [`Entry::interrupt`] for a unit that all CPUs share.
    ///
    /// [`EINVAL`] if there is no handler for a unit, or more than one for the unit that all share.
    ///
    /// Context: task, may sleep.
    ///
    /// C counterpart: `irq_set_affinity()`. `hisi_ptt_pmu_start()` calls it under the lock of
    /// perf's context, from which a CPU that changes the affinity of a threaded interrupt may wait
    /// for it.
    pub fn following<T: AuxPmu>(
        device: &pci::Device<Bound>,
        name: &'static CStr,
        handlers: KVec<H>,
        first: usize,
        entry: &Entry<T>,
    ) -> Result<Self> {
        let shared = &entry.0;
        let count = handlers
            .len()
            .checked_sub(first)
            .filter(|&count| count != 0);
        let system = shared.units.home().is_some();

        if count.is_none_or(|count| system && count != 1) {
            return Err(EINVAL);
        }
        let requested = Requested::new(device, name, handlers, Some(shared.lines.clone()))?;
        let mut irqs = KVec::with_capacity(requested.irqs.len(), GFP_KERNEL)?;

        for &irq in requested.irqs.iter().skip(first) {
            irqs.push(irq, GFP_KERNEL)?;
        }
        let numbers = match (system, irqs.first()) {
            (true, Some(&irq)) => Numbers::System(irq),
            _ => Numbers::Cpus(irqs),
        };
        let this = Self::keep(device, requested)?;

        shared.lines.follow(numbers, &shared.units);
        Ok(this)
    }

    fn keep(device: &pci::Device<Bound>, requested: Requested<H>) -> Result<Self> {
        let kept = pin_init!(Kept {
            requested <- new_mutex!(Some(requested)),
        });
        let kept = Arc::pin_init(kept, GFP_KERNEL)?;
        let resource = Ok(Resource(kept.clone()));

        devres::register::<Resource<H>, Error>(device.as_ref(), resource, GFP_KERNEL)?;
        Ok(Self(kept))
    }
}

impl<H: irq::Handler + Send + 'static> Kept<H> {
    /// Frees the interrupts, unless they are freed already.
    ///
    /// Context: task, may sleep.
    fn free(&self) {
        let mut requested = self.requested.lock();
        let handlers = requested.as_ref().map(|it| it.handlers.clone());

        // While the lock is held, the driver core waits with the unbinding until they are freed.
        *requested = None;
        drop(requested);
        // Without the lock: a handler may own its `PciLines`, whose drop takes the lock.
        drop(handlers);
    }
}

impl<H: irq::Handler + Send + 'static> Drop for Resource<H> {
    fn drop(&mut self) {
        self.0.free();
    }
}

impl<H: irq::Handler + Send + 'static> Drop for PciLines<H> {
    fn drop(&mut self) {
        match may_sleep() {
            true => self.0.free(),
            // `Resource` frees them.
            false => pr_err!(
                "interrupts are dropped where they cannot be freed: they stay with the device\n"
            ),
        }
    }
}

/// The `struct pci_dev` of `device`.
fn raw<C: DeviceContext>(device: &pci::Device<C>) -> *mut bindings::pci_dev {
    // CAST: `Device` is a transparent wrapper of `struct pci_dev`.
    core::ptr::from_ref(device).cast_mut().cast()
}

impl<H: irq::Handler + Send + 'static> Requested<H> {
    fn new(
        device: &pci::Device<Bound>,
        name: &'static CStr,
        handlers: KVec<H>,
        lines: Option<Arc<Lines>>,
    ) -> Result<Self> {
        let irqs = KVec::with_capacity(handlers.len(), GFP_KERNEL)?;
        let count = c_uint::try_from(handlers.len())?;
        let handlers = Arc::new(handlers, GFP_KERNEL)?;
        let types = bindings::PCI_IRQ_MSI | bindings::PCI_IRQ_MSIX;

        // SAFETY: The device is bound, so it has a driver.
        to_result(unsafe { bindings::pci_alloc_irq_vectors(raw(device), count, count, types) })?;
        // INVARIANT: Just allocated, and none is requested yet.
        let mut this = Self {
            device: device.into(),
            irqs,
            handlers: handlers.clone(),
            lines,
        };

        for (number, handler) in (0..).zip(handlers.iter()) {
            this.push(number, name, handler)?;
        }
        Ok(this)
    }

    /// Requests the next vector, which has the number `number`, for the handler with that number.
    fn push(&mut self, number: c_uint, name: &'static CStr, handler: &H) -> Result {
        // SAFETY: A device with vectors, by the type invariant; the function checks the number.
        let irq = unsafe { bindings::pci_irq_vector(raw(&self.device), number) };
        let irq = c_uint::try_from(irq).map_err(|_| Error::from_errno(irq))?;

        // SAFETY:
        // - `handle()` gets the address of the handler, which stays where it is: nothing changes
        //   the vector in `handlers`, and it is freed after `free_irq()`.
        // - `name` is never freed.
        // - `irq` is a number of the device's; the core checks it.
        to_result(unsafe {
            bindings::request_threaded_irq(
                irq,
                Some(handle::<H>),
                None,
                0,
                name.as_char_ptr(),
                cookie(handler),
            )
        })?;
        // INVARIANT: Just requested, and the next one. There is space for it.
        self.irqs.push(irq, GFP_KERNEL)?;
        Ok(())
    }
}

impl<H: irq::Handler + Send + 'static> Drop for Requested<H> {
    fn drop(&mut self) {
        if let Some(lines) = &self.lines {
            lines.stay();
        }
        for (&irq, handler) in self.irqs.iter().zip(self.handlers.iter()) {
            // SAFETY: Requested with this cookie, by the type invariant. This is a task that may
            // sleep: `Kept::free()` requires it, and `Requested` is made in one.
            unsafe { bindings::free_irq(irq, cookie(handler)) };
        }
        // SAFETY: The vectors are allocated, by the type invariant, and all that were requested are
        // freed.
        unsafe { bindings::pci_free_irq_vectors(raw(&self.device)) };
    }
}

/// The argument of [`handle`]: the address of the handler.
fn cookie<H>(handler: &H) -> *mut core::ffi::c_void {
    core::ptr::from_ref(handler).cast_mut().cast()
}

/// # Safety
///
/// `handler` must be the address of an `H` that stays until `free_irq()` has returned.
unsafe extern "C" fn handle<H: irq::Handler>(
    _irq: c_int,
    handler: *mut core::ffi::c_void,
) -> bindings::irqreturn_t {
    // SAFETY: The caller guarantees that this is the address of an `H`, which stays. Handlers are
    // `Sync`.
    let handler = unsafe { &*handler.cast_const().cast::<H>() };

    match handler.handle() {
        irq::IrqReturn::Handled => bindings::irqreturn::IRQ_HANDLED,
        irq::IrqReturn::None => bindings::irqreturn::IRQ_NONE,
    }
}
