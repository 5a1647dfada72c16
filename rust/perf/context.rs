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

/// Whether this is a task that may sleep.
pub(crate) fn may_sleep() -> bool {
    // SAFETY: Reading the context has no requirements.
    unsafe { bindings::rust_perf_may_sleep() }
}

/// The part of an object that a worker uses to free it.
///
/// C counterpart: a `struct work_struct` that is queued by a `struct irq_work`.
///
/// # Invariants
///
/// It is set up with a function, and with the module that contains the function.
#[pin_data]
#[repr(transparent)]
pub(crate) struct Later {
    #[pin]
    later: Opaque<bindings::rust_perf_later>,
}

// SAFETY: It may be queued by any task.
unsafe impl Send for Later {}
// SAFETY: `Self::run()` is called once, for an object that nothing else uses.
unsafe impl Sync for Later {}

impl Later {
    /// # Safety
    ///
    /// `module` must contain `free`. Null is this crate's module.
    pub(crate) unsafe fn new(
        module: *mut bindings::module,
        free: unsafe extern "C" fn(*mut bindings::rust_perf_later),
    ) -> impl PinInit<Self> {
        // INVARIANT: By the safety requirement.
        pin_init!(Self {
            later <- Opaque::ffi_init(|later| {
                // SAFETY: `later` is valid for writes, and pinned.
                unsafe { bindings::rust_perf_later_init(later, module, Some(free)) }
            }),
        })
    }

    /// Lets a worker call the function, with this.
    ///
    /// Context: any, NMI included.
    ///
    /// # Safety
    ///
    /// `this` must be that of a live object, which the function may free, and which nothing uses
    /// after this.
    pub(crate) unsafe fn run(this: *const Self) {
        // SAFETY: It is set up, by the type invariant, with the module that the worker holds. The
        // caller guarantees that nothing uses it after this, so this is the only call. `Later` is a
        // transparent wrapper.
        unsafe { bindings::rust_perf_run_later(Opaque::cast_into(this.cast())) };
    }
}

/// A value that is dropped in a task that may sleep. If a driver drops it anywhere else, a worker
/// drops it soon afterwards.
pub(crate) struct DropInTask<T: Send + 'static>(ManuallyDrop<Pin<KBox<Node<T>>>>);

/// # Invariants
///
/// `later` has [`Self::free`].
#[pin_data]
struct Node<T: Send + 'static> {
    #[pin]
    later: Later,
    value: T,
}

impl<T: Send + 'static> DropInTask<T> {
    /// Context: task, may sleep.
    ///
    /// # Safety
    ///
    /// `module` must be that of the caller, or null if the caller is compiled into this crate's
    /// module: it is not generic, and never inlined.
    pub(crate) unsafe fn new(value: T, module: *mut bindings::module) -> Result<Self> {
        let node = KBox::pin_init(
            // INVARIANT: `later` has `free()`.
            pin_init!(Node {
                // SAFETY: `free()` is compiled into the module of the caller.
                later <- unsafe { Later::new(module, Node::<T>::free) },
                value,
            }),
            GFP_KERNEL,
        )?;

        Ok(Self(ManuallyDrop::new(node)))
    }
}

impl<T: Send + 'static> Node<T> {
    /// # Safety
    ///
    /// `later` must be that of a leaked `Node<T>`, which is not used any more.
    unsafe extern "C" fn free(later: *mut bindings::rust_perf_later) {
        // SAFETY: The caller guarantees that this is the `later` of a `Node<T>`. `Later` is a
        // transparent wrapper.
        let this = unsafe { container_of!(later.cast::<Later>(), Self, later) };

        // SAFETY: The caller guarantees that the node was leaked, and that nothing uses it. It was
        // a box, which is pinned and not moved out of.
        drop(unsafe { Pin::new_unchecked(KBox::from_raw(this)) });
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
        // SAFETY: The field is not used after this: `self` is being dropped.
        let node = unsafe { ManuallyDrop::take(&mut self.0) };

        if may_sleep() {
            return drop(node);
        }
        // SAFETY: The box is neither moved out of nor freed before `Node::free()`.
        let node = KBox::leak(unsafe { Pin::into_inner_unchecked(node) });
        // SAFETY: The node is leaked, not used after this, and freed by `Node::free()`, by its type
        // invariant.
        unsafe { Later::run(&raw const node.later) };
    }
}
