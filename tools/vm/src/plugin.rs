// SPDX-License-Identifier: GPL-2.0 OR MIT

//! QEMU plugins of this workspace.

use crate::cache::Cache;
use crate::error::Result;
use crate::step::Log;
use std::path::PathBuf;
use std::process::Command;

/// Builds the QEMU plugin of a cargo package. Returns the path of the shared library.
///
/// # Errors
///
/// When it does not build.
pub fn build(cache: &Cache, package: &str) -> Result<PathBuf> {
    let log = Log::create(&cache.build().join(format!("{package}.log")))?;
    let mut cargo = Command::new("cargo");
    cargo.current_dir(cache.checkout().join("tools")).args([
        "build",
        "--locked",
        "--release",
        "-p",
        package,
    ]);
    log.run(&format!("building {package}"), &mut cargo)?;
    let file = format!("target/release/lib{}.so", package.replace('-', "_"));
    Ok(cache.build().join(file))
}
