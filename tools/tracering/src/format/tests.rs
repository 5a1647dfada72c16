// SPDX-License-Identifier: GPL-2.0 OR MIT

#![allow(clippy::unwrap_used)]

use super::*;

const COMMON: &str = "\
name: made
ID: 314
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

";

/// A format with this field and this print format.
fn with(field: &str, print: &str) -> Result<Format> {
    Format::parse(&format!("{COMMON}\tfield:{field}\n\nprint fmt: {print}\n"))
}

fn number(size: usize, signed: bool) -> Number {
    Number { size, signed }
}

#[test]
fn kinds() {
    let unsigned = |size| number(size, false);
    for (declared, offset, size, signed, name, kind) in [
        ("unsigned char a", 8, 1, 0, "a", Kind::Number(unsigned(1))),
        ("char a", 8, 1, 1, "a", Kind::Number(number(1, true))),
        ("u16 a", 8, 2, 0, "a", Kind::Number(unsigned(2))),
        ("pid_t a", 8, 4, 1, "a", Kind::Number(number(4, true))),
        ("enum what a", 8, 4, 0, "a", Kind::Number(unsigned(4))),
        ("const char * a", 8, 8, 0, "a", Kind::Number(unsigned(8))),
        ("void *a", 8, 8, 0, "a", Kind::Number(unsigned(8))),
        ("struct timespec64 a", 8, 16, 0, "a", Kind::Opaque),
        ("char a[16]", 8, 16, 0, "a", Kind::Array(Element::Text)),
        ("char a[]", 8, 0, 0, "a", Kind::Array(Element::Text)),
        (
            "u8 a[6]",
            8,
            6,
            0,
            "a",
            Kind::Array(Element::Number(unsigned(1))),
        ),
        (
            "unsigned short a[2]",
            8,
            4,
            0,
            "a",
            Kind::Array(Element::Number(unsigned(2))),
        ),
        (
            "int a[2]",
            8,
            8,
            1,
            "a",
            Kind::Array(Element::Number(number(4, true))),
        ),
        (
            "unsigned long args[6]",
            8,
            48,
            0,
            "args",
            Kind::Array(Element::Number(unsigned(8))),
        ),
        (
            "unsigned long long a[2]",
            8,
            16,
            0,
            "a",
            Kind::Array(Element::Number(unsigned(8))),
        ),
        (
            "struct made a[2]",
            8,
            24,
            0,
            "a",
            Kind::Array(Element::Byte),
        ),
        (
            "const char * a[2]",
            8,
            16,
            0,
            "a",
            Kind::Array(Element::Number(unsigned(8))),
        ),
        (
            "__data_loc char[] a",
            8,
            4,
            0,
            "a",
            Kind::DataLoc(Element::Text),
        ),
        (
            "__data_loc const char[] a",
            8,
            4,
            0,
            "a",
            Kind::DataLoc(Element::Text),
        ),
        (
            "__data_loc u32[] a",
            8,
            4,
            0,
            "a",
            Kind::DataLoc(Element::Number(unsigned(4))),
        ),
        (
            "__data_loc unsigned long[] mask",
            8,
            4,
            0,
            "mask",
            Kind::DataLoc(Element::Bits),
        ),
        (
            "__data_loc unsigned long[] a",
            8,
            4,
            0,
            "a",
            Kind::DataLoc(Element::Number(unsigned(8))),
        ),
        (
            "__data_loc cpumask_t a",
            8,
            4,
            0,
            "a",
            Kind::DataLoc(Element::Bits),
        ),
        (
            "__rel_loc char[] a",
            8,
            4,
            0,
            "a",
            Kind::RelLoc(Element::Text),
        ),
        (
            "__rel_loc struct made[] a",
            8,
            4,
            0,
            "a",
            Kind::RelLoc(Element::Byte),
        ),
        // A field with the name of a type.
        (
            "__data_loc u8[] char",
            8,
            4,
            0,
            "char",
            Kind::DataLoc(Element::Number(unsigned(1))),
        ),
    ] {
        let line = format!("{declared};\toffset:{offset};\tsize:{size};\tsigned:{signed};");
        let format = with(&line, "\"%s\", __get_bitmask(mask)").unwrap();
        let own: Vec<_> = format.own().collect();
        let expected = Field {
            name: name.to_owned(),
            declared: declared.to_owned(),
            offset,
            size,
            kind,
        };
        assert_eq!(own, [&expected], "{declared}");
        assert_eq!((format.id, &*format.name), (314, "made"));
        assert_eq!(format.fields.len(), 5);
    }
}

