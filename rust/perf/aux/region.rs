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
    /// That of the transaction that is open on `handle`, with nothing written.
    #[inline]
    pub(crate) fn new(handle: &Handle, pages: &Pages) -> Self {
        // In overwrite mode perf sets neither size nor wakeup, and the area itself limits a write.
        // In non-overwrite mode perf offers at most one byte less than the area.
        let space = match pages.mode() {
            Mode::Linear => handle.space().min(pages.size().len().saturating_sub(1)),
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

    /// Goes on from where the handle is after a skip. Nothing is written.
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
            Mode::Linear => Some(self.extent.space),
            Mode::Overwrite => None,
        }
    }

    /// Bytes that [`Writer`]s have written.
    #[inline]
    pub fn written(&self) -> u64 {
        self.extent.written
    }

    /// Whether what is written reaches the wakeup position, so that the reader waits for a commit.
    #[inline]
    pub fn wakeup_due(&self) -> bool {
        match self.mode() {
            Mode::Linear => {
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
            Mode::Linear => Some(self.extent.wakeup),
            Mode::Overwrite => None,
        }
    }

    /// Writes `bytes` as a software unit does that got `address` from a table: `offset` bytes after
    /// the head, where `address` must be the physical address; else [`EFAULT`]. [`ENOSPC`] beyond
    /// the [space](Self::space). After an error some of the bytes may have been written.
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

    /// Reserves the next `len` bytes of the region. [`Full`] if there are fewer, or if `len` exceeds
    /// the AUX area.
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

/// Writes a reserved part of a [`Region`], across the end of the AUX area where it wraps.
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

            // The C function, since a unit may write to this memory while it runs: in the kernel's
            // memory model that garbles bytes and nothing more.
            //
            // SAFETY:
            // - `from` is valid for reads of `available` bytes by the guarantee of `Source::read()`,
            //   and `to` for writes of `space` bytes by that of `Pages::at()`. `now` exceeds
            //   neither.
            // - They do not overlap: a page of perf's, which is none of the bounce memory's.
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
            // SAFETY: The address of a page in the direct mapping of memory.
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

#[kunit_tests(rust_perf_aux_region)]
mod tests {
    use super::*;
    use core::ffi::c_void;
    use kernel::page::PAGE_SIZE;

    /// A ring's memory as perf makes it: pages, and an array of their addresses.
    struct Memory {
        pages: KVec<KBox<[u8; PAGE_SIZE]>>,
        addresses: KVec<*mut c_void>,
    }

    impl Memory {
        fn new(nr_pages: usize) -> Result<Self> {
            let mut pages = KVec::new();
            let mut addresses = KVec::new();

            for _ in 0..nr_pages {
                let mut page = KBox::new([0; PAGE_SIZE], GFP_KERNEL)?;

                addresses.push(ptr::from_mut(&mut *page).cast(), GFP_KERNEL)?;
                pages.push(page, GFP_KERNEL)?;
            }
            Ok(Self { pages, addresses })
        }

        fn byte(&self, offset: usize) -> Option<u8> {
            let page = self.pages.get(offset / PAGE_SIZE)?;
            let place = ptr::from_ref(page.get(offset % PAGE_SIZE)?);

            // SAFETY: Valid for reads. Volatile, since the region writes through the addresses.
            Some(unsafe { place.read_volatile() })
        }
    }

    /// The pages of `memory`, and an extent of them from `head` on.
    ///
    /// # Safety
    ///
    /// `memory` must outlive them.
    unsafe fn area(
        memory: &mut Memory,
        head: u64,
        space: u64,
        wakeup: u64,
        overwrite: bool,
    ) -> Result<(Pages, Extent)> {
        let nr_pages = memory.pages.len().try_into()?;
        // SAFETY: The array holds the addresses of that many pages, which live long enough by the
        // safety requirement.
        let pages = unsafe { Pages::new(memory.addresses.as_mut_ptr(), nr_pages, overwrite)? };
        let mut handle = Handle::new();

        handle.set_head(Pos::new(head));
        handle.0.size = space.try_into()?;
        handle.0.wakeup = wakeup.try_into()?;
        let extent = Extent::new(&handle, &pages);
        Ok((pages, extent))
    }

    struct Case {
        head: u64,
        space: u64,
        overwrite: bool,
        /// Lengths to write, one after the other, and whether they fit.
        writes: &'static [(usize, bool)],
        written: u64,
    }

    const RING: u64 = 2 * 4096;

    const CASES: &[Case] = &[
        // To the last byte, and not one more.
        Case {
            head: 0,
            space: 100,
            overwrite: false,
            writes: &[(60, true), (41, false), (40, true), (1, false), (0, true)],
            written: 100,
        },
        // Over the end of a page, and over the end of the ring, from a head that went round.
        Case {
            head: 5 * RING + 4090,
            space: RING - 1,
            overwrite: false,
            writes: &[
                (10, true),
                (4090, true),
                (4000, true),
                (92, false),
                (91, true),
            ],
            written: RING - 1,
        },
        // A head at the end of the counter.
        Case {
            head: u64::MAX - 9,
            space: 64,
            overwrite: false,
            writes: &[(64, true), (1, false)],
            written: 64,
        },
        // perf never offers the whole ring; if it did, we would not take it.
        Case {
            head: 0,
            space: u64::MAX,
            overwrite: false,
            writes: &[(2 * 4096, false), (2 * 4096 - 1, true), (1, false)],
            written: RING - 1,
        },
        // No end in overwrite mode, whatever the handle's size says.
        Case {
            head: 17,
            space: 0,
            overwrite: true,
            writes: &[
                (2 * 4096 + 1, false),
                (2 * 4096, true),
                (2 * 4096, true),
                (3, true),
            ],
            written: 2 * RING + 3,
        },
    ];

    /// Runs a case; true if every byte is where it must be, and no other was touched.
    fn check(case: &Case) -> Result<bool> {
        let mut memory = Memory::new(2)?;
        // SAFETY: `memory` is dropped last.
        let (pages, mut extent) =
            unsafe { area(&mut memory, case.head, case.space, 0, case.overwrite)? };
        let mut region = Region::new(&pages, &mut extent);
        let mut model = KVec::from_elem(0u8, 2 * PAGE_SIZE, GFP_KERNEL)?;
        let mut at = case.head;

        for (i, &(len, fits)) in (1u8..).zip(case.writes) {
            let bytes = KVec::from_elem(i, len, GFP_KERNEL)?;

            match region.reserve(len) {
                Ok(mut writer) if fits => {
                    // In two pieces; a third would be one too many.
                    let (front, back) = bytes.split_at(len / 3);
                    if writer.put(front).is_err()
                        || writer.put(back).is_err()
                        || writer.put(&[0]).is_ok()
                    {
                        return Ok(false);
                    }
                    writer.commit();
                }
                Err(Full) if !fits => continue,
                _ => return Ok(false),
            }

            for _ in 0..len {
                let place = usize::try_from(at % RING)?;
                *model.get_mut(place).ok_or(EINVAL)? = i;
                at = at.wrapping_add(1);
            }
        }

        Ok(region.written() == case.written
            && (0..2 * PAGE_SIZE).all(|i| memory.byte(i) == model.get(i).copied()))
    }

    #[test]
    fn writes_land_where_they_must() {
        for case in CASES {
            assert!(check(case) == Ok(true));
        }
    }

    /// What is put but not committed does not count.
    #[test]
    fn dropped_writer_counts_nothing() {
        let written = || -> Result<u64> {
            let mut memory = Memory::new(1)?;
            // SAFETY: `memory` is dropped last.
            let (pages, mut extent) = unsafe { area(&mut memory, 0, 100, 0, false)? };
            let mut region = Region::new(&pages, &mut extent);

            if let Ok(mut writer) = region.reserve(10) {
                writer.put(&[1; 10]).map_err(|_| EINVAL)?;
            }
            Ok(region.written())
        };

        assert!(written() == Ok(0));
    }

    #[test]
    fn wakeup_is_a_position() {
        // Head, wakeup point, bytes written, due; also where the counter wraps.
        let table = [
            (0, 64, 63, false),
            (0, 64, 64, true),
            (100, 64, 0, false),
            (100, 64, 1, true),
            (u64::MAX - 9, 20, 29, false),
            (u64::MAX - 9, 20, 30, true),
        ];

        for (head, wakeup, len, due) in table {
            let seen = || -> Result<bool> {
                let mut memory = Memory::new(1)?;
                // SAFETY: `memory` is dropped last.
                let (pages, mut extent) = unsafe { area(&mut memory, head, 4095, wakeup, false)? };
                let mut region = Region::new(&pages, &mut extent);
                let mut writer = region.reserve(len).map_err(|_| EINVAL)?;

                writer
                    .put([0; 64].get(..len).ok_or(EINVAL)?)
                    .map_err(|_| EINVAL)?;
                writer.commit();
                Ok(region.wakeup_due())
            };

            assert!(seen() == Ok(due));
        }
    }
}
