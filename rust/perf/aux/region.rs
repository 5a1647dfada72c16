// SPDX-License-Identifier: GPL-2.0

//! The part of the AUX area that a transaction may write.

use super::{
    bounce::BounceMemory,
    core::Handle,
    pages::Pages,
    Mode, //
};
use crate::bindings;
use auxcore::ring::{
    Pos,
    Size, //
};
use core::ptr;
use kernel::prelude::*;

/// There is no space for what was to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// Where the open transaction may write, and how much of that is written.
///
/// # Invariants
///
/// In non-overwrite mode `written` is at most `space`, which is less than the AUX area.
pub(crate) struct Extent {
    head: Pos,
    space: u64,
    wakeup: Pos,
    written: u64,
}

impl Extent {
    /// The extent of the transaction that is open on `handle`, with nothing written.
    #[inline]
    pub(crate) fn new(handle: &Handle, pages: &Pages) -> Self {
        // In overwrite mode perf sets neither size nor wakeup, and the area itself limits a write.
        // In non-overwrite mode perf offers at most one byte less than the area.
        let space = match pages.mode() {
            Mode::Normal => handle.space().min(pages.size().len().saturating_sub(1)),
            Mode::Overwrite => u64::MAX,
        };

        // INVARIANT: Nothing is written.
        Self {
            head: handle.head(),
            space,
            wakeup: handle.wakeup(),
            written: 0,
        }
    }

    /// Continues at the handle's head after a skip. Nothing is written yet.
    pub(crate) fn skipped(&mut self, handle: &Handle) {
        // INVARIANT: Less than the area, as before: the handle has what it had, less the padding.
        self.space = handle.space().min(self.space);
        self.head = handle.head();
        self.wakeup = handle.wakeup();
        self.written = 0;
    }

    /// The position of the first byte.
    #[inline]
    pub(crate) fn head(&self) -> Pos {
        self.head
    }

    /// Bytes written by [`Writer`]s.
    #[inline]
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// `len`, or as much of it as may be written.
    #[inline]
    pub(crate) fn limit(&self, len: u64) -> u64 {
        len.min(self.space)
    }
}

/// The part of the AUX area that the open transaction may write: from the head on.
///
/// A view for one callback. It writes to the pages and nowhere else, and only within the space.
///
/// C counterpart: `head`, `size` and `wakeup` of `struct perf_output_handle`.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, testing::{Bench, Setup}, Attr, AuxPmu, Event, Pmu};
/// # struct Driver;
/// # #[vtable]
/// # impl Pmu for Driver {
/// #     type Config = ();
/// #     type Event = ();
/// #     type Count = ();
/// #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
/// #         Ok(())
/// #     }
/// # }
/// #
/// # #[vtable]
/// # impl AuxPmu for Driver {
/// #     type Buffer = ();
/// #     type Trace = ();
/// #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
/// #         Ok(())
/// #     }
/// fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
///     // perf keeps one byte of the area free, so that a full area differs from an empty one.
///     let mut region = transaction.region();
///     if region.space() != Some(4095) || region.reserve(4096).is_ok() {
///         return Err(EINVAL);
///     }
///
///     // In pieces, as they come. What is not committed does not count.
///     for piece in [b"first ", b"second"] {
///         let mut writer = region.reserve(piece.len()).map_err(|_| ENOSPC)?;
///         writer.put(piece).map_err(|_| ENOSPC)?;
///         writer.commit();
///     }
///     let _ = region.reserve(100);
///     Ok(())
/// }
/// #     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _run: ()) -> aux::Commit {
/// #         aux::Commit::written(transaction, aux::Loss::None)
/// #     }
/// # }
/// let mut bench = Bench::new(Driver, &Setup { pages: 1, ..Setup::default() })?;
///
/// bench.add()?;
/// bench.del();
/// assert!(bench.read()?.as_slice() == b"first second");
/// # Ok::<(), Error>(())
/// ```
pub struct Region<'a> {
    pages: &'a Pages,
    extent: &'a mut Extent,
}

impl<'a> Region<'a> {
    /// A view of `extent`, which must be that of a transaction on the area of `pages`.
    #[inline]
    pub(crate) fn new(pages: &'a Pages, extent: &'a mut Extent) -> Self {
        Self { pages, extent }
    }

    /// The position of the region's first byte.
    #[inline]
    pub fn head(&self) -> Pos {
        self.extent.head
    }

    /// The size of the whole AUX area, in bytes.
    #[inline]
    pub fn size(&self) -> Size {
        self.pages.size()
    }

