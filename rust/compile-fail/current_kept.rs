// SPDX-License-Identifier: GPL-2.0

//! A current task that is kept beyond the guard.
//!
//! error: cannot move out of `following` because it is borrowed

use kernel::interrupt::LocalInterruptDisabled;
use stepping::Following;

/// Drops the guard, and looks at the task then.
pub fn keep(following: Following, irq: &LocalInterruptDisabled) -> Option<u64> {
    let task = following.current(irq);

    drop(following);
    task.map(|task| task.ip())
}
