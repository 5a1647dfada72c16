// SPDX-License-Identifier: GPL-2.0

//! Pending clears of trap flags.
//!
//! An NMI may interrupt the kernel where it saves or restores a task's registers. Then a write to
//! them may come too late, or be overwritten. So the NMI adds the task to a table. The task's next
//! entry into this module clears the flag, before the task can leave the CPU.

use crate::{
    bindings,
    table::Table, //
};
use core::ptr::NonNull;
use kernel::prelude::*;

/// The maximum number of CPUs.
// CAST: Widening; `From` is not const.
const CPUS: usize = bindings::CONFIG_NR_CPUS as usize;

/// The tasks with a pending clear. There is at most one for each CPU.
static TASKS: Table<CPUS> = Table::new();

/// Marks the trap flag of the current task, which has these registers, as pending to be cleared.
pub(crate) fn add(regs: NonNull<bindings::pt_regs>) {
    if !TASKS.contains(regs) {
        // There is a free entry: no more tasks run than there are CPUs.
        let _ = TASKS.add(regs);
    }
}

/// Whether a clear was pending for these registers. It is not pending any more.
pub(crate) fn take(regs: NonNull<bindings::pt_regs>) -> bool {
    TASKS.remove(regs)
}

/// Whether no clear is pending.
pub(crate) fn is_empty() -> bool {
    TASKS.is_empty()
}

#[kunit_tests(rust_stepping_pending)]
mod tests {
    use super::*;
    use crate::task::{
        clear_pending,
        TRAP_FLAG, //
    };

    #[test]
    fn flags_are_cleared_once() {
        let mut frames: [bindings::pt_regs; 2] = pin_init::zeroed();
        for frame in &mut frames {
            frame.flags = TRAP_FLAG | 2;
            frame.r11 = TRAP_FLAG;
            frame.ax = 7;
        }
        let [one, other] = frames.each_mut().map(NonNull::from);

        // SAFETY: The frames live on this stack; no reference to them is used before the last call.
        let clear = |regs| unsafe { clear_pending(regs) };

        add(one);
        add(one);
        assert!(!clear(other));
        assert!(clear(one));
        assert!(!clear(one));
        // Outside of system calls, r11 belongs to the program.
        let [one, other] = &frames;
        assert_eq!((one.flags, one.r11), (2, TRAP_FLAG));
        assert_eq!(other.flags, TRAP_FLAG | 2);
        assert!(TASKS.is_empty());
    }
}
