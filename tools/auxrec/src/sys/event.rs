// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events: `perf_event_open` and the ioctls on what it gives.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use perf_event_open_sys as sys;
use perf_event_open_sys::bindings::perf_event_attr;
use perfdata::{Attr, Read};

/// An event of the kernel; closing it ends the event.
#[derive(Debug)]
pub struct Event(OwnedFd);

/// What an event has counted, as `read_format` [`Read::FORMAT`] has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// What it counted, its children's included.
    pub value: u64,
    /// How long it was enabled, ns.
    pub enabled: u64,
    /// How long it ran, ns.
    pub running: u64,
    /// Its id.
    pub id: u64,
}

impl Count {
    /// With what another has counted.
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

impl Event {
    /// Opens an event for thread `pid` (-1: all) on `cpu` (-1: all).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(attr: &Attr, pid: i32, cpu: i32) -> io::Result<Self> {
        Self::open_in(attr, pid, cpu, None)
    }

    /// As [`open`](Self::open), in the group of `leader`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open_in(attr: &Attr, pid: i32, cpu: i32, leader: Option<&Self>) -> io::Result<Self> {
        Self::open_with(attr, pid, cpu, leader, 0)
    }

    /// Opens an event for what runs in a control group, whose directory this is.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open_cgroup(
        attr: &Attr,
        group: BorrowedFd<'_>,
        cpu: i32,
        leader: Option<&Self>,
    ) -> io::Result<Self> {
        let flag = sys::bindings::PERF_FLAG_PID_CGROUP.into();
        Self::open_with(attr, group.as_raw_fd(), cpu, leader, flag)
    }

    fn open_with(
        attr: &Attr,
        pid: i32,
        cpu: i32,
        leader: Option<&Self>,
        flags: libc::c_ulong,
    ) -> io::Result<Self> {
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
                leader.map_or(-1, |leader| leader.0.as_raw_fd()),
                libc::c_ulong::from(sys::bindings::PERF_FLAG_FD_CLOEXEC) | flags,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: The kernel just gave this descriptor to us, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The event's id.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn id(&self) -> io::Result<u64> {
        let mut id = 0;
        // SAFETY: The descriptor is an event's, and `id` takes the 8 bytes that the kernel writes.
        let result = unsafe { sys::ioctls::ID(self.0.as_raw_fd(), &raw mut id) };
        check(result).map(|()| id)
    }

    /// Another descriptor of the same event.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Lets it count and trace.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn enable(&self) -> io::Result<()> {
        // SAFETY: The descriptor is an event's; the call takes no pointer.
        check(unsafe { sys::ioctls::ENABLE(self.0.as_raw_fd(), 0) })
    }

    /// Stops it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn disable(&self) -> io::Result<()> {
        // SAFETY: The descriptor is an event's; the call takes no pointer.
        check(unsafe { sys::ioctls::DISABLE(self.0.as_raw_fd(), 0) })
    }

    /// Sets what it has counted to 0.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn reset(&self) -> io::Result<()> {
        // SAFETY: The descriptor is an event's; the call takes no pointer.
        check(unsafe { sys::ioctls::RESET(self.0.as_raw_fd(), 0) })
    }

    /// Enables it for so many overflows.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn refresh(&self, overflows: i32) -> io::Result<()> {
        // SAFETY: The descriptor is an event's; the call takes no pointer.
        check(unsafe { sys::ioctls::REFRESH(self.0.as_raw_fd(), overflows) })
    }

    /// Sets its period.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_period(&self, period: u64) -> io::Result<()> {
        // The crate has the number itself as the argument; the kernel wants its address.
        let at = (&raw const period).expose_provenance();
        let at = u64::try_from(at).map_err(io::Error::other)?;
        // SAFETY: The descriptor is an event's, and the kernel reads 8 bytes at `at`, where `period` is.
        check(unsafe { sys::ioctls::PERIOD(self.0.as_raw_fd(), at) })
    }

    /// Sends its records, and its trace, to the rings of another.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_output(&self, to: &Self) -> io::Result<()> {
        // SAFETY: Both descriptors are events'; the call takes no pointer.
        check(unsafe { sys::ioctls::SET_OUTPUT(self.0.as_raw_fd(), to.0.as_raw_fd()) })
    }

    /// Whether the kernel writes nothing into the ring of this event; what it would have written it counts as lost.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pause_output(&self, pause: bool) -> io::Result<()> {
        // SAFETY: The descriptor is an event's; the call takes no pointer.
        check(unsafe { sys::ioctls::PAUSE_OUTPUT(self.0.as_raw_fd(), pause.into()) })
    }

    /// Of which code there is to be trace, or, of a tracepoint, which of its events are meant.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_filter(&self, filter: &CStr) -> io::Result<()> {
        // SAFETY: The descriptor is an event's, and the kernel reads a string that ends with a NUL.
        check(unsafe { sys::ioctls::SET_FILTER(self.0.as_raw_fd(), filter.as_ptr().cast_mut()) })
    }

    /// What it has counted; [`None`] if the kernel does not tell, as of an event whose PMU is gone.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn count(&self) -> io::Result<Option<Count>> {
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
}

/// The same event: it ends when the last descriptor is closed.
impl From<Event> for OwnedFd {
    fn from(event: Event) -> Self {
        event.0
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
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
