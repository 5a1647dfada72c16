// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `check` and `report` on recordings that are made here: right ones, and ones with every single thing wrong.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod made;
mod pieces;

use auxview::check::{check, Findings};
use auxview::report::{report, timeline};
use auxview::trace::Trace;
use pattern_codec::Kind;
use perfdata::AuxFlags;
use proptest::prelude::*;

use made::{packet, packets, pad, special, Made};

const NONE: AuxFlags = AuxFlags::empty();

/// The time that a CPU was not recorded is a loss; of one that was offline at first, in a ring of its own.
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
        let mut made = Made::new(false);
        made.offline = Some(offline);
        made.trace(&packet(1, 0, 64), none).count(64);
        let findings = made.check();
        assert!(findings.problems.is_empty(), "{:?}", findings.problems);
        let found = findings.rings.iter();
        let found: Vec<_> = found
            .map(|(name, loss, _)| (name.as_str(), loss.offline))
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
    // The packets go over the ends of the pieces.
    let all = packets(0, 1024);
    let findings = Made::new(false)
        .trace(&all[..200], NONE)
        .trace(&all[200..], NONE)
        .count(1024)
        .check();
    assert_eq!(*findings.problems, [""; 0]);
    assert!(!findings.lost());
    assert_eq!(findings.wraps, 4);
    let text = findings.to_string();
    let last = "pattern: 1024 bytes recorded, 0 lost, 0 overwritten, 1024 generated, 0 gaps, 16 packets, 1 streams, 0 mismatches";
    assert_eq!(text.lines().last().unwrap(), last);
}

#[test]
fn loss_is_counted_to_the_byte() {
    let findings = Made::new(false)
        .trace(&packets(64, 256), AuxFlags::TRUNCATED)
        .trace(&packets(320, 512), AuxFlags::TRUNCATED)
        .count(640)
        .check();
    assert_eq!(*findings.problems, [""; 0]);
    assert!(findings.lost());
    let content = findings.content().unwrap();
    // 64 before the first packet, 64 between, 128 after the last.
    assert_eq!(
        (
            content.recorded,
            content.lost,
            content.generated,
            content.gaps
        ),
        (384, 256, 640, 3)
    );
}

/// A flat sink's trace: barriers tell of what is missing, in front of the packet behind it.
#[test]
fn barriers_tell_of_losses() {
    let barrier = |pos, lost| special(Kind::Barrier, pos, 64).barrier(lost).to_vec();
    let findings = Made::new(false)
        .trace(
            &[packets(0, 128), barrier(256, 128), packets(256, 320)].concat(),
            AuxFlags::PARTIAL,
        )
        .trace(
            &[barrier(512, 192), packets(512, 576)].concat(),
            AuxFlags::TRUNCATED,
        )
        .count(576)
        .check();
    assert_eq!(*findings.problems, [""; 0]);
    let content = findings.content().unwrap();
    assert_eq!(
        (
            content.recorded,
            content.lost,
            content.overhead,
            content.gaps
        ),
        (256, 320, 128, 2)
    );
    // In an overwritten area nobody knows what a barrier at the front tells of.
    let mut made = Made::new(true);
    made.head = 4096;
    let findings = made
        .piece(&[barrier(512, 192), packets(512, 576)].concat())
        .count(576)
        .check();
    assert_eq!(*findings.problems, [""; 0]);
    assert_eq!(findings.content().unwrap().overwritten, 512);
}

/// Pieces of any length are brought to a multiple of 8, and put together again.
#[test]
fn pieces_are_padded() {
    let all = packets(0, 128);
    for cut in 1..all.len() {
        let (front, back) = all.split_at(cut);
        let mut made = Made::new(false);
        // The first record tells of both pieces, as when it came between a look at the head and one at the records.
        let findings = made
            .aux(128, NONE)
            .piece(front)
            .piece(back)
            .count(128)
            .check();
        assert_eq!(*findings.problems, [""; 0], "{cut}");
        let content = findings.content().unwrap();
        assert_eq!((content.recorded, content.lost), (128, 0), "{cut}");

        if cut % 8 != 0 {
            let mut made = Made::new(false);
            let findings = made.aux(128, NONE).padded(front, 1).piece(back).check();
            assert!(!findings.problems.is_empty(), "{cut}");
        }
    }
}

