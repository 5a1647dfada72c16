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
use core::{
    ffi::c_void,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    devres,
    dma::DataDirection,
    error::from_err_ptr,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    revocable::Revocable,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Completion,
        Mutex, //
    }, //
};

/// The memory that is mapped for the device of a PMU.
///
/// # Invariants
///
/// The device is bound until `unregistered` is complete and `memory` has been emptied after that.
#[pin_data]
pub(crate) struct Domain {
    device: DeviceRef,
    #[pin]
    memory: Mutex<KVec<Arc<Revocable<Memory>>>>,
    #[pin]
    unregistered: Completion,
    /// Whether the unbinding of the device waits for the completion.
    bound: Atomic<bool>,
}

impl Domain {
    fn raw(&self) -> *mut bindings::device {
        self.device.device
    }
}

/// A reference to a device. A task of its own drops it: the last user of a [`Domain`] may be
/// `free_aux()`, under the mmap lock, where a device must not be released.
///
/// # Invariants
///
/// `reference` is a reference to `device`, to be dropped once.
struct DeviceRef {
    device: *mut bindings::device,
    reference: NonNull<bindings::rust_perf_device_ref>,
}

// SAFETY: References to devices may be used and dropped by any task.
unsafe impl Send for DeviceRef {}
// SAFETY: The fields are only read.
unsafe impl Sync for DeviceRef {}

impl DeviceRef {
    fn new(device: &Device<Bound>) -> Result<Self> {
        // CAST: `Device` is a transparent wrapper of `struct device`.
        let device = core::ptr::from_ref(device).cast_mut().cast();
        // SAFETY: A live device.
        let reference = unsafe { bindings::rust_perf_device_ref_new(device) };

        // INVARIANT: Just made.
        Ok(Self {
            device,
            reference: NonNull::new(reference).ok_or(ENOMEM)?,
        })
    }
}

impl Drop for DeviceRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rust_perf_device_ref_drop(self.reference.as_ptr()) };
    }
}

/// The use of a [`Domain`] by a PMU. Dropped when the PMU has been unregistered.
pub(crate) struct User(Arc<Domain>);

impl User {
    /// A user of a new domain, which keeps `device` from being unbound before the user is dropped.
    pub(crate) fn new(device: &Device<Bound>) -> Result<Self> {
        let reference = DeviceRef::new(device)?;
        let domain = Arc::pin_init(
            // INVARIANT: Bound now; `Binding`, which is released while it is still bound, waits.
            pin_init!(Domain {
                device: reference,
                memory <- new_mutex!(KVec::new()),
                unregistered <- Completion::new(),
                bound: Atomic::new(false),
            }),
            GFP_KERNEL,
        )?;

        devres::register::<Binding, Error>(device, Ok(Binding(domain.clone())), GFP_KERNEL)?;
        // The device is not unbound before this function returns.
        domain.bound.store(true, Relaxed);
        Ok(Self(domain))
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.0
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.unregistered.complete_all();
    }
}

/// A resource of the device. When the device is unbound, devres releases it after the entry of the
/// PMU, which was added later.
struct Binding(Arc<Domain>);

impl Drop for Binding {
    fn drop(&mut self) {
        let domain = &self.0;

        // The resource was not added.
        if !domain.bound.load(Relaxed) {
            return;
        }
        // A registration that was dropped in a callback is unregistered by a work.
        domain.unregistered.wait_for_completion();
        for memory in domain.memory.lock().drain_all() {
            memory.revoke();
        }
    }
}

/// Memory that a device can access.
///
/// # Invariants
///
/// `0` is from `rust_perf_dma_map()` or `rust_perf_dma_alloc()`, and freed once. The device is bound.
struct Memory(NonNull<bindings::rust_perf_dma>);

// SAFETY: Any task may free it.
unsafe impl Send for Memory {}
// SAFETY: Methods with `&self` read it, or synchronise, which any CPU may do at any time.
unsafe impl Sync for Memory {}

impl Memory {
    /// Coherent memory of `size` bytes for the device, zeroed.
    ///
    /// To be called from a task that may sleep: in `setup_aux()`.
    fn coherent(domain: &Domain, size: usize) -> Result<Self> {
        // SAFETY: The device is bound: this is in `setup_aux()`, where the PMU is not unregistered yet,
        // by the invariant of `Domain`. This is a task that may sleep.
        let memory = unsafe { bindings::rust_perf_dma_alloc(domain.raw(), size) };

        // INVARIANT: Just made.
        Ok(Self(NonNull::new(from_err_ptr(memory)?).ok_or(ENOMEM)?))
    }

