// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The protocol of head and tail under loom, which tries all interleavings, and all values that the memory model allows for a load. The
//! reader of [`auxrec::ring`] runs against a writer that behaves as the kernel does.
//!
//! Each byte of the ring is a cell that is not atomic: two accesses without an order between them, one of them a write, are an error. So
//! the model finds it if (C) or (D) is missing: the tests that weaken one of them must fail.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::panic::{catch_unwind, AssertUnwindSafe};

use auxrec::ring::{Area, Reader, HEAD, TAIL};
use loom::cell::Cell;
use loom::sync::atomic::{fence, AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

const SIZE: u64 = 4;

/// The memory orders of one run.
#[derive(Debug, Clone, Copy)]
struct Orders {
    /// (C)
    head: Ordering,
    /// (D)
    tail: Ordering,
    /// (A), on the kernel's side. C11 has no control dependency, so this is an equivalent fence.
    space: Ordering,
    /// (B), on the kernel's side.
    publish: Ordering,
}

/// The orders that the recorder and the kernel use.
const RIGHT: Orders = Orders {
    head: HEAD,
    tail: TAIL,
    space: Ordering::Acquire,
    publish: Ordering::Release,
};

struct Shared {
    head: AtomicU64,
    tail: AtomicU64,
    bytes: Vec<Cell<u8>>,
    orders: Orders,
}

fn at(pos: u64) -> usize {
    usize::try_from(pos % SIZE).unwrap()
}

/// A byte that differs from the byte one ring length away.
fn byte(pos: u64) -> u8 {
    u8::try_from(pos + 1).unwrap()
}

/// A fence of this order; none if the order is relaxed.
fn barrier(order: Ordering) {
    if order != Ordering::Relaxed {
        fence(order);
    }
}

impl Shared {
    fn new(orders: Orders) -> Self {
        Self {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            bytes: (0..SIZE).map(|_| Cell::new(0)).collect(),
            orders,
        }
    }

    /// Writes as `__perf_output_begin()` and `perf_output_put_handle()` do: as many of `len` bytes from `head` on as there is space for.
    /// One byte always stays free. Returns the new head.
    fn write(&self, head: u64, len: u64) -> u64 {
        let tail = self.tail.load(Ordering::Relaxed);
        let end = (head + len).min(tail + SIZE - 1);
        if head < end {
            barrier(self.orders.space);
            for pos in head..end {
                self.bytes[at(pos)].set(byte(pos));
            }
            barrier(self.orders.publish);
            self.head.store(end, Ordering::Relaxed);
        }
        end
    }
}

impl Area for Shared {
    fn head(&self) -> u64 {
        self.head.load(self.orders.head)
    }

    fn set_tail(&self, tail: u64) {
        self.tail.store(tail, self.orders.tail);
    }

    fn copy(&self, offset: usize, out: &mut [u8]) {
        for (out, cell) in out.iter_mut().zip(&self.bytes[offset..]) {
            *out = cell.get();
        }
    }
}

/// Runs a writer of more bytes than the ring holds, and a reader. Each byte arrives once, and in order.
fn run(orders: Orders) {
    const WRITES: [u64; 3] = [2, 2, 1];
    loom::model(move || {
        let shared = Arc::new(Shared::new(orders));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || WRITES.iter().fold(0, |head, &len| shared.write(head, len)))
        };
        let mut reader = Reader::new(usize::try_from(SIZE).unwrap()).unwrap();
        let mut got = Vec::new();
        let mut out = Vec::new();
        for _ in 0..2 {
            reader.drain(&*shared, &mut out).unwrap();
            got.extend_from_slice(&out);
        }
        let written = writer.join().unwrap();
        reader.drain(&*shared, &mut out).unwrap();
        got.extend_from_slice(&out);
        let want: Vec<u8> = (0..written).map(byte).collect();
        assert_eq!(got, want);
    });
}

#[test]
fn every_byte_arrives_once_in_order() {
    run(RIGHT);
}

/// Each barrier is needed: without it the model finds a run that fails.
#[test]
fn no_barrier_can_be_weakened() {
    let weak = Ordering::Relaxed;
    for (name, orders) in [
        (
            "(A)",
            Orders {
                space: weak,
                ..RIGHT
            },
        ),
        (
            "(B)",
            Orders {
                publish: weak,
                ..RIGHT
            },
        ),
        (
            "(C)",
            Orders {
                head: weak,
                ..RIGHT
            },
        ),
        (
            "(D)",
            Orders {
                tail: weak,
                ..RIGHT
            },
        ),
    ] {
        let result = catch_unwind(AssertUnwindSafe(|| run(orders)));
        assert!(result.is_err(), "the model does not need {name}");
    }
}
