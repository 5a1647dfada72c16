// SPDX-License-Identifier: GPL-2.0

//! A ring's memory, and what a driver hangs off it, from `setup_aux()` to `free_aux()`.

use super::mapping::Mapping;
use crate::{
    bindings,
    held,
    pmu::Pmu, //
};
use auxcore::{
    ring::Size,
    table, //
};
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    page::{
        PAGE_MASK,
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    },
    types::Opaque, //
};

/// How user space mapped a ring.
///
/// C counterpart: `overwrite` of `pmu->setup_aux()`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Writable: user space moves the tail, and trace that finds no room is lost.
    Linear,
    /// Read-only: the newest trace overwrites the oldest.
    Overwrite,
}

/// The pages of an AUX ring.
///
/// perf owns them: zeroed, mapped into user space read-only, and kept until after `free_aux()`.
///
/// C counterpart: `pages`, `nr_pages` and `overwrite` of `pmu->setup_aux()`.
///
/// # Examples
///
/// A unit that takes one table entry for each piece of memory, and has 64 of them:
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
/// #     fn start(&self, _session: &mut aux::Session<'_, Self>) -> Result {
/// #         Ok(())
/// #     }
/// #     fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
/// #         aux::Written::by_writer(session.window, aux::Loss::None)
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
/// `pages` points to an array of `size >> PAGE_SHIFT` addresses of pages, which stay valid as long
/// as the ring has its `aux_priv`.
pub struct Pages {
    pages: NonNull<*mut c_void>,
    size: Size,
    mode: Mode,
}

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
                Mode::Linear
            },
        })
    }

    /// The size of the ring.
    pub fn size(&self) -> Size {
        self.size
    }

    /// How user space mapped it.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The pieces of memory that the ring is made of, one after the other.
    ///
    /// A chunk was allocated at once: its pages lie side by side, and its address is a multiple of
    /// its length, which is a power of two pages. With [`Capabilities::NO_SG`] or
    /// [`Capabilities::PREFER_LARGE`] chunks have up to the watermark, in overwrite mode up to the
    /// whole ring, as far as there was such memory; without them each page is a chunk. Chunks that
    /// follow each other may happen to lie side by side too: [`auxcore::table::regions`] looks.
    ///
    /// [`Capabilities::NO_SG`]: crate::pmu::Capabilities::NO_SG
    /// [`Capabilities::PREFER_LARGE`]: crate::pmu::Capabilities::PREFER_LARGE
    ///
    /// C counterpart: `rb_alloc_aux()`, which leaves the order in the first page of a chunk.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + Clone + '_ {
        let mut offset = 0;

        core::iter::from_fn(move || {
            let chunk = self.chunk(offset)?;

            // Cannot overflow: at most the size of the ring.
            offset = chunk.len.wrapping_add(offset);
            Some(chunk)
        })
    }

    /// The chunk that begins at `offset`, where one has to; [`None`] at the end of the ring.
    fn chunk(&self, offset: usize) -> Option<Chunk> {
        let (address, _) = self.at(offset)?;
        let left = self.size.get().checked_sub(offset)?;

        // SAFETY: The address of a page of the ring, by the guarantee of `at()`.
        let order = unsafe { bindings::rust_perf_page_order(address.as_ptr().cast()) };
        // SAFETY: As above, so in the direct mapping of memory.
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

    /// Maps all pages side by side, in the order of the ring, for as long as the [`Mapping`] is
    /// kept; where a unit, or a copy, wants the ring in one piece.
    ///
    /// To be called from a task that may sleep: in [`Pmu::setup_aux`].
    pub fn map(&self) -> Result<Mapping> {
        Mapping::new(self)
    }

    /// The addresses of the pages, and how many there are.
    pub(super) fn addresses(&self) -> (NonNull<*mut c_void>, usize) {
        (self.pages, self.size.get() >> PAGE_SHIFT)
    }

    /// Another view of the same pages.
    ///
    /// # Safety
    ///
    /// It must not be used after `free_aux()`.
    pub(super) unsafe fn view(&self) -> Self {
        // INVARIANT: As those of `self`, for as long as the safety requirement says.
        Self { ..*self }
    }

    /// The address of the byte at `offset`, and how many bytes its page has from there on.
    ///
    /// # Guarantees
    ///
    /// The address is valid for reads and writes of that many bytes.
    pub(super) fn at(&self, offset: usize) -> Option<(NonNull<u8>, usize)> {
        if offset >= self.size.get() {
            return None;
        }

        let within = offset & !PAGE_MASK;
        // SAFETY: By the type invariant the array has an entry for each page below `size`.
        let entry = unsafe { self.pages.add(offset >> PAGE_SHIFT) };
        // SAFETY: As above; perf does not write to the array while the ring has an `aux_priv`.
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
    /// Its address, for a unit that is told virtual addresses.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Its physical address. Not what a device behind an IOMMU needs.
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

/// The `aux_priv`s of a PMU.
///
/// perf hands out a ring's `aux_priv` to whoever writes to the ring; user space can redirect two
/// PMUs' events to one ring, so that a driver gets what another made. Therefore no `aux_priv` is
/// looked at unless it stands here.
///
/// # Invariants
///
/// `set` is an initialised xarray. Its keys are the addresses of the [`Buffer`]s that perf holds.
#[pin_data(PinnedDrop)]
pub(crate) struct Live {
    #[pin]
    set: Opaque<bindings::xarray>,
}

// SAFETY: An xarray locks itself.
unsafe impl Send for Live {}
// SAFETY: As above.
unsafe impl Sync for Live {}

impl Live {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: Initialised and empty.
            set <- Opaque::ffi_init(|set| {
                // SAFETY: `set` is valid for writes.
                unsafe { bindings::rust_perf_xa_init(set) }
            }),
        })
    }

    fn insert(&self, key: NonNull<c_void>) -> Result {
        // SAFETY: `set` is initialised by the type invariant, this is a task that may sleep, and
        // the pointer is aligned to at least 4, as xarray entries must be: a `KBox`'s.
        let old = unsafe {
            bindings::xa_store(
                self.set.get(),
                key.addr().get(),
                key.as_ptr(),
                bindings::GFP_KERNEL,
            )
        };

        // SAFETY: `xa_err()` takes whatever `xa_store()` returns.
        to_result(unsafe { bindings::xa_err(old) })
    }

    fn remove(&self, key: NonNull<c_void>) {
        // SAFETY: `set` is initialised by the type invariant.
        unsafe { bindings::xa_erase(self.set.get(), key.addr().get()) };
    }

    /// Whether `key` is one of ours. Takes no lock, so may be called in NMI.
    pub(crate) fn contains(&self, key: NonNull<c_void>) -> bool {
        // SAFETY: `set` is initialised by the type invariant; `xa_load()` reads under RCU.
        !unsafe { bindings::xa_load(self.set.get(), key.addr().get()) }.is_null()
    }
}

