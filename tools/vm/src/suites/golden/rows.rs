// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The recordings that are made on described machines.

use super::machine::Change;
use super::trace::{self, Written};
use super::Arch;

/// A recording.
pub(super) struct Row {
    pub name: &'static str,
    pub arch: Arch,
    /// Arguments of `perf record` and of `auxrec record`.
    pub args: &'static [&'static str],
    /// The differences between the machine and its description.
    pub changes: &'static [Change],
    /// Whether perf and the recorder must both refuse it.
    pub is_refused: bool,
}

impl Row {
    const fn arm64(name: &'static str, args: &'static [&'static str]) -> Self {
        Self {
            name,
            arch: Arch::Arm64,
            args,
            changes: &[],
            is_refused: false,
        }
    }

    const fn x86_64(name: &'static str, args: &'static [&'static str]) -> Self {
        Self {
            arch: Arch::X86_64,
            ..Self::arm64(name, args)
        }
    }

    /// The recording on a machine with these changes, which lacks something that the recording needs.
    const fn refused(self, changes: &'static [Change]) -> Self {
        Self {
            is_refused: true,
            ..self.changed(changes)
        }
    }

    /// The event.
    pub fn event(&self) -> &'static str {
        let mut args = self.args.iter().skip_while(|arg| **arg != "-e");
        args.nth(1).copied().unwrap_or_default()
    }

    /// The trace that its units write, see [`trace::of`]. A recording of snapshots has none, as no snapshot is requested.
    pub fn trace(&self) -> Option<Written> {
        trace::of(self.event()).filter(|_| !self.args.contains(&"-S"))
    }

    const fn changed(self, changes: &'static [Change]) -> Self {
        Self { changes, ..self }
    }
}

/// A second SPE unit, with other capabilities, on the CPUs without one.
const SECOND_SPE: &[Change] = {
    macro_rules! unit {
        ($($file:literal: $text:literal,)*) => {
            &[$((concat!("sys/bus/event_source/devices/arm_spe_1/", $file), Some($text)),)*]
        };
    }
    unit! {
        "type": "19",
        "cpumask": "2-3",
        "format/ts_enable": "config:0",
        "format/pa_enable": "config:1",
        "format/pct_enable": "config:2",
        "format/jitter": "config:16",
        "format/branch_filter": "config:32",
        "format/load_filter": "config:33",
        "format/store_filter": "config:34",
        "format/event_filter": "config1:0-63",
        "format/min_latency": "config2:0-11",
        "caps/arch_inst": "1",
        "caps/ernd": "0",
        "caps/count_size": "16",
        "caps/min_interval": "4096",
        "caps/event_filter": "0x2a",
    }
};

/// All recordings.
pub(super) const ROWS: &[Row] = &[
    Row::arm64("SPE, a command", &["-e", "arm_spe_0//"]),
    Row::arm64(
        "SPE, user space",
        &["-e", "arm_spe_0/load_filter=1,pa_enable=1/u"],
    ),
    Row::arm64(
        "SPE, all CPUs",
        &["-e", "arm_spe_0/branch_filter=1,jitter=1/", "-a"],
    ),
    Row::arm64(
        "SPE, some CPUs",
        &["-e", "arm_spe_0/ts_enable=0,min_latency=30/", "-C", "1"],
    ),
    Row::arm64(
        "SPE, a thread",
        &["-e", "arm_spe_0/event_filter=0x22/u", "--per-thread"],
    ),
    Row::arm64(
        "SPE, a period",
        &["-e", "arm_spe_0/period=1000,inv_event_filter=0x4/u"],
    ),
    Row::arm64("SPE, snapshots", &["-e", "arm_spe_0//u", "-S"]),
    Row::arm64("SPE without capabilities", &["-e", "arm_spe_0//u"]).changed(&[
        (
            "sys/bus/event_source/devices/arm_spe_0/caps/min_interval",
            None,
        ),
        (
            "sys/bus/event_source/devices/arm_spe_0/caps/event_filter",
            None,
        ),
    ]),
    Row::arm64("SPE, the second of two units", &["-e", "arm_spe_1//", "-a"]).changed(SECOND_SPE),
    Row::arm64("CoreSight, a command", &["-e", "cs_etm//u"]),
    Row::arm64("CoreSight, all CPUs", &["-e", "cs_etm//", "-a"]),
    Row::arm64(
        "CoreSight, ETE and TRBE",
        &["-e", "cs_etm/@trbe0/k", "-C", "0-1"],
    ),
    Row::arm64(
        "CoreSight, ETM and ETR",
        &["-e", "cs_etm/@tmc_etr0,cycacc,retstack/", "-C", "2-3"],
    ),
    Row::arm64(
        "CoreSight, a sink by number",
        &["-e", "cs_etm/sinkid=0x1234,@trbe0/u", "-C", "0"],
    ),
    Row::arm64("CoreSight, a thread", &["-e", "cs_etm//u", "--per-thread"]),
    Row::arm64(
        "CoreSight, a thread with terms",
        &[
            "-e",
            "cs_etm/timestamp=3,contextid2,branch_broadcast/u",
            "--per-thread",
        ],
    ),
    Row::arm64(
        "CoreSight without time stamps",
        &["-e", "cs_etm/timestamp=0,contextid1=0/u"],
    ),
    Row::arm64(
        "CoreSight, rare time stamps",
        &["-e", "cs_etm/timestamp=15,preset=2,cc_threshold=256/u"],
    ),
    Row::arm64("CoreSight, snapshots", &["-e", "cs_etm//u", "-S"]),
    Row::arm64("CoreSight, context IDs at EL2", &["-e", "cs_etm//u"]).changed(&[(
        "sys/bus/event_source/devices/cs_etm/format/contextid",
        Some("config:15"),
    )]),
    Row::arm64(
        "CoreSight, ETMv3",
        &[
            "-e",
            "cs_etm/cycacc,timestamp=0,contextid=0,retstack/u",
            "-C",
            "3",
        ],
    )
    .changed(&[
        (
            "sys/bus/event_source/devices/cs_etm/cpu3/trcidr/trcidr0",
            None,
        ),
        (
            "sys/bus/event_source/devices/cs_etm/cpu3/mgmt/trcdevarch",
            None,
        ),
        (
            "sys/bus/event_source/devices/cs_etm/cpu3/mgmt/etmccer",
            Some("0x34c01ac2"),
        ),
        (
            "sys/bus/event_source/devices/cs_etm/cpu3/mgmt/etmidr",
            Some("0x410cf250"),
        ),
    ]),
    Row::arm64(
        "CoreSight, a CPU without a trace unit",
        &["-e", "cs_etm//u"],
    )
    .refused(&[(
        "sys/bus/event_source/devices/cs_etm/cpu3/trcidr/trcidr0",
        None,
    )]),
    Row::arm64(
        "CoreSight, a unit without time stamps",
        &["-e", "cs_etm//u"],
    )
    .refused(&[(
        "sys/bus/event_source/devices/cs_etm/cpu1/trcidr/trcidr0",
        Some("0x00000ea1"),
    )]),
    Row::arm64(
        "CoreSight, a unit without context IDs",
        &["-e", "cs_etm//u"],
    )
    .refused(&[(
        "sys/bus/event_source/devices/cs_etm/cpu1/trcidr/trcidr2",
        Some("0xd0001008"),
    )]),
    Row::arm64(
        "CoreSight, a unit without virtual context IDs",
        &["-e", "cs_etm/contextid2/u"],
    )
    .refused(&[(
        "sys/bus/event_source/devices/cs_etm/cpu1/trcidr/trcidr2",
        Some("0x10001088"),
    )]),
    Row::arm64("CoreSight, an unknown sink", &["-e", "cs_etm/@tmc_etf0/u"]).refused(&[]),
    Row::arm64(
        "PTT",
        &[
            "-e",
            "hisi_ptt0_2/filter=0x80001,direction=2,type=1,format=1/",
            "-C",
            "0",
        ],
    ),
    Row::x86_64("PT, a command", &["-e", "intel_pt//u"]),
    Row::x86_64("PT, all CPUs", &["-e", "intel_pt//", "-a"]),
    Row::x86_64("PT, a thread", &["-e", "intel_pt//u", "--per-thread"]),
    Row::x86_64("PT, snapshots", &["-e", "intel_pt//u", "-S"]),
    Row::x86_64(
        "PT, cycles",
        &[
            "-e",
            "intel_pt/cyc,cyc_thresh=2,noretcomp,mtc_period=6,psb_period=5/u",
        ],
    ),
    Row::x86_64(
        "PT, events and power",
        &["-e", "intel_pt/event,pwr_evt,ptw,fup_on_ptw/u", "-a"],
    ),
    Row::x86_64(
        "PT without branches",
        &["-e", "intel_pt/branch=0,tsc=0/u", "--per-thread"],
    ),
    Row::x86_64(
        "PT, filters",
        &[
            "-e",
            "intel_pt//u",
            "--filter",
            "filter 0x1000/0x20 @/bin/true",
        ],
    ),
    Row::x86_64("PT without MTC", &["-e", "intel_pt//u"]).changed(&[
        ("sys/bus/event_source/devices/intel_pt/caps/mtc", Some("0")),
        (
            "sys/bus/event_source/devices/intel_pt/caps/mtc_periods",
            Some("0"),
        ),
    ]),
    Row::x86_64("PT without ratios", &["-e", "intel_pt//u"]).changed(&[
        (
            "sys/bus/event_source/devices/intel_pt/max_nonturbo_ratio",
            None,
        ),
        (
            "sys/bus/event_source/devices/intel_pt/caps/event_trace",
            Some("0"),
        ),
    ]),
    Row::x86_64(
        "PT, an impossible period",
        &["-e", "intel_pt/psb_period=9/u"],
    )
    .refused(&[]),
    Row::x86_64("BTS, a thread", &["-e", "intel_bts//u", "--per-thread"]),
    Row::x86_64(
        "BTS, snapshots",
        &["-e", "intel_bts//u", "--per-thread", "-S"],
    ),
];