    /// How user space mapped the AUX area.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.pages.mode()
    }

    /// Bytes that may be written in all; [`None`] in overwrite mode, which has no limit.
    #[inline]
    pub fn space(&self) -> Option<u64> {
        match self.mode() {
            Mode::Normal => Some(self.extent.space),
            Mode::Overwrite => None,
        }
    }

    /// Bytes that [`Writer`]s have written.
    #[inline]
    pub fn written(&self) -> u64 {
        self.extent.written
    }

    /// Whether the written bytes reach the wakeup position: then the reader waits for a commit.
    #[inline]
    pub fn wakeup_due(&self) -> bool {
        match self.mode() {
            Mode::Normal => {
                let end = self.extent.head.advance(self.extent.written);

                self.extent.written > 0 && end.reached(self.extent.wakeup)
            }
            Mode::Overwrite => false,
        }
    }

    /// The wakeup position: a commit that reaches it wakes the reader. It may lie before the head,
    /// or beyond the space. [`None`] in overwrite mode, in which perf wakes no reader.
    #[inline]
    pub fn wakeup(&self) -> Option<Pos> {
        match self.mode() {
            Mode::Normal => Some(self.extent.wakeup),
            Mode::Overwrite => None,
        }
    }

    /// Writes `bytes` at `offset` bytes after the head, for a unit in software that got `address`
    /// from a table. [`EFAULT`] if `address` is not the physical address of that place. [`ENOSPC`]
    /// beyond the [space](Self::space). After an error some of the bytes may have been written.
    ///
    /// A hardware unit does the same by itself. The bytes do not count as
    /// [written](Self::written): [`Commit::new`](super::Commit::new) reports them.
    pub fn store(&mut self, offset: u64, address: u64, bytes: &[u8]) -> Result {
        let end = offset
            .checked_add(u64::try_from(bytes.len())?)
            .ok_or(ENOSPC)?;

        if end > self.extent.space {
            return Err(ENOSPC);
        }
        let offset = self.size().offset(self.extent.head.advance(offset));
        self.pages.store(offset, address, bytes)
    }

    /// Reserves the next `len` bytes of the region. [`Full`] if there are fewer, or if `len`
    /// exceeds the AUX area.
    pub fn reserve(&mut self, len: usize) -> Result<Writer<'_>, Full> {
        let wanted = u64::try_from(len).map_err(|_| Full)?;

        if len > self.size().get() || wanted > self.extent.space.saturating_sub(self.extent.written)
        {
            return Err(Full);
        }

        Ok(Writer {
            at: self.extent.head.advance(self.extent.written),
            left: len,
            pages: self.pages,
            extent: self.extent,
        })
    }
}

/// Writes a reserved part of a [`Region`], also across the end of the AUX area.
///
/// What was [`put`](Self::put) counts as written after [`commit`](Self::commit).
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, testing::{Bench, Setup}, Attr, AuxPmu, Event, Pmu};
/// # struct Driver;
/// # #[vtable]
/// # impl Pmu for Driver {
/// #     type Config = ();
/// #     type Event = ();
/// #     type Count = ();
/// #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
/// #         Ok(())
/// #     }
/// # }
/// #
/// # #[vtable]
/// # impl AuxPmu for Driver {
/// #     type Buffer = ();
/// #     type Trace = ();
/// #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
/// #         Ok(())
/// #     }
/// fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
///     let mut region = transaction.region();
///     let mut record = || {
///         let mut writer = region.reserve(12)?;
///
///         // Its fields, one after the other, and not a byte more than was reserved.
///         writer.put(&7u64.to_le_bytes())?;
///         writer.put(&1u32.to_le_bytes())?;
///         # if writer.put(&[0]).is_ok() { return Err(aux::Full); }
///         writer.commit();
///         Ok(())
///     };
///
///     record().map_err(|_: aux::Full| ENOSPC)
/// }
/// #     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _run: ()) -> aux::Commit {
/// #         aux::Commit::written(transaction, aux::Loss::None)
/// #     }
/// # }
/// let mut bench = Bench::new(Driver, &Setup::default())?;
///
/// bench.add()?;
/// bench.del();
/// assert_eq!(bench.head(), 12);
/// assert_eq!(bench.byte(8), Some(1));
/// # Ok::<(), Error>(())
/// ```
#[must_use]
pub struct Writer<'a> {
    pages: &'a Pages,
    extent: &'a mut Extent,
    at: Pos,
    left: usize,
}