#[test]
fn formats_that_cannot_be() {
    for (text, says) in [
        (String::new(), "format, byte 0: no name:"),
        ("name: a\n".to_owned(), "format, byte 8: no ID:"),
        (
            "name: a\nID: 65536\n".to_owned(),
            "format, byte 12: ID: 65536 is no number",
        ),
        (
            "name: a\nID: -1\n".to_owned(),
            "format, byte 12: ID: -1 is no number",
        ),
        (format!("{COMMON}field:int a;"), "no offset"),
        (
            format!("{COMMON}field:int a;\toffset:1;\tsize:-1;"),
            "size: -1 is no number",
        ),
        (
            format!("{COMMON}field:int a;\toffset:4294967296;"),
            "offset: 4294967296 is no number",
        ),
        (
            format!("{COMMON}field:int a;\toffset:4294967295;\tsize:1;\tsigned:0;"),
            "1 bytes at 4294967295",
        ),
        (
            format!("{COMMON}field:;\toffset:4;\tsize:1;\tsigned:0;"),
            "without a name",
        ),
        (
            format!("{COMMON}field:__data_loc char[] a;\toffset:4;\tsize:8;\tsigned:0;"),
            "a location of 8 bytes",
        ),
        (
            format!("{COMMON}field:int a[3];\toffset:4;\tsize:10;\tsigned:0;"),
            "10 bytes of elements of 4",
        ),
        (
            format!(
                "{COMMON}{}",
                "field:int a;offset:4;size:4;signed:0;\n".repeat(1024)
            ),
            "1028 fields",
        ),
    ] {
        let error = Format::parse(&text).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// The text of a field's value.
fn shown(field: &str, event: &[u8]) -> std::result::Result<String, String> {
    let format = with(field, "__get_rel_bitmask(mask)").unwrap();
    let field = format.own().next().unwrap();
    let value = field.value(Bytes::from(event)).map_err(|e| e.to_string())?;
    Ok(value.to_string())
}

/// An event: 8 bytes of common fields, and these.
fn event(words: &[u32], more: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 8];
    out.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    out.extend(more);
    out
}

/// The word of a location: offset and length.
fn at(offset: u32, len: u32) -> u32 {
    len << 16 | offset
}

#[test]
fn values() {
    for (field, event, expected) in [
        ("u8 a;offset:8;size:1;signed:0;", event(&[], b"\xff"), "255"),
        ("s8 a;offset:8;size:1;signed:1;", event(&[], b"\xff"), "-1"),
        (
            "short a;offset:8;size:2;signed:1;",
            event(&[], &(-2_i16).to_ne_bytes()),
            "-2",
        ),
        (
            "int a;offset:8;size:4;signed:1;",
            event(&[0x8000_0000], b""),
            "-2147483648",
        ),
        (
            "u64 a;offset:9;size:8;signed:0;",
            event(&[], &[&[0][..], &u64::MAX.to_ne_bytes()].concat()),
            "18446744073709551615",
        ),
        (
            "s64 a;offset:8;size:8;signed:1;",
            event(&[], &i64::MIN.to_ne_bytes()),
            "-9223372036854775808",
        ),
        (
            "char a[4];offset:8;size:4;signed:0;",
            event(&[], b"ab\0c"),
            "\"ab\"",
        ),
        (
            "char a[4];offset:8;size:4;signed:0;",
            event(&[], b"\x1b[2\""),
            "\"\\x1b[2\\\"\"",
        ),
        (
            "char a[];offset:8;size:0;signed:0;",
            event(&[], b"all\n"),
            "\"all\\n\"",
        ),
        (
            "char a[];offset:8;size:0;signed:0;",
            event(&[], b""),
            "\"\"",
        ),
        (
            "u32 a[2];offset:8;size:8;signed:0;",
            event(&[1, 2], b""),
            "{1,2}",
        ),
        (
            "__data_loc char[] a;offset:8;size:4;signed:0;",
            event(&[at(12, 3)], b"xy\0z"),
            "\"xy\"",
        ),
        (
            "__data_loc char[] a;offset:8;size:4;signed:0;",
            event(&[at(12, 0)], b""),
            "\"\"",
        ),
        (
            "__rel_loc char[] a;offset:8;size:4;signed:0;",
            event(&[at(1, 2)], b"xyz"),
            "\"yz\"",
        ),
        (
            "__data_loc u16[] a;offset:8;size:4;signed:0;",
            event(&[at(12, 5)], &[7, 7, 8, 8, 9]),
            "{1799,2056}",
        ),
        (
            "__rel_loc unsigned long[] mask;offset:8;size:4;signed:0;",
            event(&[at(0, 8)], &0x10f_u64.to_ne_bytes()),
            "0x000000000000010f",
        ),
        (
            "struct x a;offset:8;size:3;signed:0;",
            event(&[], b"\x01\x02\x03"),
            "010203",
        ),
    ] {
        assert_eq!(shown(field, &event).as_deref(), Ok(expected), "{field}");
    }
}

#[test]
fn events_that_are_too_short_or_lie() {
    for (field, event, says) in [
        (
            "u8 a;offset:8;size:1;signed:0;",
            event(&[], b""),
            "event, byte 8: a: the event ends at 8",
        ),
        (
            "u64 a;offset:8;size:8;signed:0;",
            event(&[1], b""),
            "event, byte 8: a: the event ends at 12",
        ),
        (
            "char a[];offset:9;size:0;signed:0;",
            event(&[], b""),
            "event, byte 9: a: the event ends at 8",
        ),
        (
            "__data_loc char[] a;offset:8;size:4;signed:0;",
            event(&[at(12, 1)], b""),
            "1 bytes at 12 of an event of 12",
        ),
        (
            "__data_loc char[] a;offset:8;size:4;signed:0;",
            event(&[u32::MAX], b""),
            "65535 bytes at 65535",
        ),
        (
            "__rel_loc char[] a;offset:8;size:4;signed:0;",
            event(&[u32::MAX], b""),
            "65535 bytes at 65547",
        ),
    ] {
        let error = shown(field, &event).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn typed() {
    let mut bytes = event(&[], b"");
    bytes[..2].copy_from_slice(&314_u16.to_ne_bytes());
    bytes[4..8].copy_from_slice(&(-7_i32).to_ne_bytes());
    let format = with("char a[];offset:8;size:0;signed:0;", "").unwrap();
    bytes.extend(b"text");
    let event = Bytes::from(&*bytes);
    let field = |name| format.field(name).unwrap();
    assert_eq!(field("common_type").unsigned(event), Some(314));
    assert_eq!(field("common_type").signed(event), Some(314));
    assert_eq!(field("common_pid").signed(event), Some(-7));
    assert_eq!(field("common_pid").unsigned(event), None);
    assert_eq!(field("a").text(event).as_deref(), Some(&b"text"[..]));
    assert_eq!(field("a").signed(event), None);
    assert_eq!(format.field("b"), None);
}
