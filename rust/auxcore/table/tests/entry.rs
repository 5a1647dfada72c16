// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the bits of entries.

use super::*;

#[test]
fn entry_roundtrips() {
    for base in [
        0,
        PAGE,
        PAGE + 2,
        3 * PAGE,
        1 << 27,
        (1 << 52) - PAGE,
        1 << 52,
        7,
    ] {
        for shift in 0..64 {
            let len = 1u64 << shift;
            let good = (12..=27).contains(&shift) && base % len == 0 && base < 1 << 52;
            let entry = Entry::region(base, len);

            assert_eq!(entry.is_some(), good, "{base:#x} {len:#x}");
            for (int, stop) in [(false, false), (false, true), (true, false), (true, true)] {
                let Some(entry) = entry.map(|entry| entry.marked(int, stop)) else {
                    continue;
                };
                assert_eq!((entry.base(), entry.len()), (base, len));
                assert_eq!((entry.has_int(), entry.has_stop()), (int, stop));
                assert!(!entry.is_end());
                assert_eq!(Entry::from_bits(entry.bits()), Some(entry));
                assert_eq!(
                    entry.marked(false, false),
                    Entry::region(base, len).unwrap()
                );
            }
            assert_eq!(Entry::region(base, len | 1), None);
        }

        let end = Entry::end(base);
        assert_eq!(end.is_some(), base % PAGE == 0 && base < 1 << 52);
        if let Some(end) = end {
            assert!(end.is_end());
            assert_eq!(end.base(), base);
            assert_eq!(Entry::from_bits(end.bits()), Some(end));
        }
    }
}

/// The bits are those of `struct topa_entry`, `arch/x86/events/intel/pt.h`.
#[test]
fn entry_is_laid_out_as_in_topa() {
    let entry = Entry::region(0x1234_5000 << 3, PAGE << 3).unwrap();
    assert_eq!(entry.bits(), 0x91a2_8000 | 3 << 6);
    assert_eq!(entry.marked(true, false).bits() & 0xfff, 3 << 6 | 1 << 2);
    assert_eq!(entry.marked(false, true).bits() & 0xfff, 3 << 6 | 1 << 4);
    assert_eq!(Entry::end(0x5000).unwrap().bits(), 0x5001);
    assert_eq!(
        format!("{:?} {:?}", entry.marked(true, true), Entry::end(0x5000)),
        "0x91a28000+0x8000 INT STOP Some(END -> 0x5000)"
    );
}

/// Whether the layout in the documentation of [`Entry`] allows these bits.
fn is_entry(bits: u64) -> bool {
    if bits & 1 != 0 {
        bits & 0xfff0_0000_0000_0ffe == 0
    } else {
        let len = PAGE << (bits >> 6 & 0xf);
        bits & 0xfff0_0000_0000_0c2b == 0 && (bits & !0xfff) % len == 0
    }
}

/// `from_bits` checks each bit.
#[test]
fn entry_with_a_bit_flipped() {
    let plain = [
        Entry::region(0, PAGE),
        Entry::region(3 * PAGE, PAGE),
        Entry::region(5 << 27, Entry::LARGEST),
        Entry::end(7 * PAGE),
    ];

    for bits in plain.map(|entry| entry.unwrap().bits()) {
        for bit in 0..64 {
            let flipped = bits ^ 1 << bit;
            assert_eq!(
                Entry::from_bits(flipped).is_some(),
                is_entry(flipped),
                "{flipped:#x}"
            );
        }
    }
}

proptest! {
    /// Bits that decode to an entry encode to the same bits. All other bits are refused.
    #[test]
    fn entry_decodes_what_it_encodes(
        bits in prop_oneof![any::<u64>(), any::<u64>().prop_map(|bits| bits & 0x000f_ffff_ffff_f3d5)],
    ) {
        prop_assert_eq!(Entry::from_bits(bits).is_some(), is_entry(bits));
        if let Some(entry) = Entry::from_bits(bits) {
            prop_assert_eq!(entry.bits(), bits);
        }
    }
}
