// SPDX-License-Identifier: GPL-2.0

//! A callback's current task that is swapped with one of a longer lifetime.
//!
//! error: explicit lifetime required in the type of `task`

use kernel::interrupt::LocalInterruptDisabled;
use stepping::{
    Current,
    Trap, //
};

/// Keeps the task of a callback in place of another task.
pub fn swap<'a>(
    kept: &mut Current<'a>,
    task: &mut Current<'_>,
    _irq: &LocalInterruptDisabled,
) -> Trap {
    core::mem::swap(kept, task);
    Trap::Claimed
}
