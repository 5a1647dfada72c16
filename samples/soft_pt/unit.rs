// SPDX-License-Identifier: GPL-2.0

//! The unit: its state, its terms and its capabilities, in the sysfs files of Intel's driver.
//!
//! C counterpart: `arch/x86/events/intel/pt.c`, `pt_caps` and `PMU_FORMAT_ATTR()`.

use intel_pt::Encoder;
use kernel::prelude::*;
use perf::sysfs;
use stepping::Decoded;

/// Number of blocks of decoded instructions that a unit caches. Even for a large program, they hold
/// most of the code that it executes often.
const BLOCKS: usize = 8192;

/// The unit that writes to an AUX area.
pub(crate) struct Unit {
    pub(crate) encoder: Encoder,
    /// Traced instructions: each counts as one cycle.
    pub(crate) cycles: u64,
    pub(crate) decoded: Decoded,
    /// Instructions interpreted by the end of the last transaction, and not yet reported.
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

    /// Adds traced instructions.
    pub(crate) fn count(&mut self, instructions: u64) {
        self.cycles = self.cycles.wrapping_add(instructions);
    }
}

perf::format! {
    /// Configuration of an event: the bits of `IA32_RTIT_CTL`.
    pub(crate) struct Config {
        /// Take `branch` literally. Without `pt`, branches are traced.
        pt: config[0],
        /// `CYC` packets: cycles between packets, one for each instruction.
        cyc: config[1],
        /// Power events: not supported.
        pwr_evt: config[4],
        /// A `FUP` packet with the address of each `PTWRITE`.
        fup_on_ptw: config[5],
        /// `MTC` packets: not supported.
        mtc: config[9],
        /// `TSC` packets: time stamps.
        tsc: config[10],
        /// Each return has a packet with its target, even if it returns to its call.
        noretcomp: config[11],
        /// A `PTW` packet with the operand of each `PTWRITE`.
        ptw: config[12],
        /// Trace branches. Only with `pt` can this be 0.
        branch: config[13],
        /// Period of `MTC` packets: not supported.
        mtc_period: config[14..=17],
        /// A `CYC` packet has at least 1 << (`cyc_thresh` - 1) cycles; 0: any number.
        cyc_thresh: config[19..=22],
        /// A `PSB` packet every 2 KiB << `psb_period`.
        psb_period: config[24..=27],
        /// No packets of conditional branches.
        notnt: config[55],
    }
}

/// Maximum of `psb_period`: the highest bit of `psb_periods` in [`caps`].
const PSB_PERIOD_MAX: u64 = 5;

/// Maximum of `cyc_thresh`: the highest bit of `cycle_thresholds` in [`caps`].
const CYC_THRESH_MAX: u64 = 12;

/// The encoder's configuration for an event.
pub(crate) fn encoder_config(config: &Config) -> Result<intel_pt::Config> {
    let lacking = [config.pwr_evt(), config.mtc(), config.mtc_period()];

    // `branch` without `pt` is refused: without `pt` the bit has no meaning in Intel's driver.
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
