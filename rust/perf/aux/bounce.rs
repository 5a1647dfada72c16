// SPDX-License-Identifier: GPL-2.0

//! Memory for units that cannot write to the ring's pages.

use super::pages::{
    Chunk,
    Pages, //
};
use crate::{
    bindings,
    context::DropInTask, //
};
use auxcore::ring::{
    Pos,
    Size, //
};
use core::{
    ffi::c_void,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// Bounce memory, for a unit that cannot write to the ring itself. The driver
/// [copies](super::Writer::copy) the trace from there to the ring.
///
/// Ordinary memory of the kernel's, cached and zeroed. It is made in [`AuxPmu::setup_aux`], by
/// [`Pages::bounce_scattered`] or [`Pages::bounce_contiguous`], kept in [`AuxPmu::Buffer`], and
/// freed when it is dropped, in any context. A unit may write to it at any time, so it cannot be
/// borrowed as a `&[u8]`.
///
/// C counterparts: the buffers of `tmc_alloc_etr_buf()` and `hisi_ptt_alloc_trace_buf()`.
///
/// [`AuxPmu::setup_aux`]: crate::AuxPmu::setup_aux
/// [`AuxPmu::Buffer`]: crate::AuxPmu::Buffer
///
/// # Invariants
///
/// `pages` is the array in `_memory`.
pub struct Bounce {
    pages: Pages,
    // Dropped after `pages`, which points into it.
    _memory: DropInTask<(Memory, Charge)>,
}

// SAFETY: This is memory of the kernel's, which is mapped for all tasks alike.
unsafe impl Send for Bounce {}
// SAFETY: Methods with `&self` read memory, in a way that a unit's writes do not harm, or store
// whole words.
unsafe impl Sync for Bounce {}

impl Bounce {
    /// `size` bytes for the AUX area `ring`, in pieces of 2^`order` pages.
    #[inline(never)]
    fn new(ring: &Pages, size: Size, order: u32) -> Result<Self> {
        let count = size.get() / PAGE_SIZE;
        let charge = Charge::new(ring, count)?;
        let mut memory = Memory::new(count, order, ring.node())?;
        let addresses = memory.addresses.as_mut_ptr();
        // SAFETY: This function is compiled into this crate's module.
        let memory = unsafe { DropInTask::new((memory, charge), ptr::null_mut())? };

        // INVARIANT: No code changes the array any more, so its elements do not move.
        Ok(Self {
            // SAFETY: The addresses of `count` pages, which are freed together with `pages`.
            pages: unsafe { Pages::new(addresses, count.try_into()?, true)? },
            _memory: memory,
        })
    }

    /// The size in bytes.
    pub fn size(&self) -> Size {
        self.pages.size()
    }

    /// The pieces of memory that it is made of, a page each: see [`Pages::chunks`].
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + Clone + '_ {
        self.pages.chunks()
    }

    /// Writes `bytes` to position `pos`, for a unit in software that got `address` from a table.
    /// Positions wrap at the size of the memory. [`EFAULT`] if `address` is not the physical
    /// address of `pos`.
    ///
    /// A unit in hardware does the same by itself.
    pub fn store(&mut self, pos: Pos, address: u64, bytes: &[u8]) -> Result {
        let offset = self.size().offset(pos);

        self.pages.store(offset, address, bytes)
    }

    /// Writes `word` to position `pos`, for one of several units in software that share the memory.
    /// Positions wrap at the size of the memory. [`EINVAL`] if `pos` is not a multiple of the
    /// word's length.
    ///
    /// The driver must order such stores before its [copy](super::Writer::copy) of them.
    pub fn store_word(&self, pos: Pos, word: u64) -> Result {
        let (place, space) = self.pages.at(self.size().offset(pos)).ok_or(EFAULT)?;
        let place = place.cast::<u64>();

        if !place.is_aligned() || space < size_of::<u64>() {
            return Err(EINVAL);
        }
        // SAFETY:
        // - `place` is aligned, and valid for reads and writes of `space` bytes, no fewer than a
        //   word's, by the guarantee of `Pages::at()`; the pages live as long as `self`.
        // - Other calls of this store atomically as well. `store()` has `&mut self`. The C
        //   functions that read the memory meanwhile get garbled bytes and nothing more, in the
        //   kernel's memory model.
        let place = unsafe { Atomic::from_ptr(place.as_ptr()) };

        place.store(word, Relaxed);
        Ok(())
    }
}

