// SPDX-License-Identifier: GPL-2.0

//! A driver with one event, one AUX area and one CPU, and perf replaced by [`Model`].

use super::{
    model::Model,
    ring::{
        Ring,
        Sampled,
        Violation, //
    }, //
};
use crate::{
    aux::{
        cpu::{
            CpuState,
            Failure, //
        },
        AuxPmu,
        Buffer,
        Mode,
        Next,
        Pages,
        Transaction, //
    },
    bindings,
    context,
    event::{
        Attr,
        Event,
        State, //
    },
    filter,
    module_ref,
    registration::{
        CpuInfo,
        PmuId, //
    }, //
};
use auxcore::{
    guard::Pending,
    ring::Size, //
};
use core::{
    cell::UnsafeCell,
    ffi::c_void,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    error::to_result,
    page::PAGE_SIZE,
    prelude::*,
    time::Delta,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};

mod memory;
mod reader;
mod setup;

use memory::Memory;
pub use setup::{
    Nmi,
    Setup, //
};

/// A driver on the bench: one event, one AUX area, and the event's CPU.
///
/// Each method is an action of perf, of user space or of the hardware on the event. The driver's
/// callbacks run on the event's CPU in hard interrupt context or with interrupts off, as under
/// perf; all else runs in the test's task.
///
/// # Invariants
///
/// - `event` is zeroed but for what is set in [`Self::open`] and by the framework:
///   `event.pmu_private` is `event_state`, `event.rb` is `ring` and `event.pmu` is `pmu`.
/// - `ring` is only referred to by [`Model`] during a callback, and by [`Self`] outside of any.
/// - Each object to which `state` keeps a pointer is in a box of its own.
pub struct Bench<T: AuxPmu> {
    // Dropped before the driver, to which it points.
    pub(super) state: Pin<KBox<CpuState<T, Model>>>,
    driver: KBox<T>,
    event: KBox<Opaque<bindings::perf_event>>,
    parent: KBox<Opaque<bindings::perf_event>>,
    /// Zeroed: a PMU without a name, and without address filters.
    pmu: KBox<Opaque<bindings::pmu>>,
    event_state: Option<KBox<State<T>>>,
    ring: KBox<UnsafeCell<Ring>>,
    memory: Memory,
    pub(super) id: PmuId,
    filters: usize,
    cpu: u32,
    /// Tests access it between callbacks, in one task.
    _not_send: NotThreadSafe,
}

impl<T: AuxPmu> Bench<T> {
    /// Opens an event of `driver`, and maps its AUX ring.
    ///
    /// The error is the one that the framework or the driver gives in `event_init()` or
    /// `setup_aux()`.
    pub fn new(driver: T, setup: &Setup) -> Result<Self> {
        let memory = Memory::new(setup.pages)?;
        let size = Size::new(setup.pages.checked_mul(PAGE_SIZE).ok_or(EINVAL)?).ok_or(EINVAL)?;
        let watermark = match setup.watermark {
            0 => size.len() / 2,
            watermark => watermark,
        };
        let cpu = setup.cpu.unwrap_or_else(|| {
            // SAFETY: Reading the number of the current CPU has no requirements. Whichever it is,
            // the callbacks will run there.
            unsafe { bindings::raw_smp_processor_id() }
        });

        let driver = KBox::new(driver, GFP_KERNEL)?;
        let id = PmuId::new();
        let info = CpuInfo {
            id,
            itrace: false,
            filters: false,
        };
        // SAFETY: The driver is in a box, which is dropped after the state.
        let state = unsafe { CpuState::new(cpu, NonNull::from(&*driver), info) };

        // INVARIANT: `event` is completed below, before a callback sees it.
        let mut bench = Self {
            state: KBox::pin_init(state, GFP_KERNEL)?,
            driver,
            event: KBox::new(Opaque::zeroed(), GFP_KERNEL)?,
            parent: KBox::new(Opaque::zeroed(), GFP_KERNEL)?,
            pmu: KBox::new(Opaque::zeroed(), GFP_KERNEL)?,
            event_state: None,
            ring: KBox::new(
                UnsafeCell::new(Ring::new(size, watermark, setup.mode)?),
                GFP_KERNEL,
            )?,
            memory,
            id,
            filters: usize::try_from(setup.filters)?,
            cpu,
            _not_send: NotThreadSafe,
        };

        bench.set_online(true)?;
        bench.open(setup)?;
        bench.map()?;
        Ok(bench)
    }

