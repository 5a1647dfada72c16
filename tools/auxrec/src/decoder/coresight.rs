// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The description of CoreSight for perf's decoder, which is OpenCSD: the trace unit of each CPU, as `cs_etm_info_fill()` of perf's
//! `arch/arm/util/cs-etm.c` writes it.
//!
//! The sink, TRBE or ETR, is not described: AUX records have flags for the form of its trace.

use crate::error::{Error, Result};
use crate::pmu::{EventSpec, Format, Pmu};
use crate::session::{Mode, Plan};

/// `CS_HEADER_CURRENT_VERSION`.
const VERSION: u64 = 2;
/// `__perf_cs_etmv3_magic` and so on.
const MAGIC_ETM3: u64 = 0x3030_3030_3030_3030;
const MAGIC_ETM4: u64 = 0x4040_4040_4040_4040;
const MAGIC_ETE: u64 = 0x5050_5050_5050_5050;

/// Terms, and the bits of ETMv3's ETMCR that the kernel sets for them.
const ETMCR: [(&str, u64); 3] = [
    ("cycacc", 1 << 12),
    ("timestamp", 1 << 28),
    ("retstack", 1 << 29),
];
/// The same for TRCCONFIGR of ETMv4 and ETE.
const TRCCONFIGR: [(&str, u64); 6] = [
    ("branch_broadcast", 1 << 3),
    ("cycacc", 1 << 4),
    ("contextid1", 1 << 6),
    ("contextid2", 1 << 7 | 1 << 15),
    ("timestamp", 1 << 11),
    ("retstack", 1 << 12),
];

/// The architecture of a trace unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Etm3,
    Etm4,
    Ete,
}

/// The trace unit of a CPU.
#[derive(Debug)]
struct Unit<'a> {
    pmu: &'a Pmu,
    cpu: u32,
    kind: Kind,
}

impl<'a> Unit<'a> {
    /// The unit of this CPU, if it has one: `cs_etm_get_version()`.
    fn of(pmu: &'a Pmu, cpu: u32) -> Option<Self> {
        let unit = |kind| Self { pmu, cpu, kind };
        let [etm3, etm4, ete] = [Kind::Etm3, Kind::Etm4, Kind::Ete].map(unit);
        let is_ete = |arch: u64| arch & 0xffff == 0x5a13;
        if ete.register("mgmt/trcdevarch").is_some_and(is_ete) {
            return Some(ete);
        }
        if etm4.text("trcidr/trcidr0").is_some() {
            return Some(etm4);
        }
        etm3.text("mgmt/etmccer").map(|_| etm3)
    }

    /// The content of a file of the unit.
    fn text(&self, name: &str) -> Option<String> {
        self.pmu.file(&format!("cpu{}/{name}", self.cpu))
    }

    /// The value of a register, from the file of this name.
    fn register(&self, name: &str) -> Option<u64> {
        super::number(&self.text(name)?, 16)
    }

    /// The words that describe the unit.
    fn words(&self, event: &EventSpec) -> Vec<u64> {
        let register = |name: &&str| self.register(name).unwrap_or(0);
        let config = |bits: &[(&str, u64)]| {
            let is_set = bits.iter().filter(|(name, _)| event.value(name) != 0);
            is_set.fold(0, |all, (_, bit)| all | bit)
        };
        // The trace id of kernels before 6.0. Later kernels report it in a record for each CPU.
        let trace_id = u64::from(0x10 + self.cpu % 48 * 2);
        let (magic, config, registers): (_, _, &[_]) = match self.kind {
            Kind::Etm3 => (MAGIC_ETM3, config(&ETMCR), &["mgmt/etmccer", "mgmt/etmidr"]),
            Kind::Etm4 => (MAGIC_ETM4, config(&TRCCONFIGR), &REGISTERS[..5]),
            Kind::Ete => (MAGIC_ETE, config(&TRCCONFIGR), &REGISTERS[..]),
        };
        let mut of_kind = vec![config, trace_id];
        of_kind.extend(registers.iter().map(register));
        if self.kind != Kind::Etm3 {
            let source: Option<i32> = self.text("ts_source").and_then(|text| text.parse().ok());
            of_kind.push(u64::from_le_bytes(
                i64::from(source.unwrap_or(-1)).to_le_bytes(),
            ));
        }
        let count = u64::try_from(of_kind.len()).unwrap_or(0);
        [vec![magic, self.cpu.into(), count], of_kind].concat()
    }

