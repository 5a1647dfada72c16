// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The kernel modules under test.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{bail, Context, Result};

/// The framework and the driver, in the order in which they are loaded.
pub const ORDER: [&str; 2] = ["rust_perf", "pattern"];

/// Loads the modules of [`ORDER`] that are not loaded.
pub fn load_all() -> Result<()> {
    ORDER.into_iter().try_for_each(load)
}

/// Loads a module, if it is not loaded. For `soft_pt`, also loads `rust_stepping`.
pub fn load(name: &str) -> Result<()> {
    if name == "soft_pt" {
        load("rust_stepping")?;
    }
    if !is_loaded(name) {
        tool("insmod", &[&format!("/modules/{name}.ko")])?;
    }
    Ok(())
}

/// Whether this is the debug kernel. It is slow, and can make allocations fail on demand.
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

/// Loads `pattern` anew, under the name that this value of its parameter `alias` selects.
pub fn alias(number: u8) -> Result<()> {
    again(&format!("alias={number}"))
}

/// Loads `pattern` anew, with this parameter.
pub fn again(parameter: &str) -> Result<()> {
    load_all()?;
    unload("pattern")?;
    tool("insmod", &["/modules/pattern.ko", parameter])
}

/// Loads a second driver, if the guest has one. Returns the names of its PMU and of its module.
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

/// Reads a file that has a number.
pub fn number<N: FromStr>(path: &str) -> Result<N> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    text.trim()
        .parse()
        .ok()
        .with_context(|| format!("{path} reads {text:?}"))
}

/// The type of this PMU's events.
pub fn pmu_type(pmu: &str) -> Result<u32> {
    number(&format!("/sys/bus/event_source/devices/{pmu}/type"))
}

/// Reads a counter that the framework keeps for a PMU, from debugfs.
pub fn counter(pmu: &str, name: &str) -> Result<u64> {
    number(&format!("/sys/kernel/debug/perf-{pmu}/{name}"))
}

/// The counters of bytes that a driver has reported lost, by cause.
pub const LOST: [&str; 3] = ["lost_no_space", "lost_gap", "lost_collision"];

/// The bytes that the driver of a PMU has reported lost.
pub fn lost(pmu: &str) -> Result<u64> {
    LOST.into_iter().map(|name| counter(pmu, name)).sum()
}

/// The sum of a counter of all PMUs of the framework.
pub fn total(name: &str) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir("/sys/kernel/debug").context("cannot read debugfs")? {
        let directory = entry?.file_name();
        if let Some(pmu) = directory.to_str().and_then(|it| it.strip_prefix("perf-")) {
            sum += counter(pmu, name)?;
        }
    }
    Ok(sum)
}

/// The number of references to the module.
pub fn references(name: &str) -> Result<u32> {
    number(&format!("/sys/module/{name}/refcnt"))
}

/// Unloads a module.
pub fn unload(name: &str) -> Result<()> {
    tool("rmmod", &[name])
}

/// Runs a tool. Fails if the tool fails.
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
