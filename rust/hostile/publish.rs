// SPDX-License-Identifier: GPL-2.0

//! Drivers that make false reports about the bytes that they have written.

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
    sync::atomic::Relaxed,
    time::Delta, //
};
use perf::aux;

/// Reports more bytes than it has written, and more than there is space for.
pub(crate) struct Overclaim;

impl Attack for Overclaim {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn snapshot<'a>(
        _driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        sample: aux::Sample<'a>,
    ) -> aux::Copied<'a> {
        sample.copy(transaction, u64::MAX)
    }

    fn quiesce(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: Trace,
    ) -> aux::Commit {
        let space = transaction.region().space().unwrap_or(u64::MAX);

        match driver.call() % 3 {
            0 => aux::Commit::new(u64::MAX, aux::Loss::None),
            1 => aux::Commit::new(
                space.saturating_add(1),
                aux::Loss::NoSpace {
                    bytes: Some(u64::MAX),
                },
            ),
            _ => aux::Commit::new(space, aux::Loss::Gap { bytes: None })
                .and_lost(aux::Loss::Collision {
                    bytes: Some(u64::MAX),
                })
                .in_format(aux::Format::new(u8::MAX)),
        }
    }
}

/// Writes, but never commits a byte: it forgets each region and each writer.
pub(crate) struct NeverCommits;

impl Attack for NeverCommits {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    #[expect(
        clippy::forget_non_drop,
        reason = "they have no drop that a driver could keep from running"
    )]
    fn tick(
        _driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) -> aux::Next {
        let mut region = transaction.region();

        if let Ok(mut writer) = region.reserve(RECORD) {
            let _ = writer.put(&[b'x'; RECORD]);
            mem::forget(writer);
        }
        mem::forget(region.reserve(1));
        mem::forget(region);
        mem::forget(transaction.parts());
        aux::Next::Flush
    }

    fn quiesce(
        _driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: Trace,
    ) -> aux::Commit {
        let _ = aux::Commit::new(u64::MAX, aux::Loss::None);
        aux::Commit::written(transaction, aux::Loss::None)
    }
}

/// Requests a flush in each callback, whether a wakeup is due or not.
pub(crate) struct Flushes;

impl Attack for Flushes {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn tick(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) -> aux::Next {
        if driver.call() % 2 == 0 {
            let _ = write(transaction);
        }
        aux::Next::Flush
    }

    fn interrupt(
        _driver: &Hostile<Self>,
        _transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) -> aux::Next {
        aux::Next::Flush
    }
}

/// Skips again and again: also when bytes wait for a commit, and with padding that is too short or
/// too long.
pub(crate) struct Skips;

impl Skips {
    fn pad(transaction: &mut Transaction<'_, Self>, len: usize) -> Result {
        transaction.skip(len, |writer| (0..len).try_for_each(|_| writer.put(&[0])))
    }
}

impl Attack for Skips {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn start(_driver: &Hostile<Self>, transaction: &mut Transaction<'_, Self>) -> Result<Trace> {
        transaction.set_timer(Delta::from_millis(1));
        for _ in 0..8 {
            let _ = Self::pad(transaction, 0);
            let _ = Self::pad(transaction, 7);
            let _ = transaction.skip(9, |_| Ok(()));
            let _ = transaction.skip(9, |writer| writer.put(&[0; 10]));
        }
        Ok(Trace::default())
    }

    fn tick(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) -> aux::Next {
        if driver.call() % 2 == 0 {
            let _ = write(transaction);
        }
        let _ = Self::pad(transaction, 64);
        let _ = transaction.skip(usize::MAX, |_| Ok(()));
        if let Some(space) = transaction.region().space() {
            // Skips all of the space, so that the area is full afterwards.
            if driver.call() % 16 == 1 {
                let _ = Self::pad(transaction, usize::try_from(space).unwrap_or(0));
            }
        }
        aux::Next::Flush
    }

    fn quiesce(
        _driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: Trace,
    ) -> aux::Commit {
        let before = aux::Commit::written(transaction, aux::Loss::None);

        // The bytes of the commit are before the padding. The region begins behind it.
        let _ = Self::pad(transaction, 64);
        before
    }
}

/// Commits in `quiesce()` a number of bytes that another transaction may have stored in the
/// driver's state.
pub(crate) struct Stale;

impl Attack for Stale {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn tick(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        trace: &mut Trace,
    ) -> aux::Next {
        let next = write(transaction);

        trace.ticks.fetch_add(1, Relaxed);
        driver
            .calls
            .store(transaction.region().written().saturating_mul(2), Relaxed);
        next
    }

    fn quiesce(
        driver: &Hostile<Self>,
        _transaction: &mut Transaction<'_, Self>,
        trace: Trace,
    ) -> aux::Commit {
        let ticks = trace.ticks.load(Relaxed);

        aux::Commit::new(driver.calls.load(Relaxed).max(ticks), aux::Loss::None)
    }
}

/// Writes while it is paused.
pub(crate) struct WritesInPause;

impl Attack for WritesInPause {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn pause(_driver: &Hostile<Self>, transaction: &mut Transaction<'_, Self>, _trace: &mut Trace) {
        let _ = write(transaction);
    }

    fn resume(
        _driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) {
        let _ = write(transaction);
    }
}
