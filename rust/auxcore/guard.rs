// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A guard against re-entrance from NMI.
//!
//! The state of a CPU is touched on that CPU with interrupts off, so only an NMI can find the guard
//! held. The NMI cannot wait. It sets pending bits, and the holder processes them before it
//! releases the guard.

/// A word of memory that one CPU and its NMIs share. The kernel's and the host's atomics implement
/// it; the tests implement one that runs an NMI between two accesses.
pub trait Word {
    /// Reads the word.
    fn load(&self) -> u32;
    /// Writes `new` and returns what the word was.
    fn swap(&self, new: u32) -> u32;
    /// Writes `new` if the word is `old`; else returns what it is. Acquire if `old` is
    /// [`FREE`], release if `new` is.
    fn compare_exchange(&self, old: u32, new: u32) -> Result<(), u32>;
}

/// The value of a [`Word`] whose guard is not held.
pub const FREE: u32 = 0;

const HELD: u32 = 1;

/// Requests of an NMI that found the guard held. A set: requests merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pending(u32);

impl Pending {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Stop the event.
    pub const STOP: Self = Self(2);
    /// Follow `hw.aux_paused`.
    pub const PAUSE: Self = Self(4);
    /// The unit has raised its interrupt.
    pub const INTERRUPT: Self = Self(8);

    /// The set as a number.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set that [`Self::bits`] gave; unknown bits are dropped.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & (Self::STOP.0 | Self::PAUSE.0 | Self::INTERRUPT.0))
    }

    /// Whether all of `other` is in `self`.
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Lets one callback at a time at the state of a CPU.
#[derive(Debug, Default)]
pub struct Guard<W>(W);

impl<W: Word> Guard<W> {
    /// A guard over `word`, which must be [`FREE`].
    pub const fn new(word: W) -> Self {
        Self(word)
    }

    /// Runs `f` with the guard held, then `process` with the requests that arrived in the
    /// meantime, until there are none. [`None`] if the guard is held: then nothing runs.
    ///
    /// A request that arrives while `process` runs is processed next.
    #[inline]
    pub fn run<R>(&self, f: impl FnOnce() -> R, mut process: impl FnMut(Pending)) -> Option<R> {
        self.0.compare_exchange(FREE, HELD).ok()?;
        let result = f();

        while self.0.compare_exchange(HELD, FREE).is_err() {
            // Takes all requests at once, so that none is lost.
            process(Pending(self.0.swap(HELD) & !HELD));
        }
        Some(result)
    }

    /// Leaves a request to the holder; false if the guard is free.
    pub fn request(&self, pending: Pending) -> bool {
        let mut seen = self.0.load();

        while seen != FREE {
            match self.0.compare_exchange(seen, seen | pending.0) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }
}
