// SPDX-License-Identifier: GPL-2.0

//! The hooks in the kernel through which tasks are followed.
//!
//! Signals, breakpoints and traps are hooked while this module is loaded, because one of them may
//! be in progress when a task begins to be traced. System calls and task switches are hooked only
//! while there is a [`Following`](crate::Following), because these hooks slow down all tasks.
//!
//! C headers: [`include/linux/kdebug.h`](srctree/include/linux/kdebug.h),
//! [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

use crate::{
    bindings,
    pending,
    syscall, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Relaxed,
        Release, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// The number of [`Following`](crate::Following)s. It changes from 0 only with [`HOOKED`] locked.
/// While it is not 0, everything is hooked.
static FOLLOWINGS: Atomic<usize> = Atomic::new(0);

kernel::sync::global_lock! {
    // SAFETY: `init()` initialises it, and is called before anything else.
    unsafe(uninit) static HOOKED: Mutex<bool> = false;
}

/// Hooks signals, breakpoints and traps.
///
/// # Safety
///
/// Called once, from the module's initialisation, before any other function.
pub(crate) unsafe fn init() -> Result {
    // SAFETY: The caller guarantees that this is called once, before any other function.
    unsafe { HOOKED.init() };
    // SAFETY: This is a task that may sleep; what the hooks use is initialised.
    to_result(unsafe { bindings::rust_stepping_hook_always() })
}

/// Unhooks everything, and waits until no hook runs.
///
/// There must be no [`Following`](crate::Following), and the caller must be able to sleep.
pub(crate) fn exit() {
    // SAFETY: This is a task that may sleep.
    unsafe { bindings::rust_stepping_idle_cancel() };
    while idle() {
        fsleep(Delta::from_millis(1));
    }
    // SAFETY: `init()` has hooked them. This is a task that may sleep.
    unsafe { bindings::rust_stepping_unhook_always() };
}

/// Whether there is a [`Following`](crate::Following).
pub(crate) fn are_followed() -> bool {
    FOLLOWINGS.load(Relaxed) != 0
}

/// Adds a [`Following`](crate::Following) if there is one already. Returns whether there is.
fn join() -> bool {
    let mut count = FOLLOWINGS.load(Relaxed);

    while count != 0 {
        // Pairs with the release in `follow()`: the hooks that another task has set are in place.
        match FOLLOWINGS.cmpxchg(count, count.wrapping_add(1), Acquire) {
            Ok(_) => return true,
            Err(now) => count = now,
        }
    }
    false
}

/// Whether this code may take a mutex, and wait for an RCU grace period.
pub(crate) fn may_sleep() -> bool {
    // SAFETY: Reading the context has no requirements.
    unsafe { bindings::rust_stepping_may_sleep() }
}

/// Follows tasks until [`unfollow`] is called as often.
///
/// Only the first call takes locks, and fails with [`EAGAIN`] where it may not sleep. Callers of
/// the others may hold locks.
pub(crate) fn follow() -> Result {
    if join() {
        return Ok(());
    }
    if !may_sleep() {
        return Err(EAGAIN);
    }
    let mut hooked = HOOKED.lock();
    if join() {
        return Ok(());
    }
    if !*hooked {
        // SAFETY: This is a task that may sleep; `HOOKED` is locked.
        to_result(unsafe { bindings::rust_stepping_hook() })?;
        *hooked = true;
    }
    FOLLOWINGS.store(1, Release);
    Ok(())
}

/// Undoes [`follow`]. May be called in any context. A work item unhooks, because that waits for
/// CPUs that go offline, whose callbacks take locks that the caller may hold.
pub(crate) fn unfollow() {
    // Pairs with the acquire in `join()`.
    if FOLLOWINGS.fetch_sub(1, Release) == 1 {
        // SAFETY: An irq_work may be queued in any context. This one is static, and `exit()` waits
        // for it before the module goes.
        unsafe { bindings::rust_stepping_idle_later() };
    }
}

/// Unhooks system calls and task switches if there is no [`Following`](crate::Following) any more.
/// Returns whether to try again: a task whose trap flag has a pending clear has yet to reach a
/// hook.
fn idle() -> bool {
    let mut hooked = HOOKED.lock();

    if FOLLOWINGS.load(Acquire) != 0 || !*hooked {
        return false;
    }
    if !pending::is_empty() {
        return true;
    }
    // SAFETY: `follow()` has hooked them. This is a task that may sleep, and `HOOKED` is locked.
    unsafe { bindings::rust_stepping_unhook() };
    syscall::forget();
    *hooked = false;
    false
}

// The prototype that C sees.
const _: () = {
    let _ = [rust_stepping_idle, bindings::rust_stepping_idle];
};

/// # Safety
///
/// Called by C, from a work.
#[no_mangle]
unsafe extern "C" fn rust_stepping_idle() -> bool {
    idle()
}
