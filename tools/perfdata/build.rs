// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whether stock perf is there for the test that runs it: where it is not, the test shows as ignored.

use std::env;

fn main() {
    println!("cargo::rerun-if-env-changed=PATH");
    println!("cargo::rustc-check-cfg=cfg(has_perf)");
    let path = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&path).any(|dir| dir.join("perf").is_file()) {
        println!("cargo::rustc-cfg=has_perf");
    }
}
