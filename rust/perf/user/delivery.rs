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

/// The registers of the tasks to which a signal is on its way; one byte behind them where nobody will
/// tell when it has come.
static TASKS: [Atomic<*mut bindings::pt_regs>; PLACES] =
    [const { Atomic::new(ptr::null_mut()) }; PLACES];

/// How many of them there are, also of those without a place.
static COUNT: Atomic<usize> = Atomic::new(0);

/// How many have [lost](Delivery::lose) who tells of their end.
static LOST: Atomic<usize> = Atomic::new(0);

/// A signal on its way to a task.
///
/// # Invariants
///
/// It is counted, and its place, if it found one, holds the task's registers.
pub(super) struct Delivery {
    place: Option<&'static Atomic<*mut bindings::pt_regs>>,
}

impl Delivery {
    /// A signal is on its way to the task with these registers. While there are more such tasks than
    /// places, every task counts as one.
    pub(super) fn begin(regs: NonNull<bindings::pt_regs>) -> Self {
        // It has run its program since it lost one.
        seen(regs);
        // No barriers: only the task itself asks for it, and who puts it on a CPU, after the locks of
        // the scheduler.
        COUNT.fetch_add(1, Relaxed);

        // INVARIANT: Just counted, and stored.
        Self {
            place: TASKS.iter().find(|place| {
                place
                    .cmpxchg(ptr::null_mut(), regs.as_ptr(), Relaxed)
                    .is_ok()
            }),
        }
    }

    /// Nobody will tell when it has come: it is on its way until the task is [`seen`]. Without a place
    /// it ends here.
    pub(super) fn lose(mut self) {
        let Some(place) = self.place.take() else {
            return;
        };

        LOST.fetch_add(1, Relaxed);
        place.store(lost(place.load(Relaxed)), Relaxed);
        // It stays counted.
        core::mem::forget(self);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(ptr::null_mut(), Relaxed);
        }
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// How the registers stand in a place that was lost.
fn lost(regs: *mut bindings::pt_regs) -> *mut bindings::pt_regs {
    regs.wrapping_byte_add(1)
}

/// The task with these registers comes from its program: no signal is on its way to it.
pub(super) fn seen(regs: NonNull<bindings::pt_regs>) {
    if LOST.load(Relaxed) == 0 {
        return;
    }
    for place in &TASKS {
        let here = lost(regs.as_ptr());

        if place.cmpxchg(here, ptr::null_mut(), Relaxed).is_ok() {
            COUNT.fetch_sub(1, Relaxed);
            LOST.fetch_sub(1, Relaxed);
        }
    }
}

/// Whether a signal is on its way to the task with these registers.
pub(super) fn is_under_way(regs: NonNull<bindings::pt_regs>) -> bool {
    let count = COUNT.load(Relaxed);

    count > PLACES
        || count > 0
            && TASKS.iter().any(|place| {
                let there = place.load(Relaxed);

                ptr::eq(there, regs.as_ptr()) || ptr::eq(there, lost(regs.as_ptr()))
            })
}

#[kunit_tests(rust_perf_user_delivery)]
mod tests {
    use super::*;

    /// Registers that are only compared.
    type Frames<const N: usize> = [core::mem::MaybeUninit<bindings::pt_regs>; N];

    fn frames<const N: usize>(frames: &mut Frames<N>) -> [NonNull<bindings::pt_regs>; N] {
        frames.each_mut().map(|frame| NonNull::from(frame).cast())
    }

    #[test]
    fn tasks_are_told_apart() {
        let mut two: Frames<2> = [const { core::mem::MaybeUninit::uninit() }; 2];
        let [one, other] = frames(&mut two);
        let delivery = Delivery::begin(one);

        assert!(is_under_way(one));
        assert!(!is_under_way(other));
        drop(delivery);
        assert!(!is_under_way(one));
    }

    #[test]
    fn more_than_there_are_places() {
        let mut two: Frames<2> = [const { core::mem::MaybeUninit::uninit() }; 2];
        let [one, other] = frames(&mut two);

        for _ in 0..3 {
            let mut all = [const { None }; PLACES + 2];

            for delivery in &mut all {
                *delivery = Some(Delivery::begin(one));
            }
            assert!(is_under_way(other));
            for delivery in &mut all[..2] {
                *delivery = None;
            }
            assert!(!is_under_way(other));
            assert!(is_under_way(one));
        }
        assert!(!is_under_way(one));
        assert_eq!(COUNT.load(Relaxed), 0);
    }

    #[test]
    fn who_is_lost_is_found() {
        let mut two: Frames<2> = [const { core::mem::MaybeUninit::uninit() }; 2];
        let [one, other] = frames(&mut two);

        for _ in 0..2 * PLACES {
            Delivery::begin(one).lose();
            assert!(is_under_way(one));
            seen(other);
            assert!(is_under_way(one) && !is_under_way(other));
            seen(one);
            assert!(!is_under_way(one));
        }
        Delivery::begin(one).lose();
        drop(Delivery::begin(one));
        assert!(!is_under_way(one));
        assert_eq!((COUNT.load(Relaxed), LOST.load(Relaxed)), (0, 0));
    }
}
