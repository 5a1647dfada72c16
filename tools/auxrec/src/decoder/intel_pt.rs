// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The description of a recording for perf's decoder of Intel PT.
//!
//! The words are those of `intel_pt_info_fill()` in perf's `arch/x86/util/intel-pt.c`; their order is `INTEL_PT_PMU_TYPE` and
//! so on in `util/intel-pt.h`.

use std::ffi::CStr;

use perfdata::TimeConv;

use crate::pmu::Pmu;
use crate::session::{Mode, Plan};

/// No records of context switches.
const NO_SWITCHES: u64 = 0;
/// Records of context switches of the traced threads.
const SWITCHES_OF_THREADS: u64 = 2;
/// Records of context switches of the CPU, with the next task.
const SWITCHES_OF_CPUS: u64 = 3;

/// The private words of AUXTRACE_INFO, if the event's PMU writes Intel PT.
#[must_use]
pub fn info(plan: &Plan, clock: &TimeConv) -> Option<Vec<u64>> {
    let mut pmus = plan.events.iter().map(|(event, _)| &event.pmu);
    let pmu = pmus.find(|pmu| pmu.writes_intel_pt())?;
    let switches = match (&plan.cpus, &plan.threads) {
        (None, _) => NO_SWITCHES,
        (Some(_), Some(_)) => SWITCHES_OF_THREADS,
        (Some(_), None) => SWITCHES_OF_CPUS,
    };
    let cap = |name: &str| pmu.caps.get(name).and_then(|text| text.parse().ok());

    let (ticks, coarse) = pmu.tsc_art_ratio.unwrap_or((0, 0));
    let filter = plan.filter.as_deref().map_or(&[][..], CStr::to_bytes);

    let mut words = vec![
        pmu.kind.into(),
        clock.shift,
        clock.mult,
        clock.zero,
        clock.cap_zero.into(),
        mask(pmu, "tsc"),
        mask(pmu, "noretcomp"),
        switches,
        // Areas from which samples take trace are in overwrite mode, too, but those are no snapshots.
        u64::from(plan.mode == Mode::Overwrite && !plan.samples()),
        plan.cpus.is_some().into(),
        mask(pmu, "mtc"),
        mask(pmu, "mtc_period"),
        // Without this a decoder takes no times from MTC packets.
        ticks,
        coarse,
        mask(pmu, "cyc"),
        // The ratio with which the decoder compares CBR packets.
        pmu.max_nonturbo_ratio.unwrap_or(0),
        u64::try_from(filter.len()).unwrap_or(0),
    ];
    words.extend(text(filter));
    words.push(cap("event_trace").unwrap_or(0));
    Some(words)
}

