// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sub-buffers, meta-pages and formats of tracefs, and files that have them.

use std::hint::black_box;

use ::tracering::format::Format;
use ::tracering::{Bytes, Meta, PageHeader, Stats, SubBuffer};

use crate::trace_dat;

/// Parses a sub-buffer, a meta-page, or a text that describes one, or writes a `trace.dat`. The first byte selects which.
///
/// # Panics
/// If an event is not within its sub-buffer, or a sub-buffer not within its mapping.
pub fn tracering(input: &[u8]) {
    let Some((&which, bytes)) = input.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(bytes);
    match which {
        b'4' => events(4, bytes),
        b'8' => events(8, bytes),
        b'm' => {
            if let Ok(meta) = Meta::parse(Bytes::from(bytes)) {
                let len = meta.map_len().unwrap_or_default();
                let end = |id| meta.subbuf(id).map(|range| range.end);
                assert!(end(meta.reader.id).is_some_and(|end| end <= len));
                assert_eq!(end(meta.nr_subbufs - 1), Some(len));
                assert_eq!(end(meta.nr_subbufs), None);
            }
        }
        b'h' => {
            if let Ok(header) = PageHeader::parse(&text) {
                assert!(header.subbuf_size() <= 1 << 20 && header.data < header.subbuf_size());
                let page = vec![0xff; header.subbuf_size()];
                black_box(SubBuffer::parse(&header, Bytes::from(&*page)).is_ok());
            }
        }
        b'e' => {
            black_box(::tracering::check_event_header(&text).is_ok());
        }
        b'd' => trace_dat::trace_dat(bytes),
        b's' => {
            black_box(Stats::parse(&text).is_ok());
        }
        // A format, and after a 0 an event.
        _ => {
            let split = bytes.iter().position(|byte| *byte == 0);
            let (format, event) = bytes.split_at(split.unwrap_or(bytes.len()));
            if let Ok(format) = Format::parse(&String::from_utf8_lossy(format)) {
                for field in &format.fields {
                    if let Ok(value) = field.value(Bytes::from(event)) {
                        black_box(value.to_string());
                    }
                }
            }
        }
    }
}

/// Reads all events of a sub-buffer, of a kernel whose `long` has this many bytes.
fn events(long: usize, page: &[u8]) {
    let header = PageHeader::new(long, page.len());
    let Ok(sub) = SubBuffer::parse(&header, Bytes::from(page)) else {
        return;
    };
    assert!(sub.len() <= header.capacity);
    let mut events = sub.events();
    let mut before = 0;
    while let Some(Ok(event)) = events.next() {
        let now = events.cursor().at;
        assert!(before < now && now <= sub.len() && event.data.len() < now - before);
        black_box(event.data.to_vec());
        before = now;
    }
    assert!(events.next().is_none());
}

/// Some valid inputs.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let page = |long: usize, commit: u32, words: &[u32]| {
        let mut out = vec![if long == 4 { b'4' } else { b'8' }];
        out.extend(1000_u64.to_ne_bytes());
        out.extend(commit.to_ne_bytes());
        out.resize(1 + 8 + long, 0);
        out.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        out.resize(128, 0);
        out
    };
    // An event of two words, a long one, a discarded one, time, and the rest; then a count.
    let words = [
        2 | 5 << 5,
        1,
        2,
        7 << 5,
        8,
        9,
        29 | 1 << 5,
        4,
        30 | 3 << 5,
        1,
        31 | 3 << 5,
        1,
        1,
        4,
        29,
        350,
        0,
    ];
    let meta = [
        4096_u32, 80, 4096, 9, 0, 0, 8, 40, 0, 0, 10, 0, 1, 0, 2, 0, 1, 0, 7, 0,
    ];
    let meta = meta.iter().flat_map(|word| word.to_ne_bytes());
    let text = |which: u8, text: &str| [&[which], text.as_bytes()].concat();
    let format = "name: a\nID: 5\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:char comm[4];\toffset:2;\tsize:4;\tsigned:0;\n\tfield:__data_loc char[] b;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:__rel_loc unsigned long[] m;\toffset:12;\tsize:4;\tsigned:0;\n\
        \tfield:s64 c;\toffset:16;\tsize:8;\tsigned:1;\n\nprint fmt: \"%s\", __get_rel_bitmask(m)\n\0\
        \x05\0abcd\0\0\x10\0\x04\0\0\0\x08\0\x01\0\0\0\0\0\0\0";
    let mut seeds = trace_dat::seeds();
    seeds.extend([
        page(8, 60, &words),
        page(4, 60 | 3 << 30, &words),
        page(8, 60 | 1 << 31, &words),
        std::iter::once(b'm').chain(meta).collect(),
        text(
            b'h',
            "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
            \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
            \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n",
        ),
        text(
            b'e',
            "\ttype_len    :    5 bits\n\ttime_delta  :   27 bits\n\tarray       :   32 bits\n\
            \tpadding     : type == 29\n\ttime_extend : type == 30\n\ttime_stamp : type == 31\n\
            \tdata max type_len  == 28\n",
        ),
        text(
            b's',
            "entries: 1\noverrun: 2\ncommit overrun: 3\ndropped events: 5\nread events: 6\n",
        ),
        text(b'f', format),
    ]);
    seeds
}
