// SPDX-License-Identifier: GPL-2.0

//! Drivers that make impossible requests, keep objects too long, or fail in callbacks.

use super::attack::{
    write,
    Attack,
    Buffer,
    Hostile,
    Slot,
    Trace,
    Transaction, //
};
use kernel::{
    prelude::*,
    time::Delta, //
};
use perf::{
    aux,
    pmu::Description, //
};

/// Sets timers of 0, 1 and 1000 ns, and of negative intervals.
pub(crate) struct Timers;

impl Timers {
    fn next(driver: &Hostile<Self>) -> Delta {
        Delta::from_nanos(match driver.call() % 5 {
            0 => 1,
            1 => 0,
            2 => -1,
            3 => i64::MIN,
            _ => 1000,
        })
    }
}

impl Attack for Timers {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn start(driver: &Hostile<Self>, transaction: &mut Transaction<'_, Self>) -> Result<Trace> {
        transaction.set_timer(Self::next(driver));
        Ok(Trace::default())
    }

    fn tick(
        driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: &mut Trace,
    ) -> aux::Next {
        transaction.set_timer(Self::next(driver));
        write(transaction)
    }
}

/// Sets a timer with the longest possible interval, which never expires.
pub(crate) struct Never;

impl Attack for Never {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn start(_driver: &Hostile<Self>, transaction: &mut Transaction<'_, Self>) -> Result<Trace> {
        transaction.set_timer(Delta::from_nanos(i64::MAX));
        let _ = write(transaction);
        Ok(Trace::default())
    }
}

/// Keeps the mapping and the bounce memory of an AUX area beyond `free_aux()`.
pub(crate) struct Keeps {
    mapping: Slot<aux::VirtualMapping>,
    bounce: Slot<aux::Bounce>,
}

impl Attack for Keeps {
    fn new() -> Result<Self> {
        Ok(Self {
            mapping: Slot::new()?,
            bounce: Slot::new()?,
        })
    }

    fn setup_aux(_driver: &Hostile<Self>, pages: &aux::Pages, buffer: &mut Buffer<Self>) -> Result {
        buffer.mapping = Some(pages.map()?);
        buffer.bounce = Some(pages.bounce_scattered(pages.size())?);
        Ok(())
    }

    fn buffer_dropped(driver: &Hostile<Self>, buffer: &mut Buffer<Self>) {
        // This drops the objects of the previous AUX area.
        if let Some(mapping) = buffer.mapping.take() {
            drop(driver.attack.mapping.put(mapping));
        }
        if let Some(bounce) = buffer.bounce.take() {
            drop(driver.attack.bounce.put(bounce));
        }
    }
}

/// Drops the mapping and the bounce memory of an AUX area in `quiesce()`, where nothing may sleep.
pub(crate) struct Unmaps;

impl Attack for Unmaps {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn setup_aux(_driver: &Hostile<Self>, pages: &aux::Pages, buffer: &mut Buffer<Self>) -> Result {
        buffer.mapping = Some(pages.map()?);
        buffer.bounce = Some(pages.bounce_scattered(pages.size())?);
        Ok(())
    }

    fn quiesce(
        _driver: &Hostile<Self>,
        transaction: &mut Transaction<'_, Self>,
        _trace: Trace,
    ) -> aux::Commit {
        let buffer = transaction.buffer();

        drop((buffer.mapping.take(), buffer.bounce.take()));
        aux::Commit::written(transaction, aux::Loss::None)
    }
}

/// Fails in `setup_aux()` every other time, after it has allocated a mapping and bounce memory.
pub(crate) struct SetupFails;

impl Attack for SetupFails {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn setup_aux(driver: &Hostile<Self>, pages: &aux::Pages, buffer: &mut Buffer<Self>) -> Result {
        buffer.mapping = Some(pages.map()?);
        buffer.bounce = Some(pages.bounce_scattered(pages.size())?);
        match driver.call() % 2 {
            0 => Err(EIO),
            _ => Ok(()),
        }
    }
}

/// Fails in `start()` every other time, after it has written, set a timer and deferred work.
pub(crate) struct StartFails;

impl Attack for StartFails {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn start(driver: &Hostile<Self>, transaction: &mut Transaction<'_, Self>) -> Result<Trace> {
        let _ = write(transaction);
        transaction.set_timer(Delta::from_millis(1));
        transaction.defer();
        match driver.call() % 2 {
            0 => Err(EIO),
            _ => Ok(Trace::default()),
        }
    }
}

/// Registers another PMU in each callback that may sleep, and in one that may not.
pub(crate) struct Registers;

impl Registers {
    fn another() {
        let description = Description::new(c"hostile_nested");

        // The framework must refuse it.
        if aux::Registration::new(description, super::quiet::Quiet).is_ok() {
            pr_err!("hostile: a PMU was registered in a callback\n");
        }
    }
}

impl Attack for Registers {
    fn new() -> Result<Self> {
        Ok(Self)
    }

    fn event_init(_driver: &Hostile<Self>) -> Result {
        Self::another();
        Ok(())
    }

    fn event_dropped(_driver: &Hostile<Self>) {
        Self::another();
    }

    fn setup_aux(
        _driver: &Hostile<Self>,
        _pages: &aux::Pages,
        _buffer: &mut Buffer<Self>,
    ) -> Result {
        Self::another();
        Ok(())
    }

    fn buffer_dropped(_driver: &Hostile<Self>, _buffer: &mut Buffer<Self>) {
        Self::another();
    }

    fn start(_driver: &Hostile<Self>, transaction: &mut Transaction<'_, Self>) -> Result<Trace> {
        Self::another();
        transaction.set_timer(Delta::from_millis(1));
        Ok(Trace::default())
    }
}
