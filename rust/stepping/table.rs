// SPDX-License-Identifier: GPL-2.0

//! A table of tasks, identified by their register frames.

use crate::bindings;
use core::ptr::{
    self,
    NonNull, //
};
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// An entry: the address of one task's register frame, or null. The address is compared, never
/// dereferenced.
pub(crate) type Entry = Atomic<*mut bindings::pt_regs>;

/// A set of up to `N` tasks.
///
/// No barriers are needed. Only the task itself, and the CPU that switches to or from it, access
/// the task's entry, and the scheduler's locks order these accesses.
pub(crate) struct Table<const N: usize> {
    entries: [Entry; N],
    /// The number of entries in use. An empty table is not searched.
    count: Atomic<usize>,
}

impl<const N: usize> Table<N> {
    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self {
            entries: [const { Atomic::new(ptr::null_mut()) }; N],
            count: Atomic::new(0),
        }
    }

    /// Whether the table has no task.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Whether the table has this task.
    pub(crate) fn contains(&self, regs: NonNull<bindings::pt_regs>) -> bool {
        let is = |entry: &Entry| ptr::eq(entry.load(Relaxed), regs.as_ptr());

        !self.is_empty() && self.entries.iter().any(is)
    }

    /// Adds an entry for this task, even if it has one already. [`None`] if the table is full.
    pub(crate) fn add(&self, regs: NonNull<bindings::pt_regs>) -> Option<&Entry> {
        self.count.fetch_add(1, Relaxed);

        let free = |entry: &&Entry| {
            entry
                .cmpxchg(ptr::null_mut(), regs.as_ptr(), Relaxed)
                .is_ok()
        };
        let entry = self.entries.iter().find(free);
        if entry.is_none() {
            self.count.fetch_sub(1, Relaxed);
        }
        entry
    }

    /// Frees an entry that [`add`](Self::add) returned.
    pub(crate) fn free(&self, entry: &Entry) {
        if !entry.xchg(ptr::null_mut(), Relaxed).is_null() {
            self.count.fetch_sub(1, Relaxed);
        }
    }

    /// Removes one entry of this task. Returns whether there was one.
    pub(crate) fn remove(&self, regs: NonNull<bindings::pt_regs>) -> bool {
        let took = |entry: &Entry| {
            entry
                .cmpxchg(regs.as_ptr(), ptr::null_mut(), Relaxed)
                .is_ok()
        };
        let found = !self.is_empty() && self.entries.iter().any(took);

        if found {
            self.count.fetch_sub(1, Relaxed);
        }
        found
    }

    /// Removes all tasks.
    pub(crate) fn clear(&self) {
        self.entries.iter().for_each(|entry| self.free(entry));
    }
}
