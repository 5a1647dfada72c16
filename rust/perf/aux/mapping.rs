// SPDX-License-Identifier: GPL-2.0

//! A ring in one piece.

use super::{
    buffer::Pages,
    window::Full, //
};
use crate::bindings;
use auxcore::ring::{
    Pos,
    Size, //
};
use core::ptr::NonNull;
use kernel::prelude::*;

/// The pages of a ring, mapped side by side into the kernel's address space.
///
/// Made by [`Pages::map`], kept in [`Pmu::Buffer`](crate::Pmu::Buffer), and so dropped in
/// `free_aux()`, before perf frees the pages. That is where it belongs, but memory safety does not
/// hang on it: the mapping has a reference to each page. Kept for longer, it keeps memory that
/// nobody else looks at any more.
///
/// The ring's memory is shared: with user space, which reads it at any time, perhaps with a unit
/// that writes to it. There is no way to a `&[u8]` of it. Where in the ring one may write is for
/// the session's [`Window`](super::Window) to say; a mapping only sees that it stays within the ring.
///
/// To be dropped in a task, or in an interrupt handler, but not in NMI. So not in a callback on the
/// event's CPU.
///
/// C counterpart: `vmap()` and `vunmap()`, as in `arm_spe_pmu`.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, testing::{Bench, Setup}, Attr, Event, Pmu};
/// # struct Driver;
/// # #[vtable]
/// # impl Pmu for Driver {
/// #     type Config = ();
/// #     type Event = ();
/// #     type Run = ();
/// #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
/// #         Ok(())
/// #     }
/// type Buffer = aux::Mapping;
///
/// fn setup_aux(&self, _event: &Event<'_, Self>, pages: &aux::Pages) -> Result<aux::Mapping> {
///     pages.map()
/// }
///
/// fn start(&self, session: &mut aux::Session<'_, Self>) -> Result {
///     // Where the window begins, and over the end of the ring where need be.
///     let head = session.window.head();
///     session.buffer.copy_in(head, b"trace").map_err(|_| ENOSPC)
/// }
///
/// fn quiesce(&self, _session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
///     // What went through the mapping, the window does not know.
///     aux::Written::new(5, aux::Published::cpu_stores(), aux::Loss::None)
/// }
/// # }
///
/// let mut bench = Bench::new(Driver, &Setup::default())?;
///
/// bench.add()?;
/// bench.del();
/// assert!(bench.read()?.as_slice() == b"trace");
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// `address` comes from `rust_perf_vmap()`: `size` bytes that are mapped until it is given to
/// `rust_perf_vunmap()`, which is done once, by `drop()`.
pub struct Mapping {
    address: NonNull<u8>,
    size: Size,
}

// SAFETY: Memory of the kernel's, which is mapped for all tasks alike.
unsafe impl Send for Mapping {}
// SAFETY: What takes `&self` does not touch the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(pages: &Pages) -> Result<Self> {
        let (addresses, count) = pages.addresses();
        let count = count.try_into()?;

        // SAFETY:
        // - `addresses` has `count` addresses of pages from the page allocator, which are perf's
        //   and live, by the invariant of `Pages`.
        // - This is a task that may sleep: drivers see `Pages` in `setup_aux()` only, and cannot
        //   keep it.
        let address = unsafe { bindings::rust_perf_vmap(addresses.as_ptr(), count) };

        // INVARIANT: As it says; nobody else has the address.
        Ok(Self {
            address: NonNull::new(address).ok_or(ENOMEM)?.cast(),
            size: pages.size(),
        })
    }

    /// Where it begins, for a unit that is told virtual addresses.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The size of the ring.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Writes `bytes` from position `pos` on, over the end of the ring where need be. [`Full`] if
    /// they are more than the ring, and then nothing is written.
    pub fn copy_in(&mut self, pos: Pos, bytes: &[u8]) -> Result<(), Full> {
        let split = self.size.split(pos, bytes.len()).ok_or(Full)?;
        let (front, back) = bytes.split_at_checked(split.first.len()).ok_or(Full)?;

        for (bytes, offset) in [(front, split.first.start), (back, split.second.start)] {
            // SAFETY: `Size::split()` gives offsets in the ring, at most its size: within the
            // mapping, by the type invariant, or right behind it.
            let place = unsafe { self.address.add(offset) };

            // The function of C, since others may read this memory, and a unit write to it, while
            // it runs: in the kernel's memory model that garbles bytes, and nothing more.
            //
            // SAFETY:
            // - `bytes` is valid for reads of its length.
            // - `place` is valid for writes of that many: `Size::split()` keeps both ranges in the
            //   ring, which is mapped by the type invariant.
            // - They do not overlap: nobody has a Rust reference to the ring's pages.
            unsafe { bindings::memcpy(place.as_ptr().cast(), bytes.as_ptr().cast(), bytes.len()) };
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, and for the last time. Nobody writes through it: that
        // takes `&mut self`; a unit that was given the address has been quiesced before its session's
        // buffer is dropped.
        unsafe { bindings::rust_perf_vunmap(self.address.as_ptr().cast()) };
    }
}