    /// `event_init()`.
    fn open(&mut self, setup: &Setup) -> Result {
        let raw = self.event.get();
        // SAFETY: The bench's own event. No other reference to it exists yet.
        let event = unsafe { &mut *raw };
        let [config, config1, config2, config3] = setup.config;

        event.attr.config = config;
        // SAFETY: All fields of the unions are integers as wide as these.
        unsafe { *event.attr.__bindgen_anon_3.config1.as_mut() = config1 };
        // SAFETY: All fields of the unions are integers as wide as these.
        unsafe { *event.attr.__bindgen_anon_4.config2.as_mut() = config2 };
        event.attr.config3 = config3;
        // SAFETY: All fields of the union are integers as wide as this.
        unsafe { *event.attr.__bindgen_anon_1.sample_period.as_mut() = setup.period };
        event.attr.set_freq(setup.frequency.into());
        event.attr.set_exclude_user(setup.exclude.user.into());
        event.attr.set_exclude_kernel(setup.exclude.kernel.into());
        event.attr.set_exclude_hv(setup.exclude.hypervisor.into());
        event.attr.set_exclude_idle(setup.exclude.idle.into());
        event.attr.set_exclude_host(setup.exclude.host.into());
        event.attr.set_exclude_guest(setup.exclude.guest.into());
        event.cpu = self.cpu.try_into()?;
        event.pmu = self.pmu.get();
        if setup.inherited {
            event.parent = self.parent.get();
        }

        let event = self.event();
        // SAFETY: This stands for `event_init()`. `attr` is not written any more.
        let attr = unsafe { Attr::<T::Config>::new(event)? };
        let data = self.driver.event_init(&attr)?;
        let state = self.event_state.insert(KBox::new(
            State::new(attr.into_config(), self.filters, data)?,
            GFP_KERNEL,
        )?);

        // SAFETY: The bench's own event.
        unsafe { (*raw).pmu_private = ptr::from_mut(&mut **state).cast() };
        // SAFETY: The bench's own event.
        unsafe { (*raw).rb = self.ring.get().cast() };
        Ok(())
    }

    /// The CPU comes online or goes offline. When it goes offline, perf deletes the event only
    /// later.
    ///
    /// The error is the driver's, from `cpu_online()`. Unlike the kernel, the bench calls
    /// `cpu_online()` and `cpu_offline()` on the CPU on which the test's task runs.
    pub fn set_online(&mut self, online: bool) -> Result {
        if online && T::HAS_CPU_ONLINE {
            self.driver().cpu_online(self.cpu)?;
        }
        self.on_cpu(|bench, cpu| bench.state.as_ref().set_online(online, cpu));
        if !online {
            if T::HAS_CPU_OFFLINE {
                self.driver().cpu_offline(self.cpu);
            }
        }
        Ok(())
    }

    /// The event.
    pub(super) fn event(&self) -> NonNull<bindings::perf_event> {
        // SAFETY: The address of a box is not null.
        unsafe { NonNull::new_unchecked(self.event.get()) }
    }

    /// perf's half of the ring.
    pub(super) fn ring(&self) -> &Ring {
        // SAFETY: By the type invariant; this is outside of any callback, since methods that run
        // one take `&mut self`.
        unsafe { &*self.ring.get() }
    }

    /// As [`Self::ring`], for tests that act as perf, or as another event.
    pub(super) fn ring_mut(&mut self) -> &mut Ring {
        // SAFETY: By the type invariant; this is outside of any callback, and `&mut self` excludes
        // other references.
        unsafe { &mut *self.ring.get() }
    }

    /// As [`Self::on_cpu`], where the caller may hold any raw lock.
    fn under_lock<R>(&mut self, f: impl FnOnce(&mut Self, &context::Cpu) -> R) -> Option<R> {
        let (result, armed) = self.on_cpu(|bench, cpu| Model::under_lock(|| f(bench, cpu)))?;

        if armed {
            self.ring_mut().violate(Violation::ArmedUnderLock);
        }
        Some(result)
    }

