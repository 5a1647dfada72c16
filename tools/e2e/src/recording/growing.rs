// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A file that a recorder writes, and the trace in it.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;
use auxview::trace::Trace;

use crate::recorder::size;
use crate::wait::wait_for;

/// Bytes of trace in a file, which may end in the middle.
///
/// # Errors
/// When it cannot be read, or is no recording: a recorder may have begun nothing yet.
pub fn trace_in(file: &Path) -> Result<u64> {
    let trace = Trace::read(&File::open(file)?)?;
    Ok(trace.rings.values().map(|ring| ring.loss.read).sum())
}

/// A file that is to have so much trace. It has other records, too: how many depends on what runs in the guest.
pub struct Growing {
    path: PathBuf,
    trace: u64,
    /// The length at which it is read again: it has grown by half of what was missing. Trace may be compressed.
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

    /// Whether the trace is there.
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

/// Waits until a file has so much trace.
///
/// # Errors
/// When it takes longer than [`PATIENCE`](crate::wait::PATIENCE).
pub fn wait_for_trace(file: &Path, bytes: u64) -> Result<()> {
    let growing = Growing::new(file, bytes);
    wait_for("trace", || Ok(growing.is_there()))
}
