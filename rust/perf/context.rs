// SPDX-License-Identifier: GPL-2.0

//! The context that a callback runs in.
//!
//! perf calls a driver in two kinds of context. `event_init()`, `setup_aux()` and `free_aux()` run
//! in a task that may sleep. All other callbacks run on one CPU with interrupts off, under raw
//! locks or in NMI. A token, [`Cpu`], proves the second kind. Only the framework makes it, and a
//! driver gets a reference that ends with the callback.

use crate::bindings;
use kernel::{
    interrupt::LocalInterruptDisabled,
    types::NotThreadSafe, //
};

/// Proof of running on one CPU with interrupts off.
///
/// # Invariants
///
/// While the token exists, the code stays on CPU `id` and only an NMI interrupts it.
pub struct Cpu {
    id: u32,
    _not_send: NotThreadSafe,
}

impl Cpu {
    /// Makes the token for the current CPU.
    ///
    /// # Safety
    ///
    /// Local interrupts must be off until the token is dropped.
    #[inline]
    pub(crate) unsafe fn current() -> Self {
        // INVARIANT: Interrupts are off by the safety requirement, so the code stays on this CPU.
        Self {
            // SAFETY: Reading the number of the current CPU has no requirements.
            id: unsafe { bindings::raw_smp_processor_id() },
            _not_send: NotThreadSafe,
        }
    }

    /// The kernel's own proof that interrupts are off, for code that knows nothing of perf.
    #[inline]
    pub fn interrupt_disabled(&self) -> &LocalInterruptDisabled {
        // SAFETY: Interrupts are off while `self` exists, by the type invariant.
        unsafe { LocalInterruptDisabled::assume_disabled() }
    }

    /// The number of the CPU.
    #[inline]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether this is an NMI. Not even a raw lock may be taken in one.
    #[inline]
    pub fn is_nmi(&self) -> bool {
        // SAFETY: Reading the context has no requirements.
        unsafe { bindings::rust_perf_in_nmi() }
    }
}
