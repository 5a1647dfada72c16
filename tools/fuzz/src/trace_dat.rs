// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads files `trace.dat` that tracering has written, after trace-cmd.dat.v6(5).

use std::io::Cursor;

use ::tracering::dat::{self, Data, Head};

/// The content of a file, from an input: texts that tracefs may have, and sub-buffers of some CPUs.
struct Asked<'a> {
    head: Head,
    /// For each CPU: whether its sub-buffers are in the file already, and their bytes.
    cpus: Vec<(bool, Vec<u8>)>,
    /// Whether the sub-buffers in the file overlap the head, which is an error.
    early: bool,
    /// Whether copied sub-buffers are shorter than their length, which is an error.
    short: bool,
    texts: Vec<&'a [u8]>,
}

impl<'a> Asked<'a> {
    fn new(input: &'a [u8]) -> Option<Self> {
        let (&[flags, sizes, kinds, pages], texts) = input.split_first_chunk()?;
        let texts: Vec<_> = texts.split(|byte| *byte == 0).collect();
        let text = |n: usize| texts.get(n).copied().unwrap_or_default();
        let string = |n| String::from_utf8_lossy(text(n)).into_owned();
        let page_size = [8, 512, 4096, 65536][usize::from(sizes % 4)];
        let count = usize::from(sizes / 4 % 5);
        let system = (string(9), vec![string(10), string(11)]);
        let head = Head {
            page_size,
            header_page: string(0),
            header_event: string(1),
            ftrace: (2..4).map(string).collect(),
            systems: vec![system; usize::from(flags / 4 % 3)],
            kallsyms: text(4).to_vec(),
            printk_formats: text(5).to_vec(),
            cmdlines: text(6).to_vec(),
            clock: string(7),
            stats: (0..count).map(|_| string(8)).collect(),
            uname: string(12),
        };
        let cpus = (0..count).map(|cpu| {
            let there = kinds >> cpu & 1 != 0;
            let len = usize::from(pages >> (2 * cpu).min(6) & 3).min(2) * page_size;
            let byte = u8::try_from(cpu + 1).unwrap_or(0);
            (there, vec![byte; len.min(1 << 16)])
        });
        let mut cpus: Vec<_> = cpus.collect();
        // The file of one CPU can become the whole file.
        let first = cpus.iter().position(|(there, _)| *there);
        for (cpu, (there, _)) in cpus.iter_mut().enumerate() {
            *there = first == Some(cpu);
        }
        Some(Self {
            head,
            cpus,
            early: flags & 1 != 0,
            short: flags & 2 != 0,
            texts,
        })
    }
}

/// A file that is read from the front.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: u64) -> &'a [u8] {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (part, rest) = self.0.split_at(len);
        self.0 = rest;
        part
    }

    fn number(&mut self, len: u64) -> u64 {
        let mut bytes = [0; 8];
        let part = self.take(len);
        bytes[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(bytes)
    }

    /// A part after its length, which is a number of `len` bytes.
    fn sized(&mut self, len: u64) -> &'a [u8] {
        let len = self.number(len);
        self.take(len)
    }

    fn exact(&mut self, bytes: &[u8]) {
        assert_eq!(self.take(u64::try_from(bytes.len()).unwrap_or(0)), bytes);
    }

    /// Checks the part that the file and perf's section TRACING_DATA have in common.
    fn common(&mut self, version: &str, head: &Head) {
        self.exact(b"\x17\x08\x44tracing");
        self.exact(version.as_bytes());
        self.exact(&[0, 0, 8]);
        assert_eq!(self.number(4), u64::try_from(head.page_size).unwrap_or(0));
        self.exact(b"header_page\0");
        assert_eq!(self.sized(8), head.header_page.as_bytes());
        self.exact(b"header_event\0");
        assert_eq!(self.sized(8), head.header_event.as_bytes());
        assert_eq!(self.number(4), 2);
        for format in &head.ftrace {
            assert_eq!(self.sized(8), format.as_bytes());
        }
        let systems = self.number(4);
        assert_eq!(usize::try_from(systems).ok(), Some(head.systems.len()));
        for (name, formats) in &head.systems {
            self.exact(name.as_bytes());
            self.exact(&[0]);
            assert_eq!(self.number(4), 2);
            for format in formats {
                assert_eq!(self.sized(8), format.as_bytes());
            }
        }
        assert_eq!(self.sized(4), head.kallsyms);
        assert_eq!(self.sized(4), head.printk_formats);
        assert_eq!(self.sized(8), head.cmdlines);
    }
}