/// Memory that [`Writer::copy`](super::Writer::copy) reads: [`Bounce`], or
/// [`CoherentBounce`](super::CoherentBounce).
pub trait BounceMemory: Source {}

impl<S: Source> BounceMemory for S {}

/// The implementation of a [`BounceMemory`]. Drivers cannot implement it.
pub trait Source {
    #[doc(hidden)]
    fn size(&self) -> Size;

    /// Calls `f` with a function that returns the address of a position, and how many bytes there
    /// are from there on. [`None`] if the memory has been freed.
    ///
    /// # Guarantees
    ///
    /// Each address is valid for reads of that many bytes until `f` has returned, and no page of an
    /// AUX area is among them.
    #[doc(hidden)]
    fn read<R>(
        &self,
        f: impl FnOnce(&dyn Fn(Pos) -> Option<(NonNull<u8>, usize)>) -> Option<R>,
    ) -> Option<R>;
}

impl Source for Bounce {
    fn size(&self) -> Size {
        self.pages.size()
    }

    #[inline]
    fn read<R>(
        &self,
        f: impl FnOnce(&dyn Fn(Pos) -> Option<(NonNull<u8>, usize)>) -> Option<R>,
    ) -> Option<R> {
        f(&|pos| self.pages.at(self.pages.size().offset(pos)))
    }
}

/// The charge for memory that belongs to an AUX area, to the user who maps the area.
///
/// # Invariants
///
/// `0` is from `rust_perf_charge()`, and uncharged once.
pub(super) struct Charge(*mut bindings::rust_perf_charge);

// SAFETY: Any task may uncharge it.
unsafe impl Send for Charge {}
// SAFETY: Nothing takes `&self`.
unsafe impl Sync for Charge {}

impl Charge {
    /// Charges `pages` pages, as perf charges those of `ring`. [`EPERM`] if that exceeds the user's
    /// limits; perf turns it into [`ENOMEM`].
    pub(super) fn new(ring: &Pages, pages: usize) -> Result<Self> {
        let (_, ring) = ring.addresses();
        // CAST: A `c_ulong` is as wide as `usize`.
        //
        // SAFETY: This is a task that may sleep: drivers see `Pages` in `setup_aux()` only.
        let charge = unsafe { bindings::rust_perf_charge(pages as c_ulong, ring as c_ulong) };

        // INVARIANT: Just charged.
        from_err_ptr(charge).map(Self)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // SAFETY: The charge is from `rust_perf_charge()`, by the type invariant, and is uncharged
        // once: here.
        unsafe { bindings::rust_perf_uncharge(self.0) };
    }
}

/// The pages of bounce memory.
///
/// # Invariants
///
/// Each address is that of a page which `Self` owns. Of each 2^`order` pages the first was
/// allocated with that order, and the others follow it in memory.
struct Memory {
    addresses: KVVec<*mut c_void>,
    order: u32,
}

// SAFETY: Any task may free the pages.
unsafe impl Send for Memory {}

impl Memory {
    fn new(count: usize, order: u32, node: c_int) -> Result<Self> {
        let each = 1usize.checked_shl(order).ok_or(EINVAL)?;
        // INVARIANT: There is no page yet.
        let mut memory = Self {
            // User space chooses the size. A failure is `ENOMEM`, without a report in the log.
            addresses: KVVec::with_capacity(count, GFP_KERNEL | __GFP_NOWARN)?,
            order,
        };

        for _ in (0..count).step_by(each) {
            // SAFETY: A node that is there, or none, by the invariant of `Pages`; this is a task
            // that may sleep: drivers see `Pages` in `setup_aux()` only.
            let address = unsafe { bindings::rust_perf_alloc_pages(node, order) };
            let first = ptr::with_exposed_provenance_mut::<c_void>(address);
            let first = NonNull::new(first).ok_or(ENOMEM)?.as_ptr();

            for page in 0..each {
                let page = first.wrapping_byte_add(page.wrapping_mul(PAGE_SIZE));

                // INVARIANT: Just allocated. There is space: `count` in all.
                memory.addresses.push(page, GFP_KERNEL)?;
            }
        }
        Ok(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let each = 1usize.checked_shl(self.order).unwrap_or(1);

        for page in self.addresses.iter().step_by(each) {
            // CAST: A `c_ulong` is as wide as an address.
            let address = page.expose_provenance() as c_ulong;

            // SAFETY: The pages are allocated with that order, by the type invariant, and are freed
            // once: here. The framework relies on the driver to quiesce a unit that got the address
            // before the memory is dropped.
            unsafe { bindings::free_pages(address, self.order) };
        }
    }
}

impl Pages {
    /// Bounce memory of `size` bytes, in pages that need not be contiguous.
    ///
    /// It is charged to the user who maps the AUX area, like the area itself: [`EPERM`] if that
    /// exceeds `perf_event_mlock_kb` at its default and `RLIMIT_MEMLOCK`, unless the user has
    /// `CAP_IPC_LOCK`. [`EINVAL`] if `size` is less than a page, [`ENOMEM`] if there is no such
    /// memory. To be called from a task that may sleep: in
    /// [`AuxPmu::setup_aux`](crate::AuxPmu::setup_aux).
    pub fn bounce_scattered(&self, size: Size) -> Result<Bounce> {
        if size.get() < PAGE_SIZE {
            return Err(EINVAL);
        }
        Bounce::new(self, size, 0)
    }

