// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the search for the region of a position.

use super::{marks::ring, *};
use core::{
    cell::Cell,
    ops::{Deref, DerefMut},
};
use std::rc::Rc;

/// The region that holds `offset`, and the offset where it begins. It walks over all regions.
fn walk_to(regions: &[Entry], offset: u64) -> (usize, u64) {
    let mut start = 0;

    for (n, region) in regions.iter().enumerate() {
        if offset - start < region.len() {
            return (n, start);
        }
        start += region.len();
    }
    panic!("offset {offset:#x} is behind the ring");
}

proptest! {
    /// The search finds the same region for a position as a walk over all regions.
    #[test]
    fn search_finds_what_a_walk_finds(
        (chunks, capacity, largest) in ring(),
        positions in prop::collection::vec(any::<u64>(), 1..40),
    ) {
        let table = table(&chunks, capacity, largest);
        let regions = walk(&table);
        let edges = regions.iter().scan(0, |end, region| {
            *end += region.len();
            Some([*end - region.len(), *end - 1])
        });

        for pos in positions.into_iter().chain(edges.flatten()).map(Pos::new) {
            let offset = table.size().offset(pos) as u64;
            let (region, start) = walk_to(&regions, offset);
            let found = table.find(pos);

            prop_assert_eq!((found.region, found.start), (region, start));
            prop_assert_eq!(table.entry(found.region), regions[region]);
            prop_assert_eq!(table.within(found, pos), offset - start);

            // The cursor of a unit converts back to the position.
            let cursor = table.seek(pos);
            prop_assert_eq!(table.fetch(cursor.table + 8 * cursor.entry), Some(regions[region].bits()));
            prop_assert_eq!(table.position(pos, cursor), Some(pos));
        }
    }
}

/// Storage that counts its accesses.
struct Counted<T> {
    items: Vec<T>,
    steps: Rc<Cell<u64>>,
}

impl<T: Clone> Counted<T> {
    fn new(item: T, len: usize, steps: &Rc<Cell<u64>>) -> Self {
        Self {
            items: vec![item; len],
            steps: Rc::clone(steps),
        }
    }
}

impl<T> Deref for Counted<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.steps.set(self.steps.get() + 1);
        &self.items
    }
}

impl<T> DerefMut for Counted<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.steps.set(self.steps.get() + 1);
        &mut self.items
    }
}

/// A call takes a few steps, not one for each region, wherever user space has moved the tail.
#[test]
fn no_tail_makes_a_call_long() {
    // Two thirds of the regions have one page, one third has two.
    let chunks = chunks(&[1, 2, 1].repeat(1 << 10), |_| false);
    let layout = Layout::new(AT, 512).unwrap();
    let needed = layout.needed(chunks.iter().copied()).unwrap();
    let steps = Rc::new(Cell::new(0));
    let entries = Counted::new(Entry::default(), needed.entries, &steps);
    let starts = Counted::new(0, needed.starts, &steps);
    let mut table = Table::new(entries, starts, layout, chunks).unwrap();
    let size = table.size().len();
    let (mut head, mut marked) = (Pos::new(0), 0);

    // A search halves 3072 regions 12 times.
    assert_eq!((table.count(), needed.starts), (3072, 3072));
    for i in 0..1000 {
        // Steps of varying length, forwards and backwards.
        head = head.advance(i * 7919 * PAGE / 3);
        let space = i * 104_729 * 511 % size;
        let at_most = |limit, what: &str| {
            let taken = steps.take();
            assert!(taken <= limit, "{what}: {taken} steps at {head:?}");
        };

        steps.set(0);
        marked += usize::from(table.mark(head, space, head.advance(space / 2)).is_ok());
        at_most(3 * 13 + 20, "mark");
        let cursor = table.seek(head);
        at_most(13, "seek");
        assert_eq!(table.position(head, cursor), Some(head));
        at_most(4, "position");
        table.clear();
        at_most(2, "clear");
    }
    assert!(marked > 900, "{marked} transactions had an end");
}

proptest! {
    /// For regions of one length, the computation and the search give the same results.
    #[test]
    fn arithmetic_finds_what_the_search_finds(
        shift in 0u32..7,
        len in 0u32..4,
        capacity in 2usize..70,
        transactions in prop::collection::vec(
            (any::<u64>(), any::<u64>(), any::<u64>(), 0..9 * PAGE, 0u64..9, 0u64..9, 0u64..70),
            1..20,
        ),
    ) {
        let chunks = chunks(&vec![1 << len; 1 << shift], |_| false);
        let build = || table(&chunks, capacity, u64::MAX);
        let (mut quick, mut slow) = (build(), build());
        prop_assert_eq!(quick.uniform, Some(PAGE.trailing_zeros() + len));
        prop_assert!(quick.starts.is_empty());
        slow.uniform = None;
        slow.starts = (0..1 << shift).map(|n| n * (PAGE << len)).collect();

        for (head, space, wakeup, offset, chain, skew, entry) in transactions {
            let head = Pos::new(head);
            let space = space % (quick.size().len() + 1);
            let wakeup = head.advance(wakeup % (2 * quick.size().len()));

            prop_assert_eq!(quick.mark(head, space, wakeup), slow.mark(head, space, wakeup));
            prop_assert_eq!(walk(&quick), walk(&slow));
            prop_assert_eq!(quick.seek(head), slow.seek(head));

            let skew = if skew == 0 { 8 } else { 0 };
            for offset in [offset, 0, PAGE << len] {
                let cursor = Cursor { table: AT + chain * PAGE + skew, entry, offset };
                prop_assert_eq!(quick.position(head, cursor), slow.position(head, cursor));
            }
        }
    }
}

/// If one region has another length, the table is not uniform, and regions are searched.
#[test]
fn regions_of_several_lengths_are_not_uniform() {
    for odd in 0..3 {
        let mut sizes = [1; 3];
        sizes[odd] = 2;
        assert_eq!(table(&chunks(&sizes, |_| false), 4, u64::MAX).uniform, None);
    }
}
