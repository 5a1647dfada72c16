// SPDX-License-Identifier: GPL-2.0

//! PMUs: the trait that a driver implements, and its registration.
//!
//! C header: [`include/linux/perf_event.h`](srctree/include/linux/perf_event.h), `struct pmu`.

#[cfg(CONFIG_X86_64)]
use crate::user;
use crate::{
    aux,
    bindings,
    context,
    event::{
        Attr,
        Event,
        State, //
    },
    filter::{
        self,
        Filters, //
    },
    format,
    held,
    hotplug,
    percpu::PerCpu,
    stats::Stats,
    sysfs, //
};
use core::{
    ffi::c_void,
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    container_of,
    cpumask,
    debugfs,
    error::{
        from_result,
        to_result,
        VTABLE_DEFAULT_ERROR, //
    },
    interrupt,
    module::this_module,
    prelude::*,
    str::CString,
    sync::Arc,
    types::Opaque, //
};

/// What perf is told a PMU can and cannot do.
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
pub struct Capabilities(u32);

impl Capabilities {
    /// Nothing special.
    pub const NONE: Self = Self(0);
    /// One event at a time in a context: another gets `EBUSY` when it is opened.
    pub const EXCLUSIVE: Self = Self(bindings::PERF_PMU_CAP_EXCLUSIVE);
    /// Trace of instructions: perf writes `PERF_RECORD_ITRACE_START` when an event starts.
    pub const ITRACE: Self = Self(bindings::PERF_PMU_CAP_ITRACE);
    /// Cannot go from one piece of memory to another: perf allocates a ring in overwrite mode as
    /// one [chunk](aux::Pages::chunks) or not at all, and a linear one in chunks of up to the
    /// watermark.
    pub const NO_SG: Self = Self(bindings::PERF_PMU_CAP_AUX_NO_SG);
    /// Can, but gains by large pieces: perf allocates [chunks](aux::Pages::chunks) as large as it
    /// gets, of up to the ring or the watermark. Without either, each page is a chunk.
    pub const PREFER_LARGE: Self = Self(bindings::PERF_PMU_CAP_AUX_PREFER_LARGE);
    /// Cannot tell user from kernel: events with `exclude_*` bits get `EINVAL`.
    pub const NO_EXCLUDE: Self = Self(bindings::PERF_PMU_CAP_NO_EXCLUDE);

    /// Both.
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

/// A PMU with an AUX buffer.
///
/// State lives in three places, and nowhere else: what [`event_init`](Self::event_init) returns
/// belongs to the event, what [`setup_aux`](Self::setup_aux) returns to the ring, what
/// [`start`](Self::start) returns to one session on one CPU.
///
/// C counterpart: `struct pmu`.
///
/// # Examples
///
/// A unit that writes a byte at every tick. `Documentation/driver-guide.md` has a longer one, step
/// by step.
///
/// ```
/// use kernel::{prelude::*, time::Delta};
/// use perf::{aux, Attr, Event, Pmu};
///
/// struct Dots;
///
/// #[vtable]
/// impl Pmu for Dots {
///     type Config = ();
///     type Event = ();
///     type Buffer = ();
///     type Run = ();
///
///     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
///         Ok(())
///     }
///
///     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
///         Ok(())
///     }
///
///     fn start(&self, session: &mut aux::Session<'_, Self>) -> Result {
///         session.set_timer(Delta::from_millis(1));
///         Ok(())
///     }
///
///     fn tick(&self, session: &mut aux::Session<'_, Self>, _run: &mut ()) -> aux::Next {
///         let written = session.window.reserve(1).and_then(|mut writer| {
///             writer.put(b".")?;
///             writer.commit();
///             Ok(())
///         });
///
///         match written {
///             Ok(()) if !session.window.wakeup_due() => aux::Next::Continue,
///             _ => aux::Next::Commit,
///         }
///     }
///
///     fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
///         aux::Written::by_writer(session.window, aux::Loss::None)
///     }
/// }
///
/// # use perf::testing::{Bench, Setup};
/// # let mut bench = Bench::new(Dots, &Setup::default())?;
/// # bench.add()?;
/// # assert!(bench.tick() && bench.tick());
/// # bench.del();
/// # assert!(bench.read()?.as_slice() == b"..");
/// # Ok::<(), Error>(())
/// ```
#[vtable]
pub trait Pmu: Sized + Send + Sync + 'static {
    /// What it can and cannot do.
    const CAPABILITIES: Capabilities = Capabilities::EXCLUSIVE;

    /// How many address filters an event may have; not 0 goes with
    /// [`filters_validate`](Self::filters_validate), and the other way round.
    ///
    /// C counterpart: `pmu->nr_addr_filters`.
    const NR_FILTERS: u32 = 0;

    /// The terms of its events: see [`format!`](crate::format!).
    type Config: format::Config;

    /// State of an event.
    type Event: Send + Sync;

    /// State of a ring. Outlives the event and the PMU if user space keeps the mapping.
    type Buffer: Send + 'static;

    /// State of a session.
    type Run: Send;

