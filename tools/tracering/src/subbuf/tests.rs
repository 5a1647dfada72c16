// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the parser, with the output of a writer and with data that no kernel writes.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

/// An entry that the test writes into a sub-buffer.
#[derive(Debug, Clone)]
enum Put {
    /// An event with this time difference and this data.
    Data(u32, Vec<u8>),
    /// A discarded event.
    Discarded(u32, usize),
    /// A time extend.
    Extend(u64),
    /// An absolute time stamp.
    Stamp(u64),
}

/// The header word of an event.
fn head(type_len: u32, delta: u32) -> [u8; 4] {
    if cfg!(target_endian = "little") {
        (type_len | delta << 5).to_ne_bytes()
    } else {
        (type_len << 27 | delta).to_ne_bytes()
    }
}

/// The bytes of these entries.
fn written(all: &[Put]) -> Vec<u8> {
    let mut out = Vec::new();
    for put in all {
        match put {
            Put::Data(delta, data) => {
                let words = u32::try_from(data.len().div_ceil(4)).unwrap();
                if (1..=28).contains(&words) {
                    out.extend(head(words, *delta));
                } else {
                    out.extend(head(0, *delta));
                    out.extend((4 * words + 4).to_ne_bytes());
                }
                out.extend(data);
                out.resize(out.len().next_multiple_of(4), 0xee);
            }
            Put::Discarded(delta, words) => {
                out.extend(head(29, *delta));
                out.extend(u32::try_from(4 + 4 * words).unwrap().to_ne_bytes());
                out.resize(out.len() + 4 * words, 0xdd);
            }
            Put::Extend(time) | Put::Stamp(time) => {
                let kind = if matches!(put, Put::Extend(_)) {
                    30
                } else {
                    31
                };
                out.extend(head(kind, u32::try_from(time & 0x7ff_ffff).unwrap()));
                out.extend(u32::try_from(time >> 27).unwrap().to_ne_bytes());
            }
        }
    }
    out
}

/// A sub-buffer of 4096 bytes, from a kernel whose `long` has `long` bytes.
fn page(long: usize, time: u64, commit: u64, data: &[u8]) -> Vec<u8> {
    let mut out = time.to_ne_bytes().to_vec();
    if long == 4 {
        out.extend(u32::try_from(commit).unwrap().to_ne_bytes());
    } else {
        out.extend(commit.to_ne_bytes());
    }
    out.extend(data);
    out.resize(4096, 0);
    out
}

/// Times and data of all events, and the error at the end.
fn read(header: &PageHeader, page: &[u8]) -> (Vec<(u64, Vec<u8>)>, Option<String>) {
    let sub = match SubBuffer::parse(header, Bytes::from(page)) {
        Ok(sub) => sub,
        Err(e) => return (Vec::new(), Some(e.to_string())),
    };
    let mut events = Vec::new();
    for event in sub.events() {
        match event {
            Ok(event) => events.push((event.time, event.data.to_vec())),
            Err(e) => return (events, Some(e.to_string())),
        }
    }
    (events, None)
}

fn len(data: &[u8]) -> u64 {
    u64::try_from(data.len()).unwrap()
}

fn put() -> impl Strategy<Value = Put> {
    let delta = 0..1_u32 << 27;
    prop_oneof![
        4 => (delta.clone(), prop::collection::vec(any::<u8>(), 0..150)).prop_map(|(d, data)| Put::Data(d, data)),
        1 => (1..1_u32 << 27, 0..9_usize).prop_map(|(d, n)| Put::Discarded(d, n)),
        1 => (0..1_u64 << 59).prop_map(Put::Extend),
        1 => (0..1_u64 << 59).prop_map(Put::Stamp),
    ]
}