#[kunit_tests(rust_perf_aux_pages)]
mod tests {
    use super::{
        super::table::{
            Entry,
            Layout,
            Table, //
        },
        *,
    };
    use core::ffi::c_void;
    use kernel::page::PAGE_SIZE;

    /// A ring's memory as perf makes it, in chunks of these orders.
    ///
    /// # Invariants
    ///
    /// Each address is that of a page from `rust_perf_alloc_chunk()`.
    struct Memory {
        addresses: KVec<*mut c_void>,
        freed: bool,
    }

    impl Memory {
        fn new(orders: &[u32]) -> Result<Self> {
            let mut memory = Self {
                addresses: KVec::new(),
                freed: false,
            };

            for &order in orders {
                let mut chunk = [core::ptr::null_mut(); 8];
                let count = 1 << order;
                if count > chunk.len() {
                    return Err(EINVAL);
                }
                // SAFETY: `chunk` has room for the addresses of that many pages.
                if !unsafe { bindings::rust_perf_alloc_chunk(chunk.as_mut_ptr(), order) } {
                    return Err(ENOMEM);
                }
                for address in chunk.iter().take(count) {
                    memory.addresses.push(*address, GFP_KERNEL)?;
                }
            }
            Ok(memory)
        }

        /// # Safety
        ///
        /// It must not be used after the memory is freed.
        unsafe fn pages(&mut self) -> Result<Pages> {
            let count = self.addresses.len().try_into()?;

            // SAFETY: The addresses of that many pages; the rest by the safety requirement.
            unsafe { Pages::new(self.addresses.as_mut_ptr(), count, false) }
        }

        fn byte(&self, offset: usize) -> Option<u8> {
            let page = self.addresses.get(offset / PAGE_SIZE)?.cast::<u8>();
            // SAFETY: Within the page.
            let place = unsafe { page.add(offset % PAGE_SIZE) };

            // SAFETY: Valid for reads by the type invariant, until `free()`, which the tests call
            // last. Volatile, since it is written through other addresses.
            Some(unsafe { place.read_volatile() })
        }

        /// As perf, after `free_aux()`.
        fn free(&mut self) {
            if !self.freed {
                self.freed = true;
                for &address in &self.addresses {
                    // SAFETY: From `rust_perf_alloc_chunk()`, by the type invariant, and once.
                    unsafe { bindings::rust_perf_free_chunk_page(address) };
                }
            }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            self.free();
        }
    }

    #[test]
    fn chunks_are_those_that_were_allocated() -> Result {
        let shapes: [&[u32]; 6] = [&[0], &[3], &[0, 0], &[1, 0, 0], &[1, 1, 2], &[0, 0, 1, 2]];

        for orders in shapes {
            let mut memory = Memory::new(orders)?;
            // SAFETY: `memory` is dropped last.
            let pages = unsafe { memory.pages()? };
            let mut offset = 0;
            let mut count = 0;

            for (chunk, order) in pages.chunks().zip(orders) {
                assert_eq!(chunk.len(), PAGE_SIZE << order);
                // Aligned to its length, as the page allocator does.
                assert_eq!(usize::try_from(chunk.physical())? % chunk.len(), 0);
                let page = memory.addresses.get(offset / PAGE_SIZE).ok_or(EINVAL)?;
                assert!(chunk.address().as_ptr().cast() == *page);
                offset += chunk.len();
                count += 1;
            }
            assert_eq!(count, orders.len());
            assert_eq!(pages.chunks().count(), orders.len());
            assert_eq!(offset, pages.size().get());
        }
        Ok(())
    }

