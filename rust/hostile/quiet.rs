// SPDX-License-Identifier: GPL-2.0

//! A PMU that does nothing, PMUs that the framework must refuse, and a counter that misbehaves.

use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use perf::{
    aux,
    pmu::{
        Capabilities,
        Counting,
        Description, //
    },
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

/// A PMU that does nothing.
pub(crate) struct Quiet;

#[vtable]
impl Pmu for Quiet {
    type Config = ();
    type Event = ();
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }
}

#[vtable]
impl AuxPmu for Quiet {
    type Buffer = ();
    type Trace = ();

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &aux::Pages) -> Result {
        Ok(())
    }

    fn start(&self, _transaction: &mut aux::Transaction<'_, Self>) -> Result {
        Ok(())
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, _trace: ()) -> aux::Commit {
        aux::Commit::written(transaction, aux::Loss::None)
    }
}

/// Tries to register impossible PMUs. Fails if one is accepted.
pub(crate) fn impossible() -> Result {
    let both = Capabilities::NO_SG.and(Capabilities::PREFER_LARGE);
    let nonsense: [fn() -> Result<Description<'static>>; 6] = [
        || Ok(Description::new(c"")),
        || Ok(Description::new(c".")),
        || Ok(Description::new(c"hostile/impossible")),
        || Ok(Description::new(c"hostile_impossible").filters(1)),
        || Ok(Description::new(c"hostile_impossible").filters(u32::MAX)),
        || {
            Description::new(c"hostile_impossible")
                .cap(c"twice", fmt!("1"))?
                .cap(c"twice", fmt!("2"))
        },
    ];

    for (number, description) in nonsense.into_iter().enumerate() {
        if aux::Registration::new(description()?, Quiet).is_ok() {
            pr_err!("hostile: description {number} was accepted\n");
            return Err(EINVAL);
        }
    }
    let description = Description::new(c"hostile_impossible").capabilities(both);
    if aux::Registration::new(description, Quiet).is_ok() {
        pr_err!("hostile: contradicting capabilities were accepted\n");
        return Err(EINVAL);
    }
    Ok(())
}

/// A counter that fails to start every other time, and reports arbitrary counts.
pub(crate) struct BadCounter {
    starts: Atomic<u64>,
}

impl BadCounter {
    pub(crate) fn register() -> Result<perf::Registration<Self>> {
        let driver = Self {
            starts: Atomic::new(0),
        };

        perf::Registration::new(Description::new(c"hostile_counter"), driver)
    }
}

#[vtable]
impl Pmu for BadCounter {
    type Config = ();
    type Event = Atomic<u64>;
    type Count = Option<u64>;

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result<Atomic<u64>> {
        Ok(Atomic::new(0))
    }

    fn count_start(&self, counting: &mut Counting<'_, Self>) -> Result<Option<u64>> {
        counting.count(u64::MAX);
        match self.starts.fetch_add(1, Relaxed) % 2 {
            0 => Err(EIO),
            _ => Ok(None),
        }
    }

    fn count_read(&self, counting: &mut Counting<'_, Self>, count: &mut Option<u64>) {
        counting.event().fetch_add(u64::MAX, Relaxed);
        counting.count(u64::MAX);
        *count = Some(u64::MAX);
    }

    fn count_stop(&self, counting: &mut Counting<'_, Self>, count: Option<u64>) {
        counting.count(count.unwrap_or(1));
    }
}
