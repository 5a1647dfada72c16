// SPDX-License-Identifier: GPL-2.0

//! A driver that a test controls, and a model of perf that does all that perf may do.

use crate::testing::{
    model::Model,
    Bench,
    Setup, //
};
use crate::{
    aux::{
        cpu::CpuState,
        AuxPmu,
        Commit,
        Loss,
        Mode,
        Next,
        Pages,
        Transaction, //
    },
    bindings,
    context,
    event::{
        Attr,
        Event, //
    },
    pmu::Pmu, //
};
use core::ptr::{
    self,
    NonNull, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::Delta, //
};

/// The callback that an NMI interrupts.
pub(super) const NOWHERE: u32 = 0;
pub(super) const IN_START: u32 = 1;
pub(super) const IN_TICK: u32 = 2;
pub(super) const IN_QUIESCE: u32 = 3;

/// A driver that the test controls.
pub(super) struct Probe {
    /// The callback that an NMI interrupts, once, to stop the event.
    pub(super) nmi: Atomic<u32>,
    /// Whether the NMI pauses the event instead of stopping it.
    pub(super) nmi_pauses: Atomic<bool>,
    pub(super) state: Atomic<*mut CpuState<Probe, Model>>,
    pub(super) event: Atomic<*mut bindings::perf_event>,
    /// Bytes that each tick writes.
    pub(super) step: Atomic<usize>,
    /// Bytes that `quiesce()` claims in addition to those written.
    pub(super) lie: Atomic<u64>,
    pub(super) refuse: Atomic<bool>,
    /// Whether the unit may trace.
    pub(super) open: Atomic<bool>,
    /// How often the unit was paused and resumed.
    pub(super) gated: Atomic<u32>,
    /// How often the unit was started, and quiesced.
    pub(super) started: Atomic<u32>,
    pub(super) quiesced: Atomic<u32>,
    /// Whether `quiesce()` calls `defer()`, and how often `deferred()` was called.
    pub(super) defers: Atomic<bool>,
    pub(super) deferred: Atomic<u32>,
    /// Buffers that were dropped.
    pub(super) freed: Arc<Atomic<u32>>,
}

/// Counts its drops.
pub(super) struct Counted(pub(super) Arc<Atomic<u32>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Probe {
    fn nmi_in(&self, place: u32, transaction: &Transaction<'_, Self>) {
        if self.nmi.cmpxchg(place, NOWHERE, Relaxed).is_err() {
            return;
        }

        let (state, event) = (self.state.load(Relaxed), self.event.load(Relaxed));
        // SAFETY: Set by the test to its bench's state, to which only shared references are made.
        if let (Some(state), Some(event)) = (unsafe { state.as_ref() }, NonNull::new(event)) {
            // SAFETY: The bench keeps it pinned.
            let state = unsafe { Pin::new_unchecked(state) };

            if self.nmi_pauses.load(Relaxed) {
                // SAFETY: The test's event, which it does not access meanwhile.
                unsafe { bindings::rust_perf_set_aux_paused(event.as_ptr(), true) };
                state.follow_pause(event, transaction.cpu());
            } else {
                state.stop(event, transaction.cpu());
            }
        }
    }
}

#[vtable]
impl Pmu for Probe {
    type Config = ();
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }
}

