// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The arithmetic against a buffer that is really lapped.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn shape(packet: u64) -> Shape {
    Shape {
        packet: packet.try_into().unwrap(),
        barrier: 64,
    }
}

#[test]
fn edges() {
    // Size, written, packet, room, owed; from, len, barrier, lapped, capped.
    let table = [
        // Nothing written.
        (4096, 0, 64, Some(100), false, (0, 0, false, 0, 0)),
        (4096, 0, 64, Some(100), true, (0, 0, false, 0, 0)),
        // To the last byte, without a lap and with one packet more.
        (4096, 4096, 64, None, false, (0, 4096, false, 0, 0)),
        (4096, 4160, 64, None, false, (64, 4096, true, 64, 0)),
        // Packets that do not divide the buffer: the one that is cut is lost.
        (4096, 4224, 384, None, false, (384, 3840, true, 384, 0)),
        // Room to the last byte, and one too few: then the barrier takes a packet's place as well.
        (4096, 640, 64, Some(640), false, (0, 640, false, 0, 0)),
        (4096, 640, 64, Some(639), false, (128, 512, true, 0, 128)),
        // Room for the barrier only, or not even for that.
        (4096, 640, 64, Some(64), true, (640, 0, false, 0, 640)),
        (4096, 640, 64, Some(63), false, (640, 0, false, 0, 640)),
        (4096, 640, 64, Some(0), true, (640, 0, false, 0, 640)),
        // A barrier that is owed.
        (4096, 640, 64, Some(704), true, (0, 640, true, 0, 0)),
        (4096, 640, 64, Some(703), true, (64, 576, true, 0, 64)),
        // A packet that is longer than the buffer.
        (64, 128, 128, None, false, (128, 0, false, 128, 0)),
    ];

    for (size, written, packet, room, owed, expected) in table {
        let mut lap = Lap::new(Size::new(size).unwrap());
        let take = lap.take(Pos::new(written), shape(packet), room, owed);

        assert_eq!(
            (
                take.from.get(),
                take.len,
                take.barrier,
                take.lapped,
                take.capped
            ),
            expected,
            "{size} {written} {packet} {room:?} {owed}"
        );
        assert_eq!(lap.pending(Pos::new(written)), 0);
    }
}

proptest! {
    /// Whatever the unit writes and whenever somebody comes: what is taken is what the buffer has
    /// there, in order, the newest, and nothing goes unaccounted for.
    #[test]
    fn as_a_buffer_that_is_lapped(
        order in 7u32..12,
        units in 1u64..8,
        steps in prop::collection::vec((0u64..40, prop::option::of(0u64..5000)), 1..30),
    ) {
        let size = Size::new(1 << order).unwrap();
        let packet = units * 64;
        // The buffer by bytes: which position was written there last.
        let mut memory = vec![None; size.get()];
        let mut lap = Lap::new(size);
        let (mut written, mut seen, mut owed) = (0u64, 0u64, false);
        let mut out = VecDeque::new();

        for (packets, room) in steps {
            for _ in 0..packets * packet {
                memory[size.offset(Pos::new(written))] = Some(written);
                written += 1;
            }
            let take = lap.take(Pos::new(written), shape(packet), room, owed);

            prop_assert_eq!(take.len % packet, 0);
            prop_assert_eq!(take.from.get() + take.len, written);
            prop_assert_eq!(written - seen, take.len + take.lapped + take.capped);
            for pos in take.from.get()..written {
                prop_assert_eq!(memory[size.offset(Pos::new(pos))], Some(pos));
            }
            // Within the room, and no packet less than fits.
            let barrier = if take.barrier { 64 } else { 0 };
            let lost = take.lapped + take.capped;
            prop_assert!(take.len == 0 || room.is_none_or(|room| take.len + barrier <= room));
            if take.capped != 0 {
                prop_assert!(take.len + packet + 64 > room.unwrap());
            }
            if take.lapped != 0 {
                prop_assert!(written - seen > size.len());
                prop_assert!(take.len + take.capped + packet > size.len());
            }
            if take.len != 0 {
                prop_assert_eq!(take.barrier, owed || lost != 0);
                out.push_back((take.from.get(), take.len));
            }
            owed = (owed || lost != 0) && take.len == 0;
            seen = written;
        }
        prop_assert!(out.iter().zip(out.iter().skip(1)).all(|(a, b)| a.0 + a.1 <= b.0));
    }
}
