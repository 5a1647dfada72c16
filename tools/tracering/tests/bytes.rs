// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Copies out of memory that others write.

use tracering::Bytes;

/// From each place in a word, and of each length.
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
