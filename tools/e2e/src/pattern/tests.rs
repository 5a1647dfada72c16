// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the checker with recordings that are made here: correct ones, and ones with a single defect each.

#![allow(clippy::unwrap_used)]

use perfdata::AuxFlags;
use proptest::prelude::*;
use testdata::pattern::{barrier, packet, packets, pad};
use testdata::recording::{parts, Recording};

use super::{check, check_parts, Findings};

const NONE: AuxFlags = AuxFlags::empty();

trait Checked {
    fn check(&mut self) -> Findings;
}

impl Checked for Recording {
    fn check(&mut self) -> Findings {
        check(&self.bytes()).unwrap()
    }
}

#[test]
fn a_good_recording() {
    // Packets continue across the ends of pieces.
    let all = packets(0, 1024);
    let findings = Recording::new(false)
        .trace(&all[..200], NONE)
        .trace(&all[200..], NONE)
        .count(1024)
        .check();
    assert_eq!(findings.problems, [""; 0]);
    assert!(!findings.lost());
    assert_eq!(findings.check.wraps, 4);
    let text = findings.to_string();
    let last = "pattern: 1024 bytes recorded, 0 lost, 0 overwritten, 1024 generated, 0 gaps, 16 packets, 1 streams, 0 mismatches";
    assert_eq!(text.lines().last().unwrap(), last);
}

