// SPDX-License-Identifier: GPL-2.0

//! A driver of QEMU's `edu` device that frees its interrupt in a callback.

use kernel::{
    device::Core,
    driver,
    irq,
    kvec,
    new_mutex,
    pci,
    prelude::*,
    str::CStr,
    sync::{
        Arc,
        Mutex, //
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

kernel::pci_device_table!(
    TABLE,
    (),
    [(pci::DeviceId::from_class(0x00ff00, 0xffffff), ())]
);

/// The driver while it is registered.
pub(crate) type Registered = Pin<KBox<driver::Registration<pci::Adapter<Driver>>>>;

/// Registers the driver: it binds the device if no other driver has.
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
        let line = Arc::pin_init(new_mutex!(None), GFP_KERNEL)?;
        let unit = Unit { line: line.clone() };
        let description = Description::new(NAME)
            .parent(device.as_ref())
            .scope(Scope::System);
        let registration = aux::Registration::new(description, unit)?;
        let entry = registration.entry();
        let handler = Handler(entry.clone());

        *line.lock() = Some(PciLines::following(
            device,
            NAME,
            kvec![handler]?,
            0,
            &entry,
        )?);
        Ok(registration)
    }
}

struct Handler(Entry<Unit>);

impl irq::Handler for Handler {
    fn handle(&self) -> irq::IrqReturn {
        self.0.interrupt();
        irq::IrqReturn::Handled
    }
}

/// Frees its interrupt when a CPU goes offline, and traces nothing.
pub(crate) struct Unit {
    line: Arc<Mutex<Option<PciLines<Handler>>>>,
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
        let line = self.line.lock().take();

        drop(line);
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
