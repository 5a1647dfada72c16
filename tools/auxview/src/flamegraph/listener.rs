// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Listeners: they are called when a function begins and when it ends.

use std::fmt;

use super::calls::{Change, Tree};
use super::code::Code;
use crate::error::Result;

/// A place in a thread's trace: between two packets.
#[derive(Debug)]
pub(crate) struct Moment {
    /// Process, thread.
    pub(crate) who: (u32, u32),
    /// Number of the program, among those that its process has run.
    pub(crate) program: usize,
    /// Number of instructions that the thread has executed in this program.
    pub(crate) executed: u64,
    /// Its time, if a packet has it.
    pub(crate) time: Option<u64>,
    /// Whether tracing ends here.
    pub(crate) ends: bool,
}

/// Receives the changes of the call stacks of threads.
pub(crate) trait Listener: fmt::Debug {
    /// Receives the changes up to a moment. `name` is that of the program.
    fn take(
        &mut self,
        moment: &Moment,
        name: &str,
        changes: Vec<Change>,
        tree: &Tree,
        code: &Code,
    ) -> Result<()>;

    /// The trace has ended.
    fn finish(&mut self, tree: &Tree, code: &Code) -> Result<()>;
}
