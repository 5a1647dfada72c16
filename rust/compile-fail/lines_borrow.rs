// SPDX-License-Identifier: GPL-2.0

//! Handlers of a PCI device's interrupts that borrow from the stack.
//!
//! error: borrowed data escapes outside of function

use kernel::{device::Bound, irq, kvec, pci, prelude::*};
use perf::interrupt::PciLines;

struct Handler<'a>(&'a u32);

impl irq::Handler for Handler<'_> {
    fn handle(&self) -> irq::IrqReturn {
        match self.0 {
            0 => irq::IrqReturn::None,
            _ => irq::IrqReturn::Handled,
        }
    }
}

/// Requests an interrupt whose handler reads a variable that is gone.
pub fn request(device: &pci::Device<Bound>, number: &u32) -> Result {
    let lines = PciLines::new(device, c"lines_borrow", kvec![Handler(number)]?)?;

    drop(lines);
    Ok(())
}
