// SPDX-License-Identifier: GPL-2.0

//! A current task that is kept after the section with interrupts off.
//!
//! error: cannot move out of `irq` because it is borrowed

use kernel::interrupt::local_interrupt_disable;
use stepping::Following;

/// Turns interrupts on, and uses the task afterwards.
pub fn keep(following: &Following) -> Option<u64> {
    let irq = local_interrupt_disable();
    let task = following.current(&irq);

    drop(irq);
    task.map(|task| task.ip())
}
