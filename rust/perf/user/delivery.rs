// SPDX-License-Identifier: GPL-2.0

//! Signals on their way: from when the kernel has chosen one until its handler is about to run.
//!
//! Meanwhile the task's registers are copied to user memory, which may fault and sleep. What is
//! set in them when the task gets on a CPU again would be seen there.

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

/// How many tasks are followed at a time.
const PLACES: usize = 128;

/// The registers of the tasks to which a signal is on its way.
static TASKS: [Atomic<*mut bindings::pt_regs>; PLACES] =
    [const { Atomic::new(ptr::null_mut()) }; PLACES];

/// How many of them there are; or have been, where one was not followed to its end.
static COUNT: Atomic<usize> = Atomic::new(0);

/// A signal on its way to a task.
///
/// # Invariants
///
/// `place` holds the task's registers, and is counted.
pub(super) struct Delivery {
    place: &'static Atomic<*mut bindings::pt_regs>,
}

impl Delivery {
    /// A signal is on its way to the task with these registers. [`None`] if there are too many such
    /// tasks; from then on every task counts as one.
    pub(super) fn begin(regs: NonNull<bindings::pt_regs>) -> Option<Self> {
        // No barriers: only the task itself asks for it, and who puts it on a CPU, after the locks of
        // the scheduler.
        COUNT.fetch_add(1, Relaxed);

        let place = TASKS.iter().find(|place| {
            place
                .cmpxchg(ptr::null_mut(), regs.as_ptr(), Relaxed)
                .is_ok()
        });

        // INVARIANT: Just done.
        place.map(|place| Self { place })
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.place.store(ptr::null_mut(), Relaxed);
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// Whether a signal is on its way to the task with these registers.
pub(super) fn is_under_way(regs: NonNull<bindings::pt_regs>) -> bool {
    let count = COUNT.load(Relaxed);

    count > PLACES
        || count > 0
            && TASKS
                .iter()
                .any(|place| ptr::eq(place.load(Relaxed), regs.as_ptr()))
}

#[kunit_tests(rust_perf_user_delivery)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_told_apart() {
        // Only compared.
        let mut frames = [const { core::mem::MaybeUninit::<bindings::pt_regs>::uninit() }; 2];
        let [one, other] = frames.each_mut().map(|frame| NonNull::from(frame).cast());
        let delivery = Delivery::begin(one);

        assert!(delivery.is_some());
        assert!(is_under_way(one));
        assert!(!is_under_way(other));
        drop(delivery);
        assert!(!is_under_way(one));
    }
}
