// SPDX-License-Identifier: GPL-2.0

//! One event of a PMU.
//!
//! C header: [`include/linux/perf_event.h`](srctree/include/linux/perf_event.h),
//! `struct perf_event`.

use crate::{
    aux::AuxPmu,
    bindings,
    context,
    counter,
    filter::{
        Filter,
        Filters, //
    },
    format::{
        self,
        WORDS, //
    },
    interrupt::Entry,
    pmu::Pmu, //
};
use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::prelude::*;

/// What user space excludes.
///
/// C counterpart: `attr.exclude_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exclude {
    /// User mode.
    pub user: bool,
    /// The kernel.
    pub kernel: bool,
    /// The hypervisor.
    pub hypervisor: bool,
    /// The idle task.
    pub idle: bool,
    /// The host of a guest.
    pub host: bool,
    /// Guests.
    pub guest: bool,
}

/// What an event traces or counts.
///
/// C counterpart: `event->cpu`, and `PERF_ATTACH_TASK` in `event->attach_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Whatever runs on this CPU.
    Cpu(u32),
    /// A task, wherever it runs.
    Task,
    /// A task, while it runs on this CPU.
    TaskOn(u32),
}

/// The attributes of an event that is being opened, as [`Pmu::event_init`] sees them.
///
/// C counterpart: `struct perf_event_attr`, and the fields that perf sets from the arguments of
/// `perf_event_open()`.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, event::{Exclude, Target}, testing::{Bench, Setup}, Attr, AuxPmu, Event, Pmu};
/// # struct Driver;
/// # #[vtable]
/// # impl Pmu for Driver {
/// #     type Config = ();
/// // An event's own state: the period.
/// type Event = u64;
///
/// fn event_init(&self, attr: &Attr<'_, ()>) -> Result<u64> {
///     // This unit cannot tell tasks apart, nor user from kernel.
///     if !matches!(attr.target(), Target::Cpu(_)) || attr.exclude() != Exclude::default() {
///         return Err(EOPNOTSUPP);
///     }
///     Ok(attr.period())
/// }
/// #     type Count = ();
/// # }
/// # #[vtable]
/// # impl AuxPmu for Driver {
/// #     type Buffer = ();
/// #     type Trace = ();
/// #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
/// #         Ok(())
/// #     }
/// #     fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result {
/// #         Ok(())
/// #     }
/// #     fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
/// #         aux::Commit::written(transaction, aux::Loss::None)
/// #     }
/// # }
///
/// let asked = Setup { period: 100, ..Setup::default() };
/// assert!(Bench::new(Driver, &asked)?.state() == Some(&100));
///
/// let exclude = Exclude { user: true, ..Exclude::default() };
/// let asked = Setup { exclude, ..asked };
/// assert!(Bench::new(Driver, &asked).err() == Some(EOPNOTSUPP));
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// `event` is in its `event_init()`, during `'a`.
pub struct Attr<'a, C> {
    event: NonNull<bindings::perf_event>,
    raw: &'a bindings::perf_event_attr,
    config: C,
    inherited: bool,
    target: Target,
}