    /// An event is opened, or inherited by a child.
    ///
    /// Context: task, may sleep. Errors go to the caller of `perf_event_open()`: [`EINVAL`] for
    /// what makes no sense, [`EOPNOTSUPP`] for what this unit cannot do, [`EBUSY`], [`EACCES`].
    ///
    /// C counterpart: `pmu->event_init()`.
    fn event_init(&self, attr: &Attr<'_, Self::Config>) -> Result<Self::Event>;

    /// User space maps an AUX ring for `event`.
    ///
    /// Context: task, may sleep. perf turns every error into [`ENOMEM`].
    ///
    /// C counterpart: `pmu->setup_aux()`. What it returns is dropped in `pmu->free_aux()`.
    fn setup_aux(&self, event: &Event<'_, Self>, pages: &aux::Pages) -> Result<Self::Buffer>;

    /// Starts the unit. It may write to the session's window from now on.
    ///
    /// Context: interrupts off on the event's CPU, raw locks of perf held: no sleeping, no
    /// allocation, no `SpinLock`.
    ///
    /// C counterpart: `pmu->start()`, after `perf_aux_output_begin()`.
    fn start(&self, session: &mut aux::Session<'_, Self>) -> Result<Self::Run>;

    /// The timer that was [set](aux::Session::set_timer) has expired.
    ///
    /// Context: hard interrupt on the event's CPU.
    fn tick(&self, _session: &mut aux::Session<'_, Self>, _run: &mut Self::Run) -> aux::Next {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Keeps the unit from tracing, as simply as can be, until it is
    /// [resumed](Self::resume); the session stays.
    ///
    /// A driver that has this has [`resume`](Self::resume) too, and perf is told that it can:
    /// `PERF_PMU_CAP_AUX_PAUSE`. Its [`start`](Self::start) leaves the unit paused, and is
    /// followed by `resume` unless perf wants it so.
    ///
    /// Context: as [`quiesce`](Self::quiesce).
    ///
    /// C counterpart: `pmu->stop()` with `PERF_EF_PAUSE`.
    fn pause(&self, _session: &mut aux::Session<'_, Self>, _run: &mut Self::Run) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Lets the unit trace.
    ///
    /// Context: as [`quiesce`](Self::quiesce).
    ///
    /// C counterpart: `pmu->start()` with `PERF_EF_RESUME`.
    fn resume(&self, _session: &mut aux::Session<'_, Self>, _run: &mut Self::Run) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// What [`Session::defer`](aux::Session::defer) has asked for, once for all that asked
    /// meanwhile. The session may have ended since then, and the event may be gone.
    ///
    /// Context: hard interrupt, on the CPU that asked; never NMI, and no lock of perf's or of the
    /// scheduler's is held.
    ///
    /// C counterpart: the function of a `struct irq_work`.
    fn deferred(&self, _cpu: &context::Cpu) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// A sibling of the event takes a sample that shall hold the newest trace: says how far the
    /// unit has written, by [`Sample::take`](aux::Sample::take), which copies.
    ///
    /// What is copied must not change meanwhile, so a unit that writes by itself is stopped before
    /// that and goes on after it, unless it was paused. The event and the session stay as they are.
    ///
    /// A driver that has this is told to perf only by kernels that export `perf_output_copy_aux()`;
    /// others refuse such siblings, with `EINVAL`. Where no session is open, or an NMI asks that
    /// broke into a callback, the driver is not asked and the sample has zeroes.
    ///
    /// Context: as [`quiesce`](Self::quiesce).
    ///
    /// C counterpart: `pmu->snapshot_aux()`.
    fn snapshot(
        &self,
        _session: &mut aux::Session<'_, Self>,
        _run: &mut Self::Run,
        _sample: aux::Sample<'_>,
    ) -> aux::Taken {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The current task's trap flag is set, and it has executed an instruction.
    ///
    /// A driver that has this has [`cross`](Self::cross) too.
    ///
    /// Context: exception from user code, interrupts off.
    ///
    /// C counterpart: `register_die_notifier()` and `DIE_DEBUG`.
    #[cfg(CONFIG_X86_64)]
    fn step(&self, _session: &mut aux::Session<'_, Self>, _run: &mut Self::Run) -> user::Step {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The current task leaves user code, or goes back to it.
    ///
    /// Context: interrupts off, perhaps with locks of the scheduler or of signals held.
    ///
    /// C counterpart: probes of the tracepoints `sys_enter`, `sys_exit`, `signal_deliver` and
    /// `sched_switch`, and `task_work_add()`.
    #[cfg(CONFIG_X86_64)]
    fn cross(
        &self,
        _session: &mut aux::Session<'_, Self>,
        _run: &mut Self::Run,
        _crossing: user::Crossing,
    ) -> aux::Next {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Starts the unit without a ring: the event has none, or that has no AUX area. Nothing is written
    /// anywhere; all that comes of the event is its counter, as of `perf stat`.
    ///
    /// A driver that has this has [`count_stop`](Self::count_stop) too. Without them an event is not
    /// started before its AUX ring is mapped. The unit is not told to pause: what ticks is left out
    /// instead.
    ///
    /// When the event gets a ring, which is looked for at each [`count_tick`](Self::count_tick), and
    /// whenever perf starts the event, the run is stopped and [`start`](Self::start) follows.
    ///
    /// Context: as [`start`](Self::start).
    ///
    /// C counterpart: `pmu->start()` where `perf_aux_output_begin()` gave nothing.
    fn count_start(&self, _counting: &mut aux::Counting<'_, Self>) -> Result<Self::Run> {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// As [`tick`](Self::tick), without a ring; not called while the event is paused.
    ///
    /// Context: as [`tick`](Self::tick).
    fn count_tick(&self, _counting: &mut aux::Counting<'_, Self>, _run: &mut Self::Run) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Stops the unit that was started without a ring.
    ///
    /// Context: as [`quiesce`](Self::quiesce).
    fn count_stop(&self, _counting: &mut aux::Counting<'_, Self>, _run: Self::Run) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Whether the unit can do these filters; there are at most [`NR_FILTERS`](Self::NR_FILTERS)
    /// of them. [`EOPNOTSUPP`] for what it cannot. In a session
    /// [`Event::filters`](crate::Event::filters) has them.
    ///
    /// Context: task, may sleep. perf says neither for which event nor for which PMU of the
    /// driver's they are.
    ///
    /// C counterpart: `pmu->addr_filters_validate()`.
    fn filters_validate(_filters: &[filter::Wanted]) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Whether an event of this PMU may send its records to the AUX ring of the PMU of type
    /// `leader`, in whose group it is opened with `attr.aux_output`.
    ///
    /// Context: task.
    ///
    /// C counterpart: `pmu->aux_output_match()` and `PERF_PMU_CAP_AUX_OUTPUT`.
    fn aux_output_match(_leader: u32) -> bool {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The files of sysfs `events/`: names for sets of terms, which `perf list` shows. See
    /// [`attributes!`](crate::attributes!).
    fn events() -> &'static [sysfs::Attribute] {
        &[]
    }

    /// The files of sysfs `caps/`: what a reader of the trace must know of the unit.
    fn caps() -> &'static [sysfs::Attribute] {
        &[]
    }

    /// The CPUs on which there is a unit: the file `cpumask`, from which perf learns where to open
    /// events. To be left out by PMUs that are on every CPU.
    ///
    /// Context: task.
    fn cpumask(&self) -> &cpumask::Cpumask {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// A CPU has come online: time for what its unit needs. Called for every CPU that is online
    /// when the PMU is registered, too.
    ///
    /// Context: task on that CPU, may sleep. An error keeps the CPU offline, or the PMU from being
    /// registered.
    ///
    /// C counterpart: the driver's own `cpuhp_setup_state()`.
    fn cpu_online(&self, _cpu: u32) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// A CPU goes offline, or the PMU does. No session is left on it, and none will be begun.
    ///
    /// Context: task on that CPU, may sleep.
    fn cpu_offline(&self, _cpu: u32) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Stops the unit, for good or for a commit, and says what it wrote.
    ///
    /// When this returns, the unit does not write any more.
    ///
    /// Context: as [`start`](Self::start), perhaps in NMI.
    ///
    /// C counterpart: `pmu->stop()`, before `perf_aux_output_end()`.
    fn quiesce(&self, session: &mut aux::Session<'_, Self>, run: Self::Run) -> aux::Written;
}

/// A registered PMU.
///
/// Dropped, it unregisters: events that are still open are stopped, and are of no more use.
///
/// C counterpart: `perf_pmu_register()` and `perf_pmu_unregister()`.
///
/// # Examples
///
/// A module that is one PMU is declared with [`module_pmu!`](crate::module_pmu!). One that is
/// more, or has to find its hardware first, holds registrations itself:
///
/// ```
/// # use kernel::prelude::*;
/// # use perf::{aux, Attr, Event, Pmu, Registration};
/// # struct Driver(u32);
/// # #[vtable]
/// # impl Pmu for Driver {
/// #     type Buffer = ();
/// #     fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
/// #         Ok(())
/// #     }
/// #     type Config = ();
/// #     type Event = ();
/// #     type Run = ();
/// #     fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
/// #         Ok(())
/// #     }
/// #     fn start(&self, _session: &mut aux::Session<'_, Self>) -> Result {
/// #         Ok(())
/// #     }
/// #     fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
/// #         aux::Written::by_writer(session.window, aux::Loss::None)
/// #     }
/// # }
/// let first = KBox::pin_init(Registration::new(c"doc_first", Driver(1)), GFP_KERNEL)?;
/// let second = KBox::pin_init(Registration::new(c"doc_second", Driver(2)), GFP_KERNEL)?;
///
/// assert_eq!(first.driver().0 + second.driver().0, 3);
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// - `pmu` is registered with perf, with the callbacks of [`Callbacks<T>`], for as long as `Self`
///   exists.
/// - The other fields are initialised before it is, and dropped after it was unregistered.
#[pin_data(PinnedDrop)]
pub struct Registration<T: Pmu> {
    #[pin]
    pmu: Opaque<bindings::pmu>,
    #[pin]
    shared: debugfs::Scope<aux::Shared<T>>,
    #[pin]
    hotplug: hotplug::Node,
    slots: PerCpu<aux::Slot<T>>,
    groups: sysfs::Groups,
    #[cfg(CONFIG_X86_64)]
    #[pin]
    hooks: user::Hooks<T>,
}

// SAFETY: A PMU may be unregistered by another task than the one that registered it.
unsafe impl<T: Pmu> Send for Registration<T> {}
// SAFETY: perf locks what it changes in `pmu`; the other fields are `Sync`.
unsafe impl<T: Pmu> Sync for Registration<T> {}

impl<T: Pmu> Registration<T> {
    /// Registers `driver` as the PMU `name`: from then on it stands in
    /// `/sys/bus/event_source/devices/`, and events may be opened.
    ///
    /// [`EEXIST`] if there is a PMU of that name, of which sysfs also warns in the kernel log.
    pub fn new(name: &'static CStr, driver: T) -> impl PinInit<Self, Error> {
        let directory = CString::try_from_fmt(fmt!("perf-{}", name));

        try_pin_init!(&this in Self {
            shared <- debugfs::Scope::dir(
                aux::Shared {
                    driver,
                    live: Arc::pin_init(aux::Live::new(), GFP_KERNEL)?,
                    stats: Stats::new(),
                },
                directory.as_ref().map_err(|&error| error)?,
                |shared, dir| shared.stats.show(dir),
            ),
            hotplug: hotplug::Node::new(Self::online, Self::offline),
            slots: PerCpu::new(|cpu| {
                // SAFETY: Initialised above, pinned, and dropped after `close()`.
                unsafe { aux::Slot::new(cpu, NonNull::from(&**shared)) }
            })?,
            groups: sysfs::Groups::new(&[
                (c"format", <T::Config as format::Config>::attributes()),
                (c"events", T::events()),
                (c"caps", T::caps()),
                (c"", Callbacks::<T>::ROOT),
            ])?,
            #[cfg(CONFIG_X86_64)]
            hooks <- user::Hooks::new(),
            pmu: Opaque::new(Callbacks::<T>::PMU),
            _: {
                // SAFETY: `this` is pinned, and all its fields are initialised.
                unsafe { this.as_ref() }.register(name)?;
            },
        })
    }

    /// The last step: from here on callbacks come.
    fn register(&self, name: &'static CStr) -> Result {
        // SAFETY: Not registered yet, so nobody else looks at it.
        unsafe { (*self.pmu.get()).attr_groups = self.groups.as_raw() };

        self.add_hooks()?;
        // SAFETY: `self` is pinned; it is removed below, or when `self` is dropped.
        unsafe { self.hotplug.add() }.inspect_err(|_| self.remove_hooks())?;

        // INVARIANT: All other fields are initialised.
        //
        // SAFETY:
        // - `pmu` is pinned and, but for what perf fills in, complete.
        // - The callbacks are for events of a `Registration<T>`, which this is, and may be called
        //   at once: all fields are initialised.
        // - It is unregistered before it is dropped.
        to_result(unsafe { bindings::perf_pmu_register(self.pmu.get(), name.as_char_ptr(), -1) })
            // SAFETY: Added above.
            .inspect_err(|_| unsafe { self.hotplug.remove() })
            .inspect_err(|_| self.remove_hooks())
    }

    /// Hooks the driver into the kernel where signals come to user code, if it steps through that;
    /// events hook what else it wants.
    fn add_hooks(&self) -> Result {
        #[cfg(CONFIG_X86_64)]
        if T::HAS_STEP {
            // SAFETY: Its own, pinned, with all fields initialised; removed when it is dropped.
            unsafe { self.hooks.add(self)? };
        }
        Ok(())
    }

    /// Undoes [`Self::add_hooks`], and waits until nobody is in the driver by a hook.
    fn remove_hooks(&self) {
        #[cfg(CONFIG_X86_64)]
        if T::HAS_STEP {
            // SAFETY: Added by `add_hooks()`; this is a task that may sleep.
            unsafe { self.hooks.remove(self) };
        }
    }

    /// Hooks it in where user code leaves and enters the kernel, if it wants that, until
    /// [`Self::close_hooks`] is called as often as this.
    ///
    /// # Safety
    ///
    /// The registration must stay till then. A task that may sleep.
    unsafe fn open_hooks(&self) -> Result {
        #[cfg(CONFIG_X86_64)]
        if T::HAS_STEP {
            // SAFETY: Its own, and pinned; the rest by the safety requirement.
            unsafe { self.hooks.open(self)? };
        }
        Ok(())
    }

    /// # Safety
    ///
    /// [`Self::open_hooks`] must have succeeded, for something that has no session and gets none. A
    /// task that may sleep.
    unsafe fn close_hooks(&self) {
        #[cfg(CONFIG_X86_64)]
        if T::HAS_STEP {
            // SAFETY: By the safety requirement.
            unsafe { self.hooks.close(self) };
        }
    }

    /// Its hooks.
    #[cfg(CONFIG_X86_64)]
    pub(crate) fn hooks(&self) -> &user::Hooks<T> {
        &self.hooks
    }

    /// The registration that these hooks are of.
    ///
    /// # Safety
    ///
    /// `hooks` must be the `hooks` of a `Registration<T>` which stays during the lifetime that the
    /// caller picks.
    #[cfg(CONFIG_X86_64)]
    pub(crate) unsafe fn of_hooks<'a>(hooks: *const user::Hooks<T>) -> &'a Self {
        // SAFETY: By the safety requirement.
        let this = unsafe { container_of!(hooks, Self, hooks) };

        // SAFETY: As above.
        unsafe { &*this }
    }

    /// Runs `f` in the session that is open on this CPU, and then does what it says; what else `f`
    /// returned.
    ///
    /// [`None`] if no session is open, or if this broke into a callback of the session's: then
    /// `f` is not called.
    ///
    /// For drivers that are called by others than perf. What calls them must have ended before
    /// the registration is dropped.
    pub fn with_session<R>(
        &self,
        cpu: &context::Cpu,
        f: impl FnOnce(&mut aux::Session<'_, T>, &mut T::Run) -> (aux::Next, R),
    ) -> Option<R> {
        self.slots.this(cpu)?.with_session(cpu, f)
    }

    /// # Safety
    ///
    /// `node` must be the `hotplug` of a `Registration<T>`.
    unsafe fn of_node<'a>(node: NonNull<hotplug::Node>) -> &'a Self {
        // SAFETY: By the safety requirement.
        let this = unsafe { container_of!(node.as_ptr(), Self, hotplug) };

        // SAFETY: Nodes are removed before the registration is dropped.
        unsafe { &*this }
    }

    /// A CPU has come online.
    ///
    /// # Safety
    ///
    /// As for [`Self::of_node`]; on that CPU.
    unsafe fn online(node: NonNull<hotplug::Node>, cpu: u32) -> Result {
        // SAFETY: By the safety requirement.
        let this = unsafe { Self::of_node(node) };

        if T::HAS_CPU_ONLINE {
            this.driver().cpu_online(cpu)?;
        }
        this.set_online(true);
        Ok(())
    }

    /// A CPU goes offline.
    ///
    /// # Safety
    ///
    /// As for [`Self::of_node`]; on that CPU.
    unsafe fn offline(node: NonNull<hotplug::Node>, cpu: u32) -> Result {
        // SAFETY: By the safety requirement.
        let this = unsafe { Self::of_node(node) };

        // First, so that no session is left when the driver is told.
        this.set_online(false);
        if T::HAS_CPU_OFFLINE {
            this.driver().cpu_offline(cpu);
        }
        Ok(())
    }

    /// Lets this CPU's unit be started, or not any more.
    fn set_online(&self, online: bool) {
        let _irq = interrupt::local_interrupt_disable();
        // SAFETY: Interrupts are off until `_irq` is dropped, after `cpu`.
        let cpu = unsafe { context::Cpu::current() };

        if let Some(slot) = self.slots.this(&cpu) {
            slot.set_online(online, &cpu);
        }
    }

    /// The driver.
    pub fn driver(&self) -> &T {
        &self.shared.driver
    }

    /// The registration of an event's PMU.
    ///
    /// # Safety
    ///
    /// `event` must be an event of a PMU that is a `Registration<T>`, and hold it (as every event
    /// does until it is freed or the PMU is unregistered) during the lifetime that the caller
    /// picks.
    unsafe fn of<'a>(event: NonNull<bindings::perf_event>) -> &'a Self {
        // SAFETY: Live by the safety requirement.
        let pmu = unsafe { (*event.as_ptr()).pmu };
        // SAFETY: The `pmu` of a `Registration<T>`, by the safety requirement.
        let this = unsafe { container_of!(Opaque::cast_from(pmu), Self, pmu) };

        // SAFETY: Initialised before it was registered, and not dropped before it is unregistered.
        unsafe { &*this }
    }
}

#[pinned_drop]
impl<T: Pmu> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // perf destroys events that are still open with the mutex of their context held, and the
        // last one must not unhook there: that waits for CPUs that come or go, which take the mutex.
        // It fails only where there is no event.
        //
        // SAFETY: Closed below; this is a task that may sleep.
        let held = unsafe { self.open_hooks() }.is_ok();

        // Events that are still open are stopped, and become REVOKED. This fails only for PMUs
        // with `event_unmapped()`, which ours never have.
        //
        // SAFETY: Registered, by the type invariant; this is a task that may sleep.
        unsafe { bindings::perf_pmu_unregister(self.pmu.get()) };

        if held {
            // SAFETY: Opened above, for no event.
            unsafe { self.close_hooks() };
        }

        // SAFETY: Added in `register()`.
        unsafe { self.hotplug.remove() };
        // After the last session: until then somebody may step.
        self.remove_hooks();
        for slot in self.slots.iter() {
            slot.close();
        }
    }
}

/// The callbacks that perf calls for the events of `T`.
struct Callbacks<T: Pmu>(PhantomData<T>);

impl<T: Pmu> Callbacks<T> {
    /// What the driver says it can, and what the methods that it has say.
    const CAPABILITIES: Capabilities = {
        assert!(
            T::HAS_PAUSE == T::HAS_RESUME,
            "a driver that can pause can resume, and the other way round"
        );
        assert!(
            T::HAS_COUNT_START == T::HAS_COUNT_STOP && T::HAS_COUNT_START >= T::HAS_COUNT_TICK,
            "a driver that starts without a ring stops without one, and ticks only then"
        );
        assert!(
            T::HAS_FILTERS_VALIDATE == (T::NR_FILTERS != 0),
            "a driver with address filters says how many, and validates them"
        );
        #[cfg(CONFIG_X86_64)]
        assert!(
            T::HAS_STEP == T::HAS_CROSS,
            "a driver that steps follows tasks into the kernel, and the other way round"
        );

        let mut flags = 0;
        if T::HAS_PAUSE {
            flags |= bindings::PERF_PMU_CAP_AUX_PAUSE;
        }
        if T::HAS_AUX_OUTPUT_MATCH {
            flags |= bindings::PERF_PMU_CAP_AUX_OUTPUT;
        }
        T::CAPABILITIES.and(Capabilities(flags))
    };

    /// The files beside the directories.
    const ROOT: &'static [sysfs::Attribute] = if T::HAS_CPUMASK {
        &[sysfs::Attribute::with_show(c"cpumask", Self::cpumask_show)]
    } else {
        &[]
    };

    /// `struct pmu` of `T`, but for its `attr_groups`.
    const PMU: bindings::pmu = {
        let mut pmu: bindings::pmu = pin_init::zeroed();

        pmu.module = this_module::<T::OwnerModule>().as_ptr();
        // CAST: The flags use the low bits.
        pmu.capabilities = Self::CAPABILITIES.0 as c_int;
        // Of the software kind: so such an event can be scheduled whatever happens to the
        // counters of the CPU, and can lead a group or follow in one.
        pmu.task_ctx_nr = bindings::perf_event_task_context_perf_sw_context;
        pmu.event_init = Some(Self::event_init);
        pmu.add = Some(Self::add);
        pmu.del = Some(Self::del);
        pmu.start = Some(Self::start);
        pmu.stop = Some(Self::stop);
        pmu.read = Some(Self::read);
        pmu.setup_aux = Some(Self::setup_aux);
        pmu.free_aux = Some(held::free_aux);
        if T::NR_FILTERS != 0 {
            pmu.nr_addr_filters = T::NR_FILTERS;
            pmu.addr_filters_validate = Some(Self::addr_filters_validate);
            pmu.addr_filters_sync = Some(Self::addr_filters_sync);
        }
        #[cfg(perf_output_copy_aux)]
        if T::HAS_SNAPSHOT {
            pmu.snapshot_aux = Some(Self::snapshot_aux);
        }
        if T::HAS_AUX_OUTPUT_MATCH {
            pmu.aux_output_match = Some(Self::aux_output_match);
        }

        pmu
    };

    /// # Safety
    ///
    /// `event` must be a new event that perf tries on a `Registration<T>`.
    unsafe extern "C" fn event_init(event: *mut bindings::perf_event) -> c_int {
        from_result(|| {
            let event = NonNull::new(event).ok_or(EINVAL)?;
            // SAFETY: perf has set `pmu`, and holds it while it calls.
            let registration = unsafe { Registration::<T>::of(event) };

            // perf tries every PMU for an event whose type it does not know.
            //
            // SAFETY: The event is perf's, and live.
            let asked = unsafe { (*event.as_ptr()).attr.type_ };
            // SAFETY: Written by `perf_pmu_register()` only.
            let ours = unsafe { (*registration.pmu.get()).type_ };
            if u32::try_from(ours) != Ok(asked) {
                return Err(ENOENT);
            }

            // SAFETY: In `event_init()`.
            let attr = unsafe { Attr::<T::Config>::new(event)? };
            let data = registration.shared.driver.event_init(&attr)?;
            let state = KBox::new(
                State::<T> {
                    config: attr.into_config(),
                    filters: Filters::new(usize::try_from(T::NR_FILTERS)?)?,
                    data,
                },
                GFP_KERNEL,
            )?;

            // SAFETY: perf holds the PMU until the event is destroyed, where they are closed; it may
            // sleep here.
            unsafe { registration.open_hooks()? };
            // SAFETY: The event is perf's, and live; `pmu_private` is the PMU's.
            unsafe { (*event.as_ptr()).pmu_private = KBox::into_raw(state).cast() };
            // Last: perf calls it even if `event_init()` fails after this.
            //
            // SAFETY: As above.
            unsafe { (*event.as_ptr()).destroy = Some(Self::destroy) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// `event` must be an event whose [`Self::event_init`] has succeeded, for the last time.
    unsafe extern "C" fn destroy(event: *mut bindings::perf_event) {
        // SAFETY: By the safety requirement.
        let private = unsafe { ptr::replace(&raw mut (*event).pmu_private, ptr::null_mut()) };

        if let Some(event) = NonNull::new(event) {
            // SAFETY: perf still holds the PMU.
            let registration = unsafe { Registration::<T>::of(event) };
            // SAFETY: Opened in `event_init()`. perf has taken the event off its CPU and out of its
            // context, and may sleep here.
            unsafe { registration.close_hooks() };
        }
        // SAFETY: From `KBox::into_raw()` in `event_init()`; perf does not use the event any more.
        drop(unsafe { KBox::from_raw(private.cast::<State<T>>()) });
    }

    /// Calls `f` with what all callbacks on the event's CPU need.
    ///
    /// # Safety
    ///
    /// `event` must be an event whose [`Self::event_init`] has succeeded, and interrupts off.
    unsafe fn on_cpu<R>(
        event: *mut bindings::perf_event,
        f: impl FnOnce(
            &Registration<T>,
            Pin<&aux::Slot<T>>,
            NonNull<bindings::perf_event>,
            &context::Cpu,
        ) -> R,
    ) -> Option<R> {
        let event = NonNull::new(event)?;
        // SAFETY: An event of a `Registration<T>`, by the safety requirement.
        let registration = unsafe { Registration::<T>::of(event) };
        // SAFETY: Interrupts are off until the callback returns, by the safety requirement.
        let cpu = unsafe { context::Cpu::current() };
        let slot = registration.slots.this(&cpu)?;

        Some(f(registration, slot, event, &cpu))
    }

    /// # Safety
    ///
    /// Called by perf: interrupts off, the context's lock held, on the event's CPU.
    unsafe extern "C" fn add(event: *mut bindings::perf_event, flags: c_int) -> c_int {
        // CAST: The flag is bit 0.
        let start = flags & bindings::PERF_EF_START as c_int != 0;

        let add = |registration: &Registration<T>, slot: Pin<&aux::Slot<T>>, event, cpu: &_| {
            // SAFETY: In `add()` of an event of this registration, which perf calls `del()` for
            // before either goes.
            unsafe { slot.add(&registration.shared, event, start, cpu) }
        };

        // SAFETY: By the safety requirement.
        let added = unsafe { Self::on_cpu(event, add) };

        // perf tries again when it rotates the context's events, and tells nobody which error.
        match added {
            Some(Ok(())) => 0,
            Some(Err(aux::Start::Refused(error))) => error.to_errno(),
            Some(Err(aux::Start::Busy | aux::Start::Foreign)) => EBUSY.to_errno(),
            Some(Err(_)) | None => EAGAIN.to_errno(),
        }
    }

    /// # Safety
    ///
    /// As for [`Self::add`].
    unsafe extern "C" fn del(event: *mut bindings::perf_event, _flags: c_int) {
        let del = |_: &_, slot: Pin<&aux::Slot<T>>, event, cpu: &_| {
            slot.del(event, cpu);
            #[cfg(CONFIG_X86_64)]
            if T::HAS_STEP {
                user::settle_current(cpu);
            }
        };

        // SAFETY: By the safety requirement.
        unsafe { Self::on_cpu(event, del) };
    }

    /// # Safety
    ///
    /// Called by perf: interrupts off, on the event's CPU.
    unsafe extern "C" fn start(event: *mut bindings::perf_event, flags: c_int) {
        // Reprogramming a period (`PERF_EF_RELOAD`) is nothing to a trace unit.
        let start = |_: &_, slot: Pin<&aux::Slot<T>>, event, cpu: &_| {
            // CAST: The flag is bit 4.
            if flags & bindings::PERF_EF_RESUME as c_int != 0 {
                slot.follow_pause(event, cpu);
            } else {
                slot.start(event, cpu);
            }
        };

        // SAFETY: By the safety requirement.
        unsafe { Self::on_cpu(event, start) };
    }

    /// # Safety
    ///
    /// As for [`Self::start`]. Both perhaps in NMI.
    unsafe extern "C" fn stop(event: *mut bindings::perf_event, flags: c_int) {
        let stop = |_: &_, slot: Pin<&aux::Slot<T>>, event, cpu: &_| {
            // CAST: The flag is bit 3.
            if flags & bindings::PERF_EF_PAUSE as c_int != 0 {
                slot.follow_pause(event, cpu);
            } else {
                // With `PERF_EF_UPDATE` and without: perf may free the ring after this.
                slot.stop(event, cpu);
            }
        };

        // SAFETY: By the safety requirement.
        unsafe { Self::on_cpu(event, stop) };
    }

    /// # Safety
    ///
    /// Called by perf: interrupts off, on the event's CPU, perhaps in NMI, with the handle of a
    /// record that has room for `size` bytes.
    #[cfg(perf_output_copy_aux)]
    unsafe extern "C" fn snapshot_aux(
        event: *mut bindings::perf_event,
        record: *mut bindings::perf_output_handle,
        size: c_ulong,
    ) -> c_long {
        let Some(record) = NonNull::new(record) else {
            return 0;
        };
        // CAST: Lossless, both have 64 bits.
        let size = size as u64;
        let snapshot =
            |registration: &Registration<T>, slot: Pin<&aux::Slot<T>>, event, cpu: &_| {
                // SAFETY: In `snapshot_aux()`, with what perf passes.
                unsafe { slot.snapshot(&registration.shared, event, record, size, cpu) }
            };

        // SAFETY: By the safety requirement.
        unsafe { Self::on_cpu(event, snapshot) }.unwrap_or(0)
    }

    /// # Safety
    ///
    /// Called by perf; perf calls it unconditionally, so it must exist.
    unsafe extern "C" fn read(_event: *mut bindings::perf_event) {
        // `Session::count()` keeps the counter up to date.
    }

    /// # Safety
    ///
    /// Called by perf with a list of filters.
    unsafe extern "C" fn addr_filters_validate(filters: *mut bindings::list_head) -> c_int {
        from_result(|| {
            let filters = NonNull::new(filters).ok_or(EINVAL)?;
            // SAFETY: What perf passes.
            let wanted = unsafe { filter::wanted(filters, usize::try_from(T::NR_FILTERS)?)? };

            T::filters_validate(&wanted).map(|()| 0)
        })
    }

    /// # Safety
    ///
    /// Called by `perf_event_addr_filters_sync()`, with the filters locked: before a session.
    unsafe extern "C" fn addr_filters_sync(event: *mut bindings::perf_event) {
        let Some(event) = NonNull::new(event) else {
            return;
        };
        // SAFETY: An event of ours. A child has its parent's list, and ranges of its own.
        let list = unsafe { bindings::rust_perf_addr_filters(event.as_ptr()) };
        // SAFETY: As above.
        let ranges = unsafe { (*event.as_ptr()).addr_filter_ranges };
        // SAFETY: As above; `event_init()` has set it.
        let state = unsafe { (*event.as_ptr()).pmu_private }.cast::<State<T>>();
        // SAFETY: As above; freed by `destroy()`.
        let state = unsafe { &*state };

        if let Some(list) = NonNull::new(list) {
            // SAFETY:
            // - The event's list, which perf has locked, and the array that perf keeps for it.
            // - perf calls this from `begin()` alone: no session is open, interrupts are off.
            unsafe { state.filters.sync(list, ranges) };
        }
    }

    /// # Safety
    ///
    /// Called by perf with the leader of the group that an event of ours is to join.
    unsafe extern "C" fn aux_output_match(leader: *mut bindings::perf_event) -> c_int {
        // perf asks the event's own PMU about the leader, but passes the leader only.
        //
        // SAFETY: Live, and its type is set for good.
        let leader = unsafe { (*leader).attr.type_ };

        T::aux_output_match(leader).into()
    }

    /// # Safety
    ///
    /// Called by sysfs with the device of a registered `Registration<T>` and a page.
    unsafe extern "C" fn cpumask_show(
        device: *mut bindings::device,
        _attribute: *mut bindings::device_attribute,
        page: *mut c_char,
    ) -> isize {
        // SAFETY: perf sets it to the PMU.
        let pmu = unsafe { bindings::dev_get_drvdata(device) }.cast::<bindings::pmu>();
        // SAFETY: The PMU of a `Registration<T>`, by the safety requirement.
        let this = unsafe { container_of!(Opaque::cast_from(pmu), Registration<T>, pmu) };
        // SAFETY: The device goes before the registration does.
        let mask = unsafe { &*this }.driver().cpumask().as_raw();

        // SAFETY: A page of sysfs's, and a mask that the driver keeps.
        unsafe { bindings::rust_perf_cpumask_emit(page, mask) }
    }

    /// # Safety
    ///
    /// Called by perf with an event of ours, the array of the ring's pages and their number.
    unsafe extern "C" fn setup_aux(
        event: *mut bindings::perf_event,
        pages: *mut *mut c_void,
        nr_pages: c_int,
        overwrite: bool,
    ) -> *mut c_void {
        let setup = || -> Result<*mut c_void> {
            let event = NonNull::new(event).ok_or(EINVAL)?;
            // SAFETY: What perf passes. It goes into the `Buffer`, or is dropped right here.
            let pages = unsafe { aux::Pages::new(pages, nr_pages, overwrite)? };
            // SAFETY: An event of ours, whose file is being mapped.
            let registration = unsafe { Registration::<T>::of(event) };
            // SAFETY: As above.
            let event = unsafe { Event::<T>::from_raw(event) };

            let data = registration.shared.driver.setup_aux(&event, &pages)?;
            aux::Buffer::<T>::into_foreign(data, pages, registration.shared.live.clone())
        };

        // perf takes null for ENOMEM.
        setup().unwrap_or(ptr::null_mut())
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[path = "pmu/tests.rs"]
mod tests;
