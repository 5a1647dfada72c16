// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of how memory is cut into regions.

use super::*;

/// Checks that each region is aligned, at most `largest` bytes long, and otherwise as long as
/// possible. Together the regions must be the chunks, in their order.
pub(super) fn check_regions(chunks: &[Chunk], largest: u64) {
    let regions: Vec<Entry> = regions(chunks.iter().copied(), largest)
        .collect::<Result<_, _>>()
        .unwrap();
    let spread: Vec<u64> = regions
        .iter()
        .flat_map(|region| (0..region.len() / PAGE).map(|i| region.base() + i * PAGE))
        .collect();
    assert_eq!(spread, pages(chunks));

    let mut left = &spread[..];
    for region in regions {
        let run = 1 + left.windows(2).take_while(|w| w[1] == w[0] + PAGE).count();
        let best = (0..=15)
            .map(|shift| PAGE << shift)
            .filter(|len| *len <= largest.max(PAGE) && region.base() % len == 0)
            .filter(|len| *len <= run as u64 * PAGE)
            .max();

        assert_eq!(Some(region.len()), best);
        left = &left[(region.len() / PAGE) as usize..];
    }
}

#[test]
fn regions_follow_contiguity() {
    for near in 0..1 << 8 {
        for largest in [0, PAGE, 2 * PAGE, 3 * PAGE, 8 * PAGE, u64::MAX] {
            check_regions(&chunks(&[1; 8], |i| near >> i & 1 != 0), largest);
            check_regions(&chunks(&[4, 1, 2, 1], |i| near >> i & 1 != 0), largest);
            check_regions(&chunks(&[1, 3, 8, 4], |i| near >> i & 1 != 0), largest);
        }
    }

    // A chunk that is longer than the largest entry, and not aligned to it.
    let far = [Chunk {
        address: Entry::LARGEST - PAGE,
        len: 3 * Entry::LARGEST + PAGE,
    }];
    let lens: Vec<u64> = regions(far, u64::MAX).map(|r| r.unwrap().len()).collect();
    let largest = Entry::LARGEST;
    assert_eq!(lens, [PAGE, largest, largest, largest]);
}