impl<'a, C: format::Config> Attr<'a, C> {
    /// Reads the attr of an event, and refuses what no PMU here can do:
    ///
    /// - a frequency ([`EINVAL`]): perf would stop and restart the trace at every tick;
    /// - a branch stack ([`EOPNOTSUPP`]);
    /// - bits that no term has ([`EINVAL`]).
    ///
    /// # Safety
    ///
    /// `event` must be a `struct perf_event` in its `pmu->event_init()`, and stay so for `'a`.
    pub(crate) unsafe fn new(event: NonNull<bindings::perf_event>) -> Result<Self> {
        // SAFETY: The caller guarantees that the event is valid. `attr` is not written after the
        // event was allocated, except for the period, which is not read here.
        let raw: &'a _ = unsafe { &(*event.as_ptr()).attr };

        if raw.freq() != 0 {
            return Err(EINVAL);
        }
        // SAFETY: The caller guarantees that the event is valid.
        if unsafe { bindings::rust_perf_has_branch_stack(event.as_ptr()) } {
            return Err(EOPNOTSUPP);
        }

        // SAFETY: Both members of the union are plain integers. PMUs of this kind use this one.
        let config1 = *unsafe { raw.__bindgen_anon_3.config1.as_ref() };
        // SAFETY: Both members of the union are plain integers. PMUs of this kind use this one.
        let config2 = *unsafe { raw.__bindgen_anon_4.config2.as_ref() };
        let words: [u64; WORDS] = [raw.config, config1, config2, raw.config3];

        // SAFETY: The caller guarantees that the event is valid. perf sets the field before
        // `event_init()`.
        let cpu = unsafe { (*event.as_ptr()).cpu };
        // SAFETY: The caller guarantees that the event is valid. perf sets the bit for tasks before
        // `event_init()`.
        let attach_state = unsafe { (*event.as_ptr()).attach_state };
        let target = match (
            u32::try_from(cpu),
            attach_state & bindings::PERF_ATTACH_TASK != 0,
        ) {
            (Ok(cpu), true) => Target::TaskOn(cpu),
            (Ok(cpu), false) => Target::Cpu(cpu),
            // -1 means any CPU, which only an event of a task can have.
            (Err(_), _) => Target::Task,
        };

        // INVARIANT: By the safety requirement.
        Ok(Self {
            event,
            raw,
            target,
            config: C::new(words)?,
            // SAFETY: The caller guarantees that the event is valid. perf sets `parent` before
            // `event_init()`.
            inherited: !unsafe { (*event.as_ptr()).parent }.is_null(),
        })
    }

    /// The values of the terms.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The period asked for, in the PMU's unit; 0 for an event that only counts.
    pub fn period(&self) -> u64 {
        // SAFETY: Both members of the union are plain integers; with `freq` 0 it is the period.
        *unsafe { self.raw.__bindgen_anon_1.sample_period.as_ref() }
    }

    /// What user space excludes. If the PMU has
    /// [`NO_EXCLUDE`](crate::pmu::Capabilities::NO_EXCLUDE), perf refuses anything but the default,
    /// but only after [`Pmu::event_init`].
    pub fn exclude(&self) -> Exclude {
        Exclude {
            user: self.raw.exclude_user() != 0,
            kernel: self.raw.exclude_kernel() != 0,
            hypervisor: self.raw.exclude_hv() != 0,
            idle: self.raw.exclude_idle() != 0,
            host: self.raw.exclude_host() != 0,
            guest: self.raw.exclude_guest() != 0,
        }
    }

    /// What the event traces or counts.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Whether the task that opens the event may observe the whole system: `CAP_PERFMON`.
    ///
    /// C counterpart: `perfmon_capable()`.
    pub fn is_perfmon_capable(&self) -> bool {
        // SAFETY: `event_init()` runs in the task that opens the event.
        unsafe { bindings::rust_perf_perfmon_capable() }
    }

    /// `attr.aux_watermark`: bytes after which the reader is woken; 0 for half the AUX area.
    pub fn aux_watermark(&self) -> u32 {
        self.raw.aux_watermark
    }

    /// `attr.precise_ip`: the skid that user space accepts, 0 to 3.
    pub fn precise_ip(&self) -> u8 {
        // CAST: Two bits.
        self.raw.precise_ip() as u8
    }

    /// Whether the event sends its records to the AUX area of its group's leader. Opening it fails
    /// unless [`Pmu::aux_output_match`] accepts that.
    ///
    /// C counterpart: `attr.aux_output`.
    pub fn is_aux_output(&self) -> bool {
        self.raw.aux_output() != 0
    }

    /// The value that [`Pmu::event_init`] returned for the leader of the group that the event
    /// joins. [`None`] if the leader is no event of `pmu`, if the event leads its own group, or if
    /// `pmu` is being unregistered.
    ///
    /// C counterpart: `event->group_leader`.
    pub fn leader<L: AuxPmu>(&self, pmu: &Entry<L>) -> Option<&L::Event> {
        // SAFETY: The event is live, by the type invariant. perf sets the field before
        // `event_init()`.
        let leader = NonNull::new(unsafe { (*self.event.as_ptr()).group_leader })?.as_ptr();
        // SAFETY: The leader is live: it is the event, or perf holds it while it opens the event.
        let its_pmu = unsafe { (*leader).pmu };

        if !pmu.is_of(its_pmu) {
            return None;
        }
        // SAFETY: The leader is live: it is the event, or perf holds it while it opens the event.
        let private = unsafe { (*leader).pmu_private }.cast::<State<L>>();
        // SAFETY: The pointer of an event of the PMU of `pmu` is null before its `event_init()`
        // succeeds, and then a `State<L>`. Only `destroy()` frees that: for the last reference,
        // which perf holds, or when the PMU is unregistered. `is_of()` was true inside the SRCU
        // section in which perf creates events. So `perf_pmu_unregister()` waits for the end of
        // that section, and thus for the end of `'a`.
        let state = unsafe { private.as_ref() }?;

        Some(&state.data)
    }

