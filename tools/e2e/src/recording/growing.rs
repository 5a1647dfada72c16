// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A file that a recorder writes, and the trace in it.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;
use auxview::trace::Trace;

use crate::recorder::size;
use crate::wait::wait_for;

/// Bytes of trace in a file. The file may be incomplete at its end.
///
/// # Errors
/// If it cannot be read, or is no recording: a recorder may not have begun it yet.
pub fn trace_in(file: &Path) -> Result<u64> {
    let trace = Trace::read(&File::open(file)?)?;
    Ok(trace.rings.values().map(|ring| ring.loss.read).sum())
}

/// A file that must get a number of bytes of trace. Its length does not show that: the number of other records depends on the guest's load.
pub struct Growing {
    path: PathBuf,
    trace: u64,
    /// The file length at which the file is parsed again: it has grown by half of the missing trace. Trace may be compressed.
    next: Cell<u64>,
}

impl Growing {
    pub fn new(path: &Path, trace: u64) -> Self {
        Self {
            path: path.to_owned(),
            trace,
            next: Cell::new(trace / 2),
        }
    }

    /// Whether the file has the trace.
    pub fn is_there(&self) -> bool {
        let size = size(&self.path);
        if size < self.next.get() {
            return false;
        }
        let missing = self
            .trace
            .saturating_sub(trace_in(&self.path).unwrap_or_default());
        self.next.set(size + missing / 2);
        missing == 0
    }
}

/// Waits until a file has `bytes` bytes of trace.
///
/// # Errors
/// If it takes longer than [`PATIENCE`](crate::wait::PATIENCE).
pub fn wait_for_trace(file: &Path, bytes: u64) -> Result<()> {
    let growing = Growing::new(file, bytes);
    wait_for("trace", || Ok(growing.is_there()))
}
