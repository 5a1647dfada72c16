// SPDX-License-Identifier: GPL-2.0

//! Tests of registrations and events with the kernel's perf.

use super::units::Units;
use crate::{
    aux::{
        self,
        AuxPmu, //
    },
    bindings,
    context,
    event::{
        Attr,
        Event, //
    },
    pmu::{
        Counting,
        Description,
        Pmu,
        Scope, //
    }, //
};
use core::ptr;
use kernel::{
    device::{
        Bound,
        Device, //
    },
    faux,
    interrupt,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

crate::format! {
    struct Config {
        level: config[0..=3],
    }
}

/// A driver that refuses a level of 9, and counts its events.
struct Null {
    events: Arc<Atomic<i32>>,
    deferred: Arc<Atomic<i32>>,
    dropped: Arc<Atomic<i32>>,
}

/// Counts drops in tasks that may sleep.
impl Drop for Null {
    fn drop(&mut self) {
        self.dropped
            .fetch_add(i32::from(context::may_sleep()), Relaxed);
    }
}

/// The state of an event, which is counted until it is dropped.
struct Counted(Arc<Atomic<i32>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[vtable]
impl Pmu for Null {
    type Config = Config;
    type Event = Counted;
    type Count = ();

    fn event_init(&self, attr: &Attr<'_, Config>) -> Result<Counted> {
        if attr.config().level() == 9 {
            return Err(EOPNOTSUPP);
        }
        self.events.fetch_add(1, Relaxed);
        Ok(Counted(self.events.clone()))
    }
}

#[vtable]
impl AuxPmu for Null {
    type Buffer = ();
    type Trace = ();

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result {
        Ok(())
    }

    fn deferred(&self, cpu: &context::Cpu) {
        if !cpu.is_nmi() {
            self.deferred.fetch_add(1, Relaxed);
        }
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
        aux::Commit::written(transaction, aux::Loss::None)
    }
}

/// A registered PMU, and how many events it has.
struct Fixture {
    pmu: aux::Registration<Null>,
    events: Arc<Atomic<i32>>,
    deferred: Arc<Atomic<i32>>,
    dropped: Arc<Atomic<i32>>,
}

impl Fixture {
    fn new(name: &'static CStr) -> Result<Self> {
        let events = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let deferred = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let dropped = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let driver = Null {
            events: events.clone(),
            deferred: deferred.clone(),
            dropped: dropped.clone(),
        };

        Ok(Self {
            pmu: aux::Registration::new(Description::new(name), driver)?,
            events,
            deferred,
            dropped,
        })
    }

    fn open(&self, change: impl FnOnce(&mut bindings::perf_event_attr)) -> Result<Opened> {
        open(self.pmu.type_(), change)
    }
}

/// Opens an event of the PMU `type_` on CPU 0, as the kernel's own users do.
fn open(type_: c_int, change: impl FnOnce(&mut bindings::perf_event_attr)) -> Result<Opened> {
    let mut attr = bindings::perf_event_attr {
        type_: type_.try_into()?,
        size: size_of::<bindings::perf_event_attr>().try_into()?,
        ..bindings::perf_event_attr::default()
    };
    attr.set_disabled(1);
    change(&mut attr);

    // SAFETY: A complete attr, which perf copies; CPU 0, no task, no handler.
    let event = unsafe {
        bindings::perf_event_create_kernel_counter(
            &mut attr,
            0,
            ptr::null_mut(),
            None,
            ptr::null_mut(),
        )
    };
    kernel::error::from_err_ptr(event).map(Opened)
}

/// An open event.
///
/// # Invariants
///
/// The event is ours to release.
struct Opened(*mut bindings::perf_event);

impl Opened {
    fn enable(&self) {
        // SAFETY: The event is live, by the type invariant.
        unsafe { bindings::perf_event_enable(self.0) };
    }

    fn disable(&self) {
        // SAFETY: The event is live, by the type invariant.
        unsafe { bindings::perf_event_disable(self.0) };
    }

    fn read(&self) -> u64 {
        let (mut enabled, mut running) = (0, 0);

        // SAFETY: The event is live, by the type invariant; the times are valid for writes.
        unsafe { bindings::perf_event_read_value(self.0, &mut enabled, &mut running) }
    }

    fn cpu(&self) -> i32 {
        // SAFETY: The event is live, by the type invariant.
        unsafe { (*self.0).cpu }
    }

    fn state(&self) -> i32 {
        // SAFETY: The event is live, by the type invariant.
        unsafe { (*self.0).state }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: Ours, by the type invariant.
        unsafe { bindings::perf_event_release_kernel(self.0) };
    }
}

#[kunit_tests(rust_perf_pmu)]
mod cases {
    use super::*;

    #[test]
    fn events_are_opened_and_refused() -> Result {
        let fixture = Fixture::new(c"kunit_open")?;
        type Change = fn(&mut bindings::perf_event_attr);
        let table: [(Change, Result<(), Error>); 5] = [
            (|_| (), Ok(())),
            (|attr| attr.config = 8, Ok(())),
            (|attr| attr.config = 9, Err(EOPNOTSUPP)),
            (|attr| attr.config = 16, Err(EINVAL)),
            (|attr| attr.set_freq(1), Err(EINVAL)),
        ];

        for (change, expected) in table {
            let opened = fixture.open(change);

            assert_eq!(fixture.events.load(Relaxed), opened.is_ok().into());
            assert!(opened.map(drop) == expected);
            assert_eq!(fixture.events.load(Relaxed), 0);
        }
        Ok(())
    }

    /// A PMU that is unregistered leaves nothing behind that a second registration conflicts with.
    /// (A name that is in use gives `EEXIST`, but sysfs prints a kernel warning as well.)
    #[test]
    fn name_is_free_again() -> Result {
        for _ in 0..3 {
            drop(Fixture::new(c"kunit_name")?);
        }
        Ok(())
    }

    /// With the kernel's own irq_work, as for `Transaction::defer()`.
    #[test]
    fn what_is_deferred_runs_when_interrupts_come_on() -> Result {
        let fixture = Fixture::new(c"kunit_defer")?;

        {
            let irq = interrupt::local_interrupt_disable();
            // SAFETY: Interrupts are off until `irq` is dropped, after `cpu`.
            let cpu = unsafe { context::Cpu::current() };
            let state = fixture.pmu.shared().cpus.this(&cpu).ok_or(ENODEV)?;

            state.defer();
            state.defer();
            assert_eq!(fixture.deferred.load(Relaxed), 0);
            drop(irq);
        }
        // Unregistering waits for the work that is queued.
        let Fixture { pmu, deferred, .. } = fixture;
        drop(pmu);

        assert_eq!(deferred.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn last_entry_leaves_the_driver_to_a_worker() -> Result {
        let Fixture { pmu, dropped, .. } = Fixture::new(c"kunit_last_entry")?;
        let entry = pmu.entry();

        drop(pmu);
        assert_eq!(dropped.load(Relaxed), 0);
        {
            let _off = interrupt::local_interrupt_disable();
            drop(entry);
        }
        // SAFETY: This is a task that may sleep, and none of the workers that it waits for.
        unsafe { bindings::rust_perf_later_flush() };
        assert_eq!(dropped.load(Relaxed), 1);
        Ok(())
    }

    /// devres takes a `spinlock_t`, which must not be taken where nothing may sleep on PREEMPT_RT.
    #[test]
    fn a_parents_registration_is_left_to_a_worker() -> Result {
        let parent = faux::Registration::new(c"kunit_parent", None)?;
        let parent: &Device<Bound> = parent.as_ref().as_ref();
        let dropped = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let driver = Null {
            events: Arc::new(Atomic::new(0), GFP_KERNEL)?,
            deferred: Arc::new(Atomic::new(0), GFP_KERNEL)?,
            dropped: dropped.clone(),
        };
        let description = Description::new(c"kunit_child").parent(parent);
        let pmu = aux::Registration::new(description, driver)?;

        {
            let _off = interrupt::local_interrupt_disable();
            drop(pmu);
            // The worker waits for a grace period.
            assert_eq!(dropped.load(Relaxed), 0);
        }
        // SAFETY: This is a task that may sleep, and none of the workers that it waits for.
        unsafe { bindings::rust_perf_later_flush() };
        assert_eq!(dropped.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn live_events_are_revoked() -> Result {
        let fixture = Fixture::new(c"kunit_revoke")?;
        let opened = fixture.open(|_| ())?;
        let Fixture { pmu, events, .. } = fixture;

        assert_eq!(events.load(Relaxed), 1);
        drop(pmu);
        assert_eq!(
            opened.state(),
            bindings::perf_event_state_PERF_EVENT_STATE_REVOKED
        );
        assert_eq!(events.load(Relaxed), 0);
        drop(opened);
        Ok(())
    }

    /// An invalid description is refused, and leaves nothing behind.
    #[test]
    fn impossible_descriptions_are_refused() -> Result {
        let table: [(fn() -> Description<'static>, Error); 10] = [
            (|| Description::new(c""), EINVAL),
            (|| Description::new(c"a b"), EINVAL),
            (
                || {
                    Description::new(c"kunit_twice")
                        .caps(crate::attributes! { twice: "1" })
                        .cap(c"twice", fmt!("2"))
                        .unwrap_or(Description::new(c"kunit_no_memory"))
                },
                EINVAL,
            ),
            (
                || {
                    Description::new(c"kunit_file")
                        .event(c"../uevent", fmt!("1"))
                        .unwrap_or(Description::new(c"kunit_no_memory"))
                },
                EINVAL,
            ),
            (
                || {
                    Description::new(c"kunit_taken")
                        .file(c"type", fmt!("1"))
                        .unwrap_or(Description::new(c"kunit_no_memory"))
                },
                EINVAL,
            ),
            (|| Description::new(c"a/b"), EINVAL),
            (|| Description::new(c".."), EINVAL),
            // Without filters_validate().
            (|| Description::new(c"kunit_filters").filters(2), EINVAL),
            (|| Description::new(c"kunit_many").filters(1000), E2BIG),
            (
                || {
                    let both =
                        crate::pmu::Capabilities::NO_SG.and(crate::pmu::Capabilities::PREFER_LARGE);

                    Description::new(c"kunit_both").capabilities(both)
                },
                EINVAL,
            ),
        ];

        for (describe, error) in table {
            let driver = Null {
                events: Arc::new(Atomic::new(0), GFP_KERNEL)?,
                deferred: Arc::new(Atomic::new(0), GFP_KERNEL)?,
                dropped: Arc::new(Atomic::new(0), GFP_KERNEL)?,
            };

            assert!(aux::Registration::new(describe(), driver).err() == Some(error));
        }
        Ok(())
    }

    #[test]
    fn events_of_all_cpus_share_one_unit() -> Result {
        let description = Description::new(c"kunit_system").scope(Scope::System);
        let pmu = crate::Registration::new(description, Steady)?;
        let opened = open(pmu.type_(), |_| ())?;

        // Wherever it was opened, the event is on the unit's CPU, which is online.
        assert!(opened.cpu() >= 0);
        Ok(())
    }

    /// The CPU of a unit that all CPUs share goes offline before the PMU is registered.
    #[test]
    fn a_unit_for_all_cpus_settles_where_a_cpu_is_online() -> Result {
        // CPU 7 is offline: no guest of the tests has so many CPUs.
        let units = Units::System(Atomic::new(7));

        units.settle(0);
        assert_eq!(units.home(), Some(0));
        units.settle(1);
        assert_eq!(units.home(), Some(0));
        Ok(())
    }

    /// A PMU without an AUX area: two events count at the same time.
    #[test]
    fn counters_count() -> Result {
        let pmu = crate::Registration::new(Description::new(c"kunit_count"), Steady)?;
        let first = open(pmu.type_(), |_| ())?;
        let second = open(pmu.type_(), |_| ())?;

        assert_eq!(first.read(), 0);
        first.enable();
        second.enable();
        // Each read counts 1, and each stop 100; perf stops the first to schedule the second.
        let before = first.read();
        assert_eq!(first.read(), before + 1);
        assert_eq!(second.read(), 1);
        first.disable();
        assert_eq!(first.read(), before + 101);
        assert_eq!(first.read(), before + 101);
        assert_eq!(second.read() % 100, 2);
        Ok(())
    }

    /// A PMU cannot be registered in `event_init()`, where perf holds locks, nor with interrupts
    /// off.
    #[test]
    fn nothing_is_registered_in_a_callback() -> Result {
        let pmu = crate::Registration::new(Description::new(c"kunit_nest"), Nests)?;

        assert!(open(pmu.type_(), |_| ()).err() == Some(EDEADLK));

        let off = interrupt::local_interrupt_disable();
        let nested = crate::Registration::new(Description::new(c"kunit_nested"), Steady);
        drop(off);
        assert!(nested.err() == Some(EDEADLK));
        Ok(())
    }

    /// A driver drops its own registration in its `event_init()`: perf would wait for that
    /// callback.
    #[test]
    fn registration_is_dropped_in_a_callback() -> Result {
        let own = Arc::pin_init(new_mutex!(None), GFP_KERNEL)?;
        let driver = Suicidal { own: own.clone() };
        let pmu = crate::Registration::new(Description::new(c"kunit_drop"), driver)?;
        let type_ = pmu.type_();

        *own.lock() = Some(pmu);
        drop(open(type_, |_| ()));
        assert!(own.lock().is_none());
        // A task unregisters the PMU soon.
        for _ in 0..1000 {
            if open(type_, |_| ()).err() == Some(ENOENT) {
                return Ok(());
            }
            kernel::time::delay::fsleep(kernel::time::Delta::from_millis(1));
        }
        Err(ETIMEDOUT)
    }
}

/// A PMU that counts 1 at each read, and 100 at each stop.
pub(super) struct Steady;

#[vtable]
impl Pmu for Steady {
    type Config = ();
    type Event = ();
    type Count = u64;

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }

    fn count_start(&self, _counting: &mut Counting<'_, Self>) -> Result<u64> {
        Ok(1)
    }

    fn count_read(&self, counting: &mut Counting<'_, Self>, count: &mut u64) {
        counting.count(*count);
    }

    fn count_stop(&self, counting: &mut Counting<'_, Self>, _count: u64) {
        counting.count(100);
    }
}

/// A PMU that drops its own registration when an event is opened.
struct Suicidal {
    own: Arc<Mutex<Option<crate::Registration<Suicidal>>>>,
}

#[vtable]
impl Pmu for Suicidal {
    type Config = ();
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        drop(self.own.lock().take());
        Ok(())
    }

    fn count_start(&self, _counting: &mut Counting<'_, Self>) -> Result {
        Ok(())
    }

    fn count_stop(&self, _counting: &mut Counting<'_, Self>, _count: ()) {}
}

/// A PMU that registers another one when an event is opened.
struct Nests;

#[vtable]
impl Pmu for Nests {
    type Config = ();
    type Event = crate::Registration<Steady>;
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result<Self::Event> {
        crate::Registration::new(Description::new(c"kunit_nested"), Steady)
    }

    fn count_start(&self, _counting: &mut Counting<'_, Self>) -> Result {
        Ok(())
    }

    fn count_stop(&self, _counting: &mut Counting<'_, Self>, _count: ()) {}
}