    /// Whether this event was made by `fork()` from one that is inherited. It writes into its
    /// parent's ring buffer.
    pub fn is_inherited(&self) -> bool {
        self.inherited
    }

    pub(crate) fn into_config(self) -> C {
        self.config
    }
}

/// `event->pmu_private`, from `event_init()` to `destroy()`.
pub(crate) struct State<T: Pmu> {
    config: T::Config,
    pub(crate) filters: Filters,
    pub(crate) counting: counter::Cell<T>,
    pub(crate) data: T::Event,
}

impl<T: Pmu> State<T> {
    /// The state of an event that can have `filters` address filters.
    pub(crate) fn new(config: T::Config, filters: usize, data: T::Event) -> Result<Self> {
        Ok(Self {
            config,
            filters: Filters::new(filters)?,
            counting: counter::Cell::new(),
            data,
        })
    }
}

/// An event of the PMU `T`. Dereferences to what [`Pmu::event_init`] returned for it.
///
/// # Invariants
///
/// `raw` is a live event whose `pmu_private` is a [`State<T>`].
pub struct Event<'a, T: Pmu> {
    raw: NonNull<bindings::perf_event>,
    _state: PhantomData<&'a State<T>>,
}

impl<'a, T: Pmu> Event<'a, T> {
    /// # Safety
    ///
    /// `raw` must be an event of this PMU whose `event_init()` has succeeded, and whose
    /// `destroy()` does not run during the lifetime that the caller picks.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<bindings::perf_event>) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            raw,
            _state: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn state(&self) -> &'a State<T> {
        // SAFETY: The event is live, by the type invariant.
        let private = unsafe { (*self.raw.as_ptr()).pmu_private };

        // SAFETY: A `State<T>` by the type invariant, only ever lent out shared, and freed by
        // `destroy()`, which `self` does not outlive.
        unsafe { &*private.cast::<State<T>>() }
    }

    /// The terms that user space gave.
    #[inline]
    pub fn config(&self) -> &'a T::Config {
        &self.state().config
    }

    /// The address filters, as the hardware needs them.
    ///
    /// # Safety
    ///
    /// A transaction of the event must be open, or about to be in this callback, for `'a`.
    pub(crate) unsafe fn filters(&self) -> &'a [Filter] {
        // SAFETY: The caller guarantees that a transaction of the event is open, or about to be,
        // for `'a`.
        unsafe { self.state().filters.get() }
    }

    /// The period of its samples, which user space may change.
    #[inline]
    pub(crate) fn period(&self, _cpu: &context::Cpu) -> u64 {
        // SAFETY: The event is live, by the type invariant.
        let period = unsafe { &raw const (*self.raw.as_ptr()).hw.sample_period };

        // SAFETY: This is a field of a live event. perf may write it on another CPU while the event
        // does not run: this is one load, as READ_ONCE() is.
        unsafe { period.read_volatile() }
    }

    /// Writes `PERF_RECORD_AUX_OUTPUT_HW_ID`.
    pub(crate) fn report_aux_output_id(&self, id: u64, _cpu: &context::Cpu) {
        // SAFETY: The event is live, by the type invariant. The function may be called in any
        // context, NMI included.
        unsafe { bindings::perf_report_aux_output_id(self.as_ptr(), id) };
    }

    /// Adds `n` to the counter.
    #[inline]
    pub(crate) fn count(&self, n: u64, _cpu: &context::Cpu) {
        // SAFETY: The event is live, by the type invariant. The callbacks of an event run on its
        // CPU, and `_cpu` is proof that this is one, with interrupts off.
        unsafe { bindings::rust_perf_event_count(self.as_ptr(), n) };
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut bindings::perf_event {
        self.raw.as_ptr()
    }
}

impl<T: Pmu> Deref for Event<'_, T> {
    type Target = T::Event;

    #[inline]
    fn deref(&self) -> &T::Event {
        &self.state().data
    }
}
