// SPDX-License-Identifier: GPL-2.0

//! What a callback may rely on.
//!
//! perf calls a driver in two kinds of context: a task that may sleep (`event_init()`,
//! `setup_aux()`, `free_aux()`), and one CPU with interrupts off, perhaps in NMI (all others).
//! The second is a token, [`Cpu`], which only the framework makes and only lends, so that it does
//! not outlive the callback; whatever needs its guarantees takes a reference to it.

use crate::bindings;
use kernel::types::NotThreadSafe;

/// Proof of running on one CPU, with interrupts off.
///
/// # Invariants
///
/// While the token exists the code stays on CPU `id`, and nothing but an NMI interrupts it there.
pub struct Cpu {
    id: u32,
    nmi: bool,
    _not_send: NotThreadSafe,
}

impl Cpu {
    /// Makes the token for the CPU that this runs on.
    ///
    /// # Safety
    ///
    /// Local interrupts must be off until the token is dropped.
    pub(crate) unsafe fn current() -> Self {
        // INVARIANT: Interrupts are off by the safety requirement, so the code stays here.
        Self {
            // SAFETY: Reading the number of the current CPU has no requirements.
            id: unsafe { bindings::raw_smp_processor_id() },
            // SAFETY: Reading the context has no requirements.
            nmi: unsafe { bindings::rust_perf_in_nmi() },
            _not_send: NotThreadSafe,
        }
    }

    /// The number of the CPU.
    #[inline]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether this is an NMI: no lock may be taken, not even a raw one.
    #[inline]
    pub fn is_nmi(&self) -> bool {
        self.nmi
    }
}
