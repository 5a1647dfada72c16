// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The protocol of the reader sub-buffer under loom, which tries all interleavings and all values that the memory model lets a
//! load see: the loads of [`tracering::order`] against a writer and a `GET_READER` that do as the kernel does.
//!
//! Where only one consumer is at work, events are cells that are not atomic: two accesses, one of them a write, without an order
//! between them are an error. So each barrier is needed, or the model does not find out: the tests that weaken one must fail.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::panic::{catch_unwind, AssertUnwindSafe};

use loom::cell::Cell;
use loom::sync::atomic::{fence, AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;
use tracering::order::{load_first, load_last, FENCE};

/// The orders of one run; the names are those of the crate's module `ring`.
#[derive(Debug, Clone, Copy)]
struct Orders {
    /// (A), the kernel's.
    publish: Ordering,
    /// (C) and (E).
    loaded: Ordering,
    /// (D), the kernel's cmpxchg that puts a sub-buffer into the writer's ring.
    give: Ordering,
}

/// As the kernel and the crate have them.
const RIGHT: Orders = Orders {
    publish: Ordering::Release,
    loaded: FENCE,
    give: Ordering::Release,
};

/// A fence of this order; none if it is too weak to be one.
fn barrier(order: Ordering) {
    if order != Ordering::Relaxed {
        fence(order);
    }
}

/// The writer is on the reader sub-buffer: each commit has the events before it (A, C).
fn commits(orders: Orders) {
    const EVENTS: usize = 2;
    loom::model(move || {
        let page = Arc::new((
            AtomicUsize::new(0),
            [(); EVENTS].map(|()| Cell::new(0_usize)),
        ));
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                let (commit, events) = &*page;
                for (n, event) in events.iter().enumerate() {
                    event.set(n + 1);
                    barrier(orders.publish);
                    commit.store(n + 1, Ordering::Relaxed);
                }
            })
        };
        let (commit, events) = &*page;
        let end = load_first(
            || commit.load(Ordering::Relaxed),
            |_| barrier(orders.loaded),
        );
        for (n, event) in events.iter().take(end).enumerate() {
            assert_eq!(event.get(), n + 1);
        }
        writer.join().unwrap();
    });
}

/// The consumer has the kernel give the sub-buffer back: the writer stores after the consumer's loads (D).
fn given_back(orders: Orders) {
    loom::model(move || {
        let shared = Arc::new((AtomicUsize::new(0), Cell::new(1_usize)));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (head, event) = &*shared;
                // As `rb_tail_page_update()`: it reaches the sub-buffer by the pointer that the kernel's reader side set.
                if head.load(Ordering::Acquire) == 1 {
                    event.set(2);
                }
            })
        };
        let (head, event) = &*shared;
        assert_eq!(event.get(), 1);
        head.store(1, orders.give);
        writer.join().unwrap();
    });
}

/// Another consumer makes the kernel swap the sub-buffer while this one reads it. A reader that does not see the time stamp change
/// has read the old events (E).
fn taken(orders: Orders) {
    const BEFORE: usize = 5;
    loom::model(move || {
        let page = Arc::new((AtomicUsize::new(BEFORE), AtomicUsize::new(1)));
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                let (time_stamp, event) = &*page;
                // `rb_init_data_page()`, and the full barrier of the cmpxchg behind it.
                time_stamp.store(0, Ordering::Relaxed);
                barrier(orders.publish);
                event.store(2, Ordering::Relaxed);
                time_stamp.store(BEFORE + 1, Ordering::Relaxed);
            })
        };
        let (time_stamp, event) = &*page;
        let before = load_first(
            || time_stamp.load(Ordering::Relaxed),
            |_| barrier(orders.loaded),
        );
        let read = event.load(Ordering::Relaxed);
        let after = load_last(
            |_| barrier(orders.loaded),
            || time_stamp.load(Ordering::Relaxed),
        );
        if (before, after) == (BEFORE, BEFORE) {
            assert_eq!(read, 1);
        }
        other.join().unwrap();
    });
}

#[test]
fn the_order_is_enough() {
    commits(RIGHT);
    given_back(RIGHT);
    taken(RIGHT);
}

/// Each barrier is needed: without it there is a run that goes wrong, and the model finds it.
#[test]
fn no_barrier_can_be_weakened() {
    let weak = Ordering::Relaxed;
    let publish = Orders {
        publish: weak,
        ..RIGHT
    };
    let loaded = Orders {
        loaded: weak,
        ..RIGHT
    };
    let give = Orders {
        give: weak,
        ..RIGHT
    };
    type Model = fn(Orders);
    let models: [(&str, Model, Orders); 5] = [
        ("(A), commits", commits, publish),
        ("(C), commits", commits, loaded),
        ("(D), given back", given_back, give),
        ("the kernel's barrier, taken", taken, publish),
        ("(E), taken", taken, loaded),
    ];
    for (name, model, orders) in models {
        let result = catch_unwind(AssertUnwindSafe(|| model(orders)));
        assert!(result.is_err(), "the model does not need {name}");
    }
}
