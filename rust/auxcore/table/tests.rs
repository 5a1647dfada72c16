// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the table against naive models: lists of ends of regions, and memory byte by byte.

mod entry;
mod marks;
mod place;
mod regions;
mod walker;

use super::*;
use proptest::prelude::*;

/// The address of the first table.
const AT: u64 = 0x7000;

/// Chunks with these numbers of pages. Chunk `i` is adjacent to the previous one if `near(i)`.
fn chunks(pages: &[u64], near: impl Fn(usize) -> bool) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();

    for (i, &pages) in pages.iter().enumerate() {
        let address = match chunks.last() {
            Some(last) if near(i) => last.address + last.len,
            // Aligned to 64 pages, and with a gap.
            Some(last) => (last.address + last.len) / (64 * PAGE) * (64 * PAGE) + 128 * PAGE,
            None => 64 * PAGE,
        };
        let len = pages * PAGE;
        chunks.push(Chunk { address, len });
    }
    chunks
}

type Ring = Table<Vec<Entry>, Vec<u64>>;

fn table(chunks: &[Chunk], capacity: usize, largest: u64) -> Ring {
    let layout = Layout::new(AT, capacity).unwrap().largest(largest);
    let needed = layout.needed(chunks.iter().copied()).unwrap();
    let entries = vec![Entry::default(); needed.entries];
    let starts = vec![0; needed.starts];

    Table::new(entries, starts, layout, chunks.iter().copied()).unwrap()
}

/// The regions in the order in which a unit finds them: it follows the `END` entries.
fn walk(table: &Ring) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut address = AT;

    for _ in 0..1000 {
        let entry = Entry::from_bits(table.fetch(address).unwrap()).unwrap();
        if !entry.is_end() {
            found.push(entry);
            address += 8;
        } else if entry.base() == AT {
            return found;
        } else {
            address = entry.base();
        }
    }
    panic!("the tables are not a ring");
}

/// The address of each page of the ring.
fn pages(chunks: &[Chunk]) -> Vec<u64> {
    chunks
        .iter()
        .flat_map(|chunk| (0..chunk.len / PAGE).map(|i| chunk.address + i * PAGE))
        .collect()
}

#[test]
fn tables_are_chained_and_closed() {
    for count in 1..10usize {
        for capacity in 2..8 {
            // A ring of `count` regions, the last of which makes it a power of two.
            let mut sizes = vec![1u64; count];
            let last = (count as u64).next_power_of_two() + 1 - count as u64;
            sizes[count - 1] = last;
            let chunks = chunks(&sizes, |_| false);
            let layout = Layout::new(AT, capacity).unwrap();
            let built: Vec<Entry> = regions(chunks.iter().copied(), u64::MAX)
                .collect::<Result<_, _>>()
                .unwrap();
            let table = table(&chunks, capacity, u64::MAX);

            assert_eq!(walk(&table), built);
            assert_eq!(table.count(), built.len());
            assert_eq!(table.size().len() / PAGE, pages(&chunks).len() as u64);

            // Storage that is one element short is refused.
            let needed = layout.needed(chunks.iter().copied()).unwrap();
            for (entry, start) in [(1, 0), (0, 1)] {
                let Some(starts) = needed.starts.checked_sub(start) else {
                    continue;
                };
                let entries = vec![Entry::default(); needed.entries - entry];
                let short = Table::new(entries, vec![0; starts], layout, chunks.iter().copied());
                assert_eq!(short.err(), Some(Error::Storage));
            }
        }
    }
}

#[test]
fn what_cannot_be_built_is_refused() {
    let build = |chunks: &[(u64, u64)]| {
        let layout = Layout::new(AT, 512).unwrap();
        let chunks = chunks.iter().map(|&(address, len)| Chunk { address, len });
        let needed = layout.needed(chunks.clone());
        let built = Table::new(vec![Entry::default(); 512], vec![0; 512], layout, chunks);

        // `needed` does not check the size of the ring; only `Table::new` does.
        match needed {
            Err(error) => assert_eq!(built.as_ref().err(), Some(&error)),
            Ok(needed) => assert!(needed.entries <= 512),
        }
        built.err()
    };

    assert_eq!(build(&[(0, PAGE), (PAGE, PAGE)]), None);
    assert_eq!(build(&[]), Some(Error::Size));
    assert_eq!(build(&[(0, 3 * PAGE)]), Some(Error::Size));
    assert_eq!(build(&[(8, PAGE)]), Some(Error::Unaligned));
    assert_eq!(build(&[(0, PAGE + 8)]), Some(Error::Unaligned));
    assert_eq!(build(&[(0, PAGE), (PAGE, 0)]), Some(Error::Unaligned));
    assert_eq!(build(&[(1 << 52, PAGE)]), Some(Error::Address));
    assert_eq!(build(&[(u64::MAX - PAGE + 1, PAGE)]), Some(Error::Address));

    assert_eq!(Layout::new(AT, 1), None);
    assert_eq!(Layout::new(AT + 8, 8), None);
    assert_eq!(Layout::new(AT, usize::MAX), None);

    // The tables themselves may lie too high.
    let high = Layout::new((1 << 52) - PAGE, 2).unwrap();
    let entries = vec![Entry::default(); 4];
    let built = Table::new(entries, vec![], high, chunks(&[1, 1], |_| false));
    assert_eq!(built.err(), Some(Error::Address));
}
