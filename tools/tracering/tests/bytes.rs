// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of copies from shared memory.

use tracering::Bytes;

/// Copies of each length from each offset in a word.
#[test]
fn copies_of_each_alignment() {
    let all: Vec<u8> = (0..64).collect();
    for from in 0..17 {
        for to in from..64 {
            let (Some(part), Some(bytes)) = (all.get(from..to), Bytes::from(&*all).get(from..to))
            else {
                panic!("{from}..{to} is not there");
            };
            let mut out = vec![0xff; part.len()];
            assert!(bytes.copy_to(&mut out), "{from}..{to}");
            assert_eq!(out, part);
            assert_eq!(bytes.to_vec(), part);
            let mut longer = vec![0; part.len() + 1];
            assert!(!bytes.copy_to(&mut longer));
            assert!(longer.iter().all(|byte| *byte == 0));
        }
    }
}

/// Copies into buffers of several lengths, from each offset in a word.
#[test]
fn numbers_of_each_alignment() {
    let all: Vec<u8> = (1..=40).collect();
    let bytes = Bytes::from(&*all);
    for at in 0..=all.len() {
        let of = |len: usize| all.get(at..at + len);
        let u16 = of(2).and_then(|two| two.try_into().ok());
        assert_eq!(bytes.u16(at), u16.map(u16::from_ne_bytes));
        let u32 = of(4).and_then(|four| four.try_into().ok());
        assert_eq!(bytes.u32(at), u32.map(u32::from_ne_bytes));
        let u64 = of(8).and_then(|eight| eight.try_into().ok());
        assert_eq!(bytes.u64(at), u64.map(u64::from_ne_bytes));
    }
    assert_eq!(bytes.u16(usize::MAX), None);
}
