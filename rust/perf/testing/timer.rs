// SPDX-License-Identifier: GPL-2.0

//! Tests of drivers' timers: timers that are too short, and timers that are set in any callback.

use super::{
    Bench,
    Setup, //
};
use crate::{
    aux,
    pmu::{
        Counting,
        SHORTEST_TIMER, //
    },
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Delta, //
};

/// A driver that sets a timer with this interval, in nanoseconds.
struct Asks(i64);

#[vtable]
impl Pmu for Asks {
    type Config = ();
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }
}

#[vtable]
impl AuxPmu for Asks {
    type Buffer = ();
    type Trace = ();

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
        transaction.set_timer(Delta::from_nanos(self.0));
        Ok(())
    }

    fn tick(&self, _transaction: &mut aux::Transaction<'_, Self>, _trace: &mut ()) -> aux::Next {
        aux::Next::Continue
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
        aux::Commit::written(transaction, aux::Loss::None)
    }
}

/// A callback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Start,
    Tick,
    Pause,
    Resume,
    Interrupt,
    Snapshot,
    /// Code that the driver runs in the transaction.
    Transaction,
}

/// A driver that sets a timer in one callback. It refuses to count, after it has set a timer.
struct AsksIn {
    place: Place,
    ticks: Atomic<u32>,
}

/// The interval of the timer that [`AsksIn`] sets.
const INTERVAL: Delta = Delta::from_millis(5);

impl AsksIn {
    fn is_in(&self, place: Place, transaction: &mut aux::Transaction<'_, Self>) {
        if self.place == place {
            transaction.set_timer(INTERVAL);
        }
    }
}

#[vtable]
impl Pmu for AsksIn {
    type Config = ();
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }

    fn count_start(&self, counting: &mut Counting<'_, Self>) -> Result {
        counting.set_timer(INTERVAL);
        Err(EIO)
    }

    fn count_tick(&self, _counting: &mut Counting<'_, Self>, _count: &mut ()) {}

    fn count_stop(&self, _counting: &mut Counting<'_, Self>, _count: ()) {}
}

#[vtable]
impl AuxPmu for AsksIn {
    type Buffer = ();
    type Trace = ();

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result {
        self.is_in(Place::Start, transaction);
        Ok(())
    }

    fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: &mut ()) -> aux::Next {
        self.ticks.fetch_add(1, Relaxed);
        self.is_in(Place::Tick, transaction);
        aux::Next::Continue
    }

    fn pause(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: &mut ()) {
        self.is_in(Place::Pause, transaction);
    }

    fn resume(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: &mut ()) {
        self.is_in(Place::Resume, transaction);
    }

    fn interrupt(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        _trace: &mut (),
    ) -> aux::Next {
        self.is_in(Place::Interrupt, transaction);
        aux::Next::Continue
    }

    fn snapshot<'a>(
        &self,
        transaction: &mut aux::Transaction<'_, Self>,
        _trace: &mut (),
        sample: aux::Sample<'a>,
    ) -> aux::Copied<'a> {
        self.is_in(Place::Snapshot, transaction);
        sample.copy_written(transaction)
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
        aux::Commit::written(transaction, aux::Loss::None)
    }
}

#[kunit_tests(rust_perf_timer)]
mod cases {
    use super::*;

    /// A timer that a callback sets is armed, wherever perf calls the callback. If any lock may be
    /// held there, it is armed soon after.
    #[test]
    fn every_callback_arms_it_where_that_is_allowed() -> Result {
        type Call = fn(&mut Bench<AsksIn>) -> Result;
        let table: [(Place, Call); 7] = [
            (Place::Start, |_| Ok(())),
            (Place::Tick, |bench| {
                bench.tick();
                Ok(())
            }),
            (Place::Pause, |bench| bench.pause()),
            (Place::Resume, |bench| {
                bench.pause()?;
                assert!(bench.armed().is_none());
                bench.resume()
            }),
            (Place::Interrupt, |bench| {
                bench.raise();
                Ok(())
            }),
            (Place::Snapshot, |bench| bench.sample(8).map(drop)),
            (Place::Transaction, |bench| {
                bench
                    .with_transaction(|transaction, ()| {
                        transaction.set_timer(INTERVAL);
                        (aux::Next::Continue, ())
                    })
                    .ok_or(EINVAL)
            }),
        ];

        for (place, call) in table {
            let driver = AsksIn {
                place,
                ticks: Atomic::new(0),
            };
            let mut bench = Bench::new(driver, &Setup::default())?;

            if place == Place::Resume {
                // As with `aux-action=start-paused`.
                bench.pause()?;
            }
            bench.add()?;
            assert_eq!(bench.armed().is_some(), place == Place::Start);
            call(&mut bench)?;
            let armed = bench.armed().map(|interval| interval.as_nanos());
            assert!(armed == Some(INTERVAL.as_nanos()));

            let before = bench.driver().ticks.load(Relaxed);
            assert!(bench.tick());
            assert_eq!(bench.driver().ticks.load(Relaxed), before + 1);
            bench.del();
            assert!(bench.violation().is_none());
        }
        Ok(())
    }

    /// No timer runs for an event that does not count: nothing would stop it.
    #[test]
    fn a_refusal_to_count_sets_no_timer() -> Result {
        let driver = AsksIn {
            place: Place::Start,
            ticks: Atomic::new(0),
        };
        let mut bench = Bench::new(driver, &Setup::default())?;

        bench.unmap();
        assert!(bench.add().err() == Some(EIO));
        assert!(bench.timer().is_none());
        assert!(bench.armed().is_none());
        Ok(())
    }

    #[test]
    fn timers_leave_time_to_others() -> Result {
        let shortest = SHORTEST_TIMER.as_nanos();
        // The interval that the driver sets, and the interval at which the timer is armed.
        let table = [
            (i64::MIN, shortest),
            (-1, shortest),
            (0, shortest),
            (1, shortest),
            (shortest - 1, shortest),
            (shortest, shortest),
            (shortest + 1, shortest + 1),
            (i64::MAX, i64::MAX),
        ];

        for (asked, wanted) in table {
            let mut bench = Bench::new(Asks(asked), &Setup::default())?;

            bench.add()?;
            let armed = bench.armed().map(|interval| interval.as_nanos());
            bench.del();
            assert!(armed == Some(wanted));
        }
        Ok(())
    }
}
