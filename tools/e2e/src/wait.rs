// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Waits for a condition, with a time limit.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};

/// A time limit that only a defect exceeds, even in a guest that gets a small part of a CPU.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `is` returns true.
///
/// # Errors
/// If it takes longer than [`PATIENCE`], or if `is` fails.
pub fn wait_for(what: &str, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is()? {
        ensure!(
            Instant::now() < end,
            "not within {} s: {what}",
            PATIENCE.as_secs()
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
