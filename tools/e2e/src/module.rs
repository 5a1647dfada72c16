// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The kernel modules under test.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{bail, Context, Result};

/// In the order in which they depend on each other.
pub const ORDER: [&str; 2] = ["rust_perf", "pattern"];

/// Loads those that are not loaded.
pub fn load_all() -> Result<()> {
    ORDER.into_iter().try_for_each(load)
}

/// Loads one, if it is not loaded, and what it needs besides the framework.
pub fn load(name: &str) -> Result<()> {
    if name == "soft_pt" {
        load("rust_stepping")?;
    }
    if !is_loaded(name) {
        tool("insmod", &[&format!("/modules/{name}.ko")])?;
    }
    Ok(())
}

/// Whether this is the debug kernel, which is slow, and makes allocations fail on demand.
pub fn is_debug_kernel() -> bool {
    std::env::var_os("AUXPMU_KERNEL").is_some_and(|kernel| kernel == "debug")
}

/// Loads the module, calls `what`, and unloads the module: no reference to it may be left.
pub fn with<T>(name: &str, what: impl FnOnce() -> Result<T>) -> Result<T> {
    load(name)?;
    let outcome = what();
    unload(name).context("a reference to the driver is left")?;
    outcome
}

/// Loads the driver anew, under the name that goes by this number in its parameter `alias`.
pub fn alias(number: u8) -> Result<()> {
    again(&format!("alias={number}"))
}

/// Loads the driver anew, with this parameter.
pub fn again(parameter: &str) -> Result<()> {
    load_all()?;
    unload("pattern")?;
    tool("insmod", &["/modules/pattern.ko", parameter])
}

/// Loads a second driver, if the guest has one: the name of its PMU and of its module.
pub fn load_second() -> Result<Option<(&'static str, &'static str)>> {
    const PMU: &str = "minimal";
    for name in ["pmu_minimal", "minimal"] {
        let file = format!("/modules/{name}.ko");
        if Path::new(&file).exists() {
            tool("insmod", &[&file])?;
            return Ok(Some((PMU, name)));
        }
    }
    Ok(None)
}

/// Whether the module is loaded.
pub fn is_loaded(name: &str) -> bool {
    Path::new("/sys/module").join(name).exists()
}

/// A counter of the framework's for a PMU, in debugfs.
pub fn counter(pmu: &str, name: &str) -> Result<u64> {
    let path = format!("/sys/kernel/debug/perf-{pmu}/{name}");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    text.trim()
        .parse()
        .with_context(|| format!("{path} reads {text:?}"))
}

/// How many references to the module there are.
pub fn references(name: &str) -> Result<u32> {
    let path = format!("/sys/module/{name}/refcnt");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    text.trim()
        .parse()
        .with_context(|| format!("{path} reads {text:?}"))
}

/// Unloads a module.
pub fn unload(name: &str) -> Result<()> {
    tool("rmmod", &[name])
}

/// Runs a tool that must succeed.
pub fn tool(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
