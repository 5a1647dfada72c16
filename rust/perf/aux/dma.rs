// SPDX-License-Identifier: GPL-2.0

//! Memory that a device writes trace to.
//!
//! The device is the parent of the PMU: see
//! [`Description::parent`](crate::pmu::Description::parent). Memory that is mapped for it is
//! unmapped when the AUX area is freed or when the device is unbound, whichever is first. Before
//! the device is unbound, the PMU is unregistered: then no transaction is open, and none begins.

use super::{
    bounce::Charge,
    pages::Pages,
    table, //
};
use crate::{
    bindings,
    context::DropInTask, //
};
use auxcore::ring::{
    Pos,
    Size, //
};
use core::ptr::{
    self,
    NonNull, //
};
use kernel::{
    dma::DataDirection,
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*, //
};

pub(super) mod domain;

pub use domain::DeviceChunk;
use domain::{
    Attached,
    Memory, //
};
pub(crate) use domain::{
    Domain,
    User, //
};

/// For a table of regions with addresses of the device.
impl From<DeviceChunk> for table::Chunk {
    fn from(chunk: DeviceChunk) -> Self {
        Self {
            address: chunk.address(),
            len: chunk.len(),
        }
    }
}

/// The pages of an AUX area, mapped for DMA by the PMU's parent device.
///
/// Made by [`Pages::map_dma`] and kept in [`AuxPmu::Buffer`]. It is unmapped when it is dropped,
/// in any context, and at the latest when the device is unbound. It has a reference to each page: a
/// mapping that is kept for too long keeps memory that nothing else uses. The addresses that a
/// driver reads from it do not keep the mapping: the driver stops the device before it drops the
/// mapping, or before `quiesce()` returns.
///
/// A driver with a mapping implements [`AuxPmu::dma`]. If the platform is not coherent, the
/// framework then synchronises the pages for the device before [`AuxPmu::start`] and for the CPU
/// after [`AuxPmu::quiesce`]. On such a platform a driver does not write to the
/// [`Region`](super::Region) in a transaction in which the device writes to it: the synchronisation
/// may discard what software wrote.
///
/// C counterpart: `dma_map_sgtable()`.
///
/// [`AuxPmu::Buffer`]: super::AuxPmu::Buffer
/// [`AuxPmu::dma`]: super::AuxPmu::dma
/// [`AuxPmu::start`]: super::AuxPmu::start
/// [`AuxPmu::quiesce`]: super::AuxPmu::quiesce
pub struct DmaMapping {
    mapped: DropInTask<Mapped>,
    size: Size,
}

struct Mapped {
    attached: Attached,
    chunks: KVVec<DeviceChunk>,
}

impl DmaMapping {
    #[inline(never)]
    fn new(pages: &Pages, direction: DataDirection) -> Result<Self> {
        if !matches!(
            direction,
            DataDirection::FromDevice | DataDirection::Bidirectional
        ) {
            return Err(EINVAL);
        }
        let domain = pages.domain().ok_or(ENODEV)?;
        let (addresses, count) = pages.addresses();
        let device = domain.raw();

        // SAFETY:
        // - The device is bound: this is in `setup_aux()`, where the PMU is not unregistered yet,
        //   by the invariant of `Domain`.
        // - `addresses` has `count` addresses of pages from the page allocator, which are perf's
        //   and live, by the invariant of `Pages`.
        // - This is a task that may sleep: drivers see `Pages` in `setup_aux()` only.
        let memory = from_err_ptr(unsafe {
            bindings::rust_perf_dma_map(
                device,
                addresses.as_ptr(),
                count.try_into()?,
                direction.into(),
            )
        })?;
        // INVARIANT: Just made.
        let memory = Memory(NonNull::new(memory).ok_or(ENOMEM)?);
        let chunks = memory.chunks()?;

        let mapped = Mapped {
            attached: Attached::new(domain, memory)?,
            chunks,
        };

        Ok(Self {
            // SAFETY: This function is compiled into this crate's module.
            mapped: unsafe { DropInTask::new(mapped, ptr::null_mut())? },
            size: pages.size(),
        })
    }

    /// The pieces that the device sees, in the order of the AUX area. Pages that are contiguous for
    /// the device are one piece, as far as its maximum segment size and its segment boundary allow.
    pub fn chunks(&self) -> impl Iterator<Item = DeviceChunk> + Clone + '_ {
        self.mapped.chunks.iter().copied()
    }

    /// The size of the AUX area.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Makes the device's writes visible to the CPU. The framework calls this before it publishes;
    /// a driver that has [`AuxPmu::snapshot`](super::AuxPmu::snapshot) calls it before it copies.
    pub fn sync_for_cpu(&self) {
        if let Some(memory) = self.mapped.attached.memory.try_access() {
            // SAFETY: The memory is live, by the invariant of `Memory`. It may be synchronised in
            // any context.
            unsafe { bindings::rust_perf_dma_sync_for_cpu(memory.0.as_ptr()) };
        }
    }

    /// Hands the pages to the device.
    pub(super) fn sync_for_device(&self) {
        if let Some(memory) = self.mapped.attached.memory.try_access() {
            // SAFETY: The memory is live, by the invariant of `Memory`. It may be synchronised in
            // any context.
            unsafe { bindings::rust_perf_dma_sync_for_device(memory.0.as_ptr()) };
        }
    }
}