impl Writer<'_> {
    /// Writes `bytes` behind what was put before. [`Full`] if less is reserved, and then nothing is
    /// written.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        self.take(bytes.len())?;

        let split = self.pages.size().split(self.at, bytes.len()).ok_or(Full)?;
        let (front, back) = bytes.split_at_checked(split.first.len()).ok_or(Full)?;

        self.pages.copy_in(split.first.start, front)?;
        self.pages.copy_in(split.second.start, back)?;

        self.at = self
            .at
            .advance(u64::try_from(bytes.len()).map_err(|_| Full)?);
        Ok(())
    }

    /// Writes `len` bytes of `bounce`, from position `pos` on, behind what was put before. [`Full`]
    /// if less is reserved or `bounce` has less, and then nothing is written.
    ///
    /// A unit that writes to `bounce` at the same time may garble the bytes.
    pub fn copy(&mut self, bounce: &impl BounceMemory, pos: Pos, len: usize) -> Result<(), Full> {
        if len > bounce.size().get() {
            return Err(Full);
        }
        bounce
            .read(|at| Some(self.copy_from(at, pos, len)))
            .unwrap_or(Err(Full))
    }

    /// `at` must have the guarantees of [`Source::read`](super::bounce::Source::read).
    fn copy_from(
        &mut self,
        at: &dyn Fn(Pos) -> Option<(ptr::NonNull<u8>, usize)>,
        mut pos: Pos,
        len: usize,
    ) -> Result<(), Full> {
        let mut left = len;
        self.take(len)?;

        while left > 0 {
            let offset = self.pages.size().offset(self.at);
            let (to, space) = self.pages.at(offset).ok_or(Full)?;
            let (from, available) = at(pos).ok_or(Full)?;
            let now = left.min(space).min(available);

            // The C function, since a unit may write to this memory meanwhile: in the kernel's
            // memory model that garbles bytes and nothing more.
            //
            // SAFETY:
            // - `from` is valid for reads of `available` bytes by the guarantee of
            //   `Source::read()`, and `to` for writes of `space` bytes by that of `Pages::at()`.
            //   `now` exceeds neither.
            // - They do not overlap: `to` is in a page of perf's, which is not bounce memory.
            unsafe { bindings::memcpy(to.as_ptr().cast(), from.as_ptr().cast(), now) };

            // Cannot overflow: at most what is left.
            left = left.wrapping_sub(now);
            let now = u64::try_from(now).map_err(|_| Full)?;
            pos = pos.advance(now);
            self.at = self.at.advance(now);
        }
        Ok(())
    }

    /// Takes `len` bytes of what is reserved.
    fn take(&mut self, len: usize) -> Result<(), Full> {
        self.left = self.left.checked_sub(len).ok_or(Full)?;
        Ok(())
    }

    /// Whether all that is reserved has been put.
    pub(super) fn is_filled(&self) -> bool {
        self.left == 0
    }

    /// Counts what was put as written.
    pub fn commit(self) {
        // INVARIANT: `reserve()` checked the space for all that `put()` accepted.
        self.extent.written = self.at.distance_from(self.extent.head);
    }
}

impl Pages {
    /// Copies `bytes` to the pages, from `offset` on. They must end within the pages.
    ///
    /// To be called for the open transaction on these pages, or for pages of the framework's own.
    fn copy_in(&self, mut offset: usize, mut bytes: &[u8]) -> Result<(), Full> {
        while !bytes.is_empty() {
            let (place, space) = self.at(offset).ok_or(Full)?;
            let (now, rest) = bytes.split_at(space.min(bytes.len()));

            // SAFETY:
            // - `now` is valid for reads of its length.
            // - `place` is valid for writes of `space` bytes, no fewer than that, by the guarantee
            //   of `Pages::at()`.
            // - They do not overlap: no Rust reference to the pages exists.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), place.as_ptr(), now.len()) };

            // Cannot overflow: an offset in the pages.
            offset = offset.wrapping_add(now.len());
            bytes = rest;
        }

        Ok(())
    }

    /// As [`Self::copy_in`], where `address` must be the physical address of `offset`; else
    /// [`EFAULT`], perhaps after some of the bytes were copied.
    pub(super) fn store(&self, mut offset: usize, mut address: u64, mut bytes: &[u8]) -> Result {
        while !bytes.is_empty() {
            let (place, space) = self.at(offset).ok_or(EFAULT)?;
            // SAFETY: This is the address of a page of the ring, by the guarantee of `at()`. It is
            // from the page allocator, so it is in the direct mapping of memory.
            let physical = unsafe { bindings::rust_perf_virt_to_phys(place.as_ptr().cast()) };
            if physical != address {
                return Err(EFAULT);
            }
            let (now, rest) = bytes.split_at(space.min(bytes.len()));

            // SAFETY:
            // - `now` is valid for reads of its length.
            // - `place` is valid for writes of `space` bytes, no fewer than that, by the guarantee
            //   of `Pages::at()`.
            // - They do not overlap: no Rust reference to the pages exists.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), place.as_ptr(), now.len()) };

            // Cannot overflow: an offset in the memory, and an address of it.
            offset = offset.wrapping_add(now.len());
            address = address.wrapping_add(u64::try_from(now.len())?);
            bytes = rest;
        }

        Ok(())
    }
}

mod tests;