proptest! {
    /// The parser reads the entries that were written. A reader that continues at a cursor in the middle gets the same events.
    #[test]
    fn all_events_are_read(
        all in prop::collection::vec(put(), 0..20),
        start in any::<u64>(),
        long in prop_oneof![Just(4_usize), Just(8)],
        stop in 0..20_usize,
    ) {
        let data = written(&all);
        prop_assume!(data.len() <= 4080);
        let (mut time, mut expected) = (start, Vec::new());
        for put in &all {
            match put {
                Put::Data(delta, data) => {
                    time = time.wrapping_add(u64::from(*delta));
                    let mut data = data.clone();
                    data.resize(data.len().next_multiple_of(4), 0xee);
                    expected.push((time, data));
                }
                Put::Discarded(delta, _) => time = time.wrapping_add(u64::from(*delta)),
                Put::Extend(more) => time = time.wrapping_add(*more),
                // The highest bits are those of the last time, plus one if the time would go back.
                Put::Stamp(stamp) if time >> 59 != 0 => {
                    let high = time & !((1 << 59) - 1);
                    let carry = u64::from(high | *stamp < time) << 59;
                    time = (high | stamp).wrapping_add(carry);
                }
                Put::Stamp(stamp) => time = *stamp,
            }
        }
        let header = PageHeader::new(long, 4096);
        let page = page(long, start, len(&data), &data);
        let (events, error) = read(&header, &page);
        prop_assert_eq!(error, None);
        prop_assert_eq!(&events, &expected);

        let sub = SubBuffer::parse(&header, Bytes::from(&*page)).unwrap();
        let mut first = sub.events();
        let begun = first.by_ref().take(stop).count();
        let rest = sub.part(first.cursor(), data.len()).unwrap();
        let rest: Vec<_> = rest.map(|e| e.map(|e| (e.time, e.data.to_vec())).unwrap()).collect();
        prop_assert_eq!(&rest, &expected[begun..]);
    }

    /// With any bytes, the iterator ends, and the events lie in order within the commit.
    #[test]
    fn anything_ends(bytes in prop::collection::vec(any::<u8>(), 0..400), commit in 0..400_u64, long in prop_oneof![Just(4_usize), Just(8)]) {
        let page = page(long, 0, commit, &bytes);
        if let Ok(sub) = SubBuffer::parse(&PageHeader::new(long, 4096), Bytes::from(&*page)) {
            let mut events = sub.events();
            let mut last = 0;
            while let Some(Ok(event)) = events.next() {
                let now = events.cursor().at;
                prop_assert!(now > last && now <= sub.len() && event.data.len() < now - last);
                last = now;
            }
            prop_assert!(events.next().is_none());
        }
    }
}

#[test]
fn lost_events() {
    let data = written(&[Put::Data(1, vec![1; 8])]);
    let n = len(&data);
    let mut counted = data.clone();
    counted.extend(0x1_2345_6789_u64.to_ne_bytes());
    let short = data
        .iter()
        .chain(&[7, 0, 0, 0])
        .copied()
        .collect::<Vec<_>>();
    for (long, commit, data, expected) in [
        (8, n, &counted, Missed::No),
        (8, n | 1 << 31, &counted, Missed::Unknown),
        (8, n | 0xffff_ffff_8000_0000, &counted, Missed::Unknown),
        (
            8,
            n | 0xffff_ffff_c000_0000,
            &counted,
            Missed::Events(0x1_2345_6789),
        ),
        (8, n | 0xc000_0000, &counted, Missed::Events(0x1_2345_6789)),
        (4, n | 0x8000_0000, &short, Missed::Unknown),
        (4, n | 0xc000_0000, &short, Missed::Events(7)),
    ] {
        let page = page(long, 5, commit, data);
        let header = PageHeader::new(long, 4096);
        let sub = SubBuffer::parse(&header, Bytes::from(&*page)).unwrap();
        assert_eq!(
            (sub.missed(), sub.time_stamp(), sub.len()),
            (expected, 5, 12),
            "{commit:#x}"
        );
        assert_eq!(read(&header, &page), (vec![(6, vec![1; 8])], None));
    }
}

