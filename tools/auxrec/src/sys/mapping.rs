// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Mappings: the rings of an event, and files.

use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicU64, Ordering};

use perf_event_open_sys::bindings::perf_event_mmap_page as Page;
use perfdata::TimeConv;
use rustix::fd::{AsFd, AsRawFd};
use rustix::mm::{MapFlags, ProtFlags};

/// A shared mapping. The kernel or a device may write into it at any time, so there is never a reference to its bytes: words are accessed
/// as atomics, and bytes are copied out.
///
/// # Invariants
/// `addr` is the beginning of a mapping of `len` bytes that is readable, and writable if `writable`. Only this value
/// unmaps it.
#[derive(Debug)]
pub struct Mapping {
    addr: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: A mapping belongs to the process, not to a thread, and through `&Mapping` there are only atomic accesses and copies.
unsafe impl Send for Mapping {}
// SAFETY: Through `&Mapping` there are only atomic accesses and copies, which several threads may make at the same time.
unsafe impl Sync for Mapping {}

/// A word of an event's control page that recorders use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Head of the data ring: how far the kernel has written.
    DataHead,
    /// Tail of the data ring: how far the reader has read.
    DataTail,
    /// Head of the AUX area: how far the driver has written.
    AuxHead,
    /// Tail of the AUX area: how far the reader has read.
    AuxTail,
    /// Offset at which the AUX area will be mapped.
    AuxOffset,
    /// Length of the AUX area.
    AuxSize,
}

/// Bits of `capabilities`.
const CAP_USER_TIME_ZERO: u64 = 1 << 4;
const CAP_USER_TIME_SHORT: u64 = 1 << 5;

/// Offset of `capabilities`. bindgen gives the union no usable name.
const CAPABILITIES: usize = offset_of!(Page, pmc_width) - 8;

