// SPDX-License-Identifier: GPL-2.0

//! A current task, taken without a guard that follows task switches.
//!
//! error: associated function `new` is private

use kernel::interrupt::LocalInterruptDisabled;
use stepping::Current;

/// Accesses a task that may be gone.
pub fn get(irq: &LocalInterruptDisabled) -> Option<Current<'_>> {
    // SAFETY: There is none: this call must not compile.
    unsafe { Current::new(irq) }
}
