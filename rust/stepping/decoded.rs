// SPDX-License-Identifier: GPL-2.0

//! Decoded code, and the pages that hold it, kept from one trap to the next.

use crate::bindings;
use interpreter::Block;
use kernel::{
    page::PAGE_SHIFT,
    prelude::*, //
};

/// The number of pages that are remembered. Code mostly alternates between a few pages.
const PAGES: usize = 32;

/// Decoded code of the tasks that were interpreted last: see
/// [`Current::interpret`](crate::Current::interpret).
pub struct Decoded {
    pub(crate) blocks: KVVec<Block>,
    /// Allocated separately, because a client constructs a `Decoded` on its stack.
    pub(crate) pages: KBox<Pages>,
}

impl Decoded {
    /// Creates space for `blocks` blocks of up to 16 instructions. The number of blocks in use is
    /// the largest power of 2 that is not above `blocks`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`. A failure to allocate the blocks is not reported in the kernel's log.
    pub fn new(blocks: usize) -> Result<Self> {
        Ok(Self {
            blocks: KVVec::from_elem(Block::EMPTY, blocks, GFP_KERNEL | __GFP_NOWARN)?,
            pages: KBox::new(Pages::EMPTY, GFP_KERNEL)?,
        })
    }

    /// Prepares for code of the current task. Interrupts must be off.
    pub(crate) fn begin(&mut self) {
        if self.pages.renew() {
            self.blocks.iter_mut().for_each(Block::forget_reported);
        }
    }
}

/// A page of code.
#[derive(Clone, Copy)]
struct Page {
    number: u64,
    /// Whether the page cannot be written, through any mapping.
    is_settled: bool,
}

impl Page {
    /// No page has this number.
    const NONE: Self = Self {
        number: u64::MAX,
        is_settled: false,
    };
}

/// Pages from which tasks of an address space can execute code. Used only with interrupts off.
///
/// A CPU that changes a page table increments the generation of the address space. Before it frees
/// the page, it waits for each CPU that uses the address space, until that CPU has interrupts on.
/// So a page that was found at the current generation stays mapped while this CPU has interrupts
/// off.
///
/// During that time, a settled page cannot be written.
pub(crate) struct Pages {
    space: u64,
    generation: u64,
    /// The number of calls of [`renew()`](Self::renew).
    passes: u64,
    /// Each page is at the index that the lowest bits of its number give.
    pages: [Page; PAGES],
}

impl Pages {
    /// No pages.
    pub(crate) const EMPTY: Self = Self {
        space: 0,
        generation: 0,
        passes: 0,
        pages: [Page::NONE; PAGES],
    };

    /// Forgets pages that may have changed, or that belong to another address space than the
    /// current task's. Returns whether the address space is another one than before. Interrupts
    /// must be off, and stay off while the pages are used.
    pub(crate) fn renew(&mut self) -> bool {
        // SAFETY: The address space is the current task's, which keeps it.
        let space = unsafe { bindings::rust_stepping_space() };
        // SAFETY: The current task keeps its address space.
        let generation = unsafe { bindings::rust_stepping_generation() };
        let is_other = self.space != space;

        self.passes = self.passes.wrapping_add(1);
        if is_other || self.generation != generation {
            self.pages = [Page::NONE; PAGES];
            self.space = space;
            self.generation = generation;
        }
        is_other
    }

    /// The number of the current pass. Each [`renew()`](Self::renew) begins a new pass.
    #[inline]
    pub(crate) fn pass(&self) -> u64 {
        self.passes
    }

    /// The entry for a page.
    #[inline]
    fn at(&self, page: u64) -> &Page {
        // CAST: Less than the number of places.
        self.pages.get(page as usize % PAGES).unwrap_or(&Page::NONE)
    }

    /// Whether the current task may execute code from `first` to `last`. They are less than a page
    /// apart.
    #[inline]
    pub(crate) fn can_execute(&mut self, first: u64, last: u64) -> bool {
        let (first, last) = (first >> PAGE_SHIFT, last >> PAGE_SHIFT);
        let mut has = |page| self.at(page).number == page || self.look(page);

        has(first) && (last == first || has(last))
    }

    /// Whether the current task may execute code from `first` to `last`, and this code cannot have
    /// changed since [`renew()`](Self::renew).
    #[inline]
    pub(crate) fn is_settled(&self, first: u64, last: u64) -> bool {
        let number = first >> PAGE_SHIFT;
        let page = self.at(number);

        page.number == number && last >> PAGE_SHIFT == number && page.is_settled
    }

    #[inline(never)]
    fn look(&mut self, number: u64) -> bool {
        let (mut stays, mut is_settled) = (false, false);
        // CAST: An address has 64 bits.
        let address = (number << PAGE_SHIFT) as c_ulong;
        // SAFETY: Interrupts are off, as this type requires. Both pointers are valid for writes.
        let can =
            unsafe { bindings::rust_stepping_can_execute(address, &mut stays, &mut is_settled) };

        // CAST: Less than the number of places.
        if let Some(page) = self.pages.get_mut(number as usize % PAGES) {
            *page = if can && stays {
                Page { number, is_settled }
            } else {
                Page::NONE
            };
        }
        can
    }
}
