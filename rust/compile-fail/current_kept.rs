// SPDX-License-Identifier: GPL-2.0

//! A current task that is kept after the guard was dropped.
//!
//! error: cannot move out of `following` because it is borrowed

use kernel::interrupt::LocalInterruptDisabled;
use stepping::Following;

/// Drops the guard, and uses the task afterwards.
pub fn keep(following: Following, irq: &LocalInterruptDisabled) -> Option<u64> {
    let task = following.current(irq);

    drop(following);
    task.map(|task| task.ip())
}