#[pinned_drop]
impl PinnedDrop for Live {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Initialised by the type invariant, and no other reference is left.
        unsafe { bindings::xa_destroy(self.set.get()) };
    }
}

/// What `setup_aux()` hands to perf.
///
/// perf keeps no reference to the module for it: the event's goes when the PMU is unregistered, and
/// another PMU's event can keep the ring mapped.
#[repr(C)]
pub(crate) struct Buffer<T: Pmu> {
    // First: C has a pointer to it.
    header: held::Header,
    data: T::Buffer,
    pages: Pages,
    /// Whether a transaction has a [`Claim`] to it.
    claimed: Atomic<bool>,
    live: Arc<Live>,
}

impl<T: Pmu> Buffer<T> {
    /// Gives `data` to perf.
    ///
    /// The pointer is to be given to [`held::free_aux`], once.
    pub(crate) fn into_foreign(
        data: T::Buffer,
        pages: Pages,
        live: Arc<Live>,
    ) -> Result<*mut c_void> {
        let buffer = KBox::new(
            Self {
                header: held::Header::new::<T::OwnerModule>(Self::end),
                data,
                pages,
                claimed: Atomic::new(false),
                live: live.clone(),
            },
            GFP_KERNEL,
        )?;

        live.insert(NonNull::from(&*buffer).cast())?;
        buffer.header.hold();

        Ok(KBox::into_raw(buffer).cast())
    }

    /// Takes back what perf was given, and drops it.
    ///
    /// # Safety
    ///
    /// `header` must be what [`Self::into_foreign`] returned, and perf must have no use for it any
    /// more.
    unsafe fn end(header: NonNull<held::Header>) {
        // SAFETY: From `KBox::into_raw()` by the safety requirement; the header is its first field.
        let buffer = unsafe { KBox::from_raw(header.cast::<Self>().as_ptr()) };

        // Before the memory can be used for something else.
        buffer.live.remove(NonNull::from(&*buffer).cast());
    }
}

/// The [`Buffer`] of a ring, for one transaction on it.
///
/// perf keeps transactions on a ring apart by a counter that is not atomic (`aux_nest`), and that
/// whoever ends one sets to 0. One CPU cannot fool it. But user space can have an event's children
/// write to one ring from several CPUs at once, through an inherited event that is redirected to
/// one that is mapped; there two transactions may be open, and only one has the buffer.
///
/// # Invariants
///
/// `buffer` is live, and its `data` is only accessed through `self`.
pub(super) struct Claim<T: Pmu> {
    buffer: NonNull<Buffer<T>>,
}

impl<T: Pmu> Claim<T> {
    /// [`None`] if another transaction has it.
    ///
    /// # Safety
    ///
    /// `buffer` must stay as long as `Self` exists: until the transaction is ended, on whose ring
    /// it is.
    pub(super) unsafe fn new(buffer: NonNull<Buffer<T>>) -> Option<Self> {
        // SAFETY: Live by the safety requirement; shared references only are made of this field.
        let claimed = unsafe { &(*buffer.as_ptr()).claimed };

        // Acquire: what the last claimant did to the buffer, before the release in `drop()`, is
        // seen.
        claimed.cmpxchg(false, true, Acquire).ok()?;
        // INVARIANT: Live by the safety requirement; there is no other claim to it, and only claims
        // access `data`, until the buffer is dropped.
        Some(Self { buffer })
    }

    /// What the driver made of the ring.
    pub(super) fn data(&mut self) -> &mut T::Buffer {
        // SAFETY: Live and not accessed otherwise, by the type invariant.
        unsafe { &mut (*self.buffer.as_ptr()).data }
    }

    /// The ring's memory.
    pub(super) fn pages(&self) -> &Pages {
        // SAFETY: Live by the type invariant; shared references only are made of this field.
        unsafe { &(*self.buffer.as_ptr()).pages }
    }
}

impl<T: Pmu> Drop for Claim<T> {
    fn drop(&mut self) {
        // SAFETY: As in `new()`.
        let claimed = unsafe { &(*self.buffer.as_ptr()).claimed };

        // Release: pairs with the acquire of the next claimant.
        claimed.store(false, Release);
    }
}
