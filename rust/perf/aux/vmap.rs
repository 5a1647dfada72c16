// SPDX-License-Identifier: GPL-2.0

//! An AUX area in one piece.

use super::pages::Pages;
use crate::{
    bindings,
    context::DropInTask, //
};
use auxcore::ring::Size;
use core::ptr::{
    self,
    NonNull, //
};
use kernel::prelude::*;

/// The pages of an AUX area, mapped contiguously into the kernel's address space, for a unit that
/// takes virtual addresses.
///
/// Made by [`Pages::map`] and kept in [`AuxPmu::Buffer`](super::AuxPmu::Buffer), so that it is
/// dropped in `free_aux()`, before perf frees the pages. Memory safety does not depend on that: the
/// mapping has a reference to each page, and may be dropped in any context. A mapping that is kept
/// for longer keeps memory that nothing else uses.
///
/// The driver gets an address for its unit. Safe code cannot write through it: software writes
/// through the transaction's [`Region`](super::Region).
///
/// C counterpart: `vmap()` and `vunmap()`, as in `arm_spe_pmu`.
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
/// # #[vtable]
/// # impl AuxPmu for Driver {
/// #     type Trace = ();
/// type Buffer = aux::VirtualMapping;
///
/// fn setup_aux(&self, _event: &Event<'_, Self>, pages: &aux::Pages) -> Result<Self::Buffer> {
///     pages.map()
/// }
///
/// fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
///     let head = transaction.region().head();
///     let mapping = transaction.buffer();
///     let first = mapping.address().addr().get() + mapping.size().offset(head);
///     # let write_register = |_: usize| ();
///
///     write_register(first);
///     Ok(())
/// }
/// #     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
/// #         aux::Commit::written(transaction, aux::Loss::None)
/// #     }
/// # }
///
/// let mut bench = Bench::new(Driver, &Setup::default())?;
///
/// bench.add()?;
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// `mapped` has `size` bytes.
pub struct VirtualMapping {
    mapped: DropInTask<Mapped>,
    size: Size,
}

/// # Invariants
///
/// `0` is from `rust_perf_vmap()`, and mapped until `drop()` gives it to `rust_perf_vunmap()`.
struct Mapped(NonNull<u8>);

// SAFETY: This is memory of the kernel's, which is mapped for all tasks alike.
unsafe impl Send for Mapped {}
// SAFETY: Methods with `&self` do not access the memory.
unsafe impl Sync for Mapped {}

impl VirtualMapping {
    #[inline(never)]
    fn new(pages: &Pages) -> Result<Self> {
        let (addresses, count) = pages.addresses();
        let count = count.try_into()?;

        // SAFETY:
        // - `addresses` has `count` addresses of pages from the page allocator, which are perf's
        //   and live, by the invariant of `Pages`.
        // - This is a task that may sleep: drivers see `Pages` in `setup_aux()` only, and cannot
        //   keep it.
        let address = unsafe { bindings::rust_perf_vmap(addresses.as_ptr(), count) };

        // INVARIANT: Just mapped. Only this value has the address, so nothing else unmaps it.
        let mapped = Mapped(NonNull::new(address).ok_or(ENOMEM)?.cast());

        // INVARIANT: `pages` are mapped.
        Ok(Self {
            // SAFETY: This function is compiled into this crate's module.
            mapped: unsafe { DropInTask::new(mapped, ptr::null_mut())? },
            size: pages.size(),
        })
    }

    /// Its start, for a unit that takes virtual addresses.
    pub fn address(&self) -> NonNull<u8> {
        self.mapped.0
    }

    /// The size of the AUX area.
    pub fn size(&self) -> Size {
        self.size
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: Mapped, by the type invariant, and unmapped once. This is a task that may sleep:
        // `DropInTask` ensures that. The kernel does not write through it. The framework relies on
        // the driver to quiesce a unit that got the address before the buffer is dropped.
        unsafe { bindings::rust_perf_vunmap(self.0.as_ptr().cast()) };
    }
}

impl Pages {
    /// Maps all pages in one piece, in the order of the AUX area, until the [`VirtualMapping`] is
    /// dropped.
    ///
    /// To be called from a task that may sleep: in [`AuxPmu::setup_aux`](super::AuxPmu::setup_aux).
    pub fn map(&self) -> Result<VirtualMapping> {
        VirtualMapping::new(self)
    }
}

#[kunit_tests(rust_perf_aux_vmap)]
mod tests {
    use super::{
        super::table::{
            Entry,
            Layout,
            Table, //
        },
        *,
    };
    use auxcore::ring::Pos;
    use core::ffi::c_void;
    use kernel::page::PAGE_SIZE;

    /// The memory of a ring as perf allocates it, in chunks of given orders.
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
                // SAFETY: `chunk` has space for the addresses of that many pages.
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
            // SAFETY: The offset is within the page.
            let place = unsafe { page.add(offset % PAGE_SIZE) };

            // SAFETY: `place` is valid for reads by the type invariant, until `free()`, which the
            // tests call last. The read is volatile, since the byte is written through other
            // addresses.
            Some(unsafe { place.read_volatile() })
        }

        /// Frees the pages, as perf does after `free_aux()`.
        fn free(&mut self) {
            if !self.freed {
                self.freed = true;
                for &address in &self.addresses {
                    // SAFETY: The page is from `rust_perf_alloc_chunk()`, by the type invariant,
                    // and is freed once: `freed` is set.
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

    /// What a driver does: makes a table for its unit from the chunks that perf allocated.
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

        // From the last byte before the third page, over that page, and around the end of the ring.
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
                // SAFETY: This is the address of a page of `memory`.
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

    /// Writes a byte through the mapping, as a unit does.
    fn poke(mapping: &VirtualMapping, offset: usize, byte: u8) {
        // SAFETY: The offset is within the mapping: the callers go up to its size.
        let place = unsafe { mapping.address().add(offset) };

        // SAFETY: Mapped by the type invariant. Volatile, since it is read through other addresses.
        unsafe { place.write_volatile(byte) };
    }

    #[test]
    fn mapping_is_the_area_in_one_piece() -> Result {
        let mut memory = Memory::new(&[0, 1, 0])?;
        // SAFETY: `memory` is dropped last.
        let mapping = unsafe { memory.pages()? }.map()?;
        let mark = |offset: usize| u8::try_from(offset % 251 + 1).unwrap_or(0);

        assert_eq!(mapping.size().get(), 4 * PAGE_SIZE);
        for offset in 0..mapping.size().get() {
            poke(&mapping, offset, mark(offset));
        }
        for offset in 0..mapping.size().get() {
            assert_eq!(memory.byte(offset), Some(mark(offset)));
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
                // SAFETY: This is the address of a page of `memory`.
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

    /// A driver, against the documentation, keeps a mapping after `free_aux()` and writes.
    #[test]
    fn mapping_that_is_kept_keeps_the_pages() -> Result {
        let mut memory = Memory::new(&[1, 0, 0])?;
        // SAFETY: `memory` is freed below, and the pages are not used after that.
        let mapping = unsafe { memory.pages()? }.map()?;

        memory.free();

        // Had they been freed, one of these would be among the next that are allocated.
        let next = Memory::new(&[0; 64])?;
        for offset in 0..mapping.size().get() {
            poke(&mapping, offset, 0x5a);
        }
        for page in &next.addresses {
            assert!(!memory.addresses.contains(page));
        }
        for offset in 0..64 * PAGE_SIZE {
            assert_eq!(next.byte(offset), Some(0));
        }
        Ok(())
    }
}
