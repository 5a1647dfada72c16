// SPDX-License-Identifier: GPL-2.0

//! A stand-in for perf's half of the ring, for KUnit.
//!
//! It keeps the rules of `kernel/events/ring_buffer.c` that a driver can run into, and breaks them
//! where a test asks it to. Every call that the real one would answer with a splat or a leak is
//! counted as a crime.

use super::{
    buffer::{
        Buffer,
        Live,
        Pages, //
    },
    output::{
        Handle,
        Output,
        Refusal, //
    },
    unit::{
        Shared,
        Unit, //
    },
};
use crate::{
    bindings,
    context,
    event::{
        Event,
        State, //
    },
    pmu::Pmu,
    stats::Stats, //
};
use auxcore::ring::{
    Pos,
    Size, //
};
use core::{
    ffi::c_void,
    mem::MaybeUninit,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// A `PERF_RECORD_AUX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) flags: u64,
}

/// perf's half of a ring: what `struct perf_buffer` has.
pub(super) struct Ring {
    pub(super) head: Pos,
    pub(super) tail: Pos,
    wakeup: Pos,
    watermark: u64,
    size: Size,
    overwrite: bool,
    nested: bool,
    /// Whether it is being unmapped.
    pub(super) unmapped: bool,
    pub(super) private: *mut c_void,
    pub(super) records: KVec<Record>,
    /// Whether perf has disabled the event.
    pub(super) disabled: bool,
    /// What the kernel would have warned of.
    pub(super) crimes: u32,
}

/// perf, as far as it exists in tests: the ring of an event is where `event->rb` points.
pub(super) struct Fake;

impl Fake {
    /// # Safety
    ///
    /// `event->rb` must point to a [`Ring`] that nobody else refers to meanwhile.
    unsafe fn ring<'a>(event: NonNull<bindings::perf_event>) -> Option<&'a mut Ring> {
        // SAFETY: Live by the safety requirement.
        let ring = unsafe { (*event.as_ptr()).rb };

        // SAFETY: By the safety requirement.
        unsafe { ring.cast::<Ring>().as_mut() }
    }

    /// # Safety
    ///
    /// As for [`Self::ring`], if there is an event.
    unsafe fn open<'a>(handle: &Handle) -> Option<&'a mut Ring> {
        let event = NonNull::new(handle.0.event)?;

        // SAFETY: By the safety requirement.
        unsafe { Self::ring(event) }
    }
}

impl Ring {
    /// Whether a transaction is open.
    pub(super) fn nested(&self) -> bool {
        self.nested
    }
}

impl Output for Fake {
    unsafe fn begin(
        handle: &mut Handle,
        event: NonNull<bindings::perf_event>,
    ) -> Result<NonNull<c_void>, Refusal> {
        // SAFETY: Tests run one at a time, and refer to the ring between callbacks only.
        let ring = unsafe { Self::ring(event) }.ok_or(Refusal::NoRing)?;

        // The real one would overwrite an open handle, and leak what it held.
        ring.crimes += u32::from(!handle.0.event.is_null());
        if ring.unmapped || ring.private.is_null() {
            return Err(Refusal::NotMapped);
        }
        if ring.nested {
            // `WARN_ON_ONCE(nest)`.
            ring.crimes += 1;
            return Err(Refusal::NotMapped);
        }
        if ring.disabled {
            // A begin between TRUNCATED and the disable that it has queued.
            ring.crimes += 1;
        }

        handle.set_head(ring.head);
        handle.0.size = 0;
        handle.0.__bindgen_anon_1 = Handle::new().0.__bindgen_anon_1;
        if !ring.overwrite {
            let space = ring.size.space(ring.head, ring.tail);
            if space == 0 {
                ring.disabled = true;
                return Err(Refusal::NoSpace);
            }
            handle.0.size = usize::try_from(space).unwrap_or(0);
            handle.0.wakeup =
                usize::try_from(ring.wakeup.advance(ring.watermark).get()).unwrap_or(0);
        }

        handle.0.event = event.as_ptr();
        ring.nested = true;
        NonNull::new(ring.private).ok_or(Refusal::NotMapped)
    }

