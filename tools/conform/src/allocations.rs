// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocations of the kernel that fail on demand: fault injection, `Documentation/fault-injection` of the kernel's source.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

/// Files below debugfs, with the values that let allocations fail on demand, and keep that out of the log.
const SWITCHES: [(&str, &str); 6] = [
    ("failslab/ignore-gfp-wait", "N"),
    ("failslab/verbose", "0"),
    ("fail_page_alloc/ignore-gfp-wait", "N"),
    ("fail_page_alloc/ignore-gfp-highmem", "N"),
    ("fail_page_alloc/min-order", "0"),
    ("fail_page_alloc/verbose", "0"),
];

/// The kernel's allocations for this thread: `/proc/thread-self/fail-nth`.
pub struct Allocations(File);

impl Allocations {
    /// Sets the switches.
    ///
    /// # Errors
    /// If the kernel has no fault injection, or this user may not use it.
    pub fn new() -> Result<Self> {
        for (switch, value) in SWITCHES {
            let path = format!("/sys/kernel/debug/{switch}");
            fs::write(&path, value).with_context(|| {
                format!(
                    "cannot write {path}: allocations fail on demand only for root, with debugfs mounted, \
                     in a kernel with CONFIG_FAILSLAB and CONFIG_FAIL_PAGE_ALLOC"
                )
            })?;
        }
        let path = "/proc/thread-self/fail-nth";
        let file = File::options().read(true).write(true).open(path);
        Ok(Self(file.with_context(|| format!("cannot open {path}"))?))
    }

    /// Calls `what` while the allocation of this number fails. Returns its result, and how many allocations were left until that one: 0 if
    /// it has failed.
    ///
    /// # Errors
    /// If the kernel's file cannot be used.
    pub fn without<T>(&self, nth: u32, what: impl FnOnce() -> T) -> Result<(T, u32)> {
        self.0.write_at(nth.to_string().as_bytes(), 0)?;
        let outcome = what();
        let mut left = [0; 16];
        let len = self.0.read_at(&mut left, 0);
        self.0.write_at(b"0", 0)?;
        let left = std::str::from_utf8(left.get(..len?).unwrap_or_default())?;
        Ok((outcome, left.trim().parse()?))
    }
}
