// SPDX-License-Identifier: GPL-2.0

//! A handler of a PCI device's interrupt, taken out while the interrupt is requested.
//!
//! error: field `0` of struct `PciLines` is private

use kernel::irq;
use perf::interrupt::PciLines;

/// Takes the handlers.
pub fn take<H: irq::Handler + Send + 'static>(lines: PciLines<H>) {
    let _ = lines.0;
}
