// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the reader against a buffer in memory that is overwritten.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn packets_of(len: u64) -> Packets {
    Packets {
        len: len.try_into().unwrap(),
        barrier: 64,
    }
}

#[test]
fn edges() {
    // Size, written, packet, space, due; from, len, barrier, overwritten, no space.
    let table = [
        // Nothing written.
        (4096, 0, 64, Some(100), false, (0, 0, false, 0, 0)),
        (4096, 0, 64, Some(100), true, (0, 0, false, 0, 0)),
        // The buffer exactly full, and one packet more.
        (4096, 4096, 64, None, false, (0, 4096, false, 0, 0)),
        (4096, 4160, 64, None, false, (64, 4096, true, 64, 0)),
        // Packets whose length does not divide the buffer: a packet that is partly overwritten is
        // lost.
        (4096, 4224, 384, None, false, (384, 3840, true, 384, 0)),
        // Space for all packets, and one byte less: then the barrier packet displaces a packet.
        (4096, 640, 64, Some(640), false, (0, 640, false, 0, 0)),
        (4096, 640, 64, Some(639), false, (128, 512, true, 0, 128)),
        // Space for the barrier packet only, or for less.
        (4096, 640, 64, Some(64), true, (640, 0, false, 0, 640)),
        (4096, 640, 64, Some(63), false, (640, 0, false, 0, 640)),
        (4096, 640, 64, Some(0), true, (640, 0, false, 0, 640)),
        // A barrier is due.
        (4096, 640, 64, Some(704), true, (0, 640, true, 0, 0)),
        (4096, 640, 64, Some(703), true, (64, 576, true, 0, 64)),
        // A packet that is longer than the buffer.
        (64, 128, 128, None, false, (128, 0, false, 128, 0)),
    ];

    for (size, written, packet, space, due, expected) in table {
        let mut reader = CircularReader::new(Size::new(size).unwrap());
        let extent = reader.read(Pos::new(written), packets_of(packet), space, due);

        assert_eq!(
            (
                extent.from.get(),
                extent.len,
                extent.barrier,
                extent.overwritten,
                extent.no_space
            ),
            expected,
            "{size} {written} {packet} {space:?} {due}"
        );
        assert_eq!(reader.pending(Pos::new(written)), 0);
    }
}

proptest! {
    /// Each read returns the newest bytes of the buffer, in order, and accounts for every byte that
    /// the unit has written.
    #[test]
    fn follows_a_buffer_that_is_overwritten(
        order in 7u32..12,
        units in 1u64..8,
        steps in prop::collection::vec((0u64..40, prop::option::of(0u64..5000)), 1..30),
    ) {
        let size = Size::new(1 << order).unwrap();
        let packet = units * 64;
        // For each byte of the buffer: the position that was written there last.
        let mut memory = vec![None; size.get()];
        let mut reader = CircularReader::new(size);
        let (mut written, mut seen, mut due) = (0u64, 0u64, false);
        let mut out = VecDeque::new();

        for (packets, space) in steps {
            for _ in 0..packets * packet {
                memory[size.offset(Pos::new(written))] = Some(written);
                written += 1;
            }
            let extent = reader.read(Pos::new(written), packets_of(packet), space, due);

            prop_assert_eq!(extent.len % packet, 0);
            prop_assert_eq!(extent.from.get() + extent.len, written);
            prop_assert_eq!(written - seen, extent.len + extent.overwritten + extent.no_space);
            for pos in extent.from.get()..written {
                prop_assert_eq!(memory[size.offset(Pos::new(pos))], Some(pos));
            }
            // The packets fit in the space, and another packet does not.
            let barrier = if extent.barrier { 64 } else { 0 };
            let lost = extent.overwritten + extent.no_space;
            prop_assert!(extent.len == 0 || space.is_none_or(|space| extent.len + barrier <= space));
            if extent.no_space != 0 {
                prop_assert!(extent.len + packet + 64 > space.unwrap());
            }
            if extent.overwritten != 0 {
                prop_assert!(written - seen > size.len());
                prop_assert!(extent.len + extent.no_space + packet > size.len());
            }
            if extent.len != 0 {
                prop_assert_eq!(extent.barrier, due || lost != 0);
                out.push_back((extent.from.get(), extent.len));
            }
            due = (due || lost != 0) && extent.len == 0;
            seen = written;
        }
        prop_assert!(out.iter().zip(out.iter().skip(1)).all(|(a, b)| a.0 + a.1 <= b.0));
    }
}
