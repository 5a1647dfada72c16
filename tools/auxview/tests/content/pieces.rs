// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Trace that comes in pieces, and is judged as it comes; and when each piece was read.

use std::num::NonZero;

use auxview::check::{check, Findings};
use auxview::report::{report, timeline};
use auxview::trace::Trace;
use pattern_codec::Kind;
use perfdata::{AuxFlags, AuxtraceInfo, TimeConv};
use proptest::prelude::*;

use crate::made::{packet, packets, pad, special, Made};

/// Packets, barriers and padding of any kind and length, with what is none between them.
fn any_trace() -> impl Strategy<Value = Vec<u8>> {
    let part = (0..8, 1_u16..40, 0_u16..70, any::<u8>());
    prop::collection::vec(part, 1..20).prop_map(|parts| {
        let mut pos = 0;
        let mut bytes = Vec::new();
        for (kind, units, some, byte) in parts {
            match kind {
                0 => pos += u64::from(units) * 64,
                1 => bytes.extend(pad(pos, units * 64)),
                2 => bytes.extend(special(Kind::Barrier, pos, 64).barrier(u64::from(some) * 64)),
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

/// What is found in trace from `start` on that was recorded in pieces of these lengths.
fn found(bytes: &[u8], lengths: &[usize], start: u64, part: Option<u32>, ended: &str) -> Findings {
    let mut made = Made::new(part.is_none() && start != 0);
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
    /// Where a piece ends is nothing to the content: it is as if all were there at once.
    #[test]
    fn the_content_is_that_of_one_piece(
        bytes in any_trace(),
        lengths in prop::collection::vec(0_usize..200, 0..30),
        at in 0_usize..5,
    ) {
        // Whole; snapshots; a part of several files; of a recorder that was killed.
        let (start, part, ended) = [
            (0, None, "whole"),
            (64, None, "whole"),
            (64, Some(2), "whole"),
            (0, Some(1), "rotated"),
            (0, None, "recovered"),
        ][at];
        // Of what is no multiple of 8, zeros at the end cannot be told from padding.
        let mut bytes = bytes;
        bytes.resize(bytes.len().next_multiple_of(8), 1);
        let lengths: Vec<usize> = lengths.into_iter().map(|len| len / 8 * 8).collect();
        let whole = found(&bytes, &[], start, part, ended);
        let pieces = found(&bytes, &lengths, start, part, ended);
        prop_assert_eq!(whole.content(), pieces.content());
        prop_assert_eq!(whole.problems, pieces.problems);
    }
}

/// The time without trace ends when the recorder read the trace. The reference of AUXTRACE records is the processor's cycle
/// counter in files that say so, and in perf's; in old ones of Intel PT it is of no use.
#[test]
fn the_time_of_a_piece() {
    const FAR: u64 = 1 << 60;
    // 5 ns a cycle.
    let clock = |zero: u64| TimeConv {
        shift: 1,
        mult: 10,
        zero,
        cap_zero: true,
        ..TimeConv::default()
    };
    let (near, far) = (clock(0), clock(0_u64.wrapping_sub(FAR / 2 * 10)));
    let (ours, perf) = ((Some("cycles"), false), (None, true));
    for (conv, decoder, (reference, foreign), read, dark) in [
        (None, None, (None, false), 1_005_000, 5000),
        (Some(near), Some(1), ours, 201_000, 5000),
        (Some(far), Some(1), ours, FAR + 201_000, 5000),
        (None, Some(1), ours, 201_000, 0),
        (Some(near), Some(1), perf, 201_000, 5000),
        (Some(near), Some(2), perf, 201_000, 5000),
        // An old file of ours: some time of CLOCK_MONOTONIC.
        (Some(near), Some(1), (None, false), 9_000_000, 0),
    ] {
        let mut made = Made::new(false);
        (made.reference, made.foreign) = (reference, foreign);
        if let Some(conv) = conv {
            made.say(&conv);
        }
        if let Some(kind) = decoder {
            let private = &[0; 18];
            made.say(&AuxtraceInfo { kind, private });
        }
        // At 1 ms.
        let all = packets(0, 64);
        made.aux(64, AuxFlags::TRUNCATED).read_at(&all, 0, read);
        let bytes = made.count(64).bytes();
        let trace = Trace::read(&bytes).unwrap();
        let [ring] = &Vec::from_iter(trace.rings.values())[..] else {
            panic!("{:?}", trace.rings)
        };
        let what = format!("{decoder:?} {reference:?} {foreign} {read}");
        assert_eq!(ring.loss.dark, dark, "{what}");
        let at = ring.pieces[0].read.map(NonZero::get);
        assert_eq!(at, (dark != 0).then_some(1_005_000), "{what}");
        // The picture does without.
        assert!(timeline(&bytes).is_ok() && report(&bytes, &mut Vec::new()).is_ok());
    }
}
