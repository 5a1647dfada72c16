// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests `check` and `report` on valid recordings, and on recordings with one error.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod pieces;

use auxview::check::{check, check_parts, Findings, Found};
use auxview::report::{report, timeline};
use auxview::trace::Trace;
use perfdata::AuxFlags;
use proptest::prelude::*;
use testdata::pattern::{packet, packets};
use testdata::recording::{parts, Recording};

const NONE: AuxFlags = AuxFlags::empty();

trait Checked {
    fn check(&mut self) -> Findings;
}

impl Checked for Recording {
    fn check(&mut self) -> Findings {
        check(&self.bytes()).unwrap()
    }
}

/// The time in which a CPU is not recorded is a loss. A CPU that was offline at the beginning has a ring of its own.
#[test]
fn cpus_that_were_offline() {
    let none = AuxFlags::empty();
    for (offline, rings) in [
        ("1:5000", vec![("CPU 1", 5000)]),
        (
            "3:1,1:7,2:9",
            vec![("CPU 1", 7), ("CPU 2", 9), ("CPU 3", 1)],
        ),
        ("1:0", vec![("CPU 1", 0)]),
        ("x:1,2:,4", vec![("CPU 1", 0)]),
    ] {
        let mut made = Recording::new(false);
        made.offline = Some(offline);
        made.trace(&packet(1, 0, 64), none).count(64);
        let findings = made.check();
        assert!(findings.problems.is_empty(), "{:?}", findings.problems);
        let found = findings.rings.iter();
        let found: Vec<_> = found
            .map(|ring| (ring.name.as_str(), ring.loss.offline))
            .collect();
        assert_eq!(found, rings, "{offline}");
        assert_eq!(findings.lost(), rings.iter().any(|(_, ns)| *ns != 0));
        let bytes = made.bytes();
        report(&bytes, &mut Vec::new()).unwrap();
        assert!(timeline(&bytes).unwrap().contains(rings[0].0));
    }
}

#[test]
fn a_good_recording() {
    // Packets span the ends of the pieces.
    let all = packets(0, 1024);
    let findings = Recording::new(false)
        .trace(&all[..200], NONE)
        .trace(&all[200..], NONE)
        .count(1024)
        .check();
    assert_eq!(*findings.problems, [""; 0]);
    assert!(!findings.lost());
    assert_eq!(findings.wraps, 4);
    let text = findings.to_string();
    let last =
        "file: 7 records, 2 AUX records, 1024 bytes of trace, 4 wraps, 0 truncations, 0 problems";
    assert_eq!(text.lines().last().unwrap(), last);
}

/// A snapshot of an area that has wrapped has no padding, and the head may be an offset in the area.
#[test]
fn a_snapshot_of_a_whole_area_is_trace() {
    let mut made = Recording::new(true);
    made.head = 251;
    made.aux(256, AuxFlags::OVERWRITE);
    made.head = 1;
    let bytes = made.piece(&[0; 256]).bytes();
    let trace = Trace::read(&bytes).unwrap();
    let sizes: Vec<_> = trace
        .rings
        .values()
        .map(|ring| ring.pieces[0].size)
        .collect();
    assert_eq!(sizes, [256]);
}

/// The files of one recording are consistent, together and each alone.
#[test]
fn parts_of_a_recording() {
    let parts = parts();
    let all: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let findings = check_parts(&all).unwrap();
    assert_eq!(*findings.problems, [""; 0]);
    for part in &all {
        let findings = check(part).unwrap();
        assert_eq!(*findings.problems, [""; 0], "{findings}");
        assert!(!findings.lost(), "{findings}");
    }
    let gap = check_parts(&[all[0], all[2]]).unwrap();
    let text = gap.to_string();
    assert!(
        text.contains("part 3 of a recording cannot follow part 1"),
        "{text}"
    );
}

#[test]
fn what_records_report_is_there() {
    let bytes = packets(0, 512);
    // Pieces that do not follow each other; trace that is not in the file; an AUX record of the other mode.
    for (made, says) in [
        (
            Recording::new(false)
                .trace(&bytes[..256], NONE)
                .at(264)
                .trace(&bytes[256..], NONE),
            "begins at 0x108, and the one before it ends at 0x100",
        ),
        (
            Recording::new(false).aux(512, NONE),
            "an AUX record reports 512 bytes at 0x0",
        ),
        (
            Recording::new(false).trace(&bytes, AuxFlags::OVERWRITE),
            "of the overwriting kind in a recording that is not",
        ),
    ] {
        let findings = made.count(0).check();
        assert_eq!(findings.problems.len(), 1, "{findings}");
        assert!(findings.problems[0].contains(says), "{findings}");
    }
}

