// SPDX-License-Identifier: GPL-2.0

//! CPU hotplug.
//!
//! When a CPU goes offline, the framework ends its transaction and begins none any more. Then it
//! calls the driver's `cpu_offline()`: by then no unit uses the resources that the driver frees.
//! perf deletes its events from the CPU later, and finds them stopped.
//!
//! C header: [`include/linux/cpuhotplug.h`](srctree/include/linux/cpuhotplug.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    container_of,
    error::{
        from_result,
        to_result, //
    },
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    types::Opaque, //
};

/// The number of the hotplug state, while the module is loaded.
static STATE: Atomic<i32> = Atomic::new(0);

/// The hotplug state that all PMUs share.
///
/// # Invariants
///
/// The state is set up, as a dynamic one of the online section: torn down on the CPU itself, before
/// `CPUHP_AP_PERF_ONLINE`.
pub(crate) struct State(());

impl State {
    /// Sets up the state. At most one exists.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: The callbacks are for nodes of `Node`s, which `Node::add()` alone adds.
        let state = unsafe { bindings::rust_perf_cpuhp_setup(Some(startup), Some(teardown)) };

        to_result(state)?;
        STATE.store(state, Relaxed);
        // INVARIANT: Just set up.
        Ok(Self(()))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: The state is set up, by the type invariant. No node is left: PMUs belong to
        // modules that depend on this one.
        unsafe { bindings::rust_perf_cpuhp_remove(STATE.load(Relaxed)) };
    }
}

/// Called for a CPU, on that CPU, in a task that may sleep.
///
/// # Safety
///
/// `node` must be the node that has the function.
pub(crate) type Callback = unsafe fn(node: NonNull<Node>, cpu: u32) -> Result;

/// A PMU's entry in the list of the hotplug state.
///
/// Pinned: the list links its entries.
pub(crate) struct Node {
    node: Opaque<bindings::hlist_node>,
    online: Callback,
    offline: Callback,
}

// SAFETY: The hotplug core locks the list that links it; the callbacks are not written.
unsafe impl Send for Node {}
// SAFETY: The hotplug core locks the list that links it; the callbacks are not written.
unsafe impl Sync for Node {}

impl Node {
    pub(crate) const fn new(online: Callback, offline: Callback) -> Self {
        Self {
            node: Opaque::zeroed(),
            online,
            offline,
        }
    }

    /// Calls `online` for each CPU that is online, and both functions from now on.
    ///
    /// # Safety
    ///
    /// `self` must stay where it is, and be [removed](Self::remove) before it is freed.
    pub(crate) unsafe fn add(&self) -> Result {
        // SAFETY:
        // - The state is set up: this crate's module is loaded, and the state is for the nodes of
        //   `Node`s.
        // - The node stays where it is until it is removed, by the safety requirement; so `online`,
        //   which is called at once, gets the node that has it.
        to_result(unsafe { bindings::rust_perf_cpuhp_add(STATE.load(Relaxed), self.node.get()) })
    }

    /// Calls `offline` for each CPU that is online. After that, neither function is called.
    ///
    /// # Safety
    ///
    /// It must have been added.
    pub(crate) unsafe fn remove(&self) {
        // SAFETY: The caller guarantees that the node was added.
        unsafe { bindings::rust_perf_cpuhp_del(STATE.load(Relaxed), self.node.get()) };
    }
}

/// # Safety
///
/// `node` must be that of a [`Node`] that was added.
unsafe extern "C" fn startup(cpu: c_uint, node: *mut bindings::hlist_node) -> c_int {
    // SAFETY: The caller guarantees that this is the node of a `Node` that was added.
    unsafe { call(cpu, node, |node| node.online) }
}

/// # Safety
///
/// As for [`startup`].
unsafe extern "C" fn teardown(cpu: c_uint, node: *mut bindings::hlist_node) -> c_int {
    // SAFETY: The caller guarantees that this is the node of a `Node` that was added.
    unsafe { call(cpu, node, |node| node.offline) }
}

/// # Safety
///
/// As for [`startup`].
unsafe fn call(
    cpu: c_uint,
    node: *mut bindings::hlist_node,
    which: fn(&Node) -> Callback,
) -> c_int {
    from_result(|| {
        // SAFETY: The caller guarantees that this is the node of a `Node` that was added.
        let node = unsafe { container_of!(Opaque::cast_from(node), Node, node) };
        let node = NonNull::new(node.cast_mut()).ok_or(EINVAL)?;
        // SAFETY: The node was added, and is removed before it is freed.
        let callback = which(unsafe { node.as_ref() });

        // SAFETY: The function is from this node.
        unsafe { callback(node, cpu) }.map(|()| 0)
    })
}