#[test]
fn loss_is_counted_to_the_byte() {
    let findings = Recording::new(false)
        .trace(&packets(64, 256), AuxFlags::TRUNCATED)
        .trace(&packets(320, 512), AuxFlags::TRUNCATED)
        .count(640)
        .check();
    assert_eq!(findings.problems, [""; 0]);
    assert!(findings.lost());
    let content = findings.content().unwrap();
    // 64 bytes are missing before the first packet, 64 between packets, and 128 after the last.
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

/// The trace of a flat sink: a barrier reports the bytes that are missing before the next packet.
#[test]
fn barriers_tell_of_losses() {
    let findings = Recording::new(false)
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
    assert_eq!(findings.problems, [""; 0]);
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
    // In overwrite mode, the losses before a barrier at the front are unknown.
    let mut made = Recording::new(true);
    made.head = 4096;
    let findings = made
        .piece(&[barrier(512, 192), packets(512, 576)].concat())
        .count(576)
        .check();
    assert_eq!(findings.problems, [""; 0]);
    assert_eq!(findings.content().unwrap().overwritten, 512);
}

/// The recorder pads a piece of any length to a multiple of 8. The checker must join such pieces.
#[test]
fn pieces_are_padded() {
    let all = packets(0, 128);
    for cut in 1..all.len() {
        let (front, back) = all.split_at(cut);
        let mut made = Recording::new(false);
        // The first record covers both pieces. This happens if the record comes after the recorder has read the head and before it reads
        // the records.
        let findings = made
            .aux(128, NONE)
            .piece(front)
            .piece(back)
            .count(128)
            .check();
        assert_eq!(findings.problems, [""; 0], "{cut}");
        let content = findings.content().unwrap();
        assert_eq!((content.recorded, content.lost), (128, 0), "{cut}");

        if cut % 8 != 0 {
            let mut made = Recording::new(false);
            let findings = made.aux(128, NONE).padded(front, 1).piece(back).check();
            assert!(!findings.problems.is_empty(), "{cut}");
        }
    }
}

/// The driver skips padding: it is between AUX records, or after the last one.
#[test]
fn padding_is_no_loss() {
    let mut made = Recording::new(false);
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
    let mut made = Recording::new(true);
    made.head = 1000 - 256;
    let findings = made.piece(&all[744..1000]).count(1024).check();
    // The last packet is cut here. A driver never does that.
    assert_eq!(findings.problems.len(), 1, "{findings}");
    let mut made = Recording::new(true);
    made.head = 1024 - 280;
    let findings = made.piece(&all[744..]).count(1024).check();
    assert_eq!(findings.problems, [""; 0]);
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

/// Snapshots overlap, or skip bytes: every byte must count once.
#[test]
fn snapshots_are_put_together() {
    let all = packets(0, 4096);
    let snapshot = |made: &mut Recording, from: u64, to: u64| {
        made.head = from;
        let bytes = &all[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()];
        made.piece(bytes);
    };
    let mut made = Recording::new(true);
    for (from, to) in [(0, 128), (72, 320), (72, 320), (320, 576), (2024, 2304)] {
        snapshot(&mut made, from, to);
    }
    let findings = made.count(4096).check();
    assert_eq!(findings.problems, [""; 0]);
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

    // Two snapshots that differ in one byte of their overlap.
    let mut made = Recording::new(true);
    snapshot(&mut made, 0, 256);
    made.head = 128;
    let mut other = all[128..320].to_vec();
    other[40] ^= 1;
    let text = made.piece(&other).count(320).check().to_string();
    assert!(text.contains("is not the same"), "{text}");
}

/// A snapshot of all trace may end at any byte, and is then padded to a multiple of 8. The AUX records report the head.
#[test]
fn snapshots_are_padded() {
    let all = packets(0, 256);
    for cut in 1..192 {
        let mut made = Recording::new(true);
        for to in [cut, all.len()] {
            made.head = u64::try_from(to).unwrap();
            made.aux(64, AuxFlags::OVERWRITE);
            made.head = 0;
            made.piece(&all[..to]);
        }
        let findings = made.count(256).check();
        assert_eq!(findings.problems, [""; 0], "{cut}");
        let content = findings.content().unwrap();
        assert_eq!((content.recorded, content.lost), (256, 0), "{cut}");
    }
}

/// A recording in several files: together they have the same content as one file, and each alone is consistent.
#[test]
fn parts_of_a_recording() {
    let parts = parts();
    let all: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let findings = check_parts(&all).unwrap();
    assert_eq!(findings.problems, [""; 0]);
    let content = findings.content().unwrap();
    assert_eq!(
        (content.recorded, content.lost, content.generated),
        (1024, 0, 1024)
    );
    for part in &all {
        let findings = check(part).unwrap();
        assert_eq!(findings.problems, [""; 0], "{findings}");
        assert!(!findings.lost(), "{findings}");
    }
}

#[test]
fn every_single_wrong_thing_is_found() {
    let good = packets(0, 512);
    let with = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let cases: [(&str, Findings, &str); 13] = [
        (
            "no flag",
            Recording::new(false)
                .trace(&[packets(0, 64), packets(128, 512)].concat(), NONE)
                .count(512)
                .check(),
            "no AUX record says that trace was lost",
        ),
        (
            "barrier that lies",
            Recording::new(false)
                .trace(
                    &[packets(0, 64), barrier(128, 128), packets(128, 512)].concat(),
                    AuxFlags::PARTIAL,
                )
                .count(512)
                .check(),
            "the barrier reports 128 bytes lost before it, and there are 64",
        ),
        (
            "padding that is not zero",
            Recording::new(false)
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
            Recording::new(false)
                .piece(&[pad(0, 64), packets(0, 512)].concat())
                .count(512)
                .check(),
            "no AUX record reports 512 bytes",
        ),
        (
            "payload",
            Recording::new(false)
                .trace(&with(64 + 50), NONE)
                .count(512)
                .check(),
            "differs from byte",
        ),
        (
            "header",
            Recording::new(false)
                .trace(&with(64 + 12), NONE)
                .count(512)
                .check(),
            "checksum",
        ),
        (
            "magic",
            Recording::new(false)
                .trace(&with(64), NONE)
                .count(512)
                .check(),
            "no packet starts here",
        ),
        (
            "cut",
            Recording::new(false)
                .trace(&good[..504], NONE)
                .count(512)
                .check(),
            "is cut after",
        ),
        (
            "packet twice",
            Recording::new(false)
                .trace(&[packets(0, 128), packets(64, 128)].concat(), NONE)
                .count(192)
                .check(),
            "which had come to",
        ),
        (
            "silent loss",
            Recording::new(false).trace(&good, NONE).count(576).check(),
            "neither recorded nor reported",
        ),
        (
            "counter too small",
            Recording::new(false).trace(&good, NONE).count(448).check(),
            "448 bytes were generated",
        ),
        (
            "no counter",
            Recording::new(false).trace(&good, NONE).check(),
            "no counter",
        ),
        (
            "no record",
            Recording::new(false).piece(&good).count(512).check(),
            "no AUX record reports 512 bytes",
        ),
    ];
    for (name, findings, says) in cases {
        assert!(!findings.problems.is_empty(), "{name}: nothing found");
        assert!(findings.to_string().contains(says), "{name}: {findings}");
    }
    // A lost record counts as a loss, and explains trace that no record reports.
    let findings = Recording::new(false).lost().piece(&good).count(512).check();
    assert_eq!(findings.problems, [""; 0]);
    assert!(findings.lost());
}

/// In a recovered file, the end of the trace counts as lost, and a packet that is cut there is no mismatch.
#[test]
fn a_recovered_file_is_consistent() {
    for cut in (8..=512).step_by(8) {
        let bytes = Recording::new(false)
            .aux(512, NONE)
            .piece(&packets(0, 512)[..cut])
            .ended("recovered");
        let findings = check(&bytes).unwrap();
        assert_eq!(findings.problems, [""; 0], "{cut}");
        assert!(findings.lost() && findings.check.recovered);
    }
}

/// Packets, barriers and padding of any kind and length, with undecodable bytes between them.
fn any_trace() -> impl Strategy<Value = Vec<u8>> {
    let part = (0..8, 1_u16..40, 0_u16..70, any::<u8>());
    prop::collection::vec(part, 1..20).prop_map(|parts| {
        let mut pos = 0;
        let mut bytes = Vec::new();
        for (kind, units, some, byte) in parts {
            match kind {
                0 => pos += u64::from(units) * 64,
                1 => bytes.extend(pad(pos, units * 64)),
                2 => bytes.extend(barrier(pos, u64::from(some) * 64)),
                3 => bytes.extend(vec![byte; some.into()]),
                4 => {
                    let at = bytes.len().saturating_sub(usize::from(some) + 1);
                    if let Some(place) = bytes.get_mut(at) {
                        *place ^= byte | 1;
                    }
                }
                _ => {
                    bytes.extend(packet(u32::from(byte % 2), pos, units * 64));
                    pos += u64::from(units) * 64;
                }
            }
        }
        bytes
    })
}

/// The findings for trace that begins at `start` and was recorded in pieces of these lengths.
fn found(bytes: &[u8], lengths: &[usize], start: u64, part: Option<u32>, ended: &str) -> Findings {
    let mut made = Recording::new(part.is_none() && start != 0);
    made.part = part;
    made.head = start;
    let flags = if start == 0 {
        AuxFlags::PARTIAL
    } else {
        AuxFlags::OVERWRITE
    };
    made.aux(u64::try_from(bytes.len()).unwrap(), flags);
    let mut rest = bytes;
    for len in lengths.iter().chain([&usize::MAX]) {
        let (piece, later) = rest.split_at(rest.len().min(*len));
        made.piece(piece);
        rest = later;
    }
    let bytes = made.count(4096).ended(ended);
    check(&bytes).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// The division into pieces must not change the findings: they must be those of a single piece.
    #[test]
    fn the_content_is_that_of_one_piece(
        bytes in any_trace(),
        lengths in prop::collection::vec(0_usize..200, 0..30),
        at in 0_usize..5,
    ) {
        // A whole recording; snapshots; one of several files; a file before a rotation; the file of a killed recorder.
        let (start, part, ended) = [
            (0, None, "whole"),
            (64, None, "whole"),
            (64, Some(2), "whole"),
            (0, Some(1), "rotated"),
            (0, None, "recovered"),
        ][at];
        // The length must be a multiple of 8: otherwise padding cannot be distinguished from zeros at the end.
        let mut bytes = bytes;
        bytes.resize(bytes.len().next_multiple_of(8), 1);
        let lengths: Vec<usize> = lengths.into_iter().map(|len| len / 8 * 8).collect();
        let whole = found(&bytes, &[], start, part, ended);
        let pieces = found(&bytes, &lengths, start, part, ended);
        prop_assert_eq!(whole.content(), pieces.content());
        prop_assert_eq!(whole.problems, pieces.problems);
    }
}
