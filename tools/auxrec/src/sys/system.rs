// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The part of the system that a session uses, as a trait. Tests have an implementation that can refuse any call.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use perfdata::Attr;

use super::mapping::Mapping;
use crate::error::Result;

/// The tasks for which an event is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Of<'a> {
    /// This thread; -1: all threads.
    Thread(i32),
    /// The tasks of a control group. This is its directory.
    Group(BorrowedFd<'a>),
}

/// The part of the system that a session uses.
pub(crate) trait System: fmt::Debug + Sync {
    /// Opens an event on `cpu` (-1: all), in the group of `leader`.
    fn open(
        &'static self,
        attr: &Attr,
        of: Of<'_>,
        cpu: i32,
        leader: Option<BorrowedFd<'_>>,
    ) -> io::Result<Box<dyn Handle>>;

    /// The current time, ns.
    fn now(&self) -> u64;

    /// The threads that a process has.
    fn threads(&self, process: u32) -> Result<Vec<u32>>;

    /// The CPUs that are online.
    fn online(&self) -> Result<Vec<u32>>;
}

/// The calls on an open event.
pub(crate) trait Handle: AsFd + fmt::Debug + Send + Sync {
    fn id(&self) -> io::Result<u64>;
    fn control(&self, what: Control<'_>) -> io::Result<()>;
    fn count(&self) -> io::Result<Option<Count>>;
    fn map(&self, offset: u64, len: usize, writable: bool) -> io::Result<Mapping>;
    /// Another handle of the same event.
    fn another(&self) -> io::Result<Box<dyn Handle>>;
    fn into_fd(self: Box<Self>) -> OwnedFd;
}

/// An ioctl of an event. [`Event`](super::Event) has a method for each.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Control<'a> {
    Enable,
    Disable,
    Reset,
    Refresh(i32),
    Period(u64),
    Output(BorrowedFd<'a>),
    PauseOutput(bool),
    Filter(&'a CStr),
}

/// The count of an event, in the `read_format` `Read::FORMAT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// The value of the counter, including the event's children.
    pub value: u64,
    /// How long it was enabled, ns.
    pub enabled: u64,
    /// How long it ran, ns.
    pub running: u64,
    /// Its id.
    pub id: u64,
}

impl Count {
    /// Adds the count of another event.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self {
            value: self.value.wrapping_add(other.value),
            enabled: self.enabled.saturating_add(other.enabled),
            running: self.running.saturating_add(other.running),
            id: self.id,
        }
    }
}
