// SPDX-License-Identifier: GPL-2.0

//! Code that was decoded, and the pages that it is in, kept from one trap to the next.

use crate::bindings;
use interpreter::Block;
use kernel::{
    page::PAGE_SHIFT,
    prelude::*, //
};

/// Pages that are remembered: code goes back and forth between a few.
const PAGES: usize = 32;

/// Code that was decoded, of whatever tasks have executed last: see [`Current::interpret`](crate::Current::interpret).
pub struct Decoded {
    pub(crate) blocks: KVVec<Block>,
    /// Allocated by itself, as a client constructs a `Decoded` on its stack.
    pub(crate) pages: KBox<Pages>,
}

impl Decoded {
    /// None, with room for so many blocks of up to 16 instructions. So many are used as are a power of 2.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, without a report in the log.
    pub fn new(blocks: usize) -> Result<Self> {
        Ok(Self {
            blocks: KVVec::from_elem(Block::EMPTY, blocks, GFP_KERNEL | __GFP_NOWARN)?,
            pages: KBox::new(Pages::EMPTY, GFP_KERNEL)?,
        })
    }

    /// Before code of the current task is executed, with interrupts off.
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
    /// Whether it cannot be written, by this mapping or another.
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
/// A CPU that changes a page table counts that in the address space. Before it frees the page it waits for each CPU that
/// uses the address space, until that CPU has interrupts on. So a page that was found when the count was as it is now
/// is there as long as this CPU has interrupts off.
///
/// A page that is settled cannot be written as long as it is there.
pub(crate) struct Pages {
    space: u64,
    generation: u64,
    /// How often this was renewed.
    passes: u64,
    /// Each at the place that its lowest bits give.
    pages: [Page; PAGES],
}

impl Pages {
    /// None.
    pub(crate) const EMPTY: Self = Self {
        space: 0,
        generation: 0,
        passes: 0,
        pages: [Page::NONE; PAGES],
    };

    /// Forgets what may have changed, or is of another address space than the current task's; whether that is another
    /// than before. Interrupts are off, and stay so as long as the pages are used.
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

    /// A number that the time since [`renew()`](Self::renew) has, and none before.
    #[inline]
    pub(crate) fn pass(&self) -> u64 {
        self.passes
    }

    /// The place of a page.
    #[inline]
    fn at(&self, page: u64) -> &Page {
        // CAST: Less than the number of places.
        self.pages.get(page as usize % PAGES).unwrap_or(&Page::NONE)
    }

    /// Whether the current task may execute code from one byte to another, which are not a page apart.
    #[inline]
    pub(crate) fn can_execute(&mut self, first: u64, last: u64) -> bool {
        let (first, last) = (first >> PAGE_SHIFT, last >> PAGE_SHIFT);
        let mut has = |page| self.at(page).number == page || self.look(page);

        has(first) && (last == first || has(last))
    }

    /// Whether the current task may execute code from one byte to another, which cannot have changed since
    /// [`renew()`](Self::renew).
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
        // SAFETY: Interrupts are off where this type is used; both may be written.
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
