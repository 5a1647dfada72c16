// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A case of the guest itself: its CPUs must execute the current code of the kernel.

use std::fs;

use anyhow::{Context, Result};

use crate::module;
use crate::workload::pin;

/// A case: its name, and its code.
type Case = (&'static str, fn(&str) -> Result<String>);

/// The case.
pub const ALL: [Case; 1] = [("code that changes while another CPU executes it", changes)];

/// How often the code changes.
const CHANGES: u32 = 1000;

/// The module `tcg_int3` changes its own code, which the last CPU executes with interrupts off. QEMU's emulation meets breakpoints there that
/// are no longer in memory. `tcg_int3` must get the CPU past each of them; otherwise the write fails, or the guest exceeds its time limit.
fn changes(_name: &str) -> Result<String> {
    const PARAMETERS: &str = "/sys/module/tcg_int3/parameters";
    let met = || module::number::<u32>(&format!("{PARAMETERS}/met"));

    pin(0)?;
    let before = met()?;
    let path = format!("{PARAMETERS}/changes");
    fs::write(&path, CHANGES.to_string()).with_context(|| format!("cannot write {path}"))?;
    Ok(format!(
        "{CHANGES} changes, {} old breakpoints",
        met()?.wrapping_sub(before)
    ))
}
