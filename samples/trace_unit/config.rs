// SPDX-License-Identifier: GPL-2.0

//! The terms of an event. Those of Intel PT have the places that they have there, so that stock perf
//! drives the unit under that name.

use super::regs::unit;
use kernel::prelude::*;
use perf::{
    event::Exclude,
    filter::{
        Action,
        AddrFilter,
        Filter, //
    },
    sysfs, //
};

perf::format! {
    /// What an event asks for.
    pub(crate) struct Config {
        /// The other bits of Intel PT are to be taken as they are: without it, branches are traced.
        pt: config[0],
        /// Cycles between packets.
        cyc: config[1],
        /// Packets of the coarse clock.
        mtc: config[9],
        /// Time stamps.
        tsc: config[10],
        /// Returns have packets as any indirect branch, also if they return to their call.
        noretcomp: config[11],
        /// Branches.
        branch: config[13],
        /// One is there each 1 << this ticks of that clock.
        mtc_period: config[14..=17],
        /// 2 KiB << this lie between two `PSB`s.
        psb_period: config[24..=27],
        /// Interrupts, exceptions, returns from them, and whether interrupts are enabled.
        event: config[31],
        /// Microseconds for 1024 bytes of the pattern; 0: 1000.
        rate: config1[0..=31],
        /// What is traced: 0 instructions, 1 the pattern.
        source: config1[32..=35],
    }
}

/// The files of `caps/`.
pub(crate) fn caps() -> &'static [sysfs::Attribute] {
    perf::attributes! {
        max_subleaf: "1",
        cr3_filtering: "0",
        psb_cyc: "1",
        ip_filtering: "1",
        mtc: "1",
        ptwrite: "0",
        power_event_trace: "0",
        event_trace: "1",
        tnt_disable: "0",
        topa_output: "1",
        topa_multiple_entries: "1",
        single_range_output: "0",
        output_subsys: "0",
        payloads_lip: "0",
        mtc_periods: "ffff",
        cycle_thresholds: "0",
        psb_periods: "3f",
    }
}

/// The largest `psb_period`: that of `psb_periods` above.
const PSB_PERIOD_MAX: u64 = 5;
/// The source that traces instructions, and the one that makes the pattern.
const INSTRUCTIONS: u64 = 0;
const PATTERN: u64 = 1;

/// What a unit is to do for an event.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// `CTRL` while it runs.
    pub(crate) control: u64,
    /// `RATE`.
    pub(crate) rate: u64,
}

impl Asked {
    /// `sources`: those that the device has, a bit each.
    pub(crate) fn new(config: &Config, exclude: Exclude, sources: u64) -> Result<Self> {
        let source = config.source();
        let rate = config.rate();
        let of_instructions = [
            config.pt(),
            config.branch(),
            config.cyc(),
            config.mtc(),
            config.mtc_period(),
            config.tsc(),
            config.noretcomp(),
            config.psb_period(),
            config.event(),
        ];
        let control = match source {
            _ if sources >> source & 1 == 0 => return Err(EOPNOTSUPP),
            INSTRUCTIONS => {
                if config.pt() != config.branch()
                    || config.psb_period() > PSB_PERIOD_MAX
                    // They count from a time stamp.
                    || config.cyc().max(config.mtc()) > config.tsc()
                    || rate != 0
                {
                    return Err(EINVAL);
                }
                flag(!exclude.kernel, unit::KERNEL)
                    | flag(!exclude.user, unit::USER)
                    | flag(config.tsc() != 0, unit::TSC)
                    | flag(config.cyc() != 0, unit::CYC)
                    | flag(config.mtc() != 0, unit::MTC)
                    | flag(config.event() != 0, unit::EVENT)
                    | config.mtc_period() << unit::MTC_SHIFT
                    | flag(config.noretcomp() == 0, unit::RETURNS)
                    | config.psb_period() << unit::PSB_SHIFT
            }
            PATTERN if of_instructions == [0; 9] => {
                // The bytes of a pattern belong neither to the kernel nor to a program.
                if exclude.kernel || exclude.user {
                    return Err(EOPNOTSUPP);
                }
                0
            }
            _ => return Err(EINVAL),
        };

        Ok(Self {
            control: unit::ENABLE | source << unit::SOURCE_SHIFT | control,
            rate: if rate == 0 { 1000 } else { rate },
        })
    }

    /// Whether it takes time until the source has begun.
    pub(crate) fn is_awaited(self) -> bool {
        self.control >> unit::SOURCE_SHIFT & 0xf == INSTRUCTIONS
    }
}

fn flag(set: bool, bit: u64) -> u64 {
    if set {
        bit
    } else {
        0
    }
}

/// Whether the unit has these filters: ranges in which to trace, and addresses that end the trace, but
/// none that begin it.
pub(crate) fn validate(filters: &[AddrFilter]) -> Result {
    let can = |filter: &AddrFilter| filter.action != Action::Start && filter.size > 0;

    if filters.iter().all(can) {
        Ok(())
    } else {
        Err(EOPNOTSUPP)
    }
}

/// A filter, as a unit's registers have it: what is done with the range, and its first and last
/// address.
pub(crate) fn range(filter: &Filter) -> (u64, u64, u64) {
    match (filter.action, filter.range) {
        (Action::Stop, Some((low, high))) => (unit::RANGE_STOP, low, high),
        (_, Some((low, high))) => (unit::RANGE_FILTER, low, high),
        // Its file is not mapped: nothing ends there, and nothing is traced there. No code is at 0.
        (Action::Stop, None) => (0, 0, 0),
        (_, None) => (unit::RANGE_FILTER, 0, 0),
    }
}
