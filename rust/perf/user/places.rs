// SPDX-License-Identifier: GPL-2.0

//! Tasks, known by their registers, of which something is to be remembered for a while.

use crate::bindings;
use core::ptr::{
    self,
    NonNull, //
};
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// Where one task's registers stand, or null. They are compared, and never followed.
pub(super) type Place = Atomic<*mut bindings::pt_regs>;

/// Room for `N` tasks.
///
/// No barriers: only a task itself asks for it, and who puts it on a CPU, after the locks of the
/// scheduler.
pub(super) struct Places<const N: usize> {
    places: [Place; N],
    /// How many are taken, so that nobody searches for none.
    count: Atomic<usize>,
}

impl<const N: usize> Places<N> {
    pub(super) const fn new() -> Self {
        Self {
            places: [const { Atomic::new(ptr::null_mut()) }; N],
            count: Atomic::new(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Whether these registers stand here.
    pub(super) fn has(&self, regs: NonNull<bindings::pt_regs>) -> bool {
        let is = |place: &Place| ptr::eq(place.load(Relaxed), regs.as_ptr());

        !self.is_empty() && self.places.iter().any(is)
    }

    /// Puts these registers into a free place, if there is one.
    pub(super) fn put(&self, regs: NonNull<bindings::pt_regs>) -> Option<&Place> {
        self.count.fetch_add(1, Relaxed);

        let free = |place: &&Place| {
            place
                .cmpxchg(ptr::null_mut(), regs.as_ptr(), Relaxed)
                .is_ok()
        };
        let place = self.places.iter().find(free);
        if place.is_none() {
            self.count.fetch_sub(1, Relaxed);
        }
        place
    }

    /// Frees a place that [`put`](Self::put) gave.
    pub(super) fn free(&self, place: &Place) {
        place.store(ptr::null_mut(), Relaxed);
        self.count.fetch_sub(1, Relaxed);
    }

    /// Frees a place of these registers; whether they had one.
    pub(super) fn take(&self, regs: NonNull<bindings::pt_regs>) -> bool {
        let took = |place: &Place| {
            place
                .cmpxchg(regs.as_ptr(), ptr::null_mut(), Relaxed)
                .is_ok()
        };
        let found = !self.is_empty() && self.places.iter().any(took);

        if found {
            self.count.fetch_sub(1, Relaxed);
        }
        found
    }

    /// Frees all places that nobody else will [`free`](Self::free).
    pub(super) fn clear(&self) {
        for place in &self.places {
            if !place.xchg(ptr::null_mut(), Relaxed).is_null() {
                self.count.fetch_sub(1, Relaxed);
            }
        }
    }
}