    /// Runs `f` as perf does to an event: on its CPU, with interrupts off. Right afterwards, does
    /// the work that `f` has queued.
    pub(super) fn on_cpu<R>(&mut self, f: impl FnOnce(&mut Self, &context::Cpu) -> R) -> Option<R> {
        let cpu = self.cpu;
        let done = on_cpu(cpu, |cpu| {
            let result = f(self, cpu);

            if Model::is_queued() {
                self.state.as_ref().work(cpu);
            }
            result
        });

        if done.is_err() {
            self.ring_mut().violate(Violation::Offline);
        }
        done.ok()
    }

    /// User space maps the ring. Its positions continue from where they were.
    ///
    /// The error is the driver's, from `setup_aux()`; perf makes [`ENOMEM`] of it.
    pub fn map(&mut self) -> Result {
        if self.ring().is_mapped() {
            return Err(EBUSY);
        }

        let nr_pages = self.memory.pages().try_into()?;
        let overwrite = self.ring().mode() == Mode::Overwrite;
        // SAFETY: The array holds the addresses of that many pages, which stay until the bench is
        // dropped; `unmap()` is called first.
        let pages = unsafe { Pages::new(self.memory.addresses(), nr_pages, overwrite)? };
        // SAFETY: `event_init()` has succeeded; otherwise there is no bench.
        let event = unsafe { Event::<T>::from_raw(self.event()) };
        let data = self.driver.setup_aux(&event, &pages)?;
        // SAFETY: The ring drops it in `unmap()`, before the memory is freed.
        let view = unsafe { pages.view() };
        let private = Buffer::<T>::into_foreign(data, pages, self.id, self.ring.get().cast())?;

        self.ring_mut().map(private, view);
        Ok(())
    }

    /// User space unmaps the ring: perf stops the event and drops what `setup_aux()` returned.
    pub fn unmap(&mut self) {
        self.ring_mut().begin_unmap();
        self.stop();

        if let Some(private) = self.ring_mut().end_unmap() {
            // SAFETY: The pointer is from `into_foreign()`, in `map()`; no transaction is open, and
            // the running test holds a reference to the module.
            unsafe { module_ref::free_aux(private.as_ptr()) };
        }
    }

    /// perf schedules the event in, and starts it.
    ///
    /// [`EAGAIN`] if nothing is mapped; otherwise the error is that of the driver's `start()`.
    /// With a full ring it succeeds, but the event is [disabled](Self::is_disabled).
    pub fn add(&mut self) -> Result {
        match self.try_add() {
            Some(Ok(())) => Ok(()),
            Some(Err(failure)) => Err(Error::from_errno(failure.to_errno())),
            None => Err(EAGAIN),
        }
    }

    pub(super) fn try_add(&mut self) -> Option<Result<(), Failure>> {
        self.on_cpu(|bench, cpu| {
            // SAFETY: The event has a box of its own, and `drop()` deletes the event before the box
            // is freed. If the bench is forgotten, the box stays.
            unsafe { bench.state.as_ref().add(bench.event(), true, cpu) }
        })
    }

    /// perf schedules the event out.
    pub fn del(&mut self) {
        self.on_cpu(|bench, cpu| bench.state.as_ref().del(bench.event(), cpu));
    }

    /// perf starts the event that it has stopped. True if that has begun a transaction.
    pub fn start(&mut self) -> bool {
        let before = self.ring().begun();

        self.on_cpu(|bench, cpu| bench.state.as_ref().start(bench.event(), cpu));
        self.ring().begun() != before
    }

    /// perf stops the event, which stays on its CPU.
    pub fn stop(&mut self) {
        self.under_lock(|bench, cpu| bench.state.as_ref().stop(bench.event(), cpu));
    }

    /// An overflow of a sibling pauses the event.
    ///
    /// [`EOPNOTSUPP`] if the driver cannot pause.
    pub fn pause(&mut self) -> Result {
        self.follow_pause(true)
    }

    /// An overflow of a sibling resumes the event.
    ///
    /// [`EOPNOTSUPP`] if the driver cannot pause.
    pub fn resume(&mut self) -> Result {
        self.follow_pause(false)
    }

    fn follow_pause(&mut self, paused: bool) -> Result {
        if !T::HAS_PAUSE {
            return Err(EOPNOTSUPP);
        }

        self.set_paused(paused);
        self.under_lock(|bench, cpu| bench.state.as_ref().follow_pause(bench.event(), cpu));
        Ok(())
    }