/// A text as words, with a NUL at its end and zeros up to a whole word. An empty text has no words.
fn text(bytes: &[u8]) -> Vec<u64> {
    let ended = match bytes {
        [] => Vec::new(),
        _ => [bytes, &[0]].concat(),
    };
    let word = |bytes: &[u8]| {
        let mut word = [0_u8; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        u64::from_le_bytes(word)
    };
    ended.chunks(8).map(word).collect()
}

/// Whether the time stamps in the trace of CPUs cannot be compared with the times of records, which name the tasks on these CPUs.
#[must_use]
pub fn lacks_clock(plan: &Plan, clock: &TimeConv) -> bool {
    plan.writes_intel_pt() && plan.cpus.is_some() && !clock.cap_zero
}

/// The bits of `config` that a term has.
fn mask(pmu: &Pmu, name: &str) -> u64 {
    pmu.terms
        .get(name)
        .filter(|term| term.word == 0)
        .and_then(|term| term.put(0, term.max()))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::{Pmus, Role};
    use perfdata::Flags;
    use std::ffi::CString;
    use std::fs;
    use std::path::Path;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    const UNIT: &[(&str, &str)] = &[
        ("type", "9"),
        ("format/pt", "config:0"),
        ("format/cyc", "config:1"),
        ("format/mtc", "config:9"),
        ("format/tsc", "config:10"),
        ("format/noretcomp", "config:11"),
        ("format/branch", "config:13"),
        ("format/mtc_period", "config:14-17"),
        ("format/cyc_thresh", "config:19-22"),
        ("format/psb_period", "config:24-27"),
        ("tsc_art_ratio", "168:2"),
        ("max_nonturbo_ratio", "33"),
        ("caps/psb_cyc", "1"),
        ("caps/event_trace", "1"),
    ];

    fn plan(dir: &Path, event: &str) -> Plan {
        Plan {
            events: vec![(Pmus::at(dir).event(event).unwrap(), Role::Aux)],
            cgroup: None,
            code: None,
            trigger: None,
            sideband: Flags::empty(),
            filter: None,
            data: 4096,
            aux: 4096,
            watermark: 0,
            mode: Mode::Normal,
            cpus: Some(vec![0]),
            threads: Some(vec![1]),
            processes: Vec::new(),
            inherit: true,
            on_exec: true,
            delayed: false,
            overwrite: false,
            on_truncate: Default::default(),
        }
    }

    #[test]
    fn words_are_where_perf_looks() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("any_name"), UNIT);
        let clock = TimeConv {
            shift: 31,
            mult: 12345,
            zero: 99,
            cap_zero: true,
            ..TimeConv::default()
        };
        let mut plan = plan(dir.path(), "any_name//u");
        assert!(!lacks_clock(&plan, &clock) && lacks_clock(&plan, &TimeConv::default()));
        let words = info(&plan, &clock).unwrap();

        assert_eq!(words[..5], [9, 31, 12345, 99, 1]);
        assert_eq!(words[5..10], [1 << 10, 1 << 11, 2, 0, 1]);
        assert_eq!(words[10..], [1 << 9, 0xf << 14, 168, 2, 2, 33, 0, 1]);

        // The text of filters has a NUL and fills whole words, before the last word.
        for (filter, text) in [
            ("start 1", &["start 1\0"][..]),
            (
                "filter 0x1000/0x20@/bin/a",
                &["filter 0", "x1000/0x", "20@/bin/", "a\0\0\0\0\0\0\0"],
            ),
            ("start 0x", &["start 0x", "\0\0\0\0\0\0\0\0"]),
        ] {
            plan.filter = Some(CString::new(filter).unwrap());
            let words = info(&plan, &clock).unwrap();
            let word = |text: &&str| u64::from_le_bytes(text.as_bytes().try_into().unwrap());
            let mut want: Vec<_> = text.iter().map(word).collect();
            want.insert(0, u64::try_from(filter.len()).unwrap());
            want.push(1);
            assert_eq!(words[16..], want, "{filter}");
        }
        let snapshots = |plan: &Plan| info(plan, &clock).unwrap()[8];
        assert_eq!(snapshots(&plan), 0);
        plan.mode = Mode::Overwrite;
        assert_eq!(snapshots(&plan), 1);
        plan.events[0].0.aux_sample = Some(4096);
        assert_eq!(snapshots(&plan), 0);
    }

    /// Time stamps and branches are enabled, unless the user disables them.
    #[test]
    fn defaults_are_those_of_perf() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("unit"), UNIT);
        let table = [
            ("unit//u", 0x2401),
            ("unit/noretcomp/u", 0x2c01),
            ("unit/tsc=0/u", 0x2001),
            ("unit/branch=0/u", 0x0401),
            ("unit/pt=0,branch=0/u", 0x0400),
        ];
        for (event, config) in table {
            let found = plan(dir.path(), event).events[0].0.config[0];
            assert_eq!(found, config, "{event}");
        }
    }

    /// The defaults that perf gives the processor's own unit.
    #[test]
    fn defaults_of_hardware() {
        const PT: u64 = 1 | 1 << 10 | 1 << 13;
        for (caps, want) in [
            // Most processors have these.
            (
                &[("mtc", "1"), ("mtc_periods", "249"), ("psb_periods", "3f")][..],
                0x0300_e601,
            ),
            (
                &[("mtc", "1"), ("mtc_periods", "ffff"), ("psb_periods", "30")],
                PT | 1 << 9 | 3 << 14 | 4 << 24,
            ),
            (
                &[("mtc", "1"), ("mtc_periods", "14"), ("psb_periods", "0")],
                PT | 1 << 9 | 2 << 14,
            ),
            (
                &[
                    ("mtc_periods", "1"),
                    ("psb_cyc", "0"),
                    ("psb_periods", "3f"),
                ],
                PT | 1 << 9,
            ),
            (
                &[("mtc", "0"), ("mtc_periods", "249"), ("psb_periods", "3f")],
                PT,
            ),
            (
                &[("mtc", "1"), ("mtc_periods", "0"), ("psb_periods", "3f")],
                PT,
            ),
            (&[("mtc", "1")], PT),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let unit = dir.path().join("intel_pt");
            write(&unit, UNIT);
            for (name, text) in caps {
                write(&unit.join("caps"), &[(name, text)]);
            }
            let config = |event: &str| Pmus::at(dir.path()).event(event).unwrap().config[0];
            assert_eq!(config("intel_pt//u"), want, "{caps:?}");
            assert_eq!(
                config("intel_pt/tsc=0,pt=0/u"),
                want & !(1 << 10 | 1),
                "{caps:?}"
            );
        }
    }

    /// Each value of each term with a limited set of values, on units that support it and on units that do not.
    #[test]
    fn values_are_those_in_caps() {
        let terms = [
            ("mtc_period", "mtc_periods", "mtc"),
            ("cyc_thresh", "cycle_thresholds", "psb_cyc"),
            ("psb_period", "psb_periods", "psb_cyc"),
        ];
        let table = [
            (Some("3f"), "1", 0x3f_u32, "0-5"),
            (Some("1fff"), "1", 0x1fff, "0-12"),
            (Some("249"), "1", 0x249, "0,3,6,9"),
            // 0 is always valid.
            (Some("e"), "1", 0xf, "0-3"),
            (Some("0"), "1", 1, "0"),
            (Some("ffff"), "0", 1, "0"),
            (None, "1", 1, "0"),
        ];
        for ((term, values, flag), (mask, has_any, valid, list)) in terms
            .iter()
            .flat_map(|term| table.iter().map(move |row| (*term, *row)))
        {
            let dir = tempfile::tempdir().unwrap();
            write(&dir.path().join("any_name"), UNIT);
            let caps = dir.path().join("any_name/caps");
            fs::write(caps.join(flag), has_any).unwrap();
            if let Some(mask) = mask {
                fs::write(caps.join(values), mask).unwrap();
            }
            for value in 0..16 {
                let event = format!("any_name/{term}={value}/u");
                let parsed = Pmus::at(dir.path()).event(&event);
                if valid >> value & 1 == 1 {
                    assert!(parsed.is_ok(), "{event} {mask:?}");
                } else {
                    let error = parsed.unwrap_err().to_string();
                    let want =
                        format!("invalid {term} {value} for any_name; valid values are: {list}");
                    assert!(error.contains(&want), "{event} {mask:?}: {error}");
                }
            }
        }
    }

    /// A PMU that lacks one of these marks, or has it elsewhere, does not write Intel PT.
    #[test]
    fn other_units_are_told_apart() {
        for left_out in [
            "format/pt",
            "format/tsc",
            "format/noretcomp",
            "format/branch",
            "caps/psb_cyc",
        ] {
            let dir = tempfile::tempdir().unwrap();
            let files: Vec<_> = UNIT
                .iter()
                .copied()
                .filter(|(name, _)| *name != left_out)
                .collect();
            write(&dir.path().join("unit"), &files);
            assert!(
                info(&plan(dir.path(), "unit//u"), &TimeConv::default()).is_none(),
                "{left_out}"
            );
            if left_out.starts_with("format") {
                write(&dir.path().join("unit"), &[(left_out, "config:33")]);
                assert!(
                    info(&plan(dir.path(), "unit//u"), &TimeConv::default()).is_none(),
                    "{left_out}"
                );
            }
        }
    }
}
