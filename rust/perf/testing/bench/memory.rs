// SPDX-License-Identifier: GPL-2.0

//! The memory of a ring.

use crate::bindings;
use core::{
    ffi::c_void,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// The pages of a ring, and the array of their addresses, as perf makes them.
///
/// # Invariants
///
/// Each address is that of a page from the page allocator, which is freed with `Self`.
pub(super) struct Memory(KVec<*mut c_void>);

impl Memory {
    /// Allocates the pages, which are zeroed.
    pub(super) fn new(pages: usize) -> Result<Self> {
        let mut memory = Self(KVec::with_capacity(pages, GFP_KERNEL)?);

        for _ in 0..pages {
            // SAFETY: This is a task that may sleep, as `GFP_KERNEL` demands.
            let address = unsafe { bindings::get_zeroed_page_noprof(bindings::GFP_KERNEL) };
            let page = ptr::with_exposed_provenance_mut::<c_void>(address);
            let page = NonNull::new(page).ok_or(ENOMEM)?;

            // INVARIANT: Just allocated. There is space for it.
            memory.0.push(page.as_ptr(), GFP_KERNEL)?;
        }
        Ok(memory)
    }

    /// The number of pages.
    pub(super) fn pages(&self) -> usize {
        self.0.len()
    }

    /// The array of the pages' addresses.
    pub(super) fn addresses(&mut self) -> *mut *mut c_void {
        self.0.as_mut_ptr()
    }

    /// The byte at this offset; [`None`] behind the last page.
    pub(super) fn byte(&self, offset: usize) -> Option<u8> {
        let page = self.0.get(offset / PAGE_SIZE)?.cast::<u8>();
        // SAFETY: The offset is within the page.
        let place = unsafe { page.add(offset % PAGE_SIZE) };

        // SAFETY: `place` is valid for reads, by the type invariant. The read is volatile, since
        // the region writes through addresses of its own.
        Some(unsafe { place.read_volatile() })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for page in &self.0 {
            // CAST: A `c_ulong` is as wide as an address.
            let address = page.expose_provenance() as c_ulong;

            // SAFETY: The page is from the page allocator, of order 0, by the type invariant, and
            // is freed once: here.
            unsafe { bindings::free_pages(address, 0) };
        }
    }
}