#[vtable]
impl AuxPmu for Probe {
    type Buffer = Counted;
    type Trace = bool;

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &Pages) -> Result<Counted> {
        Ok(Counted(self.freed.clone()))
    }

    fn start(&self, transaction: &mut Transaction<'_, Self>) -> Result<bool> {
        if self.refuse.load(Relaxed) {
            return Err(ENODEV);
        }
        self.nmi_in(IN_START, transaction);
        self.started.fetch_add(1, Relaxed);
        self.open.store(false, Relaxed);
        transaction.set_timer(Delta::from_millis(1));
        Ok(false)
    }

    fn tick(&self, transaction: &mut Transaction<'_, Self>, full: &mut bool) -> Next {
        self.nmi_in(IN_TICK, transaction);
        if !self.open.load(Relaxed) {
            return Next::Continue;
        }
        match transaction.region().reserve(self.step.load(Relaxed)) {
            Ok(mut writer) => {
                for _ in 0..self.step.load(Relaxed) {
                    // Cannot fail: this much was reserved.
                    let _ = writer.put(&[0xaa]);
                }
                writer.commit();
            }
            Err(_) => *full = true,
        }

        if *full || transaction.region().wakeup_due() {
            Next::Flush
        } else {
            Next::Continue
        }
    }

    fn pause(&self, _transaction: &mut Transaction<'_, Self>, _full: &mut bool) {
        self.gated.fetch_add(1, Relaxed);
        self.open.store(false, Relaxed);
    }

    fn resume(&self, _transaction: &mut Transaction<'_, Self>, _full: &mut bool) {
        self.gated.fetch_add(1, Relaxed);
        self.open.store(true, Relaxed);
    }

    fn deferred(&self, _cpu: &context::Cpu) {
        self.deferred.fetch_add(1, Relaxed);
    }

    fn quiesce(&self, transaction: &mut Transaction<'_, Self>, full: bool) -> Commit {
        self.nmi_in(IN_QUIESCE, transaction);
        self.quiesced.fetch_add(1, Relaxed);
        if self.defers.load(Relaxed) {
            transaction.defer();
            transaction.defer();
        }

        let len = transaction
            .region()
            .written()
            .saturating_add(self.lie.load(Relaxed));
        let loss = if full {
            Loss::NoSpace { bytes: None }
        } else {
            Loss::None
        };
        Commit::new(len, loss)
    }
}

pub(super) const RING: u64 = 2 * 4096;
pub(super) const TRUNCATED: u64 = 1;
pub(super) const OVERWRITE: u64 = 2;
pub(super) const PARTIAL: u64 = 4;

pub(super) fn bench(overwrite: bool) -> Result<Bench<Probe>> {
    let driver = Probe {
        nmi: Atomic::new(NOWHERE),
        nmi_pauses: Atomic::new(false),
        state: Atomic::new(ptr::null_mut()),
        event: Atomic::new(ptr::null_mut()),
        step: Atomic::new(1024),
        lie: Atomic::new(0),
        refuse: Atomic::new(false),
        open: Atomic::new(false),
        gated: Atomic::new(0),
        started: Atomic::new(0),
        quiesced: Atomic::new(0),
        defers: Atomic::new(false),
        deferred: Atomic::new(0),
        freed: Arc::new(Atomic::new(0), GFP_KERNEL)?,
    };
    let bench = Bench::new(
        driver,
        &Setup {
            pages: 2,
            watermark: RING / 4,
            mode: if overwrite {
                Mode::Overwrite
            } else {
                Mode::Normal
            },
            ..Setup::default()
        },
    )?;

    bench.driver().event.store(bench.event().as_ptr(), Relaxed);
    let state = ptr::from_ref(&*bench.state).cast_mut();
    bench.driver().state.store(state, Relaxed);
    Ok(bench)
}

impl Bench<Probe> {
    /// Whether perf's rules are kept, and starts and stops of the unit are in balance.
    pub(super) fn is_sound(&self) -> bool {
        let driver = self.driver();
        let running = driver
            .started
            .load(Relaxed)
            .wrapping_sub(driver.quiesced.load(Relaxed));

        self.violation().is_none() && running <= 1 && !(self.is_disabled() && running == 1)
    }

    /// Whether a tick finds a transaction, and one is open afterwards.
    pub(super) fn ticks(&mut self) -> bool {
        self.tick() && self.timer().is_some()
    }

    /// Whether the records report all bytes up to the head, once each.
    pub(super) fn is_gapless(&self) -> bool {
        let mut at = 0;

        for record in self.records() {
            if record.offset != at {
                return false;
            }
            at += record.size;
        }
        at == self.head()
    }
}