    unsafe fn flag(handle: &mut Handle, flags: u64) {
        // SAFETY: The union holds integers only; for AUX it is `aux_flags`.
        unsafe { *handle.0.__bindgen_anon_1.aux_flags.as_mut() |= flags };
    }

    unsafe fn end(handle: &mut Handle, len: u64) {
        // SAFETY: As in `begin()`.
        let Some(ring) = (unsafe { Self::open(handle) }) else {
            return;
        };
        // SAFETY: As in `flag()`.
        let flags = *unsafe { handle.0.__bindgen_anon_1.aux_flags.as_ref() };
        let truncated = u64::from(bindings::PERF_AUX_FLAG_TRUNCATED);
        let overwrite = u64::from(bindings::PERF_AUX_FLAG_OVERWRITE);

        ring.crimes += u32::from(!ring.nested);
        let (offset, flags) = if ring.overwrite {
            // A snapshot would go stale: the event is off, and nobody makes room.
            ring.crimes += u32::from(flags & truncated != 0);
            ring.head = handle.head();
            (ring.head, flags | overwrite)
        } else {
            let offset = ring.head;
            ring.crimes += u32::from(len > handle.space());
            ring.head = ring.head.advance(len);
            (offset, flags)
        };
        if len != 0 || flags & !overwrite != 0 {
            let record = Record {
                offset: offset.get(),
                size: len,
                flags,
            };
            ring.crimes += u32::from(ring.records.push(record, GFP_ATOMIC).is_err());
        }
        if flags & truncated != 0 {
            ring.disabled = true;
        }
        if !ring.overwrite && ring.head.distance_from(ring.wakeup) >= ring.watermark {
            let over = ring.head.get().checked_rem(ring.watermark).unwrap_or(0);
            ring.wakeup = ring.head.retreat(over);
        }

        handle.0.event = ptr::null_mut();
        ring.nested = false;
    }
}

/// Sets `event->hw.aux_paused`, as perf does before it calls.
///
/// # Safety
///
/// `event` must be live, and nobody else's.
pub(super) unsafe fn set_paused(event: NonNull<bindings::perf_event>, paused: bool) {
    // SAFETY: By the safety requirement.
    unsafe { bindings::rust_perf_set_aux_paused(event.as_ptr(), paused) };
}

/// A driver with one event, one ring and one CPU, and perf replaced by [`Fake`].
pub(super) struct Bench<T: Pmu> {
    pub(super) unit: Unit<T, Fake>,
    pub(super) shared: Shared<T>,
    event: KBox<MaybeUninit<bindings::perf_event>>,
    state: KBox<State<T>>,
    pub(super) ring: KBox<Ring>,
    addresses: KVec<*mut c_void>,
    _pages: KVec<KBox<[u8; PAGE_SIZE]>>,
    pub(super) cpu: context::Cpu,
}

