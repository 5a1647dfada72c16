// SPDX-License-Identifier: GPL-2.0

//! Drivers that ask for what cannot be, keep what they must not, and fail where they can.

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

/// Asks for timers of 0, 1 and 1000 ns, and of negative intervals.
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

/// Asks for the longest interval that there is: it never ticks.
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

/// Keeps the mapping of an AUX area, and its bounce memory, beyond `free_aux()`.
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
        // Those of the AUX area before are dropped here.
        if let Some(mapping) = buffer.mapping.take() {
            drop(driver.attack.mapping.put(mapping));
        }
        if let Some(bounce) = buffer.bounce.take() {
            drop(driver.attack.bounce.put(bounce));
        }
    }
}

/// Fails in `setup_aux()` every other time, after it has allocated all that it can.
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

/// Refuses to start every other time, after it has written and asked for everything.
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

/// Registers another PMU in each callback in which it may sleep, and in one in which it may not.
pub(crate) struct Registers;

impl Registers {
    fn another() {
        let description = Description::new(c"hostile_nested");

        // The framework refuses it.
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
