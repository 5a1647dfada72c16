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
