// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events: `perf_event_open`, and the ioctls of the file that it returns.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use perf_event_open_sys as sys;
use perf_event_open_sys::bindings::perf_event_attr;
use perfdata::{Attr, Read};
use rustix::io::Errno;

use super::mapping::Mapping;
use super::system::{Control, Count, Handle, Of, System};
use crate::error::Result;
use crate::target;

/// An open event. Dropping it closes the descriptor.
#[derive(Debug)]
pub struct Event(Box<dyn Handle>);

impl Event {
    /// Opens an event for thread `pid` (-1: all threads) on `cpu` (-1: all CPUs).
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn open(attr: &Attr, pid: i32, cpu: i32) -> io::Result<Self> {
        Self::open_in(attr, pid, cpu, None)
    }

    /// Opens an event as [`open`](Self::open) does, in the group of `leader`.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn open_in(attr: &Attr, pid: i32, cpu: i32, leader: Option<&Self>) -> io::Result<Self> {
        Self::of(&Kernel, attr, Of::Thread(pid), cpu, leader)
    }

    /// Opens an event for the tasks of a control group. `group` is the group's directory.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn open_cgroup(
        attr: &Attr,
        group: BorrowedFd<'_>,
        cpu: i32,
        leader: Option<&Self>,
    ) -> io::Result<Self> {
        Self::of(&Kernel, attr, Of::Group(group), cpu, leader)
    }

    /// Opens an event on `system`.
    pub(crate) fn of(
        system: &'static dyn System,
        attr: &Attr,
        of: Of<'_>,
        cpu: i32,
        leader: Option<&Self>,
    ) -> io::Result<Self> {
        let leader = leader.map(AsFd::as_fd);
        system.open(attr, of, cpu, leader).map(Self)
    }

    /// The event's id.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn id(&self) -> io::Result<u64> {
        self.0.id()
    }

    /// Maps `len` bytes of the event's rings from `offset` on.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn map(&self, offset: u64, len: usize, writable: bool) -> io::Result<Mapping> {
        self.0.map(offset, len, writable)
    }

    /// Another descriptor of the same event.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.another().map(Self)
    }

    /// Enables the event.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn enable(&self) -> io::Result<()> {
        self.0.control(Control::Enable)
    }

    /// Disables the event.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn disable(&self) -> io::Result<()> {
        self.0.control(Control::Disable)
    }

    /// Sets the event's count to 0.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn reset(&self) -> io::Result<()> {
        self.0.control(Control::Reset)
    }

    /// Enables the event for this number of overflows.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn refresh(&self, overflows: i32) -> io::Result<()> {
        self.0.control(Control::Refresh(overflows))
    }

    /// Sets the event's period.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn set_period(&self, period: u64) -> io::Result<()> {
        self.0.control(Control::Period(period))
    }

    /// Sends the event's records and trace to the rings of another event.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn set_output(&self, to: impl AsFd) -> io::Result<()> {
        self.0.control(Control::Output(to.as_fd()))
    }

    /// Pauses or resumes output to the event's ring. While it is paused, the kernel drops records and counts them as lost.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn pause_output(&self, pause: bool) -> io::Result<()> {
        self.0.control(Control::PauseOutput(pause))
    }

    /// Sets the event's filter: an address filter of a tracing PMU, or a filter on the fields of a tracepoint.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn set_filter(&self, filter: &CStr) -> io::Result<()> {
        self.0.control(Control::Filter(filter))
    }

    /// The event's count; [`None`] if the kernel returns none, for example because the event's PMU is gone.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn count(&self) -> io::Result<Option<Count>> {
        self.0.count()
    }
}