    /// Checks that the unit can do what the event asks for: `cs_etm_validate_context_id()`, `cs_etm_validate_timestamp()`.
    fn check(&self, event: &EventSpec) -> Result<()> {
        let lacks = |what: &str, term: &str| {
            Err(Error::usage(format!(
                "PMU `{}`: the trace unit of CPU {} has no {what}: record with {term}=0",
                self.pmu.name, self.cpu
            )))
        };
        let [context, el1, el2] =
            ["contextid", "contextid1", "contextid2"].map(|term| event.value(term));
        let identified = self.register("trcidr/trcidr2").unwrap_or(0);
        let size = |low: u32| identified >> low & 0x1f;
        let is_old = self.kind == Kind::Etm3;
        if is_old && context | el1 | el2 != 0 {
            return lacks("context IDs", "contextid");
        }
        if el1 != 0 && size(5) != 4 {
            return lacks("context IDs of EL1", "contextid1");
        }
        if el2 != 0 && (size(10) < 4 || identified >> 29 & 3 == 0) {
            return lacks("context IDs of EL2", "contextid2");
        }
        let stamps = self.register("trcidr/trcidr0").unwrap_or(0) >> 24 & 0x1f;
        if event.value("timestamp") != 0 && (is_old || stamps == 0) {
            return lacks("time stamps", "timestamp");
        }
        Ok(())
    }
}

/// Registers of ETMv4, and one more of ETE.
const REGISTERS: [&str; 6] = [
    "trcidr/trcidr0",
    "trcidr/trcidr1",
    "trcidr/trcidr2",
    "trcidr/trcidr8",
    "mgmt/trcauthstatus",
    "mgmt/trcdevarch",
];

/// Checks that there is only one event, and that the trace units of these CPUs can do what it asks for.
pub(super) fn check(plan: &Plan, cpus: &[u32]) -> Result<()> {
    let events = plan.events.iter().map(|(event, _)| event);
    let mut events = events.filter(|event| event.pmu.format() == Some(Format::CoreSight));
    let Some(event) = events.next() else {
        return Ok(());
    };
    let pmu = &event.pmu;
    if events.next().is_some() {
        return Err(Error::usage(format!(
            "there may be one event of {} only: perf's decoder takes one configuration",
            pmu.name
        )));
    }
    for cpu in cpus {
        let unit = Unit::of(pmu, *cpu).ok_or_else(|| {
            Error::failed(format!(
                "PMU `{}` has no trace unit on CPU {cpu}: look whether the modules coresight-etm4x and coresight-trbe are loaded, and \
                 whether the firmware describes the unit; or record other CPUs with -C",
                pmu.name
            ))
        })?;
        unit.check(event)?;
    }
    Ok(())
}