    /// The way of a driver: from what perf allocated to a table for the unit.
    #[test]
    fn chunks_make_a_table() -> Result {
        let mut memory = Memory::new(&[1, 0, 0, 2])?;
        // SAFETY: `memory` is dropped last.
        let pages = unsafe { memory.pages()? };
        let chunks = || pages.chunks().map(table_chunk);
        let layout = Layout::new(0x1000, 512).ok_or(EINVAL)?;
        let needed = layout.needed(chunks()).map_err(|_| EINVAL)?;
        let entries = KVec::from_elem(Entry::default(), needed.entries, GFP_KERNEL)?;
        let starts = KVec::from_elem(0, needed.starts, GFP_KERNEL)?;
        let table = Table::new(entries, starts, layout, chunks()).map_err(|_| EINVAL)?;

        // From a byte before the third page, over it, and around the end of the ring.
        let third = Pos::new(5 * pages.size().len() + 2 * 4096 - 1);
        let cursor = table.seek(third);
        assert!(table.position(third, cursor) == Some(third));
        let mut unit = super::super::table::Walker::new(cursor);
        let mut stores = KVec::new();
        let written = unit
            .write(
                7 * 4096,
                |address| table.fetch(address),
                |address, len| {
                    let _ = stores.push((address, len), GFP_KERNEL);
                },
            )
            .map_err(|_| EINVAL)?;

        assert_eq!(written.written, 7 * 4096);
        let mut offset = pages.size().offset(third);
        for &(address, len) in &stores {
            for byte in [0, len - 1] {
                let at = (offset + usize::try_from(byte)?) % pages.size().get();
                let page = memory.addresses.get(at / PAGE_SIZE).ok_or(EINVAL)?;
                // SAFETY: The address of a page.
                let page = unsafe { bindings::rust_perf_virt_to_phys(*page) };
                assert_eq!(address + byte, page + u64::try_from(at % PAGE_SIZE)?);
            }
            offset += usize::try_from(len)?;
        }
        Ok(())
    }

    fn table_chunk(chunk: super::super::Chunk) -> super::super::table::Chunk {
        chunk.into()
    }

    #[test]
    fn mapping_is_the_ring_in_one_piece() -> Result {
        // Position, length.
        let table = [
            (0, 1),
            (4095, 2),
            (2 * 4096 - 10, 4096 + 20),
            (4 * 4096 - 3, 7),
            (17 * 4096 - 1, 4 * 4096),
            (u64::MAX - 99, 200),
            (5, 0),
        ];

        for (pos, len) in table {
            let mut memory = Memory::new(&[0, 1, 0])?;
            // SAFETY: `memory` is dropped last.
            let mut mapping = unsafe { memory.pages()? }.map()?;
            let size = mapping.size();
            let mut bytes = KVec::new();
            for i in 0..len {
                bytes.push(u8::try_from(i % 251 + 1)?, GFP_KERNEL)?;
            }

            assert!(mapping.copy_in(Pos::new(pos), &bytes).is_ok());
            for offset in 0..size.get() {
                // How far behind `pos` the byte lies, and so which it is.
                let way = Pos::new(u64::try_from(offset)?).retreat(pos);
                let expected = bytes.get(size.offset(way)).copied().unwrap_or(0);

                assert_eq!(memory.byte(offset), Some(expected));
            }
        }
        Ok(())
    }

    #[test]
    fn mapping_keeps_within_the_ring() -> Result {
        let mut memory = Memory::new(&[0, 0])?;
        // SAFETY: `memory` is dropped last.
        let mut mapping = unsafe { memory.pages()? }.map()?;
        let long = KVec::from_elem(1, 2 * PAGE_SIZE + 1, GFP_KERNEL)?;

        assert!(mapping.copy_in(Pos::new(3), &long) == Err(Full));
        for offset in 0..2 * PAGE_SIZE {
            assert_eq!(memory.byte(offset), Some(0));
        }
        Ok(())
    }

    #[test]
    fn mapping_gives_the_pages_back() -> Result {
        let mut memory = Memory::new(&[1, 0, 0])?;
        // SAFETY: `memory` is dropped last.
        let pages = unsafe { memory.pages()? };
        let held = |count| {
            memory.addresses.iter().all(|&page| {
                // SAFETY: The address of a page.
                let now = unsafe { bindings::rust_perf_page_count(page) };
                now == count
            })
        };

        let first = pages.map()?;
        let second = pages.map()?;
        assert!(held(3));
        drop(first);
        assert!(held(2));
        drop(second);
        assert!(held(1));
        Ok(())
    }

    /// Against its documentation a driver keeps a mapping after `free_aux()`, and writes.
    #[test]
    fn mapping_that_is_kept_keeps_the_pages() -> Result {
        let mut memory = Memory::new(&[1, 0, 0])?;
        // SAFETY: `memory` is freed below, and the pages are not used after that.
        let mut mapping = unsafe { memory.pages()? }.map()?;

        memory.free();

        // Had they been freed, one of these would be among the next that are allocated.
        let next = Memory::new(&[0; 64])?;
        let marks = KVec::from_elem(0x5a, mapping.size().get(), GFP_KERNEL)?;
        assert!(mapping.copy_in(Pos::new(0), &marks).is_ok());
        for page in &next.addresses {
            assert!(!memory.addresses.contains(page));
        }
        for offset in 0..64 * PAGE_SIZE {
            assert_eq!(next.byte(offset), Some(0));
        }
        Ok(())
    }
}
