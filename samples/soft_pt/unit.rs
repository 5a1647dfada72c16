// SPDX-License-Identifier: GPL-2.0

//! The unit's capabilities, in the sysfs files in which Intel's driver has them.
//!
//! C counterpart: `arch/x86/events/intel/pt.c`, `pt_caps` and `PMU_FORMAT_ATTR()`.

use intel_pt::Encoder;
use kernel::prelude::*;
use perf::sysfs;
use stepping::Decoded;

/// Blocks of decoded instructions that a unit keeps: of programs that execute much code, most of what they
/// execute often.
const BLOCKS: usize = 8192;

/// The unit that writes to an AUX area.
pub(crate) struct Unit {
    pub(crate) encoder: Encoder,
    /// Instructions that were traced: each is a cycle.
    pub(crate) cycles: u64,
    pub(crate) decoded: Decoded,
    /// Instructions that were interpreted before the last transaction ended, and are yet to be reported.
    pub(crate) interpreted: u64,
}

impl Unit {
    pub(crate) fn new(config: intel_pt::Config) -> Result<Self> {
        Ok(Self {
            encoder: Encoder::new(config),
            cycles: 0,
            // Several MiB. If there is no memory, mapping the area fails with `ENOMEM`.
            decoded: Decoded::new(BLOCKS)?,
            interpreted: 0,
        })
    }

    /// So many more instructions were traced.
    pub(crate) fn count(&mut self, instructions: u64) {
        self.cycles = self.cycles.wrapping_add(instructions);
    }
}

perf::format! {
    /// What an event asks for: the bits of `IA32_RTIT_CTL`.
    pub(crate) struct Config {
        /// The other bits are to be taken as they are: without it, branches are traced.
        pt: config[0],
        /// Cycles between packets: one for each instruction.
        cyc: config[1],
        /// Power events: not there.
        pwr_evt: config[4],
        /// The address of each `ptwrite`.
        fup_on_ptw: config[5],
        /// A slower clock: not there.
        mtc: config[9],
        /// Time stamps.
        tsc: config[10],
        /// Returns have packets as any indirect branch, also if they return to their call.
        noretcomp: config[11],
        /// The operand of each `ptwrite`.
        ptw: config[12],
        /// Branches. If `pt` is given, they can be left out.
        branch: config[13],
        /// Of the slower clock.
        mtc_period: config[14..=17],
        /// 1 << this, less 1, are the cycles that a packet tells at least; 0: any.
        cyc_thresh: config[19..=22],
        /// 2 KiB << this lie between two `PSB`s.
        psb_period: config[24..=27],
        /// No packets of conditional branches.
        notnt: config[55],
    }
}

/// The largest `psb_period`: that of `psb_periods` below.
const PSB_PERIOD_MAX: u64 = 5;

/// The largest `cyc_thresh`: that of `cycle_thresholds` below.
const CYC_THRESH_MAX: u64 = 12;

/// What the encoder is to do.
pub(crate) fn encoder_config(config: &Config) -> Result<intel_pt::Config> {
    let lacking = [config.pwr_evt(), config.mtc(), config.mtc_period()];

    // Without `pt` the bit of `branch` has no meaning, as with Intel's driver.
    if config.branch() > config.pt()
        || config.psb_period() > PSB_PERIOD_MAX
        || config.cyc_thresh() > CYC_THRESH_MAX
        || lacking != [0; 3]
    {
        return Err(EINVAL);
    }

    Ok(intel_pt::Config {
        tsc: config.tsc() != 0,
        cyc: config.cyc() != 0,
        cyc_threshold: match config.cyc_thresh() {
            0 => 0,
            threshold => 1 << (threshold - 1),
        },
        ret_compression: config.noretcomp() == 0,
        tnt_disable: config.notnt() != 0,
        branch_disable: config.branch() < config.pt(),
        ptw: config.ptw() != 0,
        fup_on_ptw: config.fup_on_ptw() != 0,
        psb_period: 2048 << config.psb_period(),
        ..intel_pt::Config::default()
    })
}

/// The files of `caps/`.
pub(crate) fn caps() -> &'static [sysfs::Attribute] {
    perf::attributes! {
        max_subleaf: "1",
        cr3_filtering: "0",
        psb_cyc: "1",
        ip_filtering: "1",
        mtc: "0",
        ptwrite: "1",
        power_event_trace: "0",
        event_trace: "0",
        tnt_disable: "1",
        topa_output: "1",
        topa_multiple_entries: "1",
        single_range_output: "0",
        output_subsys: "0",
        payloads_lip: "0",
        num_address_ranges: "4",
        mtc_periods: "0",
        cycle_thresholds: "1fff",
        psb_periods: "3f",
    }
}