impl<T: Pmu> Bench<T> {
    /// A mapped ring of `nr_pages` pages, for an event with this configuration and state.
    ///
    /// # Safety
    ///
    /// The caller must stay on its CPU: in tests, with interrupts off around each callback.
    pub(super) unsafe fn new(
        driver: T,
        state: State<T>,
        nr_pages: usize,
        watermark: u64,
        overwrite: bool,
    ) -> Result<Self> {
        let mut pages = KVec::new();
        let mut addresses = KVec::new();
        for _ in 0..nr_pages {
            let mut page = KBox::new([0; PAGE_SIZE], GFP_KERNEL)?;
            addresses.push(ptr::from_mut(&mut *page).cast(), GFP_KERNEL)?;
            pages.push(page, GFP_KERNEL)?;
        }

        // SAFETY: By the safety requirement.
        let cpu = unsafe { context::Cpu::current() };
        let ring = Ring {
            head: Pos::new(0),
            tail: Pos::new(0),
            wakeup: Pos::new(0),
            watermark,
            size: Size::new(nr_pages * PAGE_SIZE).ok_or(EINVAL)?,
            overwrite,
            nested: false,
            unmapped: false,
            private: ptr::null_mut(),
            records: KVec::new(),
            disabled: false,
            crimes: 0,
        };
        let mut bench = Self {
            unit: Unit::new(cpu.id()),
            shared: Shared {
                driver,
                live: Arc::pin_init(Live::new(), GFP_KERNEL)?,
                stats: Stats::new(),
            },
            event: KBox::new(MaybeUninit::zeroed(), GFP_KERNEL | __GFP_ZERO)?,
            state: KBox::new(state, GFP_KERNEL)?,
            ring: KBox::new(ring, GFP_KERNEL)?,
            addresses,
            _pages: pages,
            cpu,
        };

        let event = bench.event().as_ptr();
        // SAFETY: `event` is live, and `bench` owns it.
        unsafe { (*event).rb = ptr::from_mut(&mut *bench.ring).cast() };
        // SAFETY: As above.
        unsafe { (*event).pmu_private = ptr::from_mut(&mut *bench.state).cast() };
        bench.unit.set_online(true, &bench.cpu);
        bench.map()?;

        Ok(bench)
    }

    /// The event.
    pub(super) fn event(&mut self) -> NonNull<bindings::perf_event> {
        NonNull::from(&mut *self.event).cast()
    }

    /// User space maps the AUX ring.
    pub(super) fn map(&mut self) -> Result {
        let nr_pages = self.addresses.len().try_into()?;
        // SAFETY: The array holds the addresses of that many pages; `unmap()` is called first.
        let pages =
            unsafe { Pages::new(self.addresses.as_mut_ptr(), nr_pages, self.ring.overwrite)? };
        let raw = self.event();
        // SAFETY: A live event with the state of one.
        let event = unsafe { Event::<T>::from_raw(raw) };
        let data = self.shared.driver.setup_aux(&event, &pages)?;

        self.ring.private = Buffer::<T>::into_foreign(data, pages, self.shared.live.clone())?;
        self.ring.unmapped = false;
        Ok(())
    }

    /// User space unmaps it: perf stops the event, and frees the buffer if nothing holds it.
    pub(super) fn unmap(&mut self) {
        self.ring.unmapped = true;
        let event = self.event();
        self.unit.stop(event, &self.cpu);

        // `WARN_ON_ONCE(refcount_read(&rb->aux_refcount))`.
        self.ring.crimes += u32::from(self.ring.nested);
        let private = core::mem::replace(&mut self.ring.private, ptr::null_mut());
        if !private.is_null() {
            // SAFETY: From `into_foreign()`, in `map()`; no transaction is open.
            drop(unsafe { Buffer::<T>::from_foreign(private) });
        }
    }

    /// perf schedules the event in; whether `add()` succeeded.
    pub(super) fn add(&mut self) -> bool {
        let event = self.event();

        // SAFETY: The event is live, and so is `shared`, until `drop()` has deleted it.
        let added = unsafe { self.unit.add(&self.shared, event, true, &self.cpu) };
        added.is_ok()
    }

    /// perf schedules it out.
    pub(super) fn del(&mut self) {
        let event = self.event();

        self.unit.del(event, &self.cpu);
    }

    /// User space reads all there is, and enables the event again.
    pub(super) fn read(&mut self) {
        self.ring.tail = self.ring.head;
        if self.ring.disabled {
            // perf's irq_work has taken it off the CPU by now.
            self.del();
            self.ring.disabled = false;
            self.add();
        }
    }
}

impl<T: Pmu> Drop for Bench<T> {
    fn drop(&mut self) {
        self.del();
        self.unmap();
    }
}
