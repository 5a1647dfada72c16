// SPDX-License-Identifier: GPL-2.0

//! Timers of drivers that leave the CPU to nobody.

use super::{
    Bench,
    Setup, //
};
use crate::{
    aux,
    pmu::SHORTEST_TIMER,
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};
use kernel::{
    prelude::*,
    time::Delta, //
};

/// Asks for this interval, in nanoseconds.
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

#[kunit_tests(rust_perf_timer)]
mod cases {
    use super::*;

    #[test]
    fn timers_leave_time_to_others() -> Result {
        let shortest = SHORTEST_TIMER.as_nanos();
        // What is asked for, and what is armed.
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
