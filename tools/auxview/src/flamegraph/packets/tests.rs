// SPDX-License-Identifier: GPL-2.0 OR MIT

#![allow(clippy::unwrap_used)]

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PSBEND: [u8; 2] = [0x02, 0x23];
/// A packet with one TNT bit: a branch that was taken.
const TNT: [u8; 1] = [0b110];

/// The packets of stretches of trace with gaps between them. The reader gets the trace in portions of this length.
fn packets(stretches: &[Vec<u8>], portion: usize) -> Vec<Packet> {
    let (out, batches) = std::sync::mpsc::sync_channel(1000);
    let mut reader = Reader::new(&out);
    for bytes in stretches {
        for bytes in bytes.chunks(portion) {
            reader.feed(bytes).unwrap();
        }
        reader.end().unwrap();
    }
    reader.flush().unwrap();
    reader.send().unwrap();
    drop(reader);
    drop(out);
    let batches = batches.iter().flatten();
    batches.flat_map(|batch| batch.packets).collect()
}

/// The same without [`Packet::At`].
fn reported(stretches: &[Vec<u8>], portion: usize) -> Vec<Packet> {
    let mut packets = packets(stretches, portion);
    packets.retain(|packet| !matches!(packet, Packet::At(_)));
    packets
}

#[test]
fn portions_are_put_together() {
    let begin = [&PSB[..], &PSBEND].concat();
    let taken = Packet::Branches(0b11, 1);
    let lost = Packet::Lost;
    for (stretches, want) in [
        (vec![vec![0; 100]], vec![]),
        (
            vec![vec![1; 100], begin.clone()],
            vec![
                lost("trace without a place to begin (PSB)"),
                Packet::Sync(None),
            ],
        ),
        // Trace before the first `PSB` is of no use.
        (
            vec![[&[0x99; 40], &begin[..], &TNT, &begin, &TNT, &TNT].concat()],
            vec![Packet::Sync(None), taken, Packet::Sync(None), taken, taken],
        ),
        (
            vec![[&begin[..], &[0x02, 0xff], &begin, &TNT].concat()],
            vec![
                Packet::Sync(None),
                lost("bytes that are no packet"),
                Packet::Sync(None),
                taken,
            ],
        ),
        // A PTWRITE with its address, and one without: the second FUP is that of an event.
        (
            vec![[
                &begin[..],
                &[0x02, 0x92, 1, 2, 3, 4, 0x3d, 0x34, 0x12],
                &TNT,
                &[0x02, 0x12, 1, 2, 3, 4, 0x3d, 0x35, 0x12],
            ]
            .concat()],
            vec![Packet::Sync(None), taken, Packet::Stopped(0x1235)],
        ),
        // A CFE: its last two bytes are no packets, and the trace after it is not read.
        (
            vec![[&begin[..], &TNT, &[0x02, 0x13, 0x82, 0x06], &TNT, &begin].concat()],
            vec![Packet::Sync(None), taken, lost(UNREAD), Packet::Sync(None)],
        ),
        // A packet that ends as a `PSB` begins.
        (
            vec![[
                &begin[..],
                &[0x02, 0xa3, 1, 0, 0, 0, 0x02, 0x82],
                &begin,
                &TNT,
            ]
            .concat()],
            vec![
                Packet::Sync(None),
                Packet::Branches(0x8202_0000_0001, 47),
                Packet::Sync(None),
                taken,
            ],
        ),
        // Half a `PSB` and a whole one.
        (
            vec![[&begin[..], &PSB[..8], &begin, &TNT].concat()],
            vec![
                Packet::Sync(None),
                lost("a packet that is cut"),
                Packet::Sync(None),
                taken,
            ],
        ),
        (
            vec![[&begin[..], &[0x19]].concat(), begin.clone()],
            vec![
                Packet::Sync(None),
                lost("a packet that is cut"),
                Packet::Sync(None),
            ],
        ),
    ] {
        for portion in 1..200 {
            assert_eq!(reported(&stretches, portion), want, "{portion}");
        }
    }
}

#[test]
fn trace_without_a_place_to_begin_is_reported_at_its_beginning() {
    for portion in [1, 7, 100] {
        let packets = packets(&[vec![1; 100], vec![1; 50]], portion);
        let lost = Packet::Lost("trace without a place to begin (PSB)");
        assert_eq!(packets, [Packet::At(0), lost, Packet::At(100), lost]);
    }
}

/// The packets of each part of the trace that begins with a `PSB`, by the part's first byte.
fn parts(trace: &[u8]) -> BTreeMap<u64, Vec<Packet>> {
    let mut parts = BTreeMap::new();
    let mut at = 0;
    for packet in packets(&[trace.to_vec()], trace.len().max(1)) {
        match packet {
            Packet::At(place) => at = place,
            packet => parts.entry(at).or_insert_with(Vec::new).push(packet),
        }
    }
    parts
}

proptest! {
    /// Flipped bits, and missing or additional bytes, damage the part that they are in; also the part before it, if the `PSB` between them
    /// is damaged. All other parts are decoded as without damage.
    #[test]
    fn damage_ends_at_the_next_place_to_begin(
        lens in vec(1_usize..40, 3..8),
        damaged in 0_usize..8,
        place in 0_usize..60,
        how in 0..3,
        bytes in vec(any::<u8>(), 1..20),
    ) {
        let part = |len: &usize| [&PSB[..], &PSBEND, &vec![TNT[0]; *len]].concat();
        let mut each: Vec<_> = lens.iter().map(part).collect();
        let begins = |each: &[Vec<u8>]| -> Vec<u64> {
            let ends = each.iter().scan(0, |end, part| Some(std::mem::replace(end, *end + part.len())));
            ends.map(bytes_in).collect()
        };
        let (good, whole) = (begins(&each), parts(&each.concat()));
        let damaged = damaged % each.len();
        let part = &mut each[damaged];
        let place = place % part.len();
        match how {
            0 => part.iter_mut().skip(place).zip(&bytes).for_each(|(old, flip)| *old ^= flip),
            1 => drop(part.splice(place..(place + bytes.len()).min(part.len()), [])),
            _ => drop(part.splice(place..place, bytes)),
        }
        let (now, seen) = (begins(&each), parts(&each.concat()));
        for (n, (before, after)) in good.iter().zip(&now).enumerate() {
            if n != damaged && n + 1 != damaged {
                prop_assert_eq!(seen.get(after), whole.get(before), "part {}", n);
            }
        }
        let is_lost = |packets: &Vec<Packet>| packets.iter().any(|p| matches!(p, Packet::Lost(_)));
        let (first, end) = (now[damaged.saturating_sub(1)], now.get(damaged + 1).copied().unwrap_or(u64::MAX));
        for (at, _) in seen.iter().filter(|(_, packets)| is_lost(packets)) {
            prop_assert!((first..end).contains(at), "something is said to be lost at {}", at);
        }
    }
}
