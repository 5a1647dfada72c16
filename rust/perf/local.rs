// SPDX-License-Identifier: GPL-2.0

//! Words that one CPU writes.

use core::cell::UnsafeCell;

/// A word that one CPU writes, with interrupts off, and any CPU reads.
///
/// It costs what a plain word costs. [`Atomic`](kernel::sync::atomic::Atomic) calls a function for
/// each access where the kernel is built without `CONFIG_RUST_INLINE_HELPERS`.
///
/// C counterpart: `READ_ONCE()` and `WRITE_ONCE()`.
///
/// # Invariants
///
/// `T` is an integer of 32 or 64 bits, so that the CPU accesses it in one instruction.
pub(crate) struct Local<T: Word>(UnsafeCell<T>);

/// A type that a [`Local`] may hold.
///
/// # Safety
///
/// An integer of 32 or 64 bits that is aligned to its size.
pub(crate) unsafe trait Word: Copy {}

// SAFETY: It has 32 bits, and is aligned to 4 bytes.
unsafe impl Word for u32 {}
// SAFETY: It has 64 bits, and is aligned to 8 bytes: the crate refuses to be built for machines of
// 32 bits.
unsafe impl Word for u64 {}

// SAFETY: Each access is volatile, aligned and of the size of a register, so that no two accesses
// are a data race (`tools/memory-model`, "marked accesses"): a reader sees one of the values that
// were written.
unsafe impl<T: Word> Sync for Local<T> {}

impl<T: Word> Local<T> {
    pub(crate) const fn new(value: T) -> Self {
        // INVARIANT: By the requirement of `Word`.
        Self(UnsafeCell::new(value))
    }

    /// The value.
    #[inline]
    pub(crate) fn get(&self) -> T {
        // SAFETY: `self` is valid for reads and aligned. A write at the same time is no data race,
        // by the type invariant.
        unsafe { self.0.get().read_volatile() }
    }

    /// Sets the value. One CPU should be the only writer: if two write at the same time, one value
    /// is lost.
    #[inline]
    pub(crate) fn set(&self, value: T) {
        // SAFETY: `self` is valid for writes and aligned. An access at the same time is no data
        // race, by the type invariant.
        unsafe { self.0.get().write_volatile(value) }
    }
}
