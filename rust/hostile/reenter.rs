// SPDX-License-Identifier: GPL-2.0

//! Drivers that enter their own transactions, or those of another PMU, from a callback.

use super::attack::{
    write,
    Attack,
    Hostile,
    Trace,
    Transaction,
    RECORD, //
};
use core::mem;
use kernel::{
    prelude::*,
    time::Delta, //
};
use perf::aux;

/// Enters its own transaction again from each callback.
pub(crate) struct Reenters;

impl Reenters {
    fn again(driver: &Hostile<Self>) {
        if let Some(entry) = driver.entry() {
            entry.interrupt();
            let _ = entry.with_transaction(|transaction, _| {
                let _ = write(transaction);
                (aux::Next::Flush, ())
            });
            entry.interrupt();
        }
    }
}

impl Attack for Reenters {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn event_init(driver: &Hostile<Self>) -> Result {
        Self::again(driver);
        Ok(())
    }

    fn event_dropped(driver: &Hostile<Self>) {
        Self::again(driver);
    }

    fn setup_aux(
        driver: &Hostile<Self>,
        _pages: &aux::Pages,
        _buffer: &mut super::attack::Buffer<Self>,
    ) -> Result {
        Self::again(driver);
        Ok(())
    }

    fn buffer_dropped(driver: &Hostile<Self>, _buffer: &mut super::attack::Buffer<Self>) {
        Self::again(driver);
    }

    fn start(driver: &Hostile<Self>, transaction: &mut Transaction<'_, Self>) -> Result<Trace> {
        Self::again(driver);
        // There is no `defer()` here. `deferred()` flushes, which calls `start()` again, without
        // end.
        transaction.set_timer(Delta::from_millis(1));
        Ok(Trace::default())
    }

    fn tick(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) -> aux::Next {
        let next = write(transaction);

        Self::again(driver);
        transaction.defer();
        next
    }

    fn interrupt(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) -> aux::Next {
        let next = write(transaction);

        Self::again(driver);
        next
    }

    fn pause(driver: &Hostile<Self>, _transaction: &mut Transaction<'_, Self>, _trace: &mut Trace) {
        Self::again(driver);
    }

    fn resume(
        driver: &Hostile<Self>,
        _transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) {
        Self::again(driver);
    }

    fn deferred(driver: &Hostile<Self>) {
        Self::again(driver);
    }

    fn quiesce(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: Trace,
    ) -> aux::Commit {
        Self::again(driver);
        aux::Commit::written(transaction, aux::Loss::None)
    }
}

/// Two PMUs that swap their states while the transactions of both are open.
pub(crate) struct Twin;

impl Twin {
    fn mix(driver: &Hostile<Self>, ours: &mut Transaction<'_, Self>, trace: &mut Trace) {
        let Some(peer) = driver.peer() else {
            return;
        };

        let _ = peer.with_transaction(|theirs, their_trace| {
            // Each PMU now has the other's state, which belongs to another ring.
            mem::swap(trace, their_trace);
            mem::swap(ours.buffer(), theirs.buffer());
            let mut our_region = ours.region();
            let mut their_region = theirs.region();
            mem::swap(&mut our_region, &mut their_region);
            // The bytes are written to the other ring, and count there.
            if let (Ok(mut a), Ok(mut b)) =
                (our_region.reserve(RECORD), their_region.reserve(RECORD))
            {
                mem::swap(&mut a, &mut b);
                let _ = a.put(&[b'a'; RECORD]);
                let _ = b.put(&[b'b'; RECORD]);
                a.commit();
                b.commit();
            }
            (aux::Next::Flush, ())
        });
    }
}

impl Attack for Twin {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn setup_aux(
        _driver: &Hostile<Self>,
        pages: &aux::Pages,
        buffer: &mut super::attack::Buffer<Self>,
    ) -> Result {
        buffer.mapping = Some(pages.map()?);
        buffer.scratch = [1; 4];
        Ok(())
    }

    fn tick(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        trace: &mut Trace,
    ) -> aux::Next {
        Self::mix(driver, transaction, trace);
        write(transaction)
    }

    fn quiesce(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        mut trace: Trace,
    ) -> aux::Commit {
        Self::mix(driver, transaction, &mut trace);
        aux::Commit::written(transaction, aux::Loss::None)
    }
}
