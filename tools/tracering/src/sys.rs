// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The mapping and its bytes. All unsafe code of this crate is here.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::fd::AsFd;
use rustix::ioctl::{ioctl, opcode, NoArg, Opcode};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

/// `TRACE_MMAP_IOCTL_GET_READER`, `_IO('R', 0x20)`.
const GET_READER: Opcode = opcode::none(b'R', 0x20);

/// Bytes that the kernel or another process may write while they are read: a part of a mapping, or of a slice.
///
/// The kernel keeps the bytes of the reader sub-buffer as they are until its only consumer asks for the next one. A second consumer, in any
/// process, makes the kernel reuse them earlier. So no Rust reference to the bytes exists. Each access is a volatile load within bounds,
/// and its result is a private copy.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    // INVARIANT: `len` bytes from `at` on are valid for reads during `'a`. They are in one allocation or mapping, and no
    // Rust code writes them during `'a`.
    at: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // INVARIANT: A shared slice is readable, and not written, as long as its borrow lives.
        Self {
            at: NonNull::from(bytes).cast(),
            len: bytes.len(),
            memory: PhantomData,
        }
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len)
    }
}

impl Bytes<'_> {
    /// Number of bytes.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The bytes in `range`; [`None`] if the range is out of bounds.
    #[inline]
    #[must_use]
    pub fn get(self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        // SAFETY: `range.start` is at most `len`, so the result is in the same allocation or mapping, or at its end (type
        // invariant), and the distance is no more than an allocation's length, which fits `isize`.
        let at = unsafe { self.at.add(range.start) };
        // INVARIANT: It is a part of `self`.
        Some(Self {
            at,
            len: range.end - range.start,
            memory: PhantomData,
        })
    }

    /// The byte at `at`.
    #[inline]
    #[must_use]
    pub fn u8(self, at: usize) -> Option<u8> {
        let one = self.get(at..at.checked_add(1)?)?;
        // SAFETY: `one` has one byte, which is valid for reads (type invariant) and needs no alignment; every value of it is a `u8`. Rust
        // code does not write it. Only the kernel may write it, or another process, and a volatile access is how Rust loads such shared
        // memory.
        Some(unsafe { one.at.as_ptr().read_volatile() })
    }

    /// The `N` bytes at `at`.
    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        let bytes = self.get(at..at.checked_add(N)?)?;
        let mut out = [0; N];
        for (n, byte) in out.iter_mut().enumerate() {
            *byte = bytes.u8(n)?;
        }
        Some(out)
    }

    /// The 2 bytes at `at` as a number in this machine's byte order: one load if they are aligned.
    #[inline]
    #[must_use]
    pub fn u16(self, at: usize) -> Option<u16> {
        let two = self.get(at..at.checked_add(2)?)?;
        let word = two.at.cast::<u16>();
        if !word.is_aligned() {
            return self.array(at).map(u16::from_ne_bytes);
        }
        // SAFETY: `two` has two bytes, which are valid for reads (type invariant), and `word` was found aligned; every value
        // of them is a `u16`. Rust code does not write them, and the access is volatile for the kernel's sake.
        Some(unsafe { word.as_ptr().read_volatile() })
    }

    /// The 4 bytes at `at` as a number: one load if they are aligned.
    #[inline]
    #[must_use]
    pub fn u32(self, at: usize) -> Option<u32> {
        let four = self.get(at..at.checked_add(4)?)?;
        let word = four.at.cast::<u32>();
        if !word.is_aligned() {
            return self.array(at).map(u32::from_ne_bytes);
        }
        // SAFETY: `four` has four bytes, which are valid for reads (type invariant), and `word` was found aligned; every
        // value of them is a `u32`. Rust code does not write them, and the access is volatile for the kernel's sake.
        Some(unsafe { word.as_ptr().read_volatile() })
    }

    /// The 8 bytes at `at` as a number: one load if they are aligned.
    #[inline]
    #[must_use]
    pub fn u64(self, at: usize) -> Option<u64> {
        let eight = self.get(at..at.checked_add(8)?)?;
        let word = eight.at.cast::<u64>();
        if !word.is_aligned() {
            return self.array(at).map(u64::from_ne_bytes);
        }
        // SAFETY: `eight` has eight bytes, which are valid for reads (type invariant), and `word` was found aligned; every
        // value of them is a `u64`. Rust code does not write them, and the access is volatile for the kernel's sake.
        Some(unsafe { word.as_ptr().read_volatile() })
    }

    /// A copy of all bytes.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut out = vec![0; self.len];
        self.copy_to(&mut out);
        out
    }

    /// Copies all bytes to `out`. Returns false, without a copy, if `out` has another length. Aligned bytes are loaded by words.
    pub fn copy_to(self, out: &mut [u8]) -> bool {
        if out.len() != self.len {
            return false;
        }
        let (mut at, mut left) = (0, out);
        // Copy single bytes up to an address that is a multiple of 8.
        let odd = self.at.addr().get() % 8;
        let front = if odd == 0 { 0 } else { 8 - odd };
        while at < front.min(self.len) {
            if let Some((first, rest)) = left.split_first_mut() {
                *first = self.u8(at).unwrap_or_default();
                left = rest;
            } else {
                return true;
            }
            at += 1;
        }
        let mut words = left.chunks_exact_mut(8);
        for word in words.by_ref() {
            word.copy_from_slice(&self.u64(at).unwrap_or_default().to_ne_bytes());
            at += 8;
        }
        for byte in words.into_remainder() {
            *byte = self.u8(at).unwrap_or_default();
            at += 1;
        }
        true
    }

    /// A copy of the bytes before the first NUL.
    #[must_use]
    pub fn to_text(self) -> Vec<u8> {
        (0..self.len)
            .map_while(|at| self.u8(at).filter(|byte| *byte != 0))
            .collect()
    }
}