impl Field {
    fn offset(self) -> usize {
        match self {
            Self::DataHead => offset_of!(Page, data_head),
            Self::DataTail => offset_of!(Page, data_tail),
            Self::AuxHead => offset_of!(Page, aux_head),
            Self::AuxTail => offset_of!(Page, aux_tail),
            Self::AuxOffset => offset_of!(Page, aux_offset),
            Self::AuxSize => offset_of!(Page, aux_size),
        }
    }
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset` on.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn new(fd: impl AsFd, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let prot = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: A new mapping at an address of the kernel's choice touches no memory that is in use.
        let addr = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                prot,
                MapFlags::SHARED,
                fd,
                offset,
            )
        }?;
        let addr = NonNull::new(addr.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        // INVARIANT: The kernel has just made the mapping, with this length and protection, and only `Drop` unmaps it.
        Ok(Self {
            addr,
            len,
            writable,
        })
    }

    /// The length in bytes, never 0.
    #[expect(
        clippy::len_without_is_empty,
        reason = "the kernel refuses an empty mapping"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    fn word(&self, field: Field) -> Option<&AtomicU64> {
        let at = field.offset();
        if at.checked_add(8)? > self.len || at % 8 != 0 {
            return None;
        }
        // SAFETY: `at` is within the mapping.
        let word = unsafe { self.addr.add(at) };
        // SAFETY: By the type invariant the word is mapped as long as `self` lives, it is aligned (the mapping begins at a
        // page, and `at` was checked), and this crate accesses it in no other way than as an atomic.
        Some(unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) })
    }

    /// Loads a word of the control page, which must be at the front of this mapping.
    pub fn load(&self, field: Field, order: Ordering) -> u64 {
        self.word(field).map_or(0, |word| word.load(order))
    }

    /// Sets a word of the control page. Does nothing to a mapping that is not writable.
    pub fn store(&self, field: Field, value: u64, order: Ordering) {
        if let (true, Some(word)) = (self.writable, self.word(field)) {
            word.store(value, order);
        }
    }

    /// How to convert the processor's clock to perf's, from the control page at the front of this mapping; [`None`] if the kernel provides
    /// no conversion, because the processor's clock is not reliable.
    pub fn clock(&self) -> Option<TimeConv> {
        // The kernel increments `lock` before and after it changes these fields.
        for _ in 0..1000 {
            let before = self.number::<4>(offset_of!(Page, lock))?;
            fence(Ordering::Acquire);
            let capabilities = self.number::<8>(CAPABILITIES)?;
            let clock = TimeConv {
                shift: self.number::<2>(offset_of!(Page, time_shift))?,
                mult: self.number::<4>(offset_of!(Page, time_mult))?,
                zero: self.number::<8>(offset_of!(Page, time_zero))?,
                cycles: self.number::<8>(offset_of!(Page, time_cycles))?,
                mask: self.number::<8>(offset_of!(Page, time_mask))?,
                cap_zero: capabilities & CAP_USER_TIME_ZERO != 0,
                cap_short: capabilities & CAP_USER_TIME_SHORT != 0,
            };
            fence(Ordering::Acquire);
            if self.number::<4>(offset_of!(Page, lock))? == before && before % 2 == 0 {
                return (clock.cap_zero && clock.mult != 0).then_some(clock);
            }
        }
        None
    }

    /// Reads the little-endian number of `N` bytes at `offset`.
    fn number<const N: usize>(&self, offset: usize) -> Option<u64> {
        let mut bytes = [0; N];
        self.copy_out(offset, &mut bytes)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |n, &byte| n << 8 | u64::from(byte)),
        )
    }

    /// Copies the bytes at `offset` into `out`; [`None`] if they are not within the mapping.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Option<()> {
        if offset.checked_add(out.len())? > self.len {
            return None;
        }
        // SAFETY: `offset` is within the mapping, as was just checked.
        let from = unsafe { self.addr.add(offset) };
        // SAFETY: `out.len()` bytes from there are mapped readable (type invariant, and the check above) and are not part of `out`, which
        // is ordinary memory. The kernel may write them at the same time. Then their values are unspecified, which is valid for plain
        // bytes; the ring protocol keeps the kernel from writing the bytes that are used.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), out.len()) };
        Some(())
    }
}

impl Mapping {
    /// Lets the kernel read up to `len` bytes of a file into the front of the mapping. Returns the number of bytes. Tests use this to check
    /// whether a program can write there.
    ///
    /// # Errors
    /// The error that the kernel returns; `EFAULT` if the pages cannot be written.
    pub fn fill_from(&self, file: impl AsFd, len: usize) -> io::Result<usize> {
        let len = len.min(self.len);
        // SAFETY: The kernel writes up to `len` bytes, which are within the mapping (type invariant). No reference to them exists. It
        // checks by itself whether they are writable.
        let read = unsafe { libc::read(file.as_fd().as_raw_fd(), self.addr.as_ptr().cast(), len) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

impl Mapping {
    /// Writes `front`, and then `len` bytes of the mapping from `offset` on, to a file without a copy in user space. Returns the number of
    /// bytes written, which may be less than all of them.
    ///
    /// # Errors
    /// The error that the kernel returns. Some files return `EFAULT` for memory of a device, which an AUX area may be.
    pub fn write_out(
        &self,
        front: &[u8],
        offset: usize,
        len: usize,
        file: impl AsFd,
    ) -> io::Result<usize> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: `offset` is within the mapping, as was just checked.
        let from = unsafe { self.addr.add(offset) };
        let parts = [
            libc::iovec {
                iov_base: front.as_ptr().cast_mut().cast(),
                iov_len: front.len(),
            },
            libc::iovec {
                iov_base: from.as_ptr().cast(),
                iov_len: len,
            },
        ];
        // SAFETY: There are two parts. The kernel only reads from them: the first is a slice, the second are `len` bytes that
        // are mapped (type invariant, and the check above). The kernel reads these bytes, not this program, so others may
        // write them at the same time.
        let n = unsafe { libc::writev(file.as_fd().as_raw_fd(), parts.as_ptr(), 2) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this is the whole of a mapping that only we unmap, and no reference into it is left:
        // they cannot outlive `self`.
        let result = unsafe { rustix::mm::munmap(self.addr.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok());
    }
}