/// Takes the event's descriptor. The event ends when its last descriptor is closed.
impl From<Event> for OwnedFd {
    fn from(event: Event) -> Self {
        event.0.into_fd()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An event of the running kernel. Only [`perf_event_open`] makes one.
#[derive(Debug)]
struct Perf(OwnedFd);

impl AsFd for Perf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Handle for Perf {
    fn id(&self) -> io::Result<u64> {
        let mut id = 0;
        // SAFETY: The descriptor is an event's, and `id` takes the 8 bytes that the kernel writes.
        let result = unsafe { sys::ioctls::ID(self.0.as_raw_fd(), &raw mut id) };
        check(result).map(|()| id)
    }

    fn control(&self, what: Control<'_>) -> io::Result<()> {
        let fd = self.0.as_raw_fd();
        check(match what {
            // SAFETY: The descriptor is an event's; the call takes no pointer.
            Control::Enable => unsafe { sys::ioctls::ENABLE(fd, 0) },
            // SAFETY: The descriptor is an event's; the call takes no pointer.
            Control::Disable => unsafe { sys::ioctls::DISABLE(fd, 0) },
            // SAFETY: The descriptor is an event's; the call takes no pointer.
            Control::Reset => unsafe { sys::ioctls::RESET(fd, 0) },
            // SAFETY: The descriptor is an event's; the call takes no pointer.
            Control::Refresh(overflows) => unsafe { sys::ioctls::REFRESH(fd, overflows) },
            Control::Period(period) => {
                // The crate passes the period itself as the argument; the kernel expects its address.
                let at = (&raw const period).expose_provenance();
                let at = u64::try_from(at).map_err(io::Error::other)?;
                // SAFETY: The descriptor is an event's, and the kernel reads 8 bytes at `at`, where `period` is.
                unsafe { sys::ioctls::PERIOD(fd, at) }
            }
            // SAFETY: The descriptor is an event's; the call takes no pointer, and the kernel refuses a descriptor `to` that is
            // no event's.
            Control::Output(to) => unsafe { sys::ioctls::SET_OUTPUT(fd, to.as_raw_fd()) },
            // SAFETY: The descriptor is an event's; the call takes no pointer.
            Control::PauseOutput(pause) => unsafe { sys::ioctls::PAUSE_OUTPUT(fd, pause.into()) },
            // SAFETY: The descriptor is an event's, and the kernel reads a string that ends with a NUL.
            Control::Filter(filter) => unsafe {
                sys::ioctls::SET_FILTER(fd, filter.as_ptr().cast_mut())
            },
        })
    }

    fn count(&self) -> io::Result<Option<Count>> {
        debug_assert_eq!(Read::FORMAT.bits(), 7);
        let mut words = [0_u8; 32];
        let n = rustix::io::read(&self.0, &mut words)?;
        if n != words.len() {
            return Ok(None);
        }
        let mut fields = words
            .chunks_exact(8)
            .map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let mut next = || fields.next().unwrap_or(0);
        Ok(Some(Count {
            value: next(),
            enabled: next(),
            running: next(),
            id: next(),
        }))
    }

    fn map(&self, offset: u64, len: usize, writable: bool) -> io::Result<Mapping> {
        Mapping::new(self, offset, len, writable)
    }

    fn another(&self) -> io::Result<Box<dyn Handle>> {
        Ok(Box::new(Self(self.0.try_clone()?)))
    }

    fn into_fd(self: Box<Self>) -> OwnedFd {
        self.0
    }
}

/// The running kernel.
#[derive(Debug)]
pub(crate) struct Kernel;

impl System for Kernel {
    fn open(
        &'static self,
        attr: &Attr,
        of: Of<'_>,
        cpu: i32,
        leader: Option<BorrowedFd<'_>>,
    ) -> io::Result<Box<dyn Handle>> {
        perf_event_open(attr, of, cpu, leader)
    }

    fn now(&self) -> u64 {
        super::now()
    }

    fn threads(&self, process: u32) -> Result<Vec<u32>> {
        target::threads(process)
    }

    fn online(&self) -> Result<Vec<u32>> {
        target::online_cpus()
    }
}

/// Opens an event of the running kernel.
fn perf_event_open(
    attr: &Attr,
    of: Of<'_>,
    cpu: i32,
    leader: Option<BorrowedFd<'_>>,
) -> io::Result<Box<dyn Handle>> {
    let (pid, flag) = match of {
        Of::Thread(pid) => (pid, 0),
        Of::Group(group) => (group.as_raw_fd(), sys::bindings::PERF_FLAG_PID_CGROUP),
    };
    let bytes = attr.encode();
    let mut raw = perf_event_attr::default();
    if bytes.len() > size_of_val(&raw) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `bytes` are at most as long as `raw`, as was just checked, and the two do not overlap. Any bit pattern is
    // a valid `perf_event_attr`: it is made of integers.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut raw).cast(), bytes.len());
    }
    // SAFETY: `raw` is a valid attribute for the time of the call; its `size`, which says how much of it the kernel
    // reads, is at most its length.
    let fd = unsafe {
        sys::perf_event_open(
            &raw mut raw,
            pid,
            cpu,
            leader.map_or(-1, |leader| leader.as_raw_fd()),
            (sys::bindings::PERF_FLAG_FD_CLOEXEC | flag).into(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: The kernel has just made this descriptor, and only this function has its number.
    Ok(Box::new(Perf(unsafe { OwnedFd::from_raw_fd(fd) })))
}

/// The errno of `perf_event_open` for flags that no kernel knows. A kernel with perf events returns `EINVAL` before it examines anything
/// else.
pub fn probe_call() -> Errno {
    let mut raw = perf_event_attr::default();
    // SAFETY: `raw` is a valid attribute for the time of the call. With these flags the kernel opens nothing, so there is no descriptor
    // to close.
    unsafe { sys::perf_event_open(&raw mut raw, 0, -1, -1, libc::c_ulong::MAX) };
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_layout_is_the_kernels() {
        let attr = Attr {
            kind: 1,
            config: 2,
            config1: 3,
            config2: 4,
            clockid: 5,
            aux_watermark: 6,
            config3: 7,
            ..Attr::default()
        };
        let bytes = attr.encode();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(half(std::mem::offset_of!(perf_event_attr, type_)), 1);
        assert_eq!(word(std::mem::offset_of!(perf_event_attr, config)), 2);
        assert_eq!(
            word(std::mem::offset_of!(perf_event_attr, __bindgen_anon_3)),
            3
        );
        assert_eq!(
            word(std::mem::offset_of!(perf_event_attr, __bindgen_anon_4)),
            4
        );
        assert_eq!(half(std::mem::offset_of!(perf_event_attr, clockid)), 5);
        assert_eq!(
            half(std::mem::offset_of!(perf_event_attr, aux_watermark)),
            6
        );
        assert_eq!(word(std::mem::offset_of!(perf_event_attr, config3)), 7);
    }
}