    /// The address of coherent memory, and the device's address of it.
    fn place(&self) -> Result<(NonNull<u8>, u64)> {
        // SAFETY: Live, by the type invariant.
        let start = unsafe { bindings::rust_perf_dma_memory(self.0.as_ptr()) };
        let address = self.chunks()?.first().ok_or(ENOMEM)?.address;

        Ok((NonNull::new(start).ok_or(ENOMEM)?.cast(), address))
    }

    /// The pieces of the memory, as the device sees them.
    fn chunks(&self) -> Result<KVVec<DeviceChunk>> {
        let mut chunks = Ok(KVVec::new());
        let data = core::ptr::from_mut(&mut chunks).cast();

        // SAFETY: Live, by the type invariant. `push()` gets the address of `chunks`.
        unsafe { bindings::rust_perf_dma_for_each(self.0.as_ptr(), Some(push), data) };
        chunks
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: Made by one of the functions that the callee requires, and freed once, by the
        // type invariant; the device is bound: the memory is revoked before the device is unbound.
        // This is a task that may sleep: `DropInTask` and `Binding` ensure that.
        unsafe { bindings::rust_perf_dma_free(self.0.as_ptr()) };
    }
}

/// # Safety
///
/// `data` must be the address of a `Result<KVVec<DeviceChunk>>` that nothing else refers to.
unsafe extern "C" fn push(data: *mut c_void, address: u64, len: u64) -> bool {
    // SAFETY: By the safety requirement.
    let chunks = unsafe { &mut *data.cast::<Result<KVVec<DeviceChunk>>>() };
    let pushed = match chunks {
        // User space chooses the size. A failure is `ENOMEM`, without a report in the log.
        Ok(chunks) => chunks.push(DeviceChunk { address, len }, GFP_KERNEL | __GFP_NOWARN),
        Err(_) => return false,
    };

    if let Err(error) = pushed {
        *chunks = Err(error.into());
    }
    chunks.is_ok()
}

/// [`Memory`] that is freed when this is dropped, or when the device is unbound.
struct Attached {
    domain: Arc<Domain>,
    memory: Arc<Revocable<Memory>>,
}

impl Attached {
    fn new(domain: &Arc<Domain>, memory: Memory) -> Result<Self> {
        let memory = Arc::pin_init(Revocable::new(Ok::<_, Error>(memory)), GFP_KERNEL)?;

        domain.memory.lock().push(memory.clone(), GFP_KERNEL)?;
        Ok(Self {
            domain: domain.clone(),
            memory,
        })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut all = self.domain.memory.lock();

        all.retain(|memory| !Arc::ptr_eq(memory, &self.memory));
        // Under the lock: `Binding` must not return before the memory is freed.
        self.memory.revoke();
    }
}

/// A piece of memory at consecutive addresses of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceChunk {
    address: u64,
    len: u64,
}

impl DeviceChunk {
    /// Its address, as the device sees it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }
}

/// For a table of regions with addresses of the device.
impl From<DeviceChunk> for table::Chunk {
    fn from(chunk: DeviceChunk) -> Self {
        Self {
            address: chunk.address,
            len: chunk.len,
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
        // - The device is bound: this is in `setup_aux()`, where the PMU is not unregistered yet, by
        //   the invariant of `Domain`.
        // - `addresses` has `count` addresses of pages from the page allocator, which are perf's and
        //   live, by the invariant of `Pages`.
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
            // SAFETY: Live, by the invariant of `Memory`; any context.
            unsafe { bindings::rust_perf_dma_sync_for_cpu(memory.0.as_ptr()) };
        }
    }

    /// Hands the pages to the device.
    pub(super) fn sync_for_device(&self) {
        if let Some(memory) = self.mapped.attached.memory.try_access() {
            // SAFETY: Live, by the invariant of `Memory`; any context.
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

// SAFETY: Memory of the kernel's, which is mapped for all tasks alike.
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
            // SAFETY: Below the size, by the type invariant; it is not revoked before `f` returns.
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