/// A read-only mapping of a ring buffer.
#[derive(Debug)]
pub struct Mapping {
    // INVARIANT: The beginning of a mapping of `len` bytes, readable, which only `Drop` unmaps.
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: A mapping belongs to the process, not to a thread. `Mapping` has no other state, and does not write the memory.
unsafe impl Send for Mapping {}
// SAFETY: All that `&Mapping` allows is to load bytes, which any number of threads may do at once.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes from the beginning of `fd`.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn new(fd: impl AsFd, len: usize) -> io::Result<Self> {
        // SAFETY: The kernel chooses an address that is not in use, so the new mapping changes no memory that exists.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        // INVARIANT: The kernel has just made this mapping, and only this value has its address.
        Ok(Self { at, len })
    }

    /// The bytes of the mapping.
    #[must_use]
    pub fn bytes(&self) -> Bytes<'_> {
        // INVARIANT: The mapping is readable and stays until `self` is dropped, which the borrow excludes. Nothing in this
        // program can write it: the kernel refuses to make it writable.
        Bytes {
            at: self.at,
            len: self.len,
            memory: PhantomData,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: It is the whole of a mapping that nothing else unmaps (type invariant). No `Bytes` of it is left: they
        // borrow from `self`.
        let result = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok());
    }
}

/// Makes the kernel account for the events of the reader sub-buffer as read, or swap in the next sub-buffer.
///
/// # Errors
/// The error of the ioctl; `ENODEV` if no mapping of the buffer exists.
pub fn get_reader(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: The request takes no argument, so the kernel accesses no memory of this program's by it.
    let request = unsafe { NoArg::<GET_READER>::new() };
    // SAFETY: The opcode has no argument and no result, as `NoArg` requires. The kernel only changes its ring buffer, and this program
    // accesses that buffer only by volatile loads.
    unsafe { ioctl(fd, request) }?;
    Ok(())
}
