// SPDX-License-Identifier: GPL-2.0

//! One at a time, on one CPU, where an NMI may break in.

use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Relaxed,
        Release, //
    }, //
};

/// Nobody is inside.
const FREE: u32 = 0;
/// A callback is inside.
const INSIDE: u32 = 1;
/// A callback is inside, and an NMI that found it there wants a stop.
const STOP: u32 = 2;

/// Lets one callback at a time at a CPU's transaction.
///
/// Only callbacks on that CPU with interrupts off try to enter, so whoever finds the gate taken is
/// an NMI that broke into the callback inside. It cannot wait; it leaves word, and the callback
/// inside acts on that before interrupts come on again. perf stops an event from NMI when a
/// sibling's overflow throttles the group.
pub(super) struct Gate(Atomic<u32>);

impl Gate {
    pub(super) const fn new() -> Self {
        Self(Atomic::new(FREE))
    }

    /// Runs `inside` if nobody is inside, and then `stop` if that was asked for meanwhile.
    ///
    /// [`None`] if somebody is inside. No barrier is needed for the CPU itself; acquire and
    /// release pair with each other should the owner of the slot move between CPUs.
    pub(super) fn enter<R>(&self, inside: impl FnOnce() -> R, mut stop: impl FnMut()) -> Option<R> {
        self.0.cmpxchg(FREE, INSIDE, Acquire).ok()?;

        let result = inside();

        while self.0.cmpxchg(INSIDE, FREE, Release).is_err() {
            // Before `stop`, so that what is asked for during it is done too.
            self.0.store(INSIDE, Relaxed);
            stop();
        }

        Some(result)
    }

    /// Asks the callback inside to stop before it leaves; false if nobody is inside.
    pub(super) fn ask_to_stop(&self) -> bool {
        self.0.cmpxchg(INSIDE, STOP, Relaxed).is_ok() || self.0.load(Relaxed) == STOP
    }
}

#[kunit_tests(rust_perf_aux_gate)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn second_is_refused() {
        let gate = Gate::new();
        let inner = gate.enter(|| gate.enter(|| (), || ()), || ());

        assert!(inner == Some(None));
        assert!(gate.enter(|| (), || ()) == Some(()));
    }

    #[test]
    fn stop_is_done_on_the_way_out() {
        let gate = Gate::new();
        let stops = Cell::new(0);
        let stop = || {
            stops.set(stops.get() + 1);
            // Once more from NMI while the first is being done.
            if stops.get() == 1 {
                assert!(gate.ask_to_stop());
            }
        };

        assert!(!gate.ask_to_stop());
        let asked = gate.enter(|| gate.ask_to_stop() && gate.ask_to_stop(), stop);

        assert!(asked == Some(true));
        assert_eq!(stops.get(), 2);
        assert!(!gate.ask_to_stop());
    }
}
