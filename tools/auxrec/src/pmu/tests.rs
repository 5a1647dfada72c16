// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of event descriptions.

#![allow(clippy::unwrap_used)]

use perfdata::{Flags, SampleType};
use proptest::prelude::*;

use super::*;
use crate::error::Error;

fn pmus(dir: &Path) -> Pmus {
    for (path, text) in [
        ("pattern/type", "42"),
        ("pattern/format/rate", "config:0-23"),
        ("pattern/format/limit", "config2:0-63"),
        ("pattern/format/split", "config1:0-3,60-63"),
        ("pattern/events/fast", "rate=100,split=0x21"),
        ("software/type", "1"),
    ] {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    Pmus::at(dir)
}

#[test]
fn events() {
    let dir = tempfile::tempdir().unwrap();
    let pmus = pmus(dir.path());
    let config = |text: &str| pmus.event(text).unwrap().config;
    assert_eq!(config("pattern//"), [0; 5]);
    assert_eq!(config("pattern/rate=0x10,limit=7/"), [16, 0, 7, 0, 0]);
    assert_eq!(config("pattern/fast,rate=3/"), [3, 2 << 60 | 1, 0, 0, 0]);
    assert_eq!(config("pattern/config=5,config3=6/u")[3], 6);
    let exclude = |text: &str| pmus.event(text).unwrap().exclude;
    assert_eq!(
        exclude("pattern//u"),
        Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV
    );
    assert_eq!(exclude("pattern//uk"), Flags::EXCLUDE_HV);
    assert_eq!(exclude("pattern//"), Flags::empty());
    assert_eq!(
        pmus.mappings(),
        [(42, "pattern".to_owned()), (1, "software".to_owned())]
    );
}

/// The attribute that `arm_spe_setup_evsel()` of perf's `arch/arm64/util/arm-spe.c` makes.
#[test]
fn statistical_profiling() {
    let dir = tempfile::tempdir().unwrap();
    for unit in ["arm_spe_0", "arm_spe_1"] {
        let format = dir.path().join(unit).join("format");
        fs::create_dir_all(&format).unwrap();
        fs::write(dir.path().join(unit).join("type"), "9").unwrap();
        fs::write(format.join("ts_enable"), "config:0").unwrap();
        fs::write(format.join("pa_enable"), "config:1").unwrap();
        fs::write(format.join("min_latency"), "config2:0-11").unwrap();
    }
    let caps = dir.path().join("arm_spe_0/caps");
    fs::create_dir(&caps).unwrap();
    fs::write(caps.join("min_interval"), "256").unwrap();

    let (source, address) = (SampleType::DATA_SRC, SampleType::PHYS_ADDR);
    for (event, period, sample_type, of_threads, of_cpus) in [
        ("arm_spe_0//", 256, source, 0, 1),
        ("arm_spe_1//u", 4096, source, 0, 1),
        ("arm_spe_0/period=1000/", 1000, source, 0, 1),
        ("arm_spe_0/pa_enable=1/", 256, source | address, 2, 3),
        ("arm_spe_0/pa_enable=0/", 256, source, 0, 1),
        ("arm_spe_0/ts_enable=0,min_latency=9/", 256, source, 0, 0),
        ("arm_spe_0/min_latency=9,ts_enable/", 256, source, 1, 1),
    ] {
        let mut spec = Pmus::at(dir.path()).event(event).unwrap();
        let attr = spec.attr();
        assert_eq!(attr.sample_period, period, "{event}");
        assert_eq!(attr.sample_type, sample_type, "{event}");
        assert!(!attr.flags.contains(Flags::FREQ), "{event}");
        assert_eq!(attr.config, of_threads, "{event}");
        spec.set_if_unset("ts_enable", 1);
        assert_eq!(spec.attr().config, of_cpus, "{event}");
    }
}

/// perf's defaults on CPUs, unless the user has set the bits of a term by any name; and sinks by name.
#[test]
fn events_of_coresight() {
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("cs_etm");
    for (name, text) in [
        ("type", "10"),
        ("format/contextid", "config:14"),
        ("format/contextid1", "config:14"),
        ("format/contextid2", "config:15"),
        ("format/timestamp", "config:4-7"),
        ("format/sinkid", "config2:0-31"),
        ("sinks/tmc_etr0", "0x9a1b2c3d"),
        ("sinks/trbe0", "0x2b3c4d5e"),
    ] {
        let path = unit.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    let pmus = Pmus::at(dir.path());
    for (event, of_threads, of_cpus, sink) in [
        ("cs_etm//u", 0, 0x4010, 0),
        ("cs_etm/timestamp=0/", 0, 0x4000, 0),
        ("cs_etm/timestamp=5,contextid2/", 0x8050, 0xc050, 0),
        ("cs_etm/contextid1=0/", 0, 0x10, 0),
        ("cs_etm/@tmc_etr0/", 0, 0x4010, 0x9a1b_2c3d),
        ("cs_etm/sinkid=7,@trbe0/", 0, 0x4010, 7),
        ("cs_etm/@trbe0,sinkid=7/", 0, 0x4010, 7),
    ] {
        let mut spec = pmus.event(event).unwrap();
        assert_eq!(spec.attr().config, of_threads, "{event}");
        assert_eq!(spec.attr().config2, sink, "{event}");
        spec.set_if_unset("timestamp", 1);
        spec.set_if_unset("contextid", 1);
        assert_eq!(spec.attr().config, of_cpus, "{event}");
    }
    let error = pmus.event("cs_etm/@trbe1/").unwrap_err().to_string();
    assert!(
        error.contains("no sink `trbe1`") && error.contains("did you mean `trbe0`"),
        "{error}"
    );
}

#[test]
fn cpus_of_a_pmu() {
    let dir = tempfile::tempdir().unwrap();
    let pmus = pmus(dir.path());
    assert_eq!(pmus.get("pattern").unwrap().cpus, None);
    for (file, text, cpus) in [("cpus", "2-3\n", [2, 3]), ("cpumask", "0,4\n", [0, 4])] {
        fs::write(dir.path().join("pattern").join(file), text).unwrap();
        assert_eq!(pmus.get("pattern").unwrap().cpus.unwrap(), cpus);
    }
}

#[test]
fn what_is_wrong_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let pmus = pmus(dir.path());
    for (text, says) in [
        ("patern//", "did you mean `pattern`?"),
        ("intel_pt//", "this kernel has: pattern, software"),
        ("pattern", "not an event of the form"),
        ("nonsense:nonsense", "not an event of the form"),
        (
            "pattern/aux-action=pause/",
            "start-paused is for the event that writes trace",
        ),
        (
            "cpu-clock/aux-action=start-paused/",
            "pause and resume are for others",
        ),
        (
            "cpu-clock/aux-action=stop/",
            "takes start-paused, pause or resume, not `stop`",
        ),
        ("cpu-clock/aux-sample-size=65536/", "up to 61440"),
        ("cpu-clock/period=0/", "a number above 0"),
        ("pattern/rate=1/u/", "not an event of the form"),
        (
            "pattern/rat=1/",
            "no term `rat` (did you mean `rate`?); it has: limit, rate, split, fast, config",
        ),
        (
            "pattern/rate=16777216/",
            "a number from 0 to 16777215, not `16777216`",
        ),
        ("pattern/rate=x/", "not `x`"),
        ("pattern//z", "`z` in `pattern//z` is not a modifier"),
    ] {
        let error = pmus.event(text).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{text}");
        assert!(error.to_string().contains(says), "{text}: {error}");
    }
}

#[test]
fn lists_and_groups() {
    let dir = tempfile::tempdir().unwrap();
    let pmus = pmus(dir.path());
    let roles = |text: &str, aux_sample| -> Vec<(Role, Option<u32>, u32)> {
        arrange(pmus.events(text).unwrap(), aux_sample)
            .unwrap()
            .into_iter()
            .map(|(event, role)| (role, event.aux_sample, event.attr().aux_action))
            .collect()
    };
    use Role::{Aux, Member, Other};
    assert_eq!(roles("pattern/rate=1,split=2/", None), [(Aux, None, 0)]);
    assert_eq!(
        roles(
            "cs,pattern//,{pattern//,cpu-clock/aux-sample-size=64/}:u,page-faults",
            None
        ),
        [
            (Other(1), None, 0),
            (Aux, None, 0),
            (Aux, None, 0),
            (Member(2), Some(64), 0),
            (Other(1), None, 0)
        ]
    );
    assert_eq!(
        roles(
            "pattern/aux-action=start-paused/,cs/aux-action=resume/,cs/aux-action=pause/",
            None
        ),
        [(Aux, None, 1), (Member(0), None, 4), (Member(0), None, 2)]
    );
    assert_eq!(
        roles("cpu-clock,pattern//", Some(4096)),
        [(Member(1), Some(4096), 0), (Aux, None, 0)]
    );
    let user = Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV;
    let group = pmus.events("{pattern//,cpu-clock:k}:u").unwrap().remove(0);
    assert_eq!(group[0].exclude, user);
    assert_eq!(pmus.event("cpu-clock:u").unwrap().exclude, user);
    let freq = pmus.event("cpu-clock/freq=99/").unwrap().attr();
    assert_eq!(
        (freq.sample_period, freq.flags.contains(Flags::FREQ)),
        (99, true)
    );
    for (text, says) in [
        ("{pattern//", "do not match"),
        ("pattern/", "do not match"),
        ("{{pattern//}}", "do not match"),
        ("{pattern//}x", "comes a comma"),
    ] {
        let error = pmus.events(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    for (text, aux_sample, says) in [
        ("cs", None, "none of these events writes trace"),
        (
            "{cs,pattern//}",
            None,
            "a group begins with the event that writes trace",
        ),
        ("{pattern//,pattern//}", None, "and has no other such"),
        (
            "pattern//",
            Some(8),
            "--aux-sample puts trace into samples of another event",
        ),
    ] {
        let error = arrange(pmus.events(text).unwrap(), aux_sample)
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn formats() {
    assert_eq!(
        Term::parse("config"),
        Some(Term {
            word: 0,
            bits: vec![(0, 63)]
        })
    );
    assert_eq!(Term::parse("config2:1,4-5").unwrap().bits, [(1, 1), (4, 5)]);
    for bad in [
        "",
        "conf:1",
        "config5:1",
        "config:64",
        "config:5-1",
        "config:a",
        "config0:1",
    ] {
        assert_eq!(Term::parse(bad), None, "{bad}");
    }
}

proptest! {
    #[test]
    fn a_value_comes_back_out_of_its_bits(low in 0_u32..60, width in 1_u32..4, more in 0_u32..2, value: u64, before: u64) {
        let mut bits = vec![(low, low + width - 1)];
        if more == 1 && low > 0 {
            bits.push((0, low - 1));
        }
        let term = Term { word: 0, bits: bits.clone() };
        let value = value & term.max();
        let word = term.put(before, value).unwrap();
        let mut out = 0;
        let mut at = 0;
        let mut touched = 0;
        for (low, high) in bits {
            let mask = u64::MAX >> (63 - (high - low));
            out |= (word >> low & mask) << at;
            touched |= mask << low;
            at += high - low + 1;
        }
        prop_assert_eq!(out, value);
        prop_assert_eq!(word & !touched, before & !touched);
    }

    #[test]
    fn no_text_panics(text in ".{0,40}") {
        let _ = Term::parse(&text);
        let _ = Pmus::at(Path::new("/nonexistent")).event(&text);
    }
}
