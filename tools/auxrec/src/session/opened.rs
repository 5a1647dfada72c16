// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An open event, and how the file identifies it.

use crate::sys::Event;

/// How the file identifies an event.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Number of the event in the plan.
    pub number: usize,
    /// Its id.
    pub id: u64,
    /// Its thread.
    pub thread: Option<u32>,
}

/// An open event.
#[derive(Debug)]
pub struct Opened {
    /// The event.
    pub event: Event,
    /// Number of the event in the plan.
    pub number: usize,
    /// Its id in the file. An event that replaces another has that one's.
    pub id: u64,
    /// Its thread.
    pub thread: Option<u32>,
}

impl Opened {
    pub(super) fn known(&self) -> Known {
        Known {
            number: self.number,
            id: self.id,
            thread: self.thread,
        }
    }
}
