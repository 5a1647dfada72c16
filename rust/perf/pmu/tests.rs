// SPDX-License-Identifier: GPL-2.0

//! Registration, and events, with the real perf.

use super::*;
use crate::Attr;
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
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
}

/// An event; gone when dropped.
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
    type Buffer = ();
    type Run = ();

    fn event_init(&self, attr: &Attr<'_, Config>) -> Result<Counted> {
        if attr.config().level() == 9 {
            return Err(EOPNOTSUPP);
        }
        self.events.fetch_add(1, Relaxed);
        Ok(Counted(self.events.clone()))
    }

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, _session: &mut aux::Session<'_, Self>) -> Result {
        Ok(())
    }

    fn deferred(&self, cpu: &context::Cpu) {
        if !cpu.is_nmi() {
            self.deferred.fetch_add(1, Relaxed);
        }
    }

    fn quiesce(&self, session: &mut aux::Session<'_, Self>, _run: ()) -> aux::Written {
        aux::Written::by_writer(session.window, aux::Loss::None)
    }
}

/// A registered PMU, and how many events it has.
struct Fixture {
    pmu: Pin<KBox<Registration<Null>>>,
    events: Arc<Atomic<i32>>,
    deferred: Arc<Atomic<i32>>,
}

impl Fixture {
    fn new(name: &'static CStr) -> Result<Self> {
        let events = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let deferred = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let driver = Null {
            events: events.clone(),
            deferred: deferred.clone(),
        };

        Ok(Self {
            pmu: KBox::try_pin_init(Registration::new(name, driver), GFP_KERNEL)?,
            events,
            deferred,
        })
    }

    /// Opens an event on CPU 0, as the kernel's own users do.
    fn open(&self, change: impl FnOnce(&mut bindings::perf_event_attr)) -> Result<Opened> {
        // SAFETY: Written by `perf_pmu_register()` only.
        let type_ = unsafe { (*self.pmu.pmu.get()).type_ };
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
}

/// An open event.
///
/// # Invariants
///
/// The event is ours to release.
struct Opened(*mut bindings::perf_event);

impl Opened {
    fn state(&self) -> i32 {
        // SAFETY: Live, by the type invariant.
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

    /// Nothing is left behind that a second registration would run into. (A name that is taken
    /// gives `EEXIST`, but sysfs makes a splat of it.)
    #[test]
    fn name_is_free_again() -> Result {
        for _ in 0..3 {
            drop(Fixture::new(c"kunit_name")?);
        }
        Ok(())
    }

    /// By the kernel's own irq_work, as `Session::defer()` has it done.
    #[test]
    fn what_is_deferred_runs_when_interrupts_come_on() -> Result {
        let fixture = Fixture::new(c"kunit_defer")?;

        {
            let irq = interrupt::local_interrupt_disable();
            // SAFETY: Interrupts are off until `irq` is dropped, after `cpu`.
            let cpu = unsafe { context::Cpu::current() };
            let slot = fixture.pmu.slots.this(&cpu).ok_or(ENODEV)?;

            slot.defer();
            slot.defer();
            assert_eq!(fixture.deferred.load(Relaxed), 0);
            drop(irq);
        }
        // Unregistering waits for what is on its way.
        let Fixture { pmu, deferred, .. } = fixture;
        drop(pmu);

        assert_eq!(deferred.load(Relaxed), 1);
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
}
