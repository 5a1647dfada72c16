// SPDX-License-Identifier: GPL-2.0

//! The pages of an AUX area.

use super::dma::domain::Domain;
use crate::bindings;
use auxcore::{
    ring::Size,
    table, //
};
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    page::{
        PAGE_MASK,
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc, //
};

/// How user space mapped an AUX area.
///
/// C counterpart: `overwrite` of `pmu->setup_aux()`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Writable, non-overwrite: user space moves the tail, and trace that finds no space is lost.
    Normal,
    /// Read-only, overwrite: the newest trace overwrites the oldest.
    Overwrite,
}

/// The pages of an AUX area.
///
/// perf owns them: zeroed, mapped into user space read-only, and kept until after `free_aux()`.
///
/// C counterpart: `pages`, `nr_pages` and `overwrite` of `pmu->setup_aux()`.
///
/// # Examples
///
/// A unit that takes one table entry for each piece of memory, and has 64 entries:
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
/// type Buffer = KVec<(u64, usize)>;
///
/// fn setup_aux(&self, _event: &Event<'_, Self>, pages: &aux::Pages) -> Result<Self::Buffer> {
///     let mut entries = KVec::with_capacity(64, GFP_KERNEL)?;
///
///     for chunk in pages.chunks() {
///         entries
///             .push_within_capacity((chunk.physical(), chunk.len()))
///             .map_err(|_| E2BIG)?;
///     }
///     Ok(entries)
/// }
/// #     fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result {
/// #         Ok(())
/// #     }
/// #     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
/// #         aux::Commit::written(transaction, aux::Loss::None)
/// #     }
/// # }
///
/// let pages = |pages| Setup { pages, ..Setup::default() };
/// assert!(Bench::new(Driver, &pages(64)).is_ok());
/// assert!(Bench::new(Driver, &pages(128)).err() == Some(E2BIG));
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// - `pages` points to an array of `size >> PAGE_SHIFT` addresses of pages, which stay valid until
///   `free_aux()` has returned.
/// - `node` is a node that is there, or `NUMA_NO_NODE`.
pub struct Pages {
    pages: NonNull<*mut c_void>,
    size: Size,
    mode: Mode,
    node: c_int,
    /// The memory that is mapped for the PMU's device, if it has one.
    domain: Option<Arc<Domain>>,
}

// SAFETY: The array is perf's, which does not change it; the pages may be used on any CPU.
unsafe impl Send for Pages {}

impl Pages {
    /// # Safety
    ///
    /// `pages` and `nr_pages` must be what perf passes to `setup_aux()`; `Self` must not be used
    /// after `free_aux()`.
    pub(crate) unsafe fn new(
        pages: *mut *mut c_void,
        nr_pages: c_int,
        overwrite: bool,
    ) -> Result<Self> {
        let bytes = usize::try_from(nr_pages)?
            .checked_mul(PAGE_SIZE)
            .ok_or(EINVAL)?;

        // INVARIANT: By the safety requirement.
        Ok(Self {
            pages: NonNull::new(pages).ok_or(EINVAL)?,
            // perf has checked that it is a power of two (`perf_mmap_aux()`).
            size: Size::new(bytes).ok_or(EINVAL)?,
            mode: if overwrite {
                Mode::Overwrite
            } else {
                Mode::Normal
            },
            node: bindings::NUMA_NO_NODE,
            domain: None,
        })
    }

