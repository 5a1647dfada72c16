// SPDX-License-Identifier: GPL-2.0

//! Trap flags that are left to be taken away.
//!
//! An NMI may break in where the kernel saves a task's registers or puts them back: what it writes
//! to them may be too late, or be overwritten. So it leaves word, and whoever next sees the task in
//! the kernel, before it can get off the CPU, takes the flag away.

use crate::bindings;
use core::ptr::{
    self,
    NonNull, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// One for each CPU is enough; more CPUs than these do not get such NMIs all at once.
const PLACES: usize = 256;

/// The registers of the tasks.
static TASKS: [Atomic<*mut bindings::pt_regs>; PLACES] =
    [const { Atomic::new(ptr::null_mut()) }; PLACES];

/// How many of them there are.
static COUNT: Atomic<usize> = Atomic::new(0);

/// The flag in these registers, of the current task, is to be taken away.
pub(super) fn leave(regs: NonNull<bindings::pt_regs>) {
    if TASKS
        .iter()
        .any(|place| ptr::eq(place.load(Relaxed), regs.as_ptr()))
    {
        return;
    }
    // No barriers: only this CPU asks for it, as long as the task is on it.
    COUNT.fetch_add(1, Relaxed);
    let found = TASKS.iter().any(|place| {
        place
            .cmpxchg(ptr::null_mut(), regs.as_ptr(), Relaxed)
            .is_ok()
    });
    if !found {
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// Whether the flag in these registers was left; it is no more.
pub(super) fn take(regs: NonNull<bindings::pt_regs>) -> bool {
    if COUNT.load(Relaxed) == 0 {
        return false;
    }
    let found = TASKS.iter().any(|place| {
        place
            .cmpxchg(regs.as_ptr(), ptr::null_mut(), Relaxed)
            .is_ok()
    });
    if found {
        COUNT.fetch_sub(1, Relaxed);
    }
    found
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

        leave(one);
        leave(one);
        assert!(!settle(other));
        assert!(settle(one));
        assert!(!settle(one));
        // Its own r11 is the program's, outside of system calls.
        let [one, other] = &frames;
        assert_eq!((one.flags, one.r11), (2, TRAP_FLAG));
        assert_eq!(other.flags, TRAP_FLAG | 2);
        assert_eq!(COUNT.load(Relaxed), 0);
    }
}
