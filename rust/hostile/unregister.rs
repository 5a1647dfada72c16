// SPDX-License-Identifier: GPL-2.0

//! Drivers that drop their own registration while it is in use, or never drop it.

use super::attack::{
    write,
    Attack,
    Buffer,
    Hostile,
    Trace,
    Transaction, //
};
use core::mem;
use kernel::{
    interrupt,
    prelude::*,
    sync::rcu,
    time::Delta, //
};
use perf::aux;

/// The callbacks in which [`Unregisters`] drops its registration.
pub(crate) const EVENT_INIT: u8 = 0;
pub(crate) const EVENT_DROP: u8 = 1;
pub(crate) const SETUP_AUX: u8 = 2;
pub(crate) const BUFFER_DROP: u8 = 3;
pub(crate) const START: u8 = 4;
pub(crate) const TICK: u8 = 5;
pub(crate) const QUIESCE: u8 = 6;
pub(crate) const DEFERRED: u8 = 7;
pub(crate) const PAUSE: u8 = 8;
/// `setup_aux()`, which then fails: the registration is dropped with the unused buffer.
pub(crate) const SETUP_AUX_FAILS: u8 = 9;

/// Drops its registration in the callback `WHERE`.
pub(crate) struct Unregisters<const WHERE: u8>;

impl<const WHERE: u8> Unregisters<WHERE> {
    fn is(driver: &Hostile<Self>, here: u8) {
        if WHERE == here {
            driver.unregister();
        }
    }
}

impl<const WHERE: u8> Attack for Unregisters<WHERE> {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn event_init(driver: &Hostile<Self>) -> Result {
        Self::is(driver, EVENT_INIT);
        Ok(())
    }

    fn event_dropped(driver: &Hostile<Self>) {
        Self::is(driver, EVENT_DROP);
    }

    fn setup_aux(driver: &Hostile<Self>, _pages: &aux::Pages, buffer: &mut Buffer<Self>) -> Result {
        Self::is(driver, SETUP_AUX);
        if matches!(WHERE, START | BUFFER_DROP | SETUP_AUX_FAILS) {
            buffer.registration = driver.take_registration();
        }
        match WHERE {
            SETUP_AUX_FAILS => Err(EINVAL),
            _ => Ok(()),
        }
    }

    // `free_aux()` drops the fields after this, also the registration.
    fn buffer_dropped(_driver: &Hostile<Self>, _buffer: &mut Buffer<Self>) {}

    fn start(_driver: &Hostile<Self>, transaction: &mut Transaction<'_, Self>) -> Result<Trace> {
        transaction.set_timer(Delta::from_millis(1));
        transaction.defer();
        if WHERE == START {
            drop(transaction.buffer().registration.take());
        }
        Ok(Trace::default())
    }

    fn tick(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) -> aux::Next {
        Self::is(driver, TICK);
        write(transaction)
    }

    fn pause(driver: &Hostile<Self>, _transaction: &mut Transaction<'_, Self>, _trace: &mut Trace) {
        Self::is(driver, PAUSE);
    }

    fn deferred(driver: &Hostile<Self>) {
        Self::is(driver, DEFERRED);
    }

    fn quiesce(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: Trace,
    ) -> aux::Commit {
        Self::is(driver, QUIESCE);
        aux::Commit::written(transaction, aux::Loss::None)
    }
}

/// Behaves correctly until the module is unloaded. Then it drops its registration with interrupts
/// off, where it cannot be unregistered.
pub(crate) struct InterruptsOff;

impl InterruptsOff {
    /// Called when the module is unloaded.
    pub(crate) fn exit(driver: &Hostile<Self>) {
        let registration = driver.take_registration();
        let off = interrupt::local_interrupt_disable();

        drop(registration);
        drop(off);
    }
}

impl Attack for InterruptsOff {
    fn new() -> Result<Self> {
        Ok(Self)
    }
}

/// Behaves correctly until the module is unloaded. Then it drops its registration as an RCU reader,
/// for which the end of the registration would wait.
pub(crate) struct RcuReader;

impl RcuReader {
    /// Called when the module is unloaded.
    pub(crate) fn exit(driver: &Hostile<Self>) {
        let registration = driver.take_registration();
        let reader = rcu::read_lock();

        drop(registration);
        drop(reader);
    }
}

impl Attack for RcuReader {
    fn new() -> Result<Self> {
        Ok(Self)
    }
}

/// Behaves correctly until the module is unloaded. Then it forgets its registration.
pub(crate) struct Forgets;

impl Forgets {
    /// Called when the module is unloaded.
    pub(crate) fn exit(driver: &Hostile<Self>) {
        mem::forget(driver.take_registration());
    }
}

impl Attack for Forgets {
    fn new() -> Result<Self> {
        Ok(Self)
    }
}
