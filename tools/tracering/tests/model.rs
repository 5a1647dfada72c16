// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A model of the reader sub-buffer under loom. Loom tries all interleavings, and all values that the memory model allows a load to return.
//! The model runs the loads of [`tracering::order`] against a writer and a `GET_READER` with the kernel's barriers.
//!
//! With one consumer, events are non-atomic cells: two unordered accesses, one of them a write, are an error. The tests that weaken a
//! barrier must fail. This shows that each barrier is needed, and that the model detects its absence.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::panic::{catch_unwind, AssertUnwindSafe};

use loom::cell::Cell;
use loom::sync::atomic::{fence, AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;
use tracering::order::{load_first, load_last, FENCE};

/// The orders of one run. The module `map` of the crate explains the barriers.
#[derive(Debug, Clone, Copy)]
struct Orders {
    /// (A), in the kernel.
    publish: Ordering,
    /// (C) and (E).
    loaded: Ordering,
    /// (D), the cmpxchg in the kernel that puts a sub-buffer into the writer's ring.
    give: Ordering,
}

/// The orders in the kernel and in the crate.
const RIGHT: Orders = Orders {
    publish: Ordering::Release,
    loaded: FENCE,
    give: Ordering::Release,
};

/// A fence of this order; no fence if the order is too weak for one.
fn barrier(order: Ordering) {
    if order != Ordering::Relaxed {
        fence(order);
    }
}

/// The reader sub-buffer is the writer's current one. The events that a commit includes are visible with it (A, C).
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

/// The kernel returns the sub-buffer to the writer. The writer's stores come after the consumer's loads (D).
fn given_back(orders: Orders) {
    loom::model(move || {
        let shared = Arc::new((AtomicUsize::new(0), Cell::new(1_usize)));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (head, event) = &*shared;
                // Like `rb_tail_page_update()`: the writer reaches the sub-buffer by the pointer that the reader side of the kernel has
                // set.
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

/// Another consumer makes the kernel swap the sub-buffer while this one reads it. If this one finds the time stamp unchanged, it has read
/// the old events (E).
fn taken(orders: Orders) {
    const BEFORE: usize = 5;
    loom::model(move || {
        let page = Arc::new((AtomicUsize::new(BEFORE), AtomicUsize::new(1)));
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                let (time_stamp, event) = &*page;
                // `rb_init_data_page()`, and the full barrier of the cmpxchg after it.
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

/// Each barrier is needed: without it, the model finds a run that fails.
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