    /// As [`Self::bounce_scattered`], but physically contiguous. Its address is a multiple of its
    /// size.
    ///
    /// The page allocator has no pieces of more than a few MiB. After the machine has run for a
    /// while, it often has no large piece left.
    pub fn bounce_contiguous(&self, size: Size) -> Result<Bounce> {
        let pages = size.get() / PAGE_SIZE;
        let order = pages.checked_ilog2().ok_or(EINVAL)?;

        if order > bindings::MAX_PAGE_ORDER {
            return Err(ENOMEM);
        }
        Bounce::new(self, size, order)
    }
}

#[kunit_tests(rust_perf_aux_bounce)]
mod tests {
    use super::{
        super::{
            core::Handle,
            region::{
                Extent,
                Full,
                Region, //
            }, //
            table::{
                Entry,
                Layout,
                Table,
                Walker, //
            },
        },
        *,
    };

    /// Bounce memory of both kinds. The `Pages` for which it is made have no memory.
    fn bounces(size: usize) -> Result<[Bounce; 2]> {
        let mut none = [ptr::null_mut(); 1];
        // SAFETY: The page is never accessed.
        let pages = unsafe { Pages::new(none.as_mut_ptr(), 1, true)? };
        let size = Size::new(size).ok_or(EINVAL)?;

        Ok([
            pages.bounce_scattered(size)?,
            pages.bounce_contiguous(size)?,
        ])
    }

    /// The byte that the unit writes at a position.
    fn mark(pos: u64) -> u8 {
        u8::try_from(pos % 251).unwrap_or(0)
    }

    /// A unit writes the memory of its table, and wraps. The ring gets the newest bytes.
    #[test]
    fn round_and_out() -> Result {
        for bounce in &mut bounces(4 * PAGE_SIZE)? {
            let size = bounce.size();
            let layout = Layout::new(0x1000, 8).ok_or(EINVAL)?;
            let entries = KVec::from_elem(Entry::default(), 8, GFP_KERNEL)?;
            let starts = KVec::from_elem(0, 8, GFP_KERNEL)?;
            let chunks = bounce.chunks().map(Into::into);
            let table = Table::new(entries, starts, layout, chunks).map_err(|_| EINVAL)?;
            let mut unit = Walker::new(table.seek(Pos::new(0)));
            let mut pos = 0u64;

            // Pieces that do not divide a page.
            for _ in 0..300 {
                let mut bytes = [0; 104];
                for (i, byte) in (0u64..).zip(&mut bytes) {
                    *byte = mark(pos + i);
                }
                let mut done = 0usize;
                let outcome = unit
                    .write(
                        104,
                        |at| table.fetch(at),
                        |address, len| {
                            let end = done + usize::try_from(len).unwrap_or(0);
                            let piece = bytes.get(done..end).unwrap_or(&[]);
                            let at = Pos::new(pos + u64::try_from(done).unwrap_or(0));

                            assert!(bounce.store(at, address, piece).is_ok());
                            done = end;
                        },
                    )
                    .map_err(|_| EINVAL)?;
                assert_eq!(outcome.written, 104);
                pos += 104;
            }

            // The ring: 8 pages, written from the middle of a page and around its end.
            let mut memory = KVec::new();
            let mut addresses = KVec::new();
            for _ in 0..8 {
                let mut page = KBox::new([0u8; PAGE_SIZE], GFP_KERNEL)?;
                addresses.push(ptr::from_mut(&mut *page).cast::<c_void>(), GFP_KERNEL)?;
                memory.push(page, GFP_KERNEL)?;
            }
            // SAFETY: The addresses of 8 pages, which are dropped last.
            let area = unsafe { Pages::new(addresses.as_mut_ptr(), 8, true)? };
            let head = Pos::new(7 * 4096 + 100);
            let mut handle = Handle::new();
            handle.set_head(head);
            let mut extent = Extent::new(&handle, &area);
            let mut region = Region::new(&area, &mut extent);
            let len = size.get();
            let mut writer = region.reserve(len).map_err(|_| EINVAL)?;

            assert!(writer.copy(bounce, Pos::new(0), len + 1) == Err(Full));
            let newest = Pos::new(pos).retreat(size.len());
            assert!(writer.copy(bounce, newest, len).is_ok());
            assert!(writer.copy(bounce, newest, 1) == Err(Full));
            writer.commit();
            assert_eq!(region.written(), size.len());

            for byte in 0..size.len() {
                let offset = usize::try_from((head.get() + byte) % (8 * 4096))?;
                let page = memory.get(offset / PAGE_SIZE).ok_or(EINVAL)?;
                let place = ptr::from_ref(page.get(offset % PAGE_SIZE).ok_or(EINVAL)?);
                // SAFETY: `place` is from a reference. The read is volatile, since the byte was
                // written through the addresses.
                let read = unsafe { place.read_volatile() };

                assert_eq!(read, mark(newest.get() + byte));
            }
        }
        Ok(())
    }