/// A driver may end with padding, which no record reports: `check` reports its length, which is no problem.
#[test]
fn trace_behind_the_last_record_is_reported() {
    let unreported = |made: &mut Recording| {
        let findings = made.check();
        assert_eq!(*findings.problems, [""; 0]);
        let [Found { unreported, .. }] = findings.rings[..] else {
            panic!("{findings}")
        };
        let says = format!("{unreported} bytes behind the last AUX record");
        assert_eq!(findings.to_string().contains(&says), unreported != 0);
        let json = auxview::json::findings(&findings);
        assert_eq!(json["rings"][0]["unreported"], unreported);
        unreported
    };
    let bytes = packets(0, 256);
    let padded = |behind: &[u8]| {
        let mut made = Recording::new(false);
        // Padding before a record is between records, and not after the last.
        made.trace(&bytes, NONE).piece(&bytes[..128]);
        made.trace(&bytes, NONE).piece(behind);
        made
    };
    assert_eq!(unreported(&mut padded(&[])), 0);
    assert_eq!(unreported(&mut padded(&bytes[..64])), 64);
    // A record was lost, which may be that of these bytes.
    assert_eq!(unreported(padded(&bytes[..64]).lost()), 0);
}

#[test]
fn the_index_is_verified() {
    let mut bytes = Recording::new(false)
        .trace(&packets(0, 128), NONE)
        .count(128)
        .bytes();
    let at = {
        let file = perfdata::File::parse(&bytes).unwrap();
        usize::try_from(file.feature(perfdata::Feature::AUXTRACE).unwrap().offset).unwrap()
    };
    bytes[at + 8] ^= 8;
    let text = check(&bytes).unwrap().to_string();
    assert!(
        text.contains("the index names an AUXTRACE record at file offset"),
        "{text}"
    );
}

#[test]
fn a_report_has_a_line_for_each_record() {
    let bytes = Recording::new(false)
        .trace(&packets(0, 192), AuxFlags::TRUNCATED)
        .trace(&packets(256, 512), NONE)
        .count(512)
        .bytes();
    let mut out = Vec::new();
    report(&bytes, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines,
        [
            ["0.001000000", "1", "1", "0x0", "192", "TRUNCATED"],
            ["0.003000000", "1", "1", "0xc0", "256", "-"]
        ]
    );
    assert!(
        text.contains(
            "# CPU 1: 2 AUX records, 448 bytes, 1 wraps; 1 truncations, 1000 us without trace"
        ),
        "{text}"
    );
    let svg = timeline(&bytes).unwrap();
    for part in ["<svg", "CPU 1, MiB", "fill, %", "time, ms", "1 truncations"] {
        assert!(svg.contains(part), "no {part} in the picture");
    }
}

/// Programs read these fields: none may be removed.
#[test]
fn json_has_its_fields() {
    let mut made = Recording::new(false);
    made.trace(&packets(0, 192), AuxFlags::TRUNCATED)
        .trace(&packets(256, 512), NONE)
        .count(512);
    let findings = auxview::json::findings(&made.check());
    let report = auxview::json::report(&made.bytes()).unwrap();
    for (value, at, want) in [
        (&findings, "/version", 2),
        (&findings, "/bytes", 448),
        (&findings, "/rings/0/unreported", 0),
        (&findings, "/rings/0/lost/truncated/times", 1),
        (&findings, "/rings/0/lost/truncated/ns", 1_000_000),
        (&findings, "/lost/skipped/bytes", 0),
        (&report, "/version", 2),
        (&report, "/rings/0/cpu", 1),
        (&report, "/rings/0/wraps", 1),
        (&report, "/rings/0/lost/full/times", 0),
        (&report, "/rings/0/counters/0/value", 512),
    ] {
        let got = value.pointer(at).and_then(serde_json::Value::as_u64);
        assert_eq!(got, Some(want), "{at} in {value:#}");
    }
    assert_eq!(findings["lost"]["any"], true);
    assert_eq!(report["pmu"], "pattern");
}

/// The file of a killed recorder counts as having lost trace at its end.
#[test]
fn a_recovered_file_is_consistent() {
    for cut in (8..=512).step_by(8) {
        let bytes = Recording::new(false)
            .aux(512, NONE)
            .piece(&packets(0, 512)[..cut])
            .ended("recovered");
        let findings = check(&bytes).unwrap();
        assert_eq!(*findings.problems, [""; 0], "{cut}");
        assert!(findings.lost() && findings.recovered);
    }
}

#[test]
fn an_empty_recording_can_be_shown() {
    let bytes = Recording::new(false).count(0).bytes();
    assert_eq!(*check(&bytes).unwrap().problems, [""; 0]);
    timeline(&bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_file_makes_check_or_report_panic(at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = Recording::new(false).trace(&packets(0, 512), NONE).count(512).bytes();
        for (at, value) in at {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = check(&bytes).map(|findings| findings.to_string());
        let _ = report(&bytes, &mut Vec::new());
        let _ = timeline(&bytes);
        let _ = auxview::dump::dump(&bytes, &mut Vec::new());
    }
}