    /// The same for a unit on `node`, which is part of the device of `domain`.
    ///
    /// # Safety
    ///
    /// - `node` must be a node that is there, or `NUMA_NO_NODE`.
    /// - This must be in `setup_aux()` of a PMU that uses `domain`.
    pub(super) unsafe fn of_unit(self, node: c_int, domain: Option<&Arc<Domain>>) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            node,
            domain: domain.cloned(),
            ..self
        }
    }

    /// The memory that is mapped for the PMU's device.
    pub(super) fn domain(&self) -> Option<&Arc<Domain>> {
        self.domain.as_ref()
    }

    /// The node of the unit's memory.
    pub(super) fn node(&self) -> c_int {
        self.node
    }

    /// The size of the ring.
    #[inline]
    pub fn size(&self) -> Size {
        self.size
    }

    /// How user space mapped it.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The pieces of memory that the ring is made of, one after the other.
    ///
    /// perf allocates a chunk at once: its pages are contiguous, and its address is a multiple of
    /// its length, which is a power of two pages. With [`Capabilities::NO_SG`] or
    /// [`Capabilities::PREFER_LARGE`] perf makes chunks of up to the watermark, rounded up to such
    /// a length; in overwrite mode, of up to the whole ring. They are smaller if there is no such
    /// memory. Without these capabilities each page is a chunk. Consecutive chunks may happen to be
    /// contiguous too: [`auxcore::table::regions`] joins them.
    ///
    /// [`Capabilities::NO_SG`]: crate::pmu::Capabilities::NO_SG
    /// [`Capabilities::PREFER_LARGE`]: crate::pmu::Capabilities::PREFER_LARGE
    ///
    /// C counterpart: `rb_alloc_aux()`, which stores the order in the first page of a chunk.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + Clone + '_ {
        let mut offset = 0;

        core::iter::from_fn(move || {
            let chunk = self.chunk(offset)?;

            // Cannot overflow: at most the size of the ring.
            offset = chunk.len.wrapping_add(offset);
            Some(chunk)
        })
    }

    /// The chunk that begins at `offset`, which must be the beginning of a chunk; [`None`] at the
    /// end of the ring.
    fn chunk(&self, offset: usize) -> Option<Chunk> {
        let (address, _) = self.at(offset)?;
        let left = self.size.get().checked_sub(offset)?;

        // SAFETY: This is the address of a page of the ring, by the guarantee of `at()`.
        let order = unsafe { bindings::rust_perf_page_order(address.as_ptr().cast()) };
        // SAFETY: This is the address of a page of the ring, by the guarantee of `at()`. It is from
        // the page allocator, so it is in the direct mapping of memory.
        let physical = unsafe { bindings::rust_perf_virt_to_phys(address.as_ptr().cast()) };

        let len = u32::try_from(order)
            .ok()
            .and_then(|order| PAGE_SIZE.checked_shl(order))
            .unwrap_or(PAGE_SIZE);
        Some(Chunk {
            address,
            physical,
            // perf never makes one that is longer than what is left.
            len: len.min(left),
        })
    }

    /// The addresses of the pages, and their number.
    pub(super) fn addresses(&self) -> (NonNull<*mut c_void>, usize) {
        (self.pages, self.size.get() >> PAGE_SHIFT)
    }

    /// Another view of the same pages.
    ///
    /// # Safety
    ///
    /// It must not be used after `free_aux()`.
    #[cfg(CONFIG_RUST_PERF_TESTING)]
    pub(crate) unsafe fn view(&self) -> Self {
        // INVARIANT: As those of `self`, for as long as the safety requirement says.
        Self {
            domain: self.domain.clone(),
            ..*self
        }
    }

    /// The address of the byte at `offset`, and how many bytes its page has from there on.
    ///
    /// # Guarantees
    ///
    /// The address is valid for reads and writes of that many bytes.
    pub(crate) fn at(&self, offset: usize) -> Option<(NonNull<u8>, usize)> {
        if offset >= self.size.get() {
            return None;
        }

        let within = offset & !PAGE_MASK;
        // SAFETY: By the type invariant the array has an entry for each page below `size`.
        let entry = unsafe { self.pages.add(offset >> PAGE_SHIFT) };
        // SAFETY: `entry` is in the array, by the type invariant. perf fills the array before
        // `setup_aux()` and does not write to it before `free_aux()` has returned.
        let page = NonNull::new(unsafe { entry.read() })?.cast::<u8>();
        // SAFETY: `within` is below the size of the page.
        let place = unsafe { page.add(within) };

        // Cannot overflow: `within` is below the size of the page.
        Some((place, PAGE_SIZE.wrapping_sub(within)))
    }
}

/// A piece of the ring's memory that was allocated at once; see [`Pages::chunks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    address: NonNull<u8>,
    physical: bindings::phys_addr_t,
    len: usize,
}

impl Chunk {
    /// Its virtual address, for a unit that is programmed with virtual addresses.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Its physical address. A device behind an IOMMU needs another address.
    pub fn physical(&self) -> u64 {
        self.physical
    }

    /// Its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// For a table of regions with physical addresses.
impl From<Chunk> for table::Chunk {
    fn from(chunk: Chunk) -> Self {
        Self {
            address: chunk.physical,
            // CAST: Lossless, `u64` is as wide as `usize` here.
            len: chunk.len as u64,
        }
    }
}
