// SPDX-License-Identifier: GPL-2.0

//! Handlers of a PCI device's interrupts that must not be sent to another task.
//!
//! error: cannot be sent between threads safely

use core::marker::PhantomData;
use kernel::{device::Bound, irq, kvec, pci, prelude::*};
use perf::interrupt::PciLines;

struct Handler(PhantomData<*mut ()>);

// SAFETY: It has no data.
unsafe impl Sync for Handler {}

impl irq::Handler for Handler {
    fn handle(&self) -> irq::IrqReturn {
        irq::IrqReturn::None
    }
}

/// Requests an interrupt whose handler is freed in another task.
pub fn request(device: &pci::Device<Bound>) -> Result<PciLines<Handler>> {
    PciLines::new(device, c"lines_not_send", kvec![Handler(PhantomData)]?)
}
