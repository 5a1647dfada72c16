// SPDX-License-Identifier: GPL-2.0

//! The system suspends, or makes an image of its memory, and resumes.
//!
//! perf takes events off the CPUs that go offline. The events of the boot CPU stay, and with
//! suspend-to-idle those of all CPUs. So the framework ends the transactions of a PMU before tasks
//! are frozen and devices suspended, and begins none. When all devices have resumed, it begins them
//! again: a driver writes its unit's registers at each start.
//!
//! C counterpart: none; a bus driver's `struct dev_pm_ops`, which drivers in Rust don't have.
//!
//! C header: [`include/linux/suspend.h`](srctree/include/linux/suspend.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    container_of,
    prelude::*,
    types::Opaque, //
};

/// Called in a task on each CPU that is online.
///
/// # Safety
///
/// `node` must be the node that has the function.
pub(crate) type Callback = unsafe fn(node: NonNull<Node>);

/// A PMU's entry in the list of power management notifiers.
///
/// Pinned: the list links its entries.
pub(crate) struct Node {
    block: Opaque<bindings::notifier_block>,
    suspend: Callback,
    resume: Callback,
}

// SAFETY: The list's lock protects what links it; the callbacks are not written.
unsafe impl Send for Node {}
// SAFETY: The list's lock protects what links it; the callbacks are not written.
unsafe impl Sync for Node {}

impl Node {
    pub(crate) fn new(suspend: Callback, resume: Callback) -> Self {
        Self {
            block: Opaque::new(bindings::notifier_block {
                notifier_call: Some(notify),
                next: core::ptr::null_mut(),
                priority: 0,
            }),
            suspend,
            resume,
        }
    }

    /// Calls the functions from now on.
    ///
    /// # Safety
    ///
    /// It must not have been added. `self` must stay where it is, and be [removed](Self::remove)
    /// before it is freed.
    pub(crate) unsafe fn add(&self) {
        // SAFETY: `new()` has initialised the block. The caller guarantees that it is in no list,
        // and stays where it is until it is removed. The registration does not fail: the list has
        // no other node of this address, and priorities need not differ.
        unsafe { bindings::rust_perf_pm_add(self.block.get()) };
    }

    /// Waits for running functions to finish. After that, they are not called any more.
    ///
    /// # Safety
    ///
    /// It must have been added.
    pub(crate) unsafe fn remove(&self) {
        // SAFETY: The caller guarantees that the block was added.
        unsafe { bindings::rust_perf_pm_del(self.block.get()) };
    }
}

/// # Safety
///
/// `block` must be that of a [`Node`] that was added.
unsafe extern "C" fn notify(
    block: *mut bindings::notifier_block,
    action: c_ulong,
    _data: *mut c_void,
) -> c_int {
    let function: unsafe extern "C" fn(*mut c_void) -> c_int = match u32::try_from(action) {
        Ok(
            bindings::PM_SUSPEND_PREPARE
            | bindings::PM_HIBERNATION_PREPARE
            | bindings::PM_RESTORE_PREPARE,
        ) => suspend,
        Ok(
            bindings::PM_POST_SUSPEND | bindings::PM_POST_HIBERNATION | bindings::PM_POST_RESTORE,
        ) => resume,
        _ => return 0,
    };
    // SAFETY: The caller guarantees that this is the block of a `Node` that was added.
    let node = unsafe { container_of!(Opaque::cast_from(block), Node, block) };

    // SAFETY: The node is alive until it is removed, which waits for this function; `suspend()` and
    // `resume()` take a node.
    unsafe { bindings::rust_perf_on_each_cpu(Some(function), node.cast_mut().cast()) };
    // `NOTIFY_DONE`: nothing keeps the system from suspending.
    0
}

/// # Safety
///
/// `node` must be a [`Node`] that is alive.
unsafe extern "C" fn suspend(node: *mut c_void) -> c_int {
    // SAFETY: The caller guarantees that this is a `Node` that is alive.
    unsafe { call(node, |node| node.suspend) }
}

/// # Safety
///
/// As for [`suspend`].
unsafe extern "C" fn resume(node: *mut c_void) -> c_int {
    // SAFETY: The caller guarantees that this is a `Node` that is alive.
    unsafe { call(node, |node| node.resume) }
}

/// # Safety
///
/// As for [`suspend`].
unsafe fn call(node: *mut c_void, which: fn(&Node) -> Callback) -> c_int {
    if let Some(node) = NonNull::new(node.cast::<Node>()) {
        // SAFETY: The caller guarantees that the node is alive.
        let callback = which(unsafe { node.as_ref() });

        // SAFETY: The function is from this node.
        unsafe { callback(node) };
    }
    0
}