/// The words of AUXTRACE_INFO; [`None`] if one of these CPUs has no trace unit.
pub(super) fn words(event: &EventSpec, plan: &Plan, cpus: &[u32]) -> Option<Vec<u64>> {
    let count = u64::try_from(cpus.len()).ok()?;
    let mut words = vec![
        VERSION,
        u64::from(event.pmu.kind) << 32 | count,
        u64::from(plan.mode == Mode::Overwrite && !plan.samples()),
    ];
    for cpu in cpus {
        words.extend(Unit::of(&event.pmu, *cpu)?.words(event));
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::path::Path;

    use super::super::tests::{plan, write};
    use super::*;

    /// A CPU with an ETMv4, one with an ETE, one with an ETMv3.
    const UNITS: &[(&str, &str)] = &[
        ("cs_etm/type", "10"),
        ("cs_etm/format/cycacc", "config:12"),
        ("cs_etm/format/branch_broadcast", "config:8"),
        ("cs_etm/format/contextid", "config:14"),
        ("cs_etm/format/contextid1", "config:14"),
        ("cs_etm/format/contextid2", "config:15"),
        ("cs_etm/format/timestamp", "config:4-7"),
        ("cs_etm/format/retstack", "config:29"),
        ("cs_etm/cpu0/trcidr/trcidr0", "0x28000ea1"),
        ("cs_etm/cpu0/trcidr/trcidr1", "0x4100f403"),
        ("cs_etm/cpu0/trcidr/trcidr2", "0xd0001088"),
        ("cs_etm/cpu0/trcidr/trcidr8", "0x8"),
        ("cs_etm/cpu0/mgmt/trcauthstatus", "0xcc"),
        ("cs_etm/cpu0/mgmt/trcdevarch", "0x47704a13"),
        ("cs_etm/cpu50/trcidr/trcidr0", "0x28000ea1"),
        ("cs_etm/cpu50/trcidr/trcidr1", "0x4100fff3"),
        ("cs_etm/cpu50/trcidr/trcidr2", "0xd0001088"),
        ("cs_etm/cpu50/trcidr/trcidr8", "0x0"),
        ("cs_etm/cpu50/mgmt/trcauthstatus", "0xcc"),
        ("cs_etm/cpu50/mgmt/trcdevarch", "0x47705a13"),
        ("cs_etm/cpu50/ts_source", "3"),
        ("cs_etm/cpu51/mgmt/etmccer", "0x34c01ac2"),
        ("cs_etm/cpu51/mgmt/etmidr", "0x410cf250"),
    ];

    fn reported(dir: &Path, event: &str, cpu: u32) -> Vec<u64> {
        let plan = plan(dir, event, Some(vec![cpu]));
        words(&plan.events[0].0, &plan, &[cpu]).unwrap()
    }

    #[test]
    fn words_of_each_architecture() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), UNITS);
        let event = "cs_etm/cycacc,contextid2,retstack,timestamp=3/u";
        let (head, config) = ([2, 10 << 32 | 1, 0], 0x9890);
        let etm4 = [0x2800_0ea1, 0x4100_f403, 0xd000_1088, 8, 0xcc, u64::MAX];
        let words = reported(dir.path(), event, 0);
        assert_eq!(words[..3], head);
        assert_eq!(words[3..8], [MAGIC_ETM4, 0, 8, config, 0x10]);
        assert_eq!(words[8..], etm4);
        let words = reported(dir.path(), event, 50);
        assert_eq!(words[3..8], [MAGIC_ETE, 50, 9, config, 0x14]);
        assert_eq!(words[12..], [0xcc, 0x4770_5a13, 3]);
        let words = reported(dir.path(), event, 51);
        assert_eq!(words[3..8], [MAGIC_ETM3, 51, 4, 0x3000_1000, 0x16]);
        assert_eq!(words[8..], [0x34c0_1ac2, 0x410c_f250]);
        // One bit of TRCCONFIGR for each term.
        for (term, bits) in TRCCONFIGR {
            let words = reported(dir.path(), &format!("cs_etm/{term}/"), 0);
            assert_eq!(words[6], bits, "{term}");
        }
    }

    #[test]
    fn abilities_of_units() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), UNITS);
        for (event, cpus, says) in [
            (
                "cs_etm/timestamp,contextid1,contextid2/",
                &[0, 50][..],
                None,
            ),
            ("cs_etm//", &[51], None),
            ("cs_etm//", &[0, 1], Some("no trace unit on CPU 1")),
            (
                "cs_etm/timestamp/",
                &[0, 51],
                Some("CPU 51 has no time stamps: record with timestamp=0"),
            ),
            (
                "cs_etm/contextid1/",
                &[51],
                Some("has no context IDs: record with contextid=0"),
            ),
        ] {
            let checked = check(&plan(dir.path(), event, None), cpus);
            let said = checked.err().map(|error| error.to_string());
            let is_right = said
                .as_deref()
                .map(|said| says.is_some_and(|says| said.contains(says)));
            assert!(is_right.unwrap_or(says.is_none()), "{event} {said:?}");
        }
        // For each field that is read, a value that means that the ability is missing.
        let of_cpu = dir.path().join("cs_etm/cpu0/trcidr");
        for (register, value, event) in [
            ("trcidr0", "0x00000ea1", "cs_etm/timestamp/"),
            ("trcidr2", "0xd0001008", "cs_etm/contextid/"),
            ("trcidr2", "0xd0000c88", "cs_etm/contextid2/"),
            ("trcidr2", "0x10001088", "cs_etm/contextid2/"),
        ] {
            write(dir.path(), UNITS);
            let plan = plan(dir.path(), event, None);
            assert!(check(&plan, &[0]).is_ok(), "{event}");
            fs::write(of_cpu.join(register), value).unwrap();
            assert!(check(&plan, &[0]).is_err(), "{event} {value}");
        }
        let mut twice = plan(dir.path(), "cs_etm//", None);
        twice.events.push(twice.events[0].clone());
        assert!(check(&twice, &[50]).is_err());
    }
}
