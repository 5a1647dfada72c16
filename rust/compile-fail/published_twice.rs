// SPDX-License-Identifier: GPL-2.0

//! A proof of barrier (B) that is used for a second commit.
//!
//! error: use of moved value: `published`

use perf::aux::{
    Loss,
    Published,
    Written, //
};

/// Commits twice after one barrier.
pub fn commit(len: u64) -> [Written; 2] {
    let published = Published::cpu_stores();

    [
        Written::new(len, published, Loss::None),
        Written::new(len, published, Loss::None),
    ]
}