    /// Sets `event->hw.aux_paused`.
    fn set_paused(&mut self, paused: bool) {
        // SAFETY: The bench's own event. Only callbacks refer to it.
        unsafe { bindings::rust_perf_set_aux_paused(self.event().as_ptr(), paused) };
    }

    /// An NMI interrupts the next callback, whichever that is. The request of `nmi` is processed
    /// when the driver's callback has returned, before interrupts come on again.
    ///
    /// [`EOPNOTSUPP`] for a pause or a resume if the driver cannot pause.
    ///
    /// C counterpart: `perf_event_overflow()` of another event of the group.
    pub fn interrupt(&mut self, nmi: Nmi) -> Result {
        match nmi {
            Nmi::Stop => Model::interrupt_next(Pending::STOP),
            Nmi::Interrupt => Model::interrupt_next(Pending::INTERRUPT),
            Nmi::Pause | Nmi::Resume => {
                if !T::HAS_PAUSE {
                    return Err(EOPNOTSUPP);
                }
                self.set_paused(nmi == Nmi::Pause);
                Model::interrupt_next(Pending::PAUSE);
            }
        }
        Ok(())
    }

    /// User space replaces the filters with these. `mapped` is where the task has mapped the file,
    /// if it has: a filter in a file begins at its offset from there.
    ///
    /// As perf does, the bench stops the event if it runs, and starts it again. The error is the
    /// driver's, from `filters_validate()`, or [`EOPNOTSUPP`] for more than [`Setup::filters`], or
    /// [`EINVAL`] if the driver has no `filters_validate()`; then the filters stay as they were.
    ///
    /// C counterpart: `PERF_EVENT_IOC_SET_FILTER`.
    pub fn set_filters(&mut self, wanted: &[filter::AddrFilter], mapped: Option<u64>) -> Result {
        if !T::HAS_FILTERS_VALIDATE {
            return Err(EINVAL);
        }

        let mut raw = KVec::new();
        let mut ranges = KVec::new();
        for filter in wanted {
            let offset = usize::try_from(filter.offset)?;
            let size = usize::try_from(filter.size)?;
            let start = match (filter.in_file, mapped) {
                (false, _) => Some(offset),
                (true, Some(address)) => offset.checked_add(address.try_into()?),
                (true, None) => None,
            };
            // As perf leaves it until the file is mapped.
            let range = match start {
                Some(start) => bindings::perf_addr_filter_range { start, size },
                None => bindings::perf_addr_filter_range { start: 0, size: 0 },
            };

            raw.push(
                (filter.action.as_raw(), offset, size, filter.in_file),
                GFP_KERNEL,
            )?;
            ranges.push(range, GFP_KERNEL)?;
        }
        let mut list = filter::List::new(raw)?;
        let list = list.head();
        // SAFETY: This is a list of filters, of our own.
        let asked = unsafe { filter::of_list(list, self.filters)? };
        T::filters_validate(&asked)?;

        self.stop();
        self.on_cpu(|bench, _| {
            if let Some(state) = &bench.event_state {
                // SAFETY:
                // - The list is ours, and there is a range for each filter.
                // - The event is stopped, and this is its CPU with interrupts off.
                unsafe { state.filters.sync(list, ranges.as_ptr()) };
            }
        });
        self.start();
        Ok(())
    }

    /// A sibling takes a sample of the newest `size` bytes of trace, at most the AUX area; perf
    /// takes multiples of 8. Bytes that the driver does not copy are zeroes.
    ///
    /// [`EOPNOTSUPP`] if the driver has no [`snapshot`](AuxPmu::snapshot): perf refuses such
    /// siblings.
    pub fn sample(&mut self, size: usize) -> Result<KVec<u8>> {
        if !T::HAS_SNAPSHOT {
            return Err(EOPNOTSUPP);
        }

        let size = (size & !7).min(self.ring().size().get());
        let len = u64::try_from(size)?;
        // What is not written stays zero, as perf fills it up.
        let mut bytes = KVec::from_elem(0, size, GFP_KERNEL)?;
        let mut sampled = Sampled::new(&mut bytes);

        self.under_lock(|bench, cpu| {
            let (record, event) = (sampled.as_record(), bench.event());

            // SAFETY: This stands for `snapshot_aux()`.
            unsafe { bench.state.as_ref().snapshot(event, record, len, cpu) }
        });
        Ok(bytes)
    }

