// SPDX-License-Identifier: GPL-2.0

//! Trap flags that are left to be taken away.
//!
//! An NMI may break in where the kernel saves a task's registers or puts them back: what it writes
//! to them may be too late, or be overwritten. So it leaves word, and whoever next sees the task in
//! the kernel, before it can get off the CPU, takes the flag away.

use super::places::Places;
use crate::bindings;
use core::ptr::NonNull;
use kernel::prelude::*;

/// The tasks: one for each CPU is enough, and more CPUs than these do not get such NMIs all at once.
static TASKS: Places<256> = Places::new();

/// The flag in these registers, of the current task, is to be taken away.
pub(super) fn leave(regs: NonNull<bindings::pt_regs>) {
    if !TASKS.has(regs) {
        TASKS.put(regs);
    }
}

/// Whether the flag in these registers was left; it is no more.
pub(super) fn take(regs: NonNull<bindings::pt_regs>) -> bool {
    TASKS.take(regs)
}

#[kunit_tests(rust_perf_user_left)]
mod tests {
    use super::*;
    use crate::user::{
        settle,
        TRAP_FLAG, //
    };

    #[test]
    fn flags_are_taken_once() {
        let mut frames: [bindings::pt_regs; 2] = pin_init::zeroed();
        for frame in &mut frames {
            frame.flags = TRAP_FLAG | 2;
            frame.r11 = TRAP_FLAG;
            frame.ax = 7;
        }
        let [one, other] = frames.each_mut().map(NonNull::from);

        // SAFETY: The frames are here, and are looked at only after this.
        let settle = |regs| unsafe { settle(regs) };

        leave(one);
        leave(one);
        assert!(!settle(other));
        assert!(settle(one));
        assert!(!settle(one));
        // Its own r11 is the program's, outside of system calls.
        let [one, other] = &frames;
        assert_eq!((one.flags, one.r11), (2, TRAP_FLAG));
        assert_eq!(other.flags, TRAP_FLAG | 2);
        assert!(TASKS.is_empty());
    }
}