/// Writes a file, and reads it.
///
/// # Panics
/// If the file does not have what was written, or an invalid file is written.
pub(crate) fn trace_dat(input: &[u8]) {
    let Some(asked) = Asked::new(input) else {
        return;
    };
    let Asked { head, cpus, .. } = &asked;
    // Nothing of the input is too long for a file.
    let section = dat::tracing_data(head).unwrap_or_default();
    let mut rest = Rest(&section);
    rest.common("0.6", head);
    assert!(rest.0.is_empty());

    let front = dat::head_len(head, cpus.len()).unwrap_or_default();
    let page = u64::try_from(head.page_size).unwrap_or(1);
    let at = match asked.early {
        true => (front - 1) / page * page,
        false => front.next_multiple_of(page),
    };
    let mut file = vec![0; usize::try_from(at).unwrap_or(0)];
    let mut data = Vec::new();
    let mut wrong = false;
    for (there, bytes) in cpus {
        let len = u64::try_from(bytes.len()).unwrap_or(0);
        data.push(match there {
            true => {
                file.extend(bytes);
                wrong |= asked.early;
                Data::There { at, len }
            }
            false => {
                let cut = usize::from(asked.short).min(bytes.len());
                wrong |= cut != 0;
                Data::Copied(&bytes[cut..], len)
            }
        });
    }
    let mut out = Cursor::new(file);
    let written = dat::write(&mut out, head, &mut data);
    assert_eq!(written.is_err(), wrong, "{written:?}: {:?}", asked.texts);
    if !wrong {
        read(out.get_ref(), front, head, cpus);
    }
}

fn read(bytes: &[u8], front: u64, head: &Head, cpus: &[(bool, Vec<u8>)]) {
    let mut rest = Rest(bytes);
    rest.common("6", head);
    assert_eq!(usize::try_from(rest.number(4)).ok(), Some(cpus.len()));
    rest.exact(b"options  \0");
    let mut stats = 0;
    loop {
        let (option, text) = match rest.number(2) {
            0 => break,
            option => (option, rest.sized(4)),
        };
        match option {
            // TRACECMD_OPTION_CPUSTAT, TRACECLOCK, UNAME: C strings.
            2 => {
                assert_eq!(text, [head.stats[stats].as_bytes(), &[0]].concat());
                stats += 1;
            }
            4 => assert_eq!(text, [head.clock.as_bytes(), &[0]].concat()),
            5 => assert_eq!(text, [head.uname.as_bytes(), &[0]].concat()),
            _ => {}
        }
    }
    assert_eq!(stats, head.stats.len());
    rest.exact(b"flyrecord\0");
    let mut before = front;
    let mut places = Vec::new();
    for (_, expected) in cpus {
        let (at, len) = (rest.number(8), rest.number(8));
        let part = Rest(bytes)
            .0
            .get(usize::try_from(at).unwrap_or(usize::MAX)..);
        let part = part.and_then(|part| part.get(..expected.len()));
        assert!(len == 0 || part == Some(expected), "{len} bytes at {at}");
        assert_eq!(usize::try_from(len).ok(), Some(expected.len()));
        if len != 0 {
            places.push((at, len));
        }
    }
    let table = u64::try_from(bytes.len() - rest.0.len()).unwrap_or(0);
    assert_eq!(table, front);
    // No part overlaps another one or the head. Each begins at a multiple of the size of a sub-buffer, because trace-cmd maps it.
    places.sort_unstable();
    for (at, len) in places {
        assert!(before <= at && at % u64::try_from(head.page_size).unwrap_or(1) == 0);
        before = at + len;
    }
}

/// Some valid inputs, and two invalid ones.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let texts = b"\tfield: u64 timestamp;\0\ttype_len : 5 bits\0name: a\0name: b\0c0 T _text\0\"%s\"\x0012 init\0[local]\0CPU: 0\0\
        sched\0name: sched_switch\0name: sched_waking\0Linux";
    let seed = |options: [u8; 4]| [&b"d"[..], &options, texts].concat();
    vec![
        seed([0, 2 + 4 * 2, 0, 0b1001]),
        seed([4, 2 + 4 * 4, 0b0100, 0b0110_0110]),
        seed([8, 4, 1, 1]),
        seed([5, 3 + 4 * 2, 2, 0b0101]),
        seed([6, 1 + 4 * 3, 4, 0b10_0101]),
        seed([0, 0, 0, 0]),
    ]
}
