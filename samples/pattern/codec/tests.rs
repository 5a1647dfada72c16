// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The codec: round trip, rejection of every damaged header, and the payload byte by byte.

use super::*;
use proptest::prelude::*;

fn headers() -> impl Strategy<Value = Header> {
    (
        (1u16..=1023, 1u8..=3, any::<u64>(), any::<u64>()),
        (any::<u32>(), any::<u16>(), any::<u16>(), any::<u32>()),
    )
        .prop_map(
            |((units, kind, pos, time), (stream, cpu, seed, run))| Header {
                len: units * PACKET_UNIT,
                kind: Kind::from_byte(kind).unwrap(),
                pos: pos & !7,
                time,
                stream,
                cpu,
                seed,
                run,
            },
        )
}

/// The packet as the unit writes it.
fn packet(header: &Header) -> Vec<u8> {
    let mut bytes = header.encode().to_vec();
    for offset in (40..header.len).step_by(8) {
        bytes.extend_from_slice(&header.payload_word(offset).to_le_bytes());
    }
    bytes
}

const SAMPLE: Header = Header {
    len: 128,
    kind: Kind::Data,
    pos: 0x1_0000,
    time: 7,
    stream: 3,
    cpu: 1,
    seed: 9,
    run: 2,
};

/// The layout is ABI: files outlive the tools that wrote them.
#[test]
fn layout_is_fixed() {
    let bytes = SAMPLE.encode();

    assert_eq!(&bytes[..8], b"PTRN\x80\x00\x01\x01");
    assert_eq!(&bytes[8..16], &0x1_0000u64.to_le_bytes());
    assert_eq!(&bytes[16..24], &7u64.to_le_bytes());
    assert_eq!(&bytes[24..32], &[3, 0, 0, 0, 1, 0, 9, 0]);
    assert_eq!(&bytes[32..36], &2u32.to_le_bytes());
    assert_eq!(payload_word(9, 3, 0x1_0028), 0x773a_1a8d_71bb_8e43);
}

#[test]
fn every_damaged_byte_is_seen() {
    let good = packet(&SAMPLE);
    let len = usize::from(SAMPLE.len);

    for at in 0..len {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            let seen = match Header::decode(&bad) {
                Err(_) => at < HEADER_LEN,
                Ok(h) => {
                    verify_payload(&h, 40, &bad[HEADER_LEN..]) == Err(u16::try_from(at).unwrap())
                }
            };
            assert!(seen, "byte {at} bit {bit}");
        }
    }
}

#[test]
fn errors_name_the_field() {
    let patch = |at: usize, byte: u8| {
        let mut bytes = SAMPLE.encode();
        bytes[at] = byte;
        Header::decode(&bytes)
    };
    let table = [
        (Header::decode(&SAMPLE.encode()[..39]), DecodeError::Short),
        (Header::decode(b"PT"), DecodeError::Short),
        (patch(0, 0), DecodeError::Magic),
        (patch(4, 1), DecodeError::Len(1)),
        (patch(4, 0), DecodeError::Len(0)),
        (patch(6, 77), DecodeError::Kind(77)),
        (patch(7, 2), DecodeError::Version(2)),
        (patch(9, 1), DecodeError::Check),
    ];

    for (got, want) in table {
        assert_eq!(got, Err(want));
    }
}

#[test]
fn payload_past_the_packet_is_refused() {
    let bytes = packet(&SAMPLE);

    assert_eq!(verify_payload(&SAMPLE, 40, &bytes[40..]), Ok(()));
    assert_eq!(
        verify_payload(&SAMPLE, 40, &[&bytes[40..], &[0]].concat()),
        Err(128)
    );
    assert_eq!(verify_payload(&SAMPLE, u16::MAX, &[0]), Err(u16::MAX));
}

proptest! {
    #[test]
    fn round_trip(header in headers()) {
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        let bytes = packet(&header);
        prop_assert_eq!(bytes.len(), usize::from(header.len));
        prop_assert_eq!(verify_payload(&header, 40, &bytes[40..]), Ok(()));
    }

    /// A reader that starts in the middle of a packet finds the next one.
    #[test]
    fn sync_is_found(header in headers(), cut in 1usize..40) {
        let next = Header { pos: header.pos.wrapping_add(header.len.into()), ..header };
        let bytes = [packet(&header), packet(&next)].concat();

        prop_assert_eq!(find_sync(&bytes), Some(0));
        prop_assert_eq!(find_sync(&bytes[cut..]), Some(usize::from(header.len) - cut));
    }

    #[test]
    fn any_bytes_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Header::decode(&bytes);
        let _ = find_sync(&bytes);
    }
}

/// The trace of a unit that has lost some of its packets.
#[derive(Clone, Debug)]
struct Trace {
    bytes: Vec<u8>,
    generated: u64,
    lost: u64,
    /// For each data packet: offset in `bytes`, position, and number of bytes lost before it.
    packets: Vec<(usize, u64, u64)>,
}