#[test]
fn headers_that_cannot_be() {
    for (long, commit, says) in [
        (
            8,
            4081,
            "byte 8: 4081 bytes are committed, and it holds 4080",
        ),
        (
            8,
            0x3fff_ffff,
            "byte 8: 1073741823 bytes are committed, and it holds 4080",
        ),
        (
            4,
            4085,
            "byte 8: 4085 bytes are committed, and it holds 4084",
        ),
        (8, 6, "byte 8: 6 bytes are committed, not a multiple of 4"),
        (8, 1 << 32 | 8, "byte 8: 0x100000008 is no commit"),
        (
            8,
            0xffff_ffff_0000_0008,
            "byte 8: 0xffffffff00000008 is no commit",
        ),
        (
            8,
            1 << 30 | 8,
            "byte 8: lost events are counted, and none were lost",
        ),
        (
            8,
            0xffff_ffff_c000_0000 | 4076,
            "byte 8: a number of lost events is stored behind 4076 bytes of 4080",
        ),
        (
            4,
            0xc000_0000 | 4084,
            "byte 8: a number of lost events is stored behind 4084 bytes of 4084",
        ),
    ] {
        let page = page(long, 0, commit, &[]);
        let error = read(&PageHeader::new(long, 4096), &page).1;
        assert_eq!(error, Some(format!("sub-buffer, {says}")));
    }
    let whole = page(8, 0, 4080, &[]);
    for len in [0, 7, 8, 15, 16, 4095] {
        assert!(
            SubBuffer::parse(&PageHeader::new(8, 4096), Bytes::from(&whole[..len])).is_err(),
            "{len}"
        );
    }
}

#[test]
fn events_that_cannot_be() {
    let good = written(&[Put::Data(3, vec![9; 4])]);
    let word = u32::to_ne_bytes;
    for (bad, says) in [
        (
            vec![head(2, 0)],
            "byte 8: an event of 12 bytes, and 4 are left",
        ),
        (
            vec![head(28, 0), word(0)],
            "byte 8: an event of 116 bytes, and 8 are left",
        ),
        (
            vec![head(0, 0)],
            "byte 8: an event is cut off after 4 bytes",
        ),
        (vec![head(0, 0), word(0)], "byte 8: an event of 0 bytes"),
        (vec![head(0, 0), word(3)], "byte 8: an event of 3 bytes"),
        (
            vec![head(0, 0), word(6), word(0)],
            "byte 8: an event of 6 bytes",
        ),
        (
            vec![head(0, 0), word(12), word(0)],
            "byte 8: an event of 16 bytes, and 12 are left",
        ),
        (
            vec![head(0, 0), word(u32::MAX - 3)],
            "byte 8: an event of 4294967296 bytes, and 8 are left",
        ),
        (
            vec![head(29, 1)],
            "byte 8: an event is cut off after 4 bytes",
        ),
        (vec![head(29, 1), word(0)], "byte 8: an event of 0 bytes"),
        (
            vec![head(29, 1), word(8)],
            "byte 8: an event of 12 bytes, and 8 are left",
        ),
        (
            vec![head(30, 1)],
            "byte 8: an event is cut off after 4 bytes",
        ),
        (
            vec![head(31, 1)],
            "byte 8: an event is cut off after 4 bytes",
        ),
    ] {
        let data = [good.clone(), bad.concat()].concat();
        let page = page(8, 0, len(&data), &data);
        let (events, error) = read(&PageHeader::new(8, 4096), &page);
        assert_eq!(events, [(3, vec![9; 4])], "{says}");
        assert_eq!(error, Some(format!("sub-buffer, {says}")));
    }
}

/// Padding without a length ends a sub-buffer, with any bytes behind it.
#[test]
fn the_rest_is_padding() {
    let data = [
        &written(&[Put::Data(3, vec![9; 4])])[..],
        &head(29, 0),
        &head(28, 1),
    ]
    .concat();
    let page = page(8, 0, len(&data), &data);
    assert_eq!(
        read(&PageHeader::new(8, 4096), &page),
        (vec![(3, vec![9; 4])], None)
    );
}

#[test]
fn a_time_stamp_keeps_the_highest_bits() {
    let high = 0x18 << 56;
    for (before, stamp, expected) in [
        (5, 3, 3),
        (high | 5, 7, high | 7),
        (high | 5, 3, (high | 3) + (1 << 59)),
        (u64::MAX, 3, 3),
    ] {
        assert_eq!(fix_abs_ts(stamp, before), expected, "{before:#x} {stamp}");
    }
}