/// Padding is skipped: it lies between AUX records, or behind the last.
#[test]
fn padding_is_no_loss() {
    let mut made = Made::new(false);
    made.trace(&packets(0, 128), NONE)
        .piece(&pad(128, 192))
        .trace(&packets(128, 256), NONE)
        .piece(&pad(256, 64))
        .count(256);
    let findings = made.check();
    assert_eq!(*findings.problems, [""; 0]);
    assert!(!findings.lost());
    let content = findings.content().unwrap();
    assert_eq!(
        (content.recorded, content.padding, content.lost),
        (256, 256, 0)
    );
}

#[test]
fn an_overwritten_area_begins_anywhere() {
    let all = packets(0, 1024);
    let mut made = Made::new(true);
    made.head = 1000 - 256;
    let findings = made.piece(&all[744..1000]).count(1024).check();
    // The last packet is cut here, which a driver never does.
    assert_eq!(findings.problems.len(), 1, "{findings}");
    let mut made = Made::new(true);
    made.head = 1024 - 280;
    let findings = made.piece(&all[744..]).count(1024).check();
    assert_eq!(*findings.problems, [""; 0]);
    let content = findings.content().unwrap();
    assert_eq!(
        (
            content.recorded,
            content.overwritten,
            content.lost,
            content.packets
        ),
        (280, 744, 0, 4)
    );
    assert!(!findings.lost());
}

/// Snapshots overlap or leave something out: every byte counts once.
#[test]
fn snapshots_are_put_together() {
    let all = packets(0, 4096);
    let snapshot = |made: &mut Made, from: u64, to: u64| {
        made.head = from;
        let bytes = &all[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()];
        made.piece(bytes);
    };
    let mut made = Made::new(true);
    for (from, to) in [(0, 128), (72, 320), (72, 320), (320, 576), (2024, 2304)] {
        snapshot(&mut made, from, to);
    }
    let findings = made.count(4096).check();
    assert_eq!(*findings.problems, [""; 0]);
    let content = findings.content().unwrap();
    assert_eq!(
        (
            content.recorded,
            content.overwritten,
            content.lost,
            content.gaps
        ),
        (576 + 280, 4096 - 576 - 280, 0, 0)
    );

    // One byte that differs in what two of them hold.
    let mut made = Made::new(true);
    snapshot(&mut made, 0, 256);
    made.head = 128;
    let mut other = all[128..320].to_vec();
    other[40] ^= 1;
    let text = made.piece(&other).count(320).check().to_string();
    assert!(text.contains("is not the same"), "{text}");
}

