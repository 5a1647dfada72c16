// SPDX-License-Identifier: GPL-2.0

//! Code that was decoded, and the pages that it is in, kept from one trap to the next.

use crate::bindings;
use core::ptr;
use interpreter::Block;
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// Pages that are remembered: code goes back and forth between a few.
const PAGES: usize = 32;

/// Code that was decoded, of whatever tasks have executed last: see [`Current::interpret`](crate::Current::interpret).
pub struct Decoded {
    pub(crate) blocks: KVVec<Block>,
    /// Not in here: whoever makes this has it on the stack.
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
            self.blocks.iter_mut().for_each(Block::forget_told);
        }
    }
}

/// A page of code.
#[derive(Clone, Copy)]
struct Page {
    number: u64,
    /// NULL, or how often the page's file is open for writing: not positive if the page cannot be written, by this mapping
    /// or another.
    writers: *mut i32,
}

impl Page {
    /// No page has this number.
    const NONE: Self = Self {
        number: u64::MAX,
        writers: ptr::null_mut(),
    };
}

/// Pages from which tasks of an address space can execute code.
///
/// Another CPU that changes a page table counts a change of the address space, and then waits for the CPUs that use the
/// address space until they have interrupts on. Only then it gives the page back, and perhaps its file. So what was
/// found when the count was as it is now holds as long as interrupts are off.
///
/// # Invariants
///
/// When `generation` changes of the address space `space` had been counted, its tasks could execute code in each of the
/// pages, and the file that `writers` belongs to was mapped there. There is no page if another CPU may not wait.
pub(crate) struct Pages {
    space: u64,
    generation: u64,
    /// How often this was renewed.
    passes: u64,
    /// Each at the place that its lowest bits give.
    pages: [Page; PAGES],
}

// SAFETY: A pointer is used only after `renew()` has found that what it points to is there, on any CPU.
unsafe impl Send for Pages {}

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
            // INVARIANT: There is no page.
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

        if page.number != number || last >> PAGE_SHIFT != number || page.writers.is_null() {
            return false;
        }
        // SAFETY: By the type invariant and `renew()` the file is mapped, or whoever has unmapped it waits: its inode is
        // there. C accesses the number as an `atomic_t`.
        let writers = unsafe { Atomic::from_ptr(page.writers) };

        // A file is opened before it is written. The processor reads in order: a task that has seen what was written sees
        // that the file is open.
        writers.load(Relaxed) <= 0
    }

    #[inline(never)]
    fn look(&mut self, number: u64) -> bool {
        let (mut stays, mut writers) = (false, ptr::null_mut());
        // CAST: An address has 64 bits.
        let address = (number << PAGE_SHIFT) as c_ulong;
        // SAFETY: Interrupts are off; both may be written.
        let can = unsafe { bindings::rust_stepping_can_execute(address, &mut stays, &mut writers) };

        // CAST: Less than the number of places.
        if let Some(page) = self.pages.get_mut(number as usize % PAGES) {
            // INVARIANT: No change was counted since `renew()`, or whoever has counted it waits.
            *page = if can && stays {
                Page { number, writers }
            } else {
                Page::NONE
            };
        }
        can
    }
}
