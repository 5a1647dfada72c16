// SPDX-License-Identifier: GPL-2.0

//! Interrupts of a PCI device that may not be bound to a driver.
//!
//! error: mismatched types

use kernel::{irq, kvec, pci, prelude::*};
use perf::interrupt::PciLines;

/// A handler.
pub struct Handler;

impl irq::Handler for Handler {
    fn handle(&self) -> irq::IrqReturn {
        irq::IrqReturn::None
    }
}

/// Requests an interrupt that would never be freed.
pub fn request(device: &pci::Device) -> Result<PciLines<Handler>> {
    PciLines::new(device, c"lines_unbound", kvec![Handler]?)
}
