// SPDX-License-Identifier: GPL-2.0

//! The kernel's word of a [`Guard`](auxcore::guard::Guard).

use auxcore::guard::{
    Word,
    FREE, //
};
use kernel::sync::atomic::{
    Acquire,
    Atomic,
    Relaxed,
    Release, //
};

/// The word of a guard that one CPU and its NMIs share.
pub(crate) struct KernelWord(Atomic<u32>);

impl KernelWord {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(FREE))
    }
}

impl Word for KernelWord {
    #[inline]
    fn load(&self) -> u32 {
        self.0.load(Relaxed)
    }

    #[inline]
    fn swap(&self, new: u32) -> u32 {
        self.0.xchg(new, Relaxed)
    }

    #[inline]
    fn compare_exchange(&self, old: u32, new: u32) -> Result<(), u32> {
        // On the CPU itself program order suffices. Acquire and release order what two CPUs do on
        // which the same event runs one after the other.
        let done = if new == FREE {
            self.0.cmpxchg(old, new, Release)
        } else {
            self.0.cmpxchg(old, new, Acquire)
        };

        done.map(|_| ())
    }
}