/// Coherent memory of the PMU's parent device, zeroed, from the device's node. The user who maps
/// the AUX area is charged for it.
///
/// # Invariants
///
/// `start` points to as many bytes as it was made with, until the memory of `attached` is revoked.
pub(super) struct Coherent {
    attached: DropInTask<(Attached, Charge)>,
    pub(super) start: NonNull<u8>,
    /// The device's address of the memory.
    pub(super) address: u64,
}

// SAFETY: This is memory of the kernel's, which is mapped for all tasks alike.
unsafe impl Send for Coherent {}
// SAFETY: Methods with `&self` only read memory, in a way that a device's writes do not harm.
unsafe impl Sync for Coherent {}

impl Coherent {
    /// Allocates `size` bytes, which must be whole pages.
    #[inline(never)]
    pub(super) fn new(pages: &Pages, size: usize) -> Result<Self> {
        let domain = pages.domain().ok_or(ENODEV)?;
        let charge = Charge::new(pages, size / PAGE_SIZE)?;
        let memory = Memory::coherent(domain, size)?;
        let (start, address) = memory.place()?;
        let attached = (Attached::new(domain, memory)?, charge);

        // INVARIANT: Made with this size.
        Ok(Self {
            // SAFETY: This function is compiled into this crate's module.
            attached: unsafe { DropInTask::new(attached, ptr::null_mut())? },
            start,
            address,
        })
    }

    /// Keeps the memory from being freed. [`None`] if it has been freed.
    pub(super) fn access(&self) -> Option<impl Sized + '_> {
        let (attached, _) = &*self.attached;

        attached.memory.try_access()
    }
}

/// Coherent bounce memory, for a device that cannot write to the AUX area itself.
///
/// Zeroed, at consecutive addresses of the device, from the device's node. Made by
/// [`Pages::bounce_coherent`], kept in [`AuxPmu::Buffer`](super::AuxPmu::Buffer) and
/// [copied](super::Writer::copy) to the AUX area. Freed when it is dropped, in any context, and at
/// the latest when the device is unbound; then nothing is copied any more.
///
/// C counterpart: `dma_alloc_coherent()`, as in `tmc_etr_alloc_flat_buf()`.
///
/// # Invariants
///
/// `coherent` has `size` bytes.
pub struct CoherentBounce {
    coherent: Coherent,
    size: Size,
}

impl CoherentBounce {
    fn new(pages: &Pages, size: Size) -> Result<Self> {
        if size.get() < PAGE_SIZE {
            return Err(EINVAL);
        }
        // INVARIANT: Made with this size.
        Ok(Self {
            coherent: Coherent::new(pages, size.get())?,
            size,
        })
    }

    /// The device's address of the first byte.
    pub fn address(&self) -> u64 {
        self.coherent.address
    }

    /// The size in bytes.
    pub fn size(&self) -> Size {
        self.size
    }
}

impl super::bounce::Source for CoherentBounce {
    fn size(&self) -> Size {
        self.size
    }

    fn read<R>(
        &self,
        f: impl FnOnce(&dyn Fn(Pos) -> Option<(NonNull<u8>, usize)>) -> Option<R>,
    ) -> Option<R> {
        let _access = self.coherent.access()?;

        f(&|pos| {
            let offset = self.size.offset(pos);
            // SAFETY: The offset is below the size, by the type invariant. The memory is not
            // revoked before `f` returns.
            let place = unsafe { self.coherent.start.add(offset) };

            Some((place, self.size.get().checked_sub(offset)?))
        })
    }
}

impl Pages {
    /// Maps all pages for the PMU's parent device, which writes to them.
    ///
    /// The device's DMA mask, maximum segment size and segment boundary are honoured. [`EFAULT`] if
    /// the device cannot reach a page directly: memory that swiotlb bounces cannot be an AUX area.
    /// [`ENODEV`] if the PMU has no parent, [`EINVAL`] for a direction in which the device writes
    /// nothing.
    ///
    /// To be called from a task that may sleep: in [`AuxPmu::setup_aux`](super::AuxPmu::setup_aux).
    pub fn map_dma(&self, direction: DataDirection) -> Result<DmaMapping> {
        DmaMapping::new(self, direction)
    }

    /// Coherent bounce memory of `size` bytes for the PMU's parent device. It is charged like that
    /// of [`Self::bounce_scattered`].
    ///
    /// [`ENODEV`] if the PMU has no parent, [`EINVAL`] if `size` is less than a page, [`ENOMEM`] if
    /// there is no such memory. To be called from a task that may sleep: in
    /// [`AuxPmu::setup_aux`](super::AuxPmu::setup_aux).
    pub fn bounce_coherent(&self, size: Size) -> Result<CoherentBounce> {
        CoherentBounce::new(self, size)
    }
}
