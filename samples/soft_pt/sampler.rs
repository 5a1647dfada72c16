// SPDX-License-Identifier: GPL-2.0

//! A second PMU, whose events sample the traced instructions. The records are part of the trace.
//!
//! ```text
//! $ perf record -c 1000 -e '{intel_pt//u,soft_pebs/instructions,aux-output/u}' -- gzip -k file
//! $ perf script --itrace=o
//! ```
//!
//! C counterpart: PEBS records in Intel PT, `is_pebs_pt()` in `arch/x86/events/intel/`.

use crate::SoftPt;
use core::num::NonZero;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use perf::{
    interrupt::Entry,
    pmu::{
        Counting,
        Description, //
    },
    Attr,
    Pmu,
    Registration, //
};

/// The number of the counter. Each tracing event has one counter.
const COUNTER: u8 = 0;

/// The event `instructions`. It has the number of `INST_RETIRED.ANY_P` on Intel's processors.
const INSTRUCTIONS: u64 = 0xc0;

/// The counter of instructions that a tracing event traces.
///
/// The tracing event and the sampling event are in one group. So their callbacks run on the same
/// CPU, and only an NMI interrupts one by the other.
pub(crate) struct Sampler {
    /// Whether a sampling event uses the counter.
    taken: Atomic<bool>,
    /// Instructions from one sample to the next; 0 while the sampling event is stopped.
    period: Atomic<u64>,
    /// Instructions up to the next sample; 0 before the first.
    left: Atomic<u64>,
    /// Instructions that are not yet in the count of the sampling event.
    counted: Atomic<u64>,
}

impl Sampler {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let sampler = Self {
            taken: Atomic::new(false),
            period: Atomic::new(0),
            left: Atomic::new(0),
            counted: Atomic::new(0),
        };

        Ok(Arc::new(sampler, GFP_KERNEL)?)
    }

    /// The bit of the counter in records.
    pub(crate) const fn bit() -> u64 {
        1 << COUNTER
    }

    /// Instructions up to the next sample. The sample is taken after the last one of them. [`None`]
    /// while nothing is sampled.
    #[inline]
    pub(crate) fn left(&self) -> Option<NonZero<u64>> {
        match self.period.load(Relaxed) {
            0 => None,
            _ => NonZero::new(self.left.load(Relaxed)),
        }
    }

    /// Counts executed and traced instructions. Returns whether the last one is to be sampled.
    #[inline]
    pub(crate) fn executed(&self, instructions: u64) -> bool {
        let Some(left) = self.left() else {
            return false;
        };
        let over = instructions.checked_sub(left.get());
        let period = self.period.load(Relaxed).max(1);

        // One atomic operation: an NMI may stop the sampling event, which takes the count.
        self.counted.fetch_add(instructions, Relaxed);
        self.left.store(
            match over {
                // A step can pass the sample: a load of SS is stepped with the next instruction.
                Some(over) => period.saturating_sub(over).max(1),
                None => left.get().wrapping_sub(instructions),
            },
            Relaxed,
        );
        over.is_some()
    }

    fn start(&self, period: u64) {
        if !(1..=period).contains(&self.left.load(Relaxed)) {
            self.left.store(period, Relaxed);
        }
        self.period.store(period, Relaxed);
    }

    fn stop(&self) {
        self.period.store(0, Relaxed);
    }
}

/// A sampling event, which has exclusive use of its sampler.
pub(crate) struct Claim(Arc<Sampler>);

impl Claim {
    fn new(sampler: &Arc<Sampler>) -> Result<Self> {
        if sampler.taken.xchg(true, Relaxed) {
            return Err(EBUSY);
        }
        Ok(Self(sampler.clone()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.stop();
        self.0.taken.store(false, Relaxed);
    }
}

perf::format! {
    /// Configuration of a sampling event.
    pub(crate) struct Config {
        /// Number of the hardware event.
        event: config[0..=7],
    }
}

/// The PMU of sampling events.
pub(crate) struct Pebs(Entry<SoftPt>);

impl Pebs {
    pub(crate) fn register(pmu: Entry<SoftPt>) -> Result<Registration<Self>> {
        let description = Description::new(c"soft_pebs").events(perf::attributes! {
            instructions: "event=0xc0",
        });

        Registration::new(description, Self(pmu))
    }
}

#[vtable]
impl Pmu for Pebs {
    type Config = Config;
    type Event = Claim;
    type Count = ();

    fn event_init(&self, attr: &Attr<'_, Config>) -> Result<Claim> {
        let exclude = attr.exclude();

        if exclude.user || !exclude.kernel {
            return Err(EOPNOTSUPP);
        }
        if attr.config().event() != INSTRUCTIONS || attr.period() == 0 || !attr.is_aux_output() {
            return Err(EINVAL);
        }
        Claim::new(&attr.leader(&self.0).ok_or(EINVAL)?.sampler)
    }

    /// [`Self::event_init`] checks the leader itself.
    fn aux_output_match(_leader: u32) -> bool {
        true
    }

    fn count_start(&self, counting: &mut Counting<'_, Self>) -> Result {
        counting.report_aux_output_id(COUNTER.into());
        counting.event().0.start(counting.period());
        Ok(())
    }

    fn count_read(&self, counting: &mut Counting<'_, Self>, _count: &mut ()) {
        counting.count(counting.event().0.counted.xchg(0, Relaxed));
    }

    fn count_stop(&self, counting: &mut Counting<'_, Self>, mut count: ()) {
        counting.event().0.stop();
        self.count_read(counting, &mut count);
    }
}
