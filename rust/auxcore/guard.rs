// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A guard against re-entrance from NMI.
//!
//! The state of a CPU is touched on that CPU with interrupts off, so only an NMI can find the guard
//! held. The NMI cannot wait. It sets pending bits, and the holder processes them before it
//! releases the guard.

/// The memory of a [`Guard`]: whether it is held, and the requests.
///
/// The kernel's implementation is memory that one CPU and its NMIs share. The implementation of the
/// tests can simulate an NMI before each access.
pub trait Memory {
    /// Takes the guard, with acquire ordering; false if it is held.
    fn take(&self) -> bool;
    /// Releases the guard, with release ordering.
    fn release(&self);
    /// Whether the guard is held.
    fn is_held(&self) -> bool;
    /// Adds requests. An NMI may interrupt this call and add its own requests.
    fn add(&self, bits: u32);
    /// Whether there are requests.
    fn has_any(&self) -> bool;
    /// Removes and returns all requests at once, so that none is lost.
    fn take_all(&self) -> u32;
}

/// Requests of an NMI that found the guard held. A set: requests merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pending(u32);

impl Pending {
    /// No request.
    pub const NONE: Self = Self(0);
    /// Stop the event.
    pub const STOP: Self = Self(1);
    /// Pause or resume the unit, as `hw.aux_paused` says.
    pub const PAUSE: Self = Self(2);
    /// The unit has raised its interrupt.
    pub const INTERRUPT: Self = Self(4);

    /// The set as a number.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set from a number that [`Self::bits`] returned. Unknown bits are dropped.
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

/// Allows one callback at a time to use the state of a CPU.
#[derive(Debug, Default)]
pub struct Guard<M>(M);

impl<M: Memory> Guard<M> {
    /// A guard over `memory`, which is free and has no requests.
    pub const fn new(memory: M) -> Self {
        Self(memory)
    }

    /// Runs `f` with the guard held, then `process` with the requests that arrived in the
    /// meantime, until there are none. [`None`] if the guard is held: then nothing runs.
    ///
    /// A request that arrives while `process` runs is processed next. The check for requests
    /// follows the release. An NMI between the two finds the guard free, and adds no request.
    #[inline]
    pub fn run<R>(&self, f: impl FnOnce() -> R, mut process: impl FnMut(Pending)) -> Option<R> {
        if !self.0.take() {
            return None;
        }
        let result = f();

        self.0.release();
        // `take()` does not fail on the CPU that has just released the guard.
        while self.0.has_any() && self.0.take() {
            process(Pending(self.0.take_all()));
            self.0.release();
        }
        Some(result)
    }

    /// Adds a request for the holder on this CPU. Returns false and adds nothing if the guard is
    /// free.
    pub fn request(&self, pending: Pending) -> bool {
        // If the guard is held, the caller has interrupted the holder, which cannot release the
        // guard meanwhile.
        let held = self.0.is_held();

        if held {
            self.0.add(pending.0);
        }
        held
    }
}
