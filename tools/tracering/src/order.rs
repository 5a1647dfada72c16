// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The order of loads from a sub-buffer. The module `map` explains the barriers (A) to (E). `tests/model.rs` runs this code under loom.

use std::sync::atomic::Ordering;

/// The fence of (C) and (E). The tests of the model fail with a weaker one.
pub const FENCE: Ordering = Ordering::Acquire;

/// (C): loads a value that the writer stores after a write barrier, such as the commit. The load comes before all later loads of the
/// caller.
pub fn load_first<T>(load: impl FnOnce() -> T, fence: impl FnOnce(Ordering)) -> T {
    let loaded = load();
    fence(FENCE);
    loaded
}

/// (E): loads a value after all earlier loads of the caller.
pub fn load_last<T>(fence: impl FnOnce(Ordering), load: impl FnOnce() -> T) -> T {
    fence(FENCE);
    load()
}
