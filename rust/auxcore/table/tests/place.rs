// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The search for the region of a position.

use super::*;
use core::num::NonZeroU64;

proptest! {
    /// With regions of one length a place is arithmetic: that which the search finds, from wherever
    /// it begins; and there is none where the search finds none.
    #[test]
    fn arithmetic_finds_what_the_search_finds(
        shift in 0u32..7,
        len in 0u32..4,
        capacity in 2usize..70,
        sessions in prop::collection::vec(
            (any::<u64>(), any::<u64>(), any::<u64>(), 0..9 * PAGE, 0u64..9, 0u64..9, 0u64..70),
            1..20,
        ),
    ) {
        let chunks = chunks(&vec![1 << len; 1 << shift], |_| false);
        let build = || table(&chunks, capacity, u64::MAX);
        let (mut quick, mut slow) = (build(), build());
        prop_assert_eq!(quick.uniform.map(NonZeroU64::get), Some(PAGE << len));
        slow.uniform = None;

        for (head, room, wakeup, offset, chain, skew, entry) in sessions {
            let head = Pos::new(head);
            let room = room % (quick.size().len() + 1);
            let wakeup = head.advance(wakeup % (2 * quick.size().len()));

            prop_assert_eq!(quick.mark(head, room, wakeup), slow.mark(head, room, wakeup));
            prop_assert_eq!(walk(&quick), walk(&slow));
            prop_assert_eq!(quick.seek(head), slow.seek(head));
            prop_assert_eq!(quick.head, slow.head);

            let skew = if skew == 0 { 8 } else { 0 };
            for offset in [offset, 0, PAGE << len] {
                let cursor = Cursor { table: AT + chain * PAGE + skew, entry, offset };
                prop_assert_eq!(quick.position(head, cursor), slow.position(head, cursor));
            }
        }
    }
}

/// One region of another length, at any place, and it is looked for.
#[test]
fn regions_of_several_lengths_are_not_uniform() {
    for odd in 0..3 {
        let mut sizes = [1; 3];
        sizes[odd] = 2;
        assert_eq!(table(&chunks(&sizes, |_| false), 4, u64::MAX).uniform, None);
    }
}
