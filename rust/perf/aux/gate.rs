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

/// What an NMI that found the gate taken has left word of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(u32);

impl Word {
    /// Stop the event.
    pub(super) const STOP: Self = Self(2);
    /// Look whether the event is to be paused.
    pub(super) const PAUSE: Self = Self(4);

    /// Whether `other` is part of it.
    pub(super) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Lets one callback at a time at a CPU's transaction.
///
/// Only callbacks on that CPU with interrupts off try to enter, so whoever finds the gate taken is
/// an NMI that broke into the callback inside. It cannot wait; it leaves word, and the callback
/// inside acts on that before interrupts come on again. perf stops an event from NMI when a
/// sibling's overflow throttles the group, and pauses and resumes it there.
pub(super) struct Gate {
    state: Atomic<u32>,
    /// The word that an NMI will leave when somebody is inside.
    #[cfg(CONFIG_KUNIT = "y")]
    nmi: Atomic<u32>,
}

impl Gate {
    pub(super) const fn new() -> Self {
        Self {
            state: Atomic::new(FREE),
            #[cfg(CONFIG_KUNIT = "y")]
            nmi: Atomic::new(0),
        }
    }

    /// Runs `inside` if nobody is inside, and then `heed` with each word that was left meanwhile.
    ///
    /// [`None`] if somebody is inside. No barrier is needed for the CPU itself; acquire and
    /// release pair with each other should the owner of the slot move between CPUs.
    pub(super) fn enter<R>(
        &self,
        inside: impl FnOnce() -> R,
        mut heed: impl FnMut(Word),
    ) -> Option<R> {
        self.state.cmpxchg(FREE, INSIDE, Acquire).ok()?;

        let result = inside();
        #[cfg(CONFIG_KUNIT = "y")]
        self.leave_word(Word(self.nmi.xchg(0, Relaxed)));

        while self.state.cmpxchg(INSIDE, FREE, Release).is_err() {
            // All at once, so that no word is lost; what is left during `heed` is heeded next.
            heed(Word(self.state.xchg(INSIDE, Relaxed)));
        }

        Some(result)
    }

    /// Leaves word for the callback inside; false if nobody is inside.
    pub(super) fn leave_word(&self, word: Word) -> bool {
        let mut seen = self.state.load(Relaxed);

        while seen != FREE {
            match self.state.cmpxchg(seen, seen | word.0, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Has an NMI leave `word` with the next callback that is inside, on a bench.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) fn break_in(&self, word: Word) {
        self.nmi.store(word.0, Relaxed);
    }
}

#[kunit_tests(rust_perf_aux_gate)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn second_is_refused() {
        let gate = Gate::new();
        let inner = gate.enter(|| gate.enter(|| (), |_| ()), |_| ());

        assert!(inner == Some(None));
        assert!(gate.enter(|| (), |_| ()) == Some(()));
    }

    #[test]
    fn word_is_heeded_on_the_way_out() {
        let gate = Gate::new();
        let stops = Cell::new(0);
        let pauses = Cell::new(0);
        let heed = |word: Word| {
            if word.has(Word::STOP) {
                stops.set(stops.get() + 1);
            }
            if word.has(Word::PAUSE) {
                pauses.set(pauses.get() + 1);
            }
            // Once more from NMI while the first word is being heeded.
            if stops.get() == 1 {
                assert!(gate.leave_word(Word::STOP));
            }
        };

        assert!(!gate.leave_word(Word::STOP));
        let left = gate.enter(
            || {
                gate.leave_word(Word::STOP)
                    && gate.leave_word(Word::PAUSE)
                    && gate.leave_word(Word::STOP)
            },
            heed,
        );

        assert!(left == Some(true));
        assert_eq!(stops.get(), 2);
        assert_eq!(pauses.get(), 1);
        assert!(!gate.leave_word(Word::STOP));
    }
}