/// Traces with packets of any lengths, some of them lost. Barrier packets report some of the
/// losses, and there are pad packets.
fn traces() -> impl Strategy<Value = Trace> {
    (
        any::<u16>(),
        prop::collection::vec((1u16..6, 0u8..6), 1..40),
    )
        .prop_map(|(seed, steps)| {
            let mut trace = Trace {
                bytes: Vec::new(),
                generated: 0,
                lost: 0,
                packets: Vec::new(),
            };
            let mut kept = 0;
            let header = |len, kind, pos| Header {
                len,
                kind,
                pos,
                seed,
                ..SAMPLE
            };

            for (units, what) in steps {
                let data = header(units * PACKET_UNIT, Kind::Data, trace.generated);
                match what {
                    0 | 1 => {
                        trace.generated += u64::from(data.len);
                        trace.lost += u64::from(data.len);
                        continue;
                    }
                    2 => {
                        let pad = header(data.len, Kind::Pad, trace.generated);
                        trace.bytes.extend((0..units).flat_map(|n| pad.block(n)));
                        continue;
                    }
                    3 => {
                        let barrier = header(64, Kind::Barrier, trace.generated);
                        trace.bytes.extend(barrier.barrier(trace.generated - kept));
                    }
                    _ => (),
                }
                trace
                    .packets
                    .push((trace.bytes.len(), data.pos, data.pos - kept));
                trace.bytes.extend((0..units).flat_map(|n| data.block(n)));
                trace.generated += u64::from(data.len);
                kept = trace.generated;
            }
            trace
        })
}

proptest! {
    /// The blocks of a packet are its header and its payload words, for any kind and length.
    #[test]
    fn blocks_make_the_packet(header in headers()) {
        let blocks: Vec<u8> = (0..header.len / PACKET_UNIT).flat_map(|n| header.block(n)).collect();

        prop_assert_eq!(&blocks, &packet(&header));
        prop_assert_eq!(verify_payload(&header, 40, &blocks[HEADER_LEN..]), Ok(()));
    }

    #[test]
    fn barriers_tell_what_is_lost(header in headers(), lost: u64, at in HEADER_LEN + 8..64) {
        let header = Header { len: 64, kind: Kind::Barrier, ..header };
        let mut bytes = header.barrier(lost);

        prop_assert_eq!(Header::decode(&bytes), Ok(header));
        prop_assert_eq!(lost_before(&header, &bytes), Some(lost));
        prop_assert_eq!(lost_before(&header, &bytes[..47]), None);
        prop_assert_eq!(lost_before(&Header { kind: Kind::Data, ..header }, &bytes), None);
        prop_assert_eq!(verify_payload(&header, 40, &bytes[HEADER_LEN..]), Ok(()));
        bytes[at] = 1;
        prop_assert_eq!(verify_payload(&header, 40, &bytes[HEADER_LEN..]), Err(u16::try_from(at).unwrap()));
    }

    /// A reader that begins at the front finds every packet, and the exact length of every gap.
    #[test]
    fn gaps_are_told_exactly(trace in traces()) {
        let mut follow = Follow::from(0);
        let (mut at, mut missing, mut in_file, mut gap) = (0, 0, 0, 0);
        let mut packets = Vec::new();

        for piece in Reader::new(&trace.bytes) {
            let Piece::Packet(header, bytes) = piece else {
                return Err(TestCaseError::fail(format!("{piece:?}")));
            };
            let now = follow.packet(&header).unwrap();
            gap += now;
            missing += now;
            if let Some(lost) = lost_before(&header, bytes) {
                prop_assert_eq!(lost, gap);
            }
            if header.kind == Kind::Data {
                packets.push((at, header.pos, gap));
                in_file += u64::from(header.len);
                gap = 0;
            }
            at += bytes.len();
        }
        prop_assert_eq!(packets, trace.packets);
        prop_assert_eq!(missing + (trace.generated - follow.reached()), trace.lost);
        prop_assert_eq!(in_file + trace.lost, trace.generated);
    }

    /// A reader of any range finds exactly the packets that are complete in it, and returns each
    /// byte once.
    #[test]
    fn finds_its_feet_from_anywhere(trace in traces(), a: prop::sample::Index, b: prop::sample::Index) {
        let (a, b) = (a.index(trace.bytes.len() + 1), b.index(trace.bytes.len() + 1));
        let (start, end) = (a.min(b), a.max(b));
        let mut at = start;
        let mut seen = Vec::new();

        for piece in Reader::new(&trace.bytes[start..end]) {
            prop_assert_eq!(piece.bytes(), &trace.bytes[at..at + piece.bytes().len()]);
            match piece {
                Piece::Packet(header, bytes) => {
                    prop_assert_eq!(verify_payload(&header, 40, &bytes[HEADER_LEN..]), Ok(()));
                    if header.kind == Kind::Data {
                        seen.push((at, header.pos));
                    }
                }
                Piece::Cut(_, bytes) => prop_assert_eq!(at + bytes.len(), end),
                // Stray bytes are in front of the first header, or at the end.
                Piece::Stray(_, bytes) => prop_assert!(at == start || at + bytes.len() == end),
            }
            at += piece.bytes().len();
        }
        prop_assert_eq!(at, end);
        let whole = trace.packets.iter().map(|&(at, pos, _)| (at, pos)).filter(|&(at, pos)| {
            at >= start && Header::decode(&trace.bytes[at..]).is_ok_and(|h| h.pos == pos && at + usize::from(h.len) <= end)
        });
        prop_assert_eq!(seen, whole.collect::<Vec<_>>());
    }

    /// A position that goes back is an error, not a gap.
    #[test]
    fn going_back_is_an_error(next: u64, pos: u64, len in 1u16..100) {
        let header = Header { len: len * PACKET_UNIT, pos, ..SAMPLE };
        let mut follow = Follow::from(next);

        prop_assert_eq!(follow.packet(&header), pos.checked_sub(next).ok_or(Behind { reached: next }));
        prop_assert_eq!(follow.reached(), pos.saturating_add(header.len.into()));
    }
}
