// SPDX-License-Identifier: GPL-2.0

//! `minimal`: the shortest useful driver.
//!
//! At every tick of a timer it writes one record of 16 bytes, little endian, to the AUX area:
//!
//! ```text
//!  0 u64 time     CLOCK_MONOTONIC, ns
//!  8 u32 cpu      the CPU that the event runs on
//! 12 u32 number   of the tick, from 0; a missing number is a record that found no space
//! ```
//!
//! The event's counter is the number of ticks. `Documentation/driver-tutorial.md` builds this
//! driver step by step.
//!
//! ```text
//! # insmod rust_perf.ko; insmod pmu_minimal.ko
//! $ auxrec record -e minimal/interval=500/ -m 16,4 -o trace.data -- sleep 1
//! ```

use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use perf::{
    aux,
    clock,
    pmu::Description,
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

mod tests;

perf::module_pmu! {
    type: Minimal,
    pmu: Description::new(c"minimal"),
    driver: Minimal,
    name: "pmu_minimal",
    authors: ["The auxpmu authors"],
    description: "The shortest useful perf PMU with an AUX buffer",
    license: "GPL",
}

perf::format! {
    /// Configuration of an event.
    struct Config {
        /// Microseconds between two ticks, 20 at least; 0: 1000.
        interval: config[0..=31],
    }
}

struct Minimal;

#[vtable]
impl Pmu for Minimal {
    type Config = Config;
    /// The number of the next tick.
    type Event = Atomic<u32>;
    type Count = ();

    fn event_init(&self, attr: &Attr<'_, Config>) -> Result<Atomic<u32>> {
        match attr.config().interval() {
            // The timer must leave the CPU to others.
            1..=19 => Err(EINVAL),
            _ => Ok(Atomic::new(0)),
        }
    }
}

#[vtable]
impl AuxPmu for Minimal {
    type Buffer = ();
    /// Whether the area is full.
    type Trace = bool;

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<bool> {
        let interval = match transaction.event().config().interval() {
            0 => 1000,
            interval => interval.try_into()?,
        };

        transaction.set_timer(kernel::time::Delta::from_micros(interval));
        Ok(false)
    }

    fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, full: &mut bool) -> aux::Next {
        transaction.count(1);
        *full = write_record(transaction).is_err();

        if *full || transaction.region().wakeup_due() {
            aux::Next::Flush
        } else {
            aux::Next::Continue
        }
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, full: bool) -> aux::Commit {
        let loss = match full {
            true => aux::Loss::NoSpace { bytes: Some(16) },
            false => aux::Loss::None,
        };

        aux::Commit::written(transaction, loss)
    }
}

/// Writes a record, or nothing if the region has no space for it.
fn write_record(transaction: &mut aux::Transaction<'_, Minimal>) -> Result<(), aux::Full> {
    let number = transaction.event().fetch_add(1, Relaxed);
    let cpu = transaction.cpu().id();
    let mut region = transaction.region();
    let mut writer = region.reserve(16)?;

    writer.put(&clock::monotonic_fast().to_le_bytes())?;
    writer.put(&cpu.to_le_bytes())?;
    writer.put(&number.to_le_bytes())?;
    writer.commit();

    Ok(())
}
