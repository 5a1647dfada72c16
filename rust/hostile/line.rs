// SPDX-License-Identifier: GPL-2.0

//! Drivers of QEMU's `edu` device that drop their interrupt in `cpu_offline()` or in the
//! interrupt's own handler, or leave it to the handler that owns it.

use kernel::{
    device::Core,
    driver,
    io::Io,
    irq,
    kvec,
    new_spinlock,
    pci,
    prelude::*,
    str::CStr,
    sync::{
        Arc,
        SpinLock, //
    }, //
};
use perf::{
    aux,
    interrupt::{
        Entry,
        PciLines, //
    },
    pmu::{
        Description,
        Scope, //
    },
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

const NAME: &CStr = c"hostile_line";

/// The offsets of registers in the first BAR.
mod regs {
    /// The first register raises the interrupt, the second one acknowledges it.
    pub(super) const IRQ_RAISE: usize = 0x60;
    pub(super) const IRQ_ACK: usize = 0x64;
    pub(super) const END: usize = 0xa0;
}

/// The callback in which the interrupt is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    CpuOffline,
    Handler,
    /// The drop of the handler, which owns the interrupt.
    DropOfHandler,
}

type Bar = pci::DevresBar<{ regs::END }>;

/// An interrupt. Its handler has a reference to it too.
type Line = Arc<SpinLock<Option<PciLines<Handler>>>>;

kernel::pci_device_table!(
    TABLE,
    (),
    [(pci::DeviceId::from_class(0x00ff00, 0xffffff), ())]
);

/// The registered driver.
pub(crate) type Registered = Pin<KBox<driver::Registration<pci::Adapter<Driver>>>>;

/// Registers the driver. It binds the device unless another driver has bound it.
pub(crate) fn register(module: &'static ThisModule) -> Result<Registered> {
    KBox::pin_init(driver::Registration::new(NAME, module), GFP_KERNEL)
}

pub(crate) struct Driver;

impl pci::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = aux::Registration<Unit>;

    const ID_TABLE: pci::IdTable<()> = &TABLE;

    fn probe<'bound>(
        device: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<aux::Registration<Unit>, Error> + 'bound {
        device.enable_device_mem()?;
        device.set_master();
        let bar: Bar = device
            .iomap_region_sized::<{ regs::END }>(0, NAME)?
            .into_devres()?;
        let bar = Arc::new(bar, GFP_KERNEL)?;
        let drops = match crate::module_parameters::driver.value() {
            crate::LINE_IN_HANDLER => Where::Handler,
            crate::LINE_KEPT => Where::DropOfHandler,
            _ => Where::CpuOffline,
        };
        let line = Arc::pin_init(new_spinlock!(None), GFP_KERNEL)?;
        let unit = Unit {
            line: line.clone(),
            drops,
        };
        let description = Description::new(NAME)
            .parent(device.as_ref())
            .scope(Scope::System);
        let registration = aux::Registration::new(description, unit)?;
        let entry = registration.entry();
        let handler = Handler {
            entry: entry.clone(),
            line: line.clone(),
            bar: bar.clone(),
            drops,
        };
        let lines = PciLines::following(device, NAME, kvec![handler]?, 0, &entry)?;

        *line.lock() = Some(lines);
        if let (Where::Handler | Where::DropOfHandler, Some(bar)) = (drops, bar.try_access()) {
            bar.write32(1, regs::IRQ_RAISE);
        }
        Ok(registration)
    }
}

pub(crate) struct Handler {
    entry: Entry<Unit>,
    line: Line,
    bar: Arc<Bar>,
    drops: Where,
}

impl irq::Handler for Handler {
    fn handle(&self) -> irq::IrqReturn {
        if let Some(bar) = self.bar.try_access() {
            bar.write32(1, regs::IRQ_ACK);
        }
        if self.drops == Where::Handler {
            // Dropping the interrupt frees this handler.
            let line = self.line.try_lock().and_then(|mut line| line.take());

            drop(line);
        }
        self.entry.interrupt();
        irq::IrqReturn::Handled
    }
}

/// A unit that traces nothing. It drops its interrupt when a CPU goes offline, or leaves it to the
/// interrupt's handler.
pub(crate) struct Unit {
    line: Line,
    drops: Where,
}

#[vtable]
impl Pmu for Unit {
    type Config = ();
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }

    fn cpu_offline(&self, _cpu: u32) {
        if self.drops == Where::CpuOffline {
            let line = self.line.lock().take();

            drop(line);
        }
    }
}

#[vtable]
impl AuxPmu for Unit {
    type Buffer = ();
    type Trace = ();

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result {
        Ok(())
    }

    fn interrupt(
        &self,
        _transaction: &mut aux::Transaction<'_, Self>,
        _trace: &mut (),
    ) -> aux::Next {
        aux::Next::Continue
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
        aux::Commit::written(transaction, aux::Loss::None)
    }
}
