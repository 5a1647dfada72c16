// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A system for tests. It logs each call, can refuse it, and tracks what is still open.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use perfdata::{Attr, Flags};
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::io::Errno;

use super::mapping::Mapping;
use super::system::{Control, Count, Handle, Of, System};
use crate::error::Result;

/// `perf_event_attr.type` of the events that [`Fake`] calls `unit`.
pub(crate) const UNIT: u32 = 42;

/// Decides whether a call is refused, from its number and its text.
type Refuse = Box<dyn Fn(usize, &str) -> Option<Errno> + Send>;

/// A system for tests.
pub(crate) struct Fake {
    /// Name of the memory that it maps.
    name: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    refuse: Option<Refuse>,
    /// Open descriptors, with the names of their events.
    open: BTreeMap<RawFd, String>,
    /// Number of handles that were created.
    handles: u64,
    now: u64,
    /// A handle's number and a time. The clocks of this handle and of earlier ones stop at that time.
    stopped: (u64, u64),
    threads: Vec<u32>,
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Fake {
    /// A system that refuses nothing.
    pub(crate) fn new() -> &'static Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Box::leak(Box::new(Self {
            name: format!("fake-system-{number}"),
            state: Mutex::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses calls from now on. The first call has the number 0.
    pub(crate) fn refuse(&self, refuse: impl Fn(usize, &str) -> Option<Errno> + Send + 'static) {
        self.state().refuse = Some(Box::new(refuse));
    }

    /// The calls so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Number of open events, and of mappings.
    pub(crate) fn left(&self) -> (usize, usize) {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let memory = format!("memfd:{} ", self.name);
        let mapped = maps.lines().filter(|line| line.contains(&memory)).count();
        (self.state().open.len(), mapped)
    }

    /// Advances the time, ns.
    pub(crate) fn pass(&self, ns: u64) {
        self.state().now += ns;
    }

    /// Simulates a CPU that goes offline: the clocks of all events so far stop.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stopped = (state.handles, state.now);
    }

    /// Sets the threads of every process.
    pub(crate) fn has_threads(&self, threads: &[u32]) {
        self.state().threads = threads.to_vec();
    }

    fn call(&self, text: String) -> io::Result<()> {
        let mut state = self.state();
        let refuse = state.refuse.as_ref();
        let refused = refuse.and_then(|refuse| refuse(state.calls.len(), &text));
        state.calls.push(text);
        refused.map_or(Ok(()), |errno| Err(errno.into()))
    }

    fn handle(&'static self, name: String) -> io::Result<Box<dyn Handle>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        let mut state = self.state();
        state.open.insert(fd.as_raw_fd(), name.clone());
        state.handles += 1;
        let number = state.handles;
        Ok(Box::new(Opened {
            fake: self,
            name,
            number,
            fd,
        }))
    }
}

impl System for Fake {
    fn open(
        &'static self,
        attr: &Attr,
        of: Of<'_>,
        cpu: i32,
        leader: Option<BorrowedFd<'_>>,
    ) -> io::Result<Box<dyn Handle>> {
        let event = match attr.kind {
            UNIT => "unit",
            1 if attr.flags.contains(Flags::SAMPLE_ID_ALL) => "tracking",
            1 if attr.flags.contains(Flags::MMAP) => "sideband",
            1 => "probe",
            _ => "other",
        };
        let mut name = event.to_owned();
        match of {
            Of::Thread(-1) => {}
            Of::Thread(thread) => name += &format!(" thread {thread}"),
            Of::Group(_) => name += " group",
        }
        if cpu != -1 {
            name += &format!(" cpu {cpu}");
        }
        let member = leader.map_or("", |_| " member");
        self.call(format!("open {name}{member}"))?;
        self.handle(name)
    }

    fn now(&self) -> u64 {
        self.state().now
    }

    fn threads(&self, _: u32) -> Result<Vec<u32>> {
        Ok(self.state().threads.clone())
    }

    fn online(&self) -> Result<Vec<u32>> {
        Ok(vec![0, 1])
    }
}

/// An event that is open.
#[derive(Debug)]
struct Opened {
    fake: &'static Fake,
    name: String,
    number: u64,
    fd: OwnedFd,
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.fake.state().open.remove(&self.fd.as_raw_fd());
    }
}

impl Handle for Opened {
    fn id(&self) -> io::Result<u64> {
        self.fake.call(format!("id {}", self.name))?;
        Ok(self.number)
    }

    fn control(&self, what: Control<'_>) -> io::Result<()> {
        let name = &self.name;
        self.fake.call(match what {
            Control::Enable => format!("enable {name}"),
            Control::Disable => format!("disable {name}"),
            Control::Output(to) => {
                let to = self.fake.state().open.get(&to.as_raw_fd()).cloned();
                format!("output {name} to {}", to.unwrap_or_default())
            }
            Control::PauseOutput(true) => format!("pause {name}"),
            Control::PauseOutput(false) => format!("resume {name}"),
            Control::Filter(filter) => format!("filter {name} {}", filter.to_string_lossy()),
            Control::Reset | Control::Refresh(_) | Control::Period(_) => {
                format!("{what:?} {name}")
            }
        })
    }

    fn count(&self) -> io::Result<Option<Count>> {
        self.fake.call(format!("count {}", self.name))?;
        let state = self.fake.state();
        let (last, at) = state.stopped;
        Ok(Some(Count {
            value: 100,
            enabled: if self.number <= last { at } else { state.now },
            running: 0,
            id: self.number,
        }))
    }

    fn map(&self, offset: u64, len: usize, writable: bool) -> io::Result<Mapping> {
        let (what, how) = (
            if offset == 0 { "data" } else { "aux" },
            if writable { "rw" } else { "r" },
        );
        self.fake.call(format!("map {what} {how} {}", self.name))?;
        let memory = memfd_create(&self.fake.name, MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, u64::try_from(len).unwrap_or(u64::MAX))?;
        Mapping::new(memory, 0, len, writable)
    }

    fn another(&self) -> io::Result<Box<dyn Handle>> {
        self.fake.call(format!("clone {}", self.name))?;
        self.fake.handle(self.name.clone())
    }

    fn into_fd(self: Box<Self>) -> OwnedFd {
        unreachable!("no test takes an event apart")
    }
}