/// A snapshot of all that there is ends anywhere, and is brought to a multiple of 8; records tell where the head was.
#[test]
fn snapshots_are_padded() {
    let all = packets(0, 256);
    for cut in 1..192 {
        let mut made = Made::new(true);
        for to in [cut, all.len()] {
            made.head = u64::try_from(to).unwrap();
            made.aux(64, AuxFlags::OVERWRITE);
            made.head = 0;
            made.piece(&all[..to]);
        }
        let findings = made.count(256).check();
        assert_eq!(*findings.problems, [""; 0], "{cut}");
        let content = findings.content().unwrap();
        assert_eq!((content.recorded, content.lost), (256, 0), "{cut}");
    }
    // The area of 256 bytes has wrapped, and the head is an offset in it: the zeros are trace.
    let mut made = Made::new(true);
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

/// The files that a recording went into: together they are as one, alone they are consistent.
#[test]
fn parts_of_a_recording() {
    let all = packets(0, 1024);
    let part = |number: u32, ended: &str, from: usize, to: usize, last: bool| {
        let mut made = Made::new(false);
        made.part = Some(number);
        made.head = u64::try_from(from).unwrap();
        made.trace(&all[from..to], NONE);
        if last {
            made.count(1024);
        }
        made.ended(ended)
    };
    let parts = [
        part(1, "rotated", 0, 200, false),
        part(2, "rotated", 200, 600, false),
        part(3, "whole", 600, 1024, true),
    ];
    let all: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let findings = auxview::check::check_parts(&all).unwrap();
    assert_eq!(*findings.problems, [""; 0]);
    let content = findings.content().unwrap();
    assert_eq!(
        (content.recorded, content.lost, content.generated),
        (1024, 0, 1024)
    );
    for part in &all {
        let findings = check(part).unwrap();
        assert_eq!(*findings.problems, [""; 0], "{findings}");
        assert!(!findings.lost(), "{findings}");
    }
    let gap = auxview::check::check_parts(&[all[0], all[2]]).unwrap();
    let text = gap.to_string();
    assert!(
        text.contains("part 3 of a recording cannot follow part 1"),
        "{text}"
    );
}

#[test]
fn every_single_wrong_thing_is_found() {
    let good = packets(0, 512);
    let with = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let barrier = |lost| special(Kind::Barrier, 128, 64).barrier(lost).to_vec();
    let cases: [(&str, Findings, &str); 14] = [
        (
            "no flag",
            Made::new(false)
                .trace(&[packets(0, 64), packets(128, 512)].concat(), NONE)
                .count(512)
                .check(),
            "no AUX record says that trace was lost",
        ),
        (
            "barrier that lies",
            Made::new(false)
                .trace(
                    &[packets(0, 64), barrier(128), packets(128, 512)].concat(),
                    AuxFlags::PARTIAL,
                )
                .count(512)
                .check(),
            "the barrier tells of 128 bytes lost before it, and there are 64",
        ),
        (
            "padding that is not zero",
            Made::new(false)
                .trace(
                    &{
                        let mut bytes = [packets(0, 64), pad(64, 64), packets(64, 512)].concat();
                        bytes[127] = 1;
                        bytes
                    },
                    NONE,
                )
                .count(512)
                .check(),
            "differs from byte 63",
        ),
        (
            "padding does not explain trace",
            Made::new(false)
                .piece(&[pad(0, 64), packets(0, 512)].concat())
                .count(512)
                .check(),
            "no AUX record tells of 512 bytes",
        ),
        (
            "payload",
            Made::new(false)
                .trace(&with(64 + 50), NONE)
                .count(512)
                .check(),
            "differs from byte",
        ),
        (
            "header",
            Made::new(false)
                .trace(&with(64 + 12), NONE)
                .count(512)
                .check(),
            "checksum",
        ),
        (
            "magic",
            Made::new(false).trace(&with(64), NONE).count(512).check(),
            "no packet starts here",
        ),
        (
            "cut",
            Made::new(false)
                .trace(&good[..504], NONE)
                .count(512)
                .check(),
            "is cut after",
        ),
        (
            "packet twice",
            Made::new(false)
                .trace(&[packets(0, 128), packets(64, 128)].concat(), NONE)
                .count(192)
                .check(),
            "which had come to",
        ),
        (
            "silent loss",
            Made::new(false).trace(&good, NONE).count(576).check(),
            "neither recorded nor reported",
        ),
        (
            "counter too small",
            Made::new(false).trace(&good, NONE).count(448).check(),
            "448 bytes were generated",
        ),
        (
            "no counter",
            Made::new(false).trace(&good, NONE).check(),
            "no counter",
        ),
        (
            "no record",
            Made::new(false).piece(&good).count(512).check(),
            "no AUX record tells of 512 bytes",
        ),
        (
            "no trace",
            Made::new(false).aux(512, NONE).count(0).check(),
            "tells of 512 bytes at 0x0",
        ),
    ];
    for (name, findings, says) in cases {
        assert!(!findings.problems.is_empty(), "{name}: nothing found");
        assert!(findings.to_string().contains(says), "{name}: {findings}");
    }
    // A record that was lost explains trace of which no record tells, and is a loss.
    let findings = Made::new(false).lost().piece(&good).count(512).check();
    assert_eq!(*findings.problems, [""; 0]);
    assert!(findings.lost());
}

#[test]
fn the_index_is_verified() {
    let mut bytes = Made::new(false)
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
    let bytes = Made::new(false)
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

/// Programs read these names: none may go.
#[test]
fn json_has_its_fields() {
    let mut made = Made::new(false);
    made.trace(&packets(0, 192), AuxFlags::TRUNCATED)
        .trace(&packets(256, 512), NONE)
        .count(512);
    let findings = auxview::json::findings(&made.check());
    let report = auxview::json::report(&made.bytes()).unwrap();
    for (value, at, want) in [
        (&findings, "/version", 1),
        (&findings, "/bytes", 448),
        (&findings, "/pattern/recorded", 448),
        (&findings, "/rings/0/pattern/lost", 64),
        (&findings, "/rings/0/lost/truncated/times", 1),
        (&findings, "/rings/0/lost/truncated/ns", 1_000_000),
        (&findings, "/lost/skipped/bytes", 0),
        (&report, "/version", 1),
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

/// What a killed recorder leaves counts as lost at its end, and a packet that is cut is no mismatch.
#[test]
fn a_recovered_file_is_consistent() {
    for cut in (8..=512).step_by(8) {
        let bytes = Made::new(false)
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
    let bytes = Made::new(false).count(0).bytes();
    assert_eq!(*check(&bytes).unwrap().problems, [""; 0]);
    timeline(&bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_file_makes_check_or_report_panic(at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = Made::new(false).trace(&packets(0, 512), NONE).count(512).bytes();
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