    /// The timer expires; false if the driver has not set one.
    pub fn tick(&mut self) -> bool {
        let is_set = self.timer().is_some();

        self.on_cpu(|bench, cpu| {
            bench.state.as_ref().get_ref().tick(cpu);
        });
        is_set
    }

    /// The unit raises its interrupt on the event's CPU, as
    /// [`Entry::interrupt`](crate::interrupt::Entry::interrupt) does.
    pub fn raise(&mut self) {
        self.under_lock(|bench, cpu| bench.state.as_ref().interrupt(cpu));
    }

    /// Runs `f` in the transaction, as
    /// [`Entry::with_transaction`](crate::interrupt::Entry::with_transaction). Returns the second
    /// value that `f` returned; [`None`] if no transaction is open.
    pub fn with_transaction<R>(
        &mut self,
        f: impl FnOnce(&mut Transaction<'_, T>, &mut T::Trace) -> (Next, R),
    ) -> Option<R> {
        self.under_lock(|bench, cpu| bench.state.as_ref().with_transaction(cpu, f))
            .flatten()
    }

    /// The interval of the timer that the driver has asked for.
    pub fn timer(&self) -> Option<Delta> {
        self.timers().0
    }

    /// The interval at which the timer is armed. It stays armed when the event stops.
    pub fn armed(&self) -> Option<Delta> {
        self.timers().1
    }

    fn timers(&self) -> (Option<Delta>, Option<Delta>) {
        on_cpu(self.cpu, |cpu| self.state.timers(cpu)).unwrap_or((None, None))
    }

    /// The event's counter, as `read()` shows it.
    pub fn counter(&self) -> i64 {
        // SAFETY: The bench's own event.
        unsafe { (*self.event.get()).count.a.a.counter }
    }

    /// Bytes that the driver has reported lost so far, for whatever cause.
    pub fn lost(&self) -> u64 {
        let stats = &self.state.stats;

        [&stats.lost_no_space, &stats.lost_gap, &stats.lost_collision]
            .into_iter()
            .fold(0, |sum, counter| sum.saturating_add(counter.get()))
    }

    /// The event's CPU.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// The driver.
    pub fn driver(&self) -> &T {
        &self.driver
    }

    /// What `event_init()` returned.
    pub fn state(&self) -> Option<&T::Event> {
        self.event_state.as_ref().map(|state| &state.data)
    }
}

impl<T: AuxPmu> Drop for Bench<T> {
    fn drop(&mut self) {
        self.del();
        self.unmap();
    }
}

/// Runs `f` on `cpu`, with interrupts off, and waits for it. To be called from a task that may
/// sleep; an error if the CPU is offline.
///
/// C counterpart: `smp_call_function_single()`.
fn on_cpu<F: FnOnce(&context::Cpu) -> R, R>(cpu: u32, f: F) -> Result<R> {
    struct Call<F, R> {
        f: Option<F>,
        result: Option<R>,
    }

    /// # Safety
    ///
    /// `info` must point to a `Call<F, R>` to which no other reference is used during the call.
    unsafe extern "C" fn call<F: FnOnce(&context::Cpu) -> R, R>(info: *mut c_void) {
        // SAFETY: The caller guarantees that this points to a `Call<F, R>`, to which no other
        // reference is used during the call.
        let call = unsafe { &mut *info.cast::<Call<F, R>>() };
        // SAFETY: `smp_call_function_single()` calls with interrupts off, until this returns.
        let cpu = unsafe { context::Cpu::current() };

        call.result = call.f.take().map(|f| f(&cpu));
    }

    let mut info = Call {
        f: Some(f),
        result: None,
    };

    // SAFETY: `call::<F, R>` is called once at most, with `info`, before this returns: it waits.
    to_result(unsafe {
        bindings::smp_call_function_single(
            cpu.try_into()?,
            Some(call::<F, R>),
            ptr::from_mut(&mut info).cast(),
            true,
        )
    })?;
    info.result.ok_or(ENXIO)
}
