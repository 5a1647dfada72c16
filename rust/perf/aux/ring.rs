// SPDX-License-Identifier: GPL-2.0

//! The ring buffers with an AUX area that belongs to a PMU of the framework, and the right to write
//! to each.
//!
//! perf passes a ring buffer's `aux_priv` to every event that writes to it, and user space can make
//! events of several PMUs, or of several CPUs, write to one ring buffer. perf keeps transactions
//! apart by a plain counter, and warns when it finds one open. So the framework checks before it
//! begins a transaction. It begins none on an AUX area that is not registered here. A registered
//! area has one writer at a time, on all CPUs together.
//!
//! C counterpart: `rb->aux_priv` and `rb->aux_nest` in `kernel/events/internal.h`.

use crate::{
    bindings,
    registration::PmuId, //
};
use core::{
    cell::Cell,
    ffi::c_void,
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Release, //
    },
    types::Opaque, //
};

/// Changes when an AUX area is freed, which invalidates each [`Cache`].
static GENERATION: Atomic<u64> = Atomic::new(0);

/// An AUX area that belongs to a PMU of the framework. Freed a grace period after it was removed.
#[repr(C)]
pub(crate) struct Ring {
    // First: RCU gets its address.
    rcu: Opaque<bindings::rust_perf_rcu>,
    /// The PMU whose `setup_aux()` made it.
    owner: PmuId,
    /// The `aux_priv` that `setup_aux()` returned to perf.
    private: *mut c_void,
    /// Whether a transaction is open on it, or about to be.
    claimed: Atomic<bool>,
}

// SAFETY: The pointer is an identity, which nothing dereferences here; the rest is atomic or
// RCU's.
unsafe impl Send for Ring {}
// SAFETY: Nothing is written through a shared reference but the atomic, and the head by RCU.
unsafe impl Sync for Ring {}

impl Ring {
    /// An AUX area that is not in the table yet.
    pub(crate) fn new(owner: PmuId) -> Result<KBox<Self>> {
        Ok(KBox::new(
            Self {
                rcu: Opaque::zeroed(),
                owner,
                private: ptr::null_mut(),
                claimed: Atomic::new(false),
            },
            GFP_KERNEL,
        )?)
    }
}

/// A [`Ring`] in the table.
///
/// # Invariants
///
/// `ring` was leaked from a box and stands in the table under `key`, until `self` is dropped.
pub(crate) struct Registered {
    key: *mut c_void,
    ring: NonNull<Ring>,
}

// SAFETY: What it points to is `Sync`, and the key is an identity.
unsafe impl Send for Registered {}

impl Registered {
    /// Enters `ring` for the ring buffer `key`, with the `aux_priv` that perf will have.
    ///
    /// Context: task, may sleep.
    pub(crate) fn new(
        mut ring: KBox<Ring>,
        key: *mut c_void,
        private: *mut c_void,
    ) -> Result<Self> {
        ring.private = private;
        let ring = NonNull::from(KBox::leak(ring));

        // INVARIANT: Entered here, or not kept.
        let this = Self { key, ring };
        // SAFETY: The pointer comes from kmalloc() and is aligned as xarray entries must be.
        to_result(unsafe { bindings::rust_perf_ring_store(key, ring.as_ptr().cast()) })?;
        Ok(this)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: The key is an identity; only this entry stands under it, by the type invariant.
        unsafe { bindings::rust_perf_ring_erase(self.key, self.ring.as_ptr().cast()) };
        // An RCU reader that still sees the old generation began before the grace period, which
        // waits for it.
        GENERATION.fetch_add(1, Release);
        // SAFETY: The entry is from kmalloc(), by the type invariant, with its head first. No
        // reader finds it any more, and RCU waits for readers that have found it: they run with
        // interrupts off.
        unsafe { bindings::rust_perf_kfree_rcu(self.ring.as_ptr().cast()) };
    }
}

/// The AUX area that a CPU wrote to last. Consecutive transactions mostly go to one.
pub(crate) struct Cache {
    generation: u64,
    key: *mut c_void,
    ring: *const Ring,
}

impl Cache {
    pub(crate) const fn new() -> Self {
        Self {
            generation: 0,
            key: ptr::null_mut(),
            ring: ptr::null(),
        }
    }
}

/// Why a claim was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// The ring buffer has no AUX area that belongs to a PMU of the framework.
    NotMapped,
    /// The AUX area belongs to another PMU.
    Foreign,
    /// A transaction is open on it.
    InUse,
}

/// The right to open a transaction on an AUX area. One exists for an area at a time.
///
/// # Invariants
///
/// `ring->claimed` is set, by `self`. `ring` stays until interrupts are turned on, and as long as a
/// transaction is open on it.
pub(crate) struct Claim {
    ring: NonNull<Ring>,
    _not_sync: PhantomData<Cell<()>>,
}

impl Claim {
    /// Claims the AUX area of the ring buffer `key` for the PMU `owner`.
    ///
    /// # Safety
    ///
    /// Interrupts must be off, and stay off until the claim is dropped or a transaction is open on
    /// the ring buffer; and from the end of that transaction until the claim is dropped.
    #[inline]
    pub(crate) unsafe fn new(
        key: *mut c_void,
        owner: PmuId,
        cache: &mut Cache,
    ) -> Result<Self, Refused> {
        let generation = GENERATION.load(Acquire);

        if cache.generation != generation || cache.key != key || cache.ring.is_null() {
            // SAFETY: The key is an identity. Reads under RCU.
            let ring = unsafe { bindings::rust_perf_ring_load(key) };
            *cache = Cache {
                generation,
                key,
                ring: ring.cast(),
            };
        }

        let ring = NonNull::new(cache.ring.cast_mut()).ok_or(Refused::NotMapped)?;
        // SAFETY: The entry was in the table with this generation, so it is freed no earlier than a
        // grace period that waits for this CPU to turn interrupts on.
        let entry = unsafe { ring.as_ref() };

        if entry.owner != owner {
            return Err(Refused::Foreign);
        }
        // Acquire: sees what the last transaction did to the buffer. Pairs with the release in
        // `drop()`.
        if entry.claimed.xchg(true, Acquire) {
            return Err(Refused::InUse);
        }

        // INVARIANT: Just set. The ring stays by the safety requirement: while interrupts are off
        // by RCU, and while a transaction is open since perf frees no AUX area then.
        Ok(Self {
            ring,
            _not_sync: PhantomData,
        })
    }

    /// The `aux_priv` that perf has for the area.
    #[inline]
    pub(crate) fn private(&self) -> *mut c_void {
        // SAFETY: Stays, by the type invariant. Nothing writes the field once the ring is in the
        // table.
        unsafe { (*self.ring.as_ptr()).private }
    }
}

impl Drop for Claim {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: Stays, by the type invariant; shared references only are made of this field.
        let claimed = unsafe { &(*self.ring.as_ptr()).claimed };

        // Release: pairs with the acquire of the next claim.
        claimed.store(false, Release);
    }
}
