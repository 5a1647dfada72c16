// SPDX-License-Identifier: GPL-2.0

//! PMUs: what a driver describes and implements.
//!
//! C header: [`include/linux/perf_event.h`](srctree/include/linux/perf_event.h), `struct pmu`.

use crate::{
    bindings,
    context,
    event::{
        Attr,
        Event, //
    },
    filter,
    format, //
};
use kernel::{
    error::VTABLE_DEFAULT_ERROR,
    prelude::*,
    time::Delta, //
};

mod description;

pub use description::{
    Context,
    Description,
    Scope, //
};

/// Capabilities that a PMU reports to perf.
///
/// C counterpart: `PERF_PMU_CAP_*`.
///
/// # Examples
///
/// ```
/// use perf::pmu::Capabilities;
///
/// const CAPABILITIES: Capabilities = Capabilities::EXCLUSIVE.and(Capabilities::ITRACE);
///
/// assert!(CAPABILITIES.contains(Capabilities::ITRACE));
/// assert!(!CAPABILITIES.contains(Capabilities::NO_SG));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities(pub(crate) u32);

impl Capabilities {
    /// None.
    pub const NONE: Self = Self(0);
    /// One event at a time in a context: opening another fails with `EBUSY`.
    pub const EXCLUSIVE: Self = Self(bindings::PERF_PMU_CAP_EXCLUSIVE);
    /// Instruction trace: perf writes `PERF_RECORD_ITRACE_START` when an event starts.
    pub const ITRACE: Self = Self(bindings::PERF_PMU_CAP_ITRACE);
    /// The unit writes to contiguous memory only. In overwrite mode perf allocates the AUX area as
    /// one [chunk](crate::aux::Pages::chunks) or fails. In non-overwrite mode perf allocates chunks
    /// of up to the watermark, rounded up to a power of two pages.
    pub const NO_SG: Self = Self(bindings::PERF_PMU_CAP_AUX_NO_SG);
    /// The unit prefers large pieces of memory: perf allocates [chunks](crate::aux::Pages::chunks)
    /// as large as it gets, up to the AUX area in overwrite mode, and up to the rounded watermark
    /// in non-overwrite mode. Without this and [`Self::NO_SG`], each page is a chunk.
    pub const PREFER_LARGE: Self = Self(bindings::PERF_PMU_CAP_AUX_PREFER_LARGE);
    /// The unit does not know privilege levels: events with `exclude_*` bits fail with `EINVAL`.
    pub const NO_EXCLUDE: Self = Self(bindings::PERF_PMU_CAP_NO_EXCLUDE);

    /// Both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in `self`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A PMU: its events and their counters.
///
/// A PMU with an AUX area implements [`AuxPmu`](crate::AuxPmu) as well. One without is a counter:
/// it has [`count_start`](Self::count_start) and [`count_stop`](Self::count_stop), and any number
/// of its events count at the same time.
///
/// The value that [`event_init`](Self::event_init) returns belongs to the event. The value that
/// [`count_start`](Self::count_start) returns belongs to the event until it is stopped.
///
/// C counterpart: `struct pmu`.
///
/// # Examples
///
/// A counter of nanoseconds:
///
/// ```
/// use kernel::prelude::*;
/// use perf::{clock, Attr, Pmu, pmu::{Counting, Description}, Registration};
///
/// struct Nanoseconds;
///
/// #[vtable]
/// impl Pmu for Nanoseconds {
///     type Config = ();
///     type Event = ();
///     /// When it was read last.
///     type Count = u64;
///
///     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
///         Ok(())
///     }
///
///     fn count_start(&self, _counting: &mut Counting<'_, Self>) -> Result<u64> {
///         Ok(clock::monotonic_fast())
///     }
///
///     fn count_read(&self, counting: &mut Counting<'_, Self>, last: &mut u64) {
///         let now = clock::monotonic_fast();
///
///         counting.count(now.saturating_sub(*last));
///         *last = now;
///     }
///
///     fn count_stop(&self, counting: &mut Counting<'_, Self>, mut last: u64) {
///         self.count_read(counting, &mut last);
///     }
/// }
///
/// let pmu = Registration::new(Description::new(c"doc_nanoseconds"), Nanoseconds)?;
/// # drop(pmu);
/// # Ok::<(), Error>(())
/// ```
#[vtable]
pub trait Pmu: Sized + Send + Sync + 'static {
    /// The terms of its events: see [`format!`](crate::format!).
    type Config: format::Config;

    /// State of an event.
    type Event: Send + Sync;

    /// State of an event while it counts; `()` for a PMU that does not count.
    ///
    /// Plain data: it may be dropped in NMI, so a type with drop glue is refused at compile time.
    type Count: Send;

