// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The order of loads from a sub-buffer: see the module `ring`, whose names these are. `tests/model.rs` runs the same code under
//! loom.

use std::sync::atomic::Ordering;

/// The fence of (C) and (E). The model fails with a weaker one.
pub const FENCE: Ordering = Ordering::Acquire;

/// (C): loads something that was stored behind a write barrier, such as the commit, before all that the caller loads later.
pub fn load_first<T>(load: impl FnOnce() -> T, fence: impl FnOnce(Ordering)) -> T {
    let loaded = load();
    fence(FENCE);
    loaded
}

/// (E): loads something after all that the caller has loaded before.
pub fn load_last<T>(fence: impl FnOnce(Ordering), load: impl FnOnce() -> T) -> T {
    fence(FENCE);
    load()
}
