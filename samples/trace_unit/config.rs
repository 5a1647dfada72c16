// SPDX-License-Identifier: GPL-2.0

//! The terms of an event. Terms of Intel PT have the same bits as in `intel_pt`, so that stock perf
//! can use the unit under that name.

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
    /// Configuration of an event.
    pub(crate) struct Config {
        /// Take `branch` literally, as in `intel_pt`. Must equal `branch`, as branches are always
        /// traced.
        pt: config[0],
        /// `CYC` packets: cycles between packets.
        cyc: config[1],
        /// `MTC` packets: the coarse clock.
        mtc: config[9],
        /// `TSC` packets: time stamps.
        tsc: config[10],
        /// Each return has a packet with its target, even if it returns to its call.
        noretcomp: config[11],
        /// Trace branches.
        branch: config[13],
        /// An `MTC` packet every 1 << `mtc_period` ticks of the coarse clock.
        mtc_period: config[14..=17],
        /// A `PSB` packet every 2 KiB << `psb_period`.
        psb_period: config[24..=27],
        /// Packets of interrupts, exceptions, returns from them, and changes of the interrupt flag.
        event: config[31],
        /// Microseconds for 1024 bytes of the pattern; 0: 1000.
        rate: config1[0..=31],
        /// Source of the trace: 0 instructions, 1 the pattern.
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

/// Maximum of `psb_period`: the highest bit of `psb_periods` in [`caps`].
const PSB_PERIOD_MAX: u64 = 5;

/// Register values for an event.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// `CTRL` of a running unit.
    pub(crate) control: u64,
    /// `RATE`.
    pub(crate) rate: u64,
}

impl Asked {
    /// Checks a configuration. `sources`: the sources that the device has, one bit each.
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
            unit::INSTRUCTIONS => {
                if config.pt() != config.branch()
                    || config.psb_period() > PSB_PERIOD_MAX
                    // `CYC` and `MTC` packets need time stamps.
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
            unit::PATTERN if of_instructions == [0; 9] => {
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
}

fn flag(set: bool, bit: u64) -> u64 {
    if set {
        bit
    } else {
        0
    }
}

/// Checks that the unit supports these filters: ranges to trace, and ranges that end the trace. It
/// has no start filters.
pub(crate) fn validate(filters: &[AddrFilter]) -> Result {
    let can = |filter: &AddrFilter| filter.action != Action::Start && filter.size > 0;

    if filters.iter().all(can) {
        Ok(())
    } else {
        Err(EOPNOTSUPP)
    }
}

/// The register values for a filter: its bits in `RANGES`, its first and its last address.
pub(crate) fn range(filter: &Filter) -> (u64, u64, u64) {
    match (filter.action, filter.range) {
        (Action::Stop, Some((low, high))) => (unit::RANGE_STOP, low, high),
        (_, Some((low, high))) => (unit::RANGE_FILTER, low, high),
        // The file of the filter is not mapped. A stop filter then has no effect. Another filter
        // traces nothing, as no code is at address 0.
        (Action::Stop, None) => (0, 0, 0),
        (_, None) => (unit::RANGE_FILTER, 0, 0),
    }
}
