// SPDX-License-Identifier: GPL-2.0

//! CPUs that come and go.
//!
//! The framework ends a CPU's session, and lets none begin, before the driver is told that the CPU
//! goes: what a driver tears down there, no unit of it uses any more. perf itself takes its events
//! off the CPU later, and finds them stopped.
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

/// The number of the hotplug state, while the module is there.
static STATE: Atomic<i32> = Atomic::new(0);

/// The hotplug state that all PMUs share.
///
/// # Invariants
///
/// The state is set up, as a dynamic one of the online section: torn down on the CPU itself, before
/// `CPUHP_AP_PERF_ONLINE`.
pub(crate) struct State(());

impl State {
    /// Sets it up; there is one at most.
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
        // SAFETY: Set up, by the type invariant; all PMUs depend on this module, and are gone.
        unsafe { bindings::rust_perf_cpuhp_remove(STATE.load(Relaxed)) };
    }
}

/// What is called for a CPU, on that CPU, in a task that may sleep.
///
/// # Safety
///
/// For the caller: the node is that which the functions were given with.
pub(crate) type Callback = unsafe fn(node: NonNull<Node>, cpu: u32) -> Result;

/// A PMU's place in the list of those that are told.
///
/// Pinned, since perf's list goes through it.
pub(crate) struct Node {
    node: Opaque<bindings::hlist_node>,
    online: Callback,
    offline: Callback,
}

// SAFETY: The list that goes through it has a lock of its own.
unsafe impl Send for Node {}
// SAFETY: As above.
unsafe impl Sync for Node {}

impl Node {
    pub(crate) const fn new(online: Callback, offline: Callback) -> Self {
        Self {
            node: Opaque::zeroed(),
            online,
            offline,
        }
    }

    /// Has `online` called for each CPU that is online, and both from now on.
    ///
    /// # Safety
    ///
    /// `self` must stay where it is, and be [removed](Self::remove) before it goes.
    pub(crate) unsafe fn add(&self) -> Result {
        // SAFETY:
        // - The state is set up: this crate's module is there, and it is for the nodes of `Node`s.
        // - The node stays where it is until it is removed, by the safety requirement; so `online`,
        //   which is called at once, gets the node that it was given with.
        to_result(unsafe { bindings::rust_perf_cpuhp_add(STATE.load(Relaxed), self.node.get()) })
    }

    /// Has `offline` called for each CPU that is online, and none any more.
    ///
    /// # Safety
    ///
    /// It must have been added.
    pub(crate) unsafe fn remove(&self) {
        // SAFETY: Added, by the safety requirement.
        unsafe { bindings::rust_perf_cpuhp_del(STATE.load(Relaxed), self.node.get()) };
    }
}

/// # Safety
///
/// `node` must be that of a [`Node`] that was added.
unsafe extern "C" fn startup(cpu: c_uint, node: *mut bindings::hlist_node) -> c_int {
    // SAFETY: By the safety requirement.
    unsafe { call(cpu, node, |node| node.online) }
}

/// # Safety
///
/// As for [`startup`].
unsafe extern "C" fn teardown(cpu: c_uint, node: *mut bindings::hlist_node) -> c_int {
    // SAFETY: By the safety requirement.
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
        // SAFETY: By the safety requirement.
        let node = unsafe { container_of!(Opaque::cast_from(node), Node, node) };
        let node = NonNull::new(node.cast_mut()).ok_or(EINVAL)?;
        // SAFETY: Added, and so alive.
        let callback = which(unsafe { node.as_ref() });

        // SAFETY: The node that it was given with.
        unsafe { callback(node, cpu) }.map(|()| 0)
    })
}
