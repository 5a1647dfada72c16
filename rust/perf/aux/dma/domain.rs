// SPDX-License-Identifier: GPL-2.0

//! The device of a PMU, and the memory that it can access until it is unbound.

use crate::bindings;
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
    error::from_err_ptr,
    new_mutex,
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
    pub(super) fn raw(&self) -> *mut bindings::device {
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
        let device = ptr::from_ref(device).cast_mut().cast();
        // SAFETY: The device is bound, and thus live.
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
        // SAFETY: The reference is to be dropped once, by the type invariant: here.
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
/// `0` is from `rust_perf_dma_map()` or `rust_perf_dma_alloc()`, and freed once. The device is
/// bound.
pub(super) struct Memory(pub(super) NonNull<bindings::rust_perf_dma>);

// SAFETY: Any task may free it.
unsafe impl Send for Memory {}
// SAFETY: Methods with `&self` read it, or synchronise, which any CPU may do at any time.
unsafe impl Sync for Memory {}

impl Memory {
    /// Coherent memory of `size` bytes for the device, zeroed.
    ///
    /// To be called from a task that may sleep: in `setup_aux()`.
    pub(super) fn coherent(domain: &Domain, size: usize) -> Result<Self> {
        // SAFETY: The device is bound: this is in `setup_aux()`, where the PMU is not unregistered
        // yet, by the invariant of `Domain`. This is a task that may sleep.
        let memory = unsafe { bindings::rust_perf_dma_alloc(domain.raw(), size) };

        // INVARIANT: Just made.
        Ok(Self(NonNull::new(from_err_ptr(memory)?).ok_or(ENOMEM)?))
    }

    /// The address of coherent memory, and the device's address of it.
    pub(super) fn place(&self) -> Result<(NonNull<u8>, u64)> {
        // SAFETY: The memory is live, by the type invariant.
        let start = unsafe { bindings::rust_perf_dma_memory(self.0.as_ptr()) };
        let address = self.chunks()?.first().ok_or(ENOMEM)?.address;

        Ok((NonNull::new(start).ok_or(ENOMEM)?.cast(), address))
    }

    /// The pieces of the memory, as the device sees them.
    pub(super) fn chunks(&self) -> Result<KVVec<DeviceChunk>> {
        let mut chunks = Ok(KVVec::new());
        let data = ptr::from_mut(&mut chunks).cast();

        // SAFETY: The memory is live, by the type invariant. `push()` gets the address of `chunks`,
        // which nothing else refers to meanwhile.
        unsafe { bindings::rust_perf_dma_for_each(self.0.as_ptr(), Some(push), data) };
        chunks
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: The memory is made by one of the functions that the callee requires, and is freed
        // once, by the type invariant. The device is bound: the memory is revoked before the device
        // is unbound. This is a task that may sleep: `DropInTask` and `Binding` ensure that.
        unsafe { bindings::rust_perf_dma_free(self.0.as_ptr()) };
    }
}

/// # Safety
///
/// `data` must be the address of a `Result<KVVec<DeviceChunk>>` that nothing else refers to.
unsafe extern "C" fn push(data: *mut c_void, address: u64, len: u64) -> bool {
    // SAFETY: The caller guarantees that this is the address of such a `Result`, and that nothing
    // else refers to it.
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
pub(super) struct Attached {
    domain: Arc<Domain>,
    pub(super) memory: Arc<Revocable<Memory>>,
}

impl Attached {
    pub(super) fn new(domain: &Arc<Domain>, memory: Memory) -> Result<Self> {
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
