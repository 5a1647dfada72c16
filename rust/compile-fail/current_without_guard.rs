// SPDX-License-Identifier: GPL-2.0

//! A current task without a guard that has switches of tasks followed.
//!
//! error: associated function `new` is private

use kernel::interrupt::LocalInterruptDisabled;
use stepping::Current;

/// Gets at a task that may be gone.
pub fn get(irq: &LocalInterruptDisabled) -> Option<Current<'_>> {
    // SAFETY: None: this is what must not compile.
    unsafe { Current::new(irq) }
}
