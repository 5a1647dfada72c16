// SPDX-License-Identifier: GPL-2.0

//! Signals on their way: from when the kernel has chosen one until its handler is about to run.
//!
//! Meanwhile the task's registers are copied to user memory, which may fault and sleep. What is
//! set in them when the task gets on a CPU again would be seen there.

use super::places::{
    Place,
    Places, //
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// How many tasks are followed at a time.
const PLACES: usize = 128;

/// The tasks to which a signal is on its way.
static TASKS: Places<PLACES> = Places::new();

/// Those of whom nobody will tell when it has come.
static ALONE: Places<PLACES> = Places::new();

/// How many signals are on their way, also those for whose tasks there was no place.
static COUNT: Atomic<usize> = Atomic::new(0);

/// A signal on its way to a task.
///
/// # Invariants
///
/// It is counted, and its place, if it found one, is one of [`TASKS`] and holds the task's registers.
pub(super) struct Delivery {
    place: Option<&'static Place>,
}

impl Delivery {
    /// A signal is on its way to the task with these registers. While there are more such tasks than
    /// places, every task counts as one.
    pub(super) fn begin(regs: NonNull<bindings::pt_regs>) -> Self {
        // It has run its program since it was left alone.
        seen(regs);
        COUNT.fetch_add(1, Relaxed);

        // INVARIANT: Just counted, and stored.
        Self {
            place: TASKS.put(regs),
        }
    }

    /// Nobody will tell when it has come: it is on its way until the task is [`seen`]. Without a place
    /// it ends here.
    pub(super) fn lose(self) {
        if let Some(regs) = self
            .place
            .and_then(|place| NonNull::new(place.load(Relaxed)))
        {
            ALONE.put(regs);
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            TASKS.free(place);
        }
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// The task with these registers comes from its program: no signal is on its way to it.
pub(super) fn seen(regs: NonNull<bindings::pt_regs>) {
    ALONE.take(regs);
}

/// Whether a signal is on its way to the task with these registers.
pub(super) fn is_under_way(regs: NonNull<bindings::pt_regs>) -> bool {
    COUNT.load(Relaxed) > PLACES || TASKS.has(regs) || ALONE.has(regs)
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
        assert_eq!(COUNT.load(Relaxed), 0);
        assert!(TASKS.is_empty() && ALONE.is_empty());
    }
}
