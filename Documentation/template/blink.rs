// SPDX-License-Identifier: GPL-2.0

//! `blink`: a driver to start from.
//!
//! It writes one word of 8 bytes to the AUX area at every tick of a timer. Replace the name, the
//! terms, [`Trace`] and what the callbacks do to it by those of your unit.

use kernel::{
    prelude::*,
    time::Delta, //
};
use perf::{
    aux,
    pmu::Description,
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

mod tests;

perf::module_pmu! {
    type: Blink,
    pmu: Description::new(c"blink"),
    driver: Blink,
    name: "blink",
    authors: ["The author"],
    description: "A perf PMU driver to start from",
    license: "GPL",
}

perf::format! {
    /// What an event asks for: `perf record -e blink/value=7/`.
    struct Config {
        /// The word to write.
        value: config[0..=31],
    }
}

/// Length of a word in the AUX area.
const WORD: u64 = 8;

/// The driver: what all events and CPUs share, such as the registers of the unit.
struct Blink;

/// The unit while a transaction is open.
struct Trace {
    /// Bytes that found no space.
    lost: u64,
}

#[vtable]
impl Pmu for Blink {
    type Config = Config;
    /// State of an event.
    type Event = ();
    /// State while counting: this driver does not count without an AUX area.
    type Count = ();

    /// An event is opened: refuses what the unit cannot do.
    fn event_init(&self, attr: &Attr<'_, Config>) -> Result {
        // There is nothing to sample.
        if attr.period() != 0 {
            return Err(EOPNOTSUPP);
        }
        Ok(())
    }
}

#[vtable]
impl AuxPmu for Blink {
    /// State of an AUX area: tables, mappings, bounce memory.
    type Buffer = ();
    type Trace = Trace;

    /// An AUX area is mapped: builds what the unit needs to write to it.
    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    /// Programs the unit to write to the transaction's region, and starts it.
    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<Trace> {
        transaction.set_timer(Delta::from_millis(1));
        Ok(Trace { lost: 0 })
    }

    /// The timer has expired. A unit with an interrupt has `interrupt()` instead.
    fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, trace: &mut Trace) -> aux::Next {
        let value = transaction.event().config().value();
        let mut region = transaction.region();
        let written = region.reserve(8).and_then(|mut writer| {
            writer.put(&value.to_le_bytes())?;
            writer.commit();
            Ok(())
        });

        if written.is_err() {
            trace.lost = trace.lost.saturating_add(WORD);
        }
        if trace.lost > 0 || region.wakeup_due() {
            aux::Next::Flush
        } else {
            aux::Next::Continue
        }
    }

    /// Stops the unit and reports what it wrote. When this returns, the unit writes no more.
    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, trace: Trace) -> aux::Commit {
        let loss = match trace.lost {
            0 => aux::Loss::None,
            bytes => aux::Loss::NoSpace { bytes: Some(bytes) },
        };

        aux::Commit::written(transaction, loss)
    }
}