    /// A table with wrong addresses does no harm.
    #[test]
    fn strays_are_refused() -> Result {
        for bounce in &mut bounces(2 * PAGE_SIZE)? {
            let mut physical = KVec::new();
            for chunk in bounce.chunks() {
                physical.push(chunk.physical(), GFP_KERNEL)?;
            }
            let (first, second) = match physical.as_slice() {
                &[first, second] => (first, second),
                _ => return Err(EINVAL),
            };
            // Position, address, length, and the expected result; also after many wraps.
            let table = [
                (0, first, 4096, Ok(())),
                (4096, second, 4096, Ok(())),
                (4095, first + 4095, 1, Ok(())),
                (9 * 8192 + 4096 + 7, second + 7, 64, Ok(())),
                (0, first + 1, 1, Err(EFAULT)),
                (0, second, 64, Err(EFAULT)),
                (4096, first, 64, Err(EFAULT)),
                (0, 0, 1, Err(EFAULT)),
                // Over the end of the memory.
                (8191, second + 4095, 2, Err(EFAULT)),
            ];

            for (pos, address, len, expected) in table {
                let bytes = KVec::from_elem(1, len, GFP_KERNEL)?;

                assert!(bounce.store(Pos::new(pos), address, &bytes) == expected);
            }
        }
        Ok(())
    }

    #[test]
    fn words_are_stored_whole() -> Result {
        for bounce in &bounces(2 * PAGE_SIZE)? {
            // Position, its offset in the memory, and the expected result.
            let table = [
                (0, 0, Ok(())),
                (4096, 4096, Ok(())),
                (8184, 8184, Ok(())),
                (9 * 8192 + 4088, 4088, Ok(())),
                (1, 0, Err(EINVAL)),
                (8188, 0, Err(EINVAL)),
            ];

            for (word, (pos, offset, expected)) in (1u64..).zip(table) {
                assert!(bounce.store_word(Pos::new(pos), word) == expected);
                let stored = bounce.read(|at| {
                    let (place, _) = at(Pos::new(offset))?;
                    // SAFETY: `place` is valid for reads of a word, by the guarantee of `read()`:
                    // the offset is aligned. The read is volatile, since the word was written
                    // through another pointer.
                    Some(unsafe { place.cast::<u64>().read_volatile() })
                });
                if expected.is_ok() {
                    assert!(stored == Some(word));
                }
            }
        }
        Ok(())
    }

    #[test]
    fn contiguous_is_one_piece() -> Result {
        let [_, contiguous] = bounces(16 * PAGE_SIZE)?;
        let mut next = None;

        for chunk in contiguous.chunks() {
            let first = *next.get_or_insert(chunk.physical());
            assert_eq!(chunk.physical(), first);
            next = Some(first + 4096);
        }
        assert_eq!(contiguous.chunks().count(), 16);
        Ok(())
    }

    #[test]
    fn sizes_are_checked() -> Result {
        assert!(bounces(PAGE_SIZE / 2).err() == Some(EINVAL));
        // More than the page allocator has in one piece: it fails without a warning.
        assert!(bounces(PAGE_SIZE << 11).err() == Some(ENOMEM));
        Ok(())
    }
}
