// SPDX-License-Identifier: GPL-2.0

//! The context that a callback runs in.
//!
//! perf calls a driver in two kinds of context. `event_init()`, `setup_aux()` and `free_aux()` run
//! in a task that may sleep. All other callbacks run on one CPU with interrupts off, under raw
//! locks or in NMI. A token, [`Cpu`], proves the second kind. Only the framework makes it, and a
//! driver gets a reference that ends with the callback.
//!
//! A driver may drop a value in either. What must be freed in the first kind is in [`DropInTask`].

use crate::bindings;
use core::{
    mem::ManuallyDrop,
    ops::{
        Deref,
        DerefMut, //
    }, //
};
use kernel::{
    container_of,
    interrupt::LocalInterruptDisabled,
    prelude::*,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
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

/// A value that is dropped in a task that may sleep. If a driver drops it anywhere else, a worker
/// drops it soon afterwards.
///
/// # Invariants
///
/// The code that [`Node::run`] of the value executes is in the module that it was made with.
pub(crate) struct DropInTask<T: Send + 'static>(ManuallyDrop<Pin<KBox<Node<T>>>>);

/// # Invariants
///
/// `later` is set up, with [`Self::run`].
#[pin_data]
struct Node<T: Send + 'static> {
    #[pin]
    later: Opaque<bindings::rust_perf_later>,
    value: T,
}

// SAFETY: Any task may drop the value, and C changes `later` once nothing else refers to it.
unsafe impl<T: Send + 'static> Send for Node<T> {}
// SAFETY: Shared references reach the value only.
unsafe impl<T: Send + Sync + 'static> Sync for Node<T> {}

impl<T: Send + 'static> DropInTask<T> {
    /// Context: task, may sleep.
    ///
    /// # Safety
    ///
    /// `module` must be that of the caller, or null if the caller is compiled into this crate's
    /// module: it is not generic, and never inlined.
    pub(crate) unsafe fn new(value: T, module: *mut bindings::module) -> Result<Self> {
        let node = KBox::pin_init(
            pin_init!(Node {
                later <- Opaque::ffi_init(|later| {
                    // SAFETY: `later` is valid for writes, and pinned.
                    unsafe { bindings::rust_perf_later_init(later, module, Some(Node::<T>::run)) }
                }),
                value,
            }),
            GFP_KERNEL,
        )?;

        // INVARIANT: `Node::run` is compiled into the module of the caller.
        Ok(Self(ManuallyDrop::new(node)))
    }
}

impl<T: Send + 'static> Node<T> {
    /// # Safety
    ///
    /// `later` must be that of a leaked `Node<T>`, which is not used any more.
    unsafe extern "C" fn run(later: *mut bindings::rust_perf_later) {
        // SAFETY: By the safety requirement.
        let this = unsafe { container_of!(Opaque::cast_from(later), Self, later) };

        // SAFETY: From a box that is not moved out of, by the safety requirement.
        drop(unsafe { Pin::new_unchecked(KBox::from_raw(this.cast_mut())) });
    }
}

impl<T: Send + 'static> Deref for DropInTask<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Send + 'static> DerefMut for DropInTask<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().project().value
    }
}

impl<T: Send + 'static> Drop for DropInTask<T> {
    fn drop(&mut self) {
        // SAFETY: Not used after this.
        let node = unsafe { ManuallyDrop::take(&mut self.0) };

        // SAFETY: No requirements.
        if unsafe { bindings::rust_perf_may_sleep() } {
            return drop(node);
        }
        // SAFETY: The box is neither moved out of nor freed before `Node::run()`.
        let node = KBox::leak(unsafe { Pin::into_inner_unchecked(node) });
        // SAFETY: Set up, by the type invariant of `Node`, and run once. By that of `Self`, the
        // worker holds the module whose code it runs.
        unsafe { bindings::rust_perf_run_later(node.later.get()) };
    }
}