    /// An event is opened, or inherited by a child task.
    ///
    /// Errors go to the caller of `perf_event_open()`: [`EINVAL`] for an invalid request,
    /// [`EOPNOTSUPP`] for what the unit cannot do, [`EBUSY`], [`EACCES`].
    ///
    /// Context: task, may sleep.
    ///
    /// C counterpart: `pmu->event_init()`.
    fn event_init(&self, attr: &Attr<'_, Self::Config>) -> Result<Self::Event>;

    /// Starts an event in counting mode: the PMU has no AUX area, or the event has none. The event
    /// then only updates its counter, as with `perf stat`.
    ///
    /// A driver that implements this implements [`count_stop`](Self::count_stop) too. An AUX PMU
    /// without them starts an event only when its AUX area is mapped.
    ///
    /// If a counting event of an AUX PMU gets an AUX area, the framework stops the counting and
    /// starts the trace. It checks for an AUX area at each [`count_tick`](Self::count_tick) and
    /// whenever perf starts the event.
    ///
    /// Context: interrupts off on the event's CPU, under perf's raw locks.
    ///
    /// C counterpart: `pmu->start()`.
    fn count_start(&self, _counting: &mut Counting<'_, Self>) -> Result<Self::Count> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The timer of a counting event has expired. AUX PMUs only; not called while paused.
    ///
    /// Context: hard interrupt on the event's CPU.
    fn count_tick(&self, _counting: &mut Counting<'_, Self>, _count: &mut Self::Count) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// perf reads the counter: the driver brings it up to date by [`Counting::count`].
    ///
    /// Context: interrupts off on the event's CPU, under any raw lock, perhaps in NMI.
    ///
    /// C counterpart: `pmu->read()`.
    fn count_read(&self, _counting: &mut Counting<'_, Self>, _count: &mut Self::Count) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Stops an event in counting mode.
    ///
    /// Context: interrupts off on the event's CPU, under any raw lock, perhaps in NMI.
    ///
    /// C counterpart: `pmu->stop()`.
    fn count_stop(&self, _counting: &mut Counting<'_, Self>, _count: Self::Count) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Checks whether the unit supports these filters, which are at most [`Description::filters`]
    /// in number. [`EOPNOTSUPP`] if it does not. An open transaction has them as
    /// [`Transaction::filters`](crate::aux::Transaction::filters).
    ///
    /// Context: task, may sleep. perf passes neither the event nor the PMU.
    ///
    /// C counterpart: `pmu->addr_filters_validate()`.
    fn filters_validate(_filters: &[filter::AddrFilter]) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Whether an event of this PMU may send its records to the AUX area of its group's leader, as
    /// `attr.aux_output` requests. `leader` is the type of the leader's PMU.
    ///
    /// Context: task.
    ///
    /// C counterpart: `pmu->aux_output_match()` and `PERF_PMU_CAP_AUX_OUTPUT`.
    fn aux_output_match(_leader: u32) -> bool {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// A CPU has come online: prepares its unit. Called for each CPU that is online when the PMU is
    /// registered, too.
    ///
    /// Context: task on that CPU, may sleep. An error keeps the CPU offline, or fails the
    /// registration.
    ///
    /// C counterpart: the driver's own `cpuhp_setup_state()`.
    fn cpu_online(&self, _cpu: u32) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// A CPU goes offline, or the PMU is unregistered. No transaction is open on the CPU, and none
    /// will be begun.
    ///
    /// Context: task on that CPU, may sleep.
    fn cpu_offline(&self, _cpu: u32) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// The shortest interval of a timer: shorter ones leave the CPU no time for other work.
pub const SHORTEST_TIMER: Delta = Delta::from_micros(10);

/// `interval`, but at least [`SHORTEST_TIMER`].
#[inline]
pub(crate) fn at_least_shortest(interval: Delta) -> Delta {
    interval.max(SHORTEST_TIMER)
}

/// A counting event, as a driver's callbacks see it. It exists for one callback.
pub struct Counting<'a, T: Pmu> {
    event: &'a Event<'a, T>,
    cpu: &'a context::Cpu,
    timer: &'a mut Option<Delta>,
}

impl<'a, T: Pmu> Counting<'a, T> {
    pub(crate) fn new(
        event: &'a Event<'a, T>,
        cpu: &'a context::Cpu,
        timer: &'a mut Option<Delta>,
    ) -> Self {
        Self { event, cpu, timer }
    }

    /// The event that counts.
    pub fn event(&self) -> &'a Event<'a, T> {
        self.event
    }

    /// The CPU that this runs on.
    pub fn cpu(&self) -> &'a context::Cpu {
        self.cpu
    }

    /// Arms a timer that calls [`Pmu::count_tick`] at this interval until the event stops counting.
    /// An interval below [`SHORTEST_TIMER`] becomes that. AUX PMUs only.
    pub fn set_timer(&mut self, interval: Delta) {
        const_assert!(T::HAS_COUNT_TICK, "a timer needs Pmu::count_tick()");
        *self.timer = Some(at_least_shortest(interval));
    }

    /// Adds `n` to the event's counter, which `read()` and `perf stat` show.
    pub fn count(&self, n: u64) {
        self.event.count(n, self.cpu);
    }

    /// The period asked for, in the PMU's unit; 0 for an event that only counts. User space may
    /// change it: perf then stops the event and starts it again.
    ///
    /// C counterpart: `event->hw.sample_period`, `PERF_EVENT_IOC_PERIOD`.
    pub fn period(&self) -> u64 {
        self.event.period(self.cpu)
    }

    /// Writes a record that identifies this event by `id`. The records of this event in the AUX
    /// area of its group's leader carry that number. For [`Pmu::count_start`].
    ///
    /// C counterpart: `perf_report_aux_output_id()`, `PERF_RECORD_AUX_OUTPUT_HW_ID`.
    pub fn report_aux_output_id(&self, id: u64) {
        const_assert!(
            T::HAS_AUX_OUTPUT_MATCH,
            "records in a leader's AUX area need Pmu::aux_output_match()"
        );
        self.event.report_aux_output_id(id, self.cpu);
    }
}
