// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the ring against a naive model: a queue of bytes.

use super::{Pos, Size};
use proptest::prelude::*;

/// Positions near the values where an error is likely: 0, the size, and the end of `u64`.
fn interesting(size: u64) -> impl Iterator<Item = u64> {
    let around = [0, size, 2 * size, 0u64.wrapping_sub(size), 1 << 32, 1 << 63];

    around
        .into_iter()
        .flat_map(|p| (0..5).map(move |d: u64| p.wrapping_add(d).wrapping_sub(2)))
}

#[test]
fn sizes() {
    let table = [
        (0, false),
        (1, true),
        (2, true),
        (3, false),
        (4096, true),
        (4097, false),
        (usize::MAX, false),
        (1 << (usize::BITS - 1), true),
    ];

    for (bytes, good) in table {
        assert_eq!(Size::new(bytes).is_some(), good, "{bytes}");
    }
}

/// In each state of a small ring, the bytes used, the space and the one free byte add up to the
/// size.
#[test]
fn space_is_exact() {
    for shift in 0..6 {
        let size = Size::new(1 << shift).unwrap();

        for head in interesting(size.len()) {
            for used in 0..=size.len() + 2 {
                let tail = Pos::new(head).retreat(used);
                let space = size.space(Pos::new(head), tail);

                if used < size.len() {
                    assert_eq!(space + used + 1, size.len());
                } else {
                    assert_eq!(space, 0, "size {size:?} used {used}");
                }
            }
            // A hostile tail, ahead of the head.
            assert_eq!(size.space(Pos::new(head), Pos::new(head).advance(1)), 0);
        }
    }
}

/// Compares each range of a small ring, byte by byte.
#[test]
fn split_is_exact() {
    for shift in 0..6 {
        let size = Size::new(1 << shift).unwrap();

        for pos in interesting(size.len()) {
            for len in 0..=size.get() {
                let split = size.split(Pos::new(pos), len).unwrap();
                let naive: Vec<usize> = (0..len as u64)
                    .map(|i| (pos.wrapping_add(i) % size.len()) as usize)
                    .collect();
                let ours: Vec<usize> = split.first.chain(split.second).collect();

                assert_eq!(ours, naive, "size {size:?} pos {pos} len {len}");
            }
            assert_eq!(size.split(Pos::new(pos), size.get() + 1), None);
        }
    }
}

#[test]
fn wraps_counts_ends() {
    let size = Size::new(8).unwrap();
    let table = [
        (0, 0, 0),
        (0, 7, 0),
        (0, 8, 1),
        (7, 8, 1),
        (8, 15, 0),
        (5, 5 + 24, 3),
        (u64::MAX, 0, 1),
    ];

    for (from, to, wraps) in table {
        assert_eq!(
            size.wraps(Pos::new(from), Pos::new(to)),
            wraps,
            "{from} {to}"
        );
    }
}

#[test]
fn wraps_that_are_not_counted() {
    let size = Size::new(16).unwrap();

    for (pos, first) in [(0, 0), (15, 15), (16, 0), (35, 3), (u64::MAX, 15)] {
        assert_eq!(size.first(Pos::new(pos)), Pos::new(first), "{pos}");
    }
}

proptest! {
    /// A writer and a reader take turns; the model is a queue.
    #[test]
    fn follows_a_queue(
        shift in 0u32..12,
        start in any::<u64>(),
        steps in prop::collection::vec((any::<bool>(), 0usize..5000), 1..200),
    ) {
        let size = Size::new(1 << shift).unwrap();
        let mut memory = vec![0u8; size.get()];
        let mut queue = std::collections::VecDeque::new();
        let (mut head, mut tail) = (Pos::new(start), Pos::new(start));
        let mut next = 0u8;

        for (write, want) in steps {
            if write {
                let space = usize::try_from(size.space(head, tail)).unwrap();
                prop_assert_eq!(space, size.get() - 1 - queue.len());
                let len = want.min(space);
                let split = size.split(head, len).unwrap();

                for i in split.first.chain(split.second) {
                    memory[i] = next;
                    queue.push_back(next);
                    next = next.wrapping_add(1);
                }
                head = head.advance(len as u64);
            } else {
                let used = usize::try_from(size.used(head, tail).unwrap()).unwrap();
                prop_assert_eq!(used, queue.len());
                let len = want.min(used);
                let split = size.split(tail, len).unwrap();

                for i in split.first.chain(split.second) {
                    prop_assert_eq!(Some(memory[i]), queue.pop_front());
                }
                tail = tail.advance(len as u64);
            }
            prop_assert!(head.reached(tail));
        }
    }
}
