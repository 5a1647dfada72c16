// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that need no kernel. The cases of `tools/e2e/src/ring.rs` test the rest.

#![allow(clippy::unwrap_used)]

use std::fs::OpenOptions;

use super::*;
use crate::subbuf::Missed;

/// A sub-buffer of 4096 bytes of a 64-bit kernel, with an event of one word for each of these words.
fn page(commit: u64, words: &[u32]) -> Vec<u8> {
    let mut out = 100_u64.to_ne_bytes().to_vec();
    out.extend(commit.to_ne_bytes());
    for word in words {
        let head: u32 = if cfg!(target_endian = "little") {
            1 | 1 << 5
        } else {
            1 << 27 | 1
        };
        out.extend(head.to_ne_bytes());
        out.extend(word.to_ne_bytes());
    }
    out.resize(4096, 0);
    out
}

/// Times and words of all events, and the events lost before them.
fn taken(stream: &mut Stream) -> Option<(Missed, Vec<(u64, u32)>)> {
    let mut reader = stream.reader().unwrap()?;
    let missed = reader.missed();
    let events = reader.by_ref().map(|event| {
        let event = event.unwrap();
        (event.time, event.data.u32(0).unwrap())
    });
    let events = events.collect();
    reader.verify().unwrap();
    Some((missed, events))
}

#[test]
fn a_file_of_sub_buffers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raw");
    let lost = 16 | u64::from(crate::RB_MISSED_EVENTS);
    let pages = [page(16, &[7, 8]), page(lost, &[9, 10])].concat();
    std::fs::write(&path, &pages).unwrap();
    let header = PageHeader::new(8, 4096);
    for with_splice in [false, true] {
        let mut stream = Stream::open(&path, header, with_splice).unwrap();
        let first = (Missed::No, vec![(101, 7), (102, 8)]);
        assert_eq!(taken(&mut stream), Some(first));
        let second = (Missed::Unknown, vec![(101, 9), (102, 10)]);
        assert_eq!(taken(&mut stream), Some(second));
        assert_eq!(taken(&mut stream), None);
    }
    // A sub-buffer that ends in the middle.
    std::fs::write(&path, &pages[..4000]).unwrap();
    for with_splice in [false, true] {
        let mut stream = Stream::open(&path, header, with_splice).unwrap();
        let error = stream.reader().unwrap_err().to_string();
        assert!(error.ends_with("its size has changed"), "{error}");
    }
}

#[test]
fn sub_buffers_move_into_files() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("raw"), dir.path().join("moved"));
    let pages: Vec<_> = (0..700).flat_map(|n| page(16, &[n, n + 1])).collect();
    std::fs::write(&path, &pages).unwrap();
    let header = PageHeader::new(8, 4096);
    // The kernel cannot splice to a file in append mode, so these bytes are copied.
    for append in [false, true] {
        for with_splice in [true, false] {
            let mut options = OpenOptions::new();
            options.create(true).write(!append).append(append);
            let mut file = options.open(&moved).unwrap();
            let mut stream = Stream::open(&path, header, with_splice).unwrap();
            stream.enlarge();
            let calls = std::iter::from_fn(|| match stream.move_to(&mut file).unwrap() {
                0 => None,
                n => Some(n),
            });
            let calls: Vec<_> = calls.collect();
            assert_eq!(
                calls.iter().sum::<usize>(),
                if with_splice { pages.len() } else { 0 }
            );
            while stream.read_to(&mut file).unwrap() != 0 {}
            assert!(std::fs::read(&moved).unwrap() == pages);
            std::fs::remove_file(&moved).unwrap();
        }
    }
}
