// SPDX-License-Identifier: GPL-2.0

//! The kernel's implementations of the memory of a [`Guard`](auxcore::guard::Guard).

use crate::local::Local;
use auxcore::guard::Memory;
use core::sync::atomic::{
    compiler_fence,
    Ordering, //
};
use kernel::sync::atomic::{
    Acquire,
    Atomic,
    Relaxed,
    Release, //
};

/// The memory of a guard that one CPU and its NMIs share.
///
/// Program order suffices, so taking and releasing are plain stores. The owner must use it on one
/// CPU only.
pub(crate) struct OneCpu {
    held: Local<u32>,
    /// Whether there are requests. Set after they are added, and cleared before they are taken.
    any: Local<u32>,
    requests: Atomic<u32>,
}

impl OneCpu {
    pub(crate) const fn new() -> Self {
        Self {
            held: Local::new(0),
            any: Local::new(0),
            requests: Atomic::new(0),
        }
    }
}

impl Memory for OneCpu {
    #[inline]
    fn take(&self) -> bool {
        // An NMI between the load and the store has released the guard when it returns.
        let free = self.held.get() == 0;

        if free {
            self.held.set(1);
            compiler_fence(Ordering::SeqCst);
        }
        free
    }

    #[inline]
    fn release(&self) {
        compiler_fence(Ordering::SeqCst);
        self.held.set(0);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn is_held(&self) -> bool {
        self.held.get() != 0
    }

    #[inline]
    fn add(&self, bits: u32) {
        add(&self.requests, bits);
        self.any.set(1);
    }

    #[inline]
    fn has_any(&self) -> bool {
        self.any.get() != 0
    }

    #[inline]
    fn take_all(&self) -> u32 {
        self.any.set(0);
        self.requests.xchg(0, Relaxed)
    }
}

/// The memory of a guard that follows an event from CPU to CPU.
pub(crate) struct AnyCpu {
    held: Atomic<bool>,
    requests: Atomic<u32>,
}

impl AnyCpu {
    pub(crate) const fn new() -> Self {
        Self {
            held: Atomic::new(false),
            requests: Atomic::new(0),
        }
    }
}

impl Memory for AnyCpu {
    #[inline]
    fn take(&self) -> bool {
        // Acquire and release order the accesses of two CPUs on which the event runs one after the
        // other.
        self.held.cmpxchg(false, true, Acquire).is_ok()
    }

    #[inline]
    fn release(&self) {
        self.held.store(false, Release);
    }

    #[inline]
    fn is_held(&self) -> bool {
        self.held.load(Relaxed)
    }

    #[inline]
    fn add(&self, bits: u32) {
        add(&self.requests, bits);
    }

    #[inline]
    fn has_any(&self) -> bool {
        self.requests.load(Relaxed) != 0
    }

    #[inline]
    fn take_all(&self) -> u32 {
        self.requests.xchg(0, Relaxed)
    }
}

fn add(requests: &Atomic<u32>, bits: u32) {
    let mut seen = requests.load(Relaxed);

    while let Err(now) = requests.cmpxchg(seen, seen | bits, Relaxed) {
        seen = now;
    }
}
