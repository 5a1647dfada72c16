// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Looks for stock perf on the `PATH`. Without it, the test that runs it is ignored.

use std::env;

fn main() {
    println!("cargo::rerun-if-env-changed=PATH");
    println!("cargo::rustc-check-cfg=cfg(has_perf)");
    let path = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&path).any(|dir| dir.join("perf").is_file()) {
        println!("cargo::rustc-cfg=has_perf");
    }
}
