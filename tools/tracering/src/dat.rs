// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes `trace.dat`, version 6, for trace-cmd and KernelShark: see trace-cmd.dat.v6(5).

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::error::{Error, Result};
use crate::events::{directories, Named};
use crate::header::PageHeader;
use crate::tracefs::Tracefs;

/// The constants `TRACECMD_OPTION_*` of trace-cmd.
mod option {
    pub const CPUSTAT: u16 = 2;
    pub const TRACECLOCK: u16 = 4;
    pub const UNAME: u16 = 5;
    pub const CPUCOUNT: u16 = 8;
    pub const VERSION: u16 = 9;
}

/// The part of a file in front of the events: a description of the machine, of the events and of the recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// Length of a sub-buffer, in bytes.
    pub page_size: usize,
    /// The text of `events/header_page`.
    pub header_page: String,
    /// The text of `events/header_event`.
    pub header_event: String,
    /// Formats of the events of the system `ftrace`.
    pub ftrace: Vec<String>,
    /// Names of the other systems, with the formats of their events.
    pub systems: Vec<(String, Vec<String>)>,
    /// Content of `/proc/kallsyms`.
    pub kallsyms: Vec<u8>,
    /// Content of `printk_formats`.
    pub printk_formats: Vec<u8>,
    /// Content of `saved_cmdlines`.
    pub cmdlines: Vec<u8>,
    /// Content of `trace_clock`, with the selected clock in brackets.
    pub clock: String,
    /// Content of `stats` of each CPU, after a line with the CPU's number.
    pub stats: Vec<String>,
    /// Operating system, host name, release and machine, as `uname` prints them.
    pub uname: String,
}

impl Head {
    /// Reads the head for these events of an instance. `top` is the top directory, which has the files that instances share. Call this
    /// after the recording: only then are the names of tasks and the counters complete.
    ///
    /// # Errors
    /// If a file of tracefs cannot be read.
    pub fn new<'a>(
        top: &Tracefs,
        tracefs: &Tracefs,
        events: impl IntoIterator<Item = &'a Named>,
        header: PageHeader,
    ) -> Result<Self> {
        let mut systems: Vec<(String, Vec<String>)> = Vec::new();
        for event in events {
            if event.system == "ftrace" {
                continue;
            }
            let known = systems.iter_mut().find(|(name, _)| *name == event.system);
            match known {
                Some((_, formats)) => formats.push(event.text.clone()),
                None => systems.push((event.system.clone(), vec![event.text.clone()])),
            }
        }
        let stats = tracefs.cpus()?.into_iter().map(|cpu| {
            let text = tracefs.read(tracefs.cpu_file(cpu, "stats"))?;
            Ok(format!("CPU: {cpu}\n{text}"))
        });
        let uname = rustix::system::uname();
        let uname = [
            uname.sysname(),
            uname.nodename(),
            uname.release(),
            uname.machine(),
        ];
        Ok(Self {
            page_size: header.subbuf_size(),
            header_page: tracefs.read("events/header_page")?,
            header_event: tracefs.read("events/header_event")?,
            ftrace: ftrace(top)?,
            systems,
            // A kernel may lack these files.
            kallsyms: fs::read("/proc/kallsyms").unwrap_or_default(),
            printk_formats: fs::read(top.path().join("printk_formats")).unwrap_or_default(),
            cmdlines: fs::read(top.path().join("saved_cmdlines")).unwrap_or_default(),
            clock: tracefs.read("trace_clock")?,
            stats: stats.collect::<Result<_>>()?,
            uname: uname.map(|part| part.to_string_lossy()).join(" "),
        })
    }
}

/// The formats of events that the kernel itself writes.
fn ftrace(top: &Tracefs) -> Result<Vec<String>> {
    let dir = top.path().join("events/ftrace");
    let mut formats = Vec::new();
    for event in directories(&dir)? {
        let path = dir.join(event).join("format");
        if path.exists() {
            formats.push(top.read(&path)?);
        }
    }
    Ok(formats)
}

/// Sub-buffers of a CPU.
#[derive(Debug)]
pub enum Data<R> {
    /// No sub-buffers.
    None,
    /// Sub-buffers to copy from a reader, and their length in bytes.
    Copied(R, u64),
    /// Sub-buffers that the file already has: `len` bytes at `at`, behind the head ([`head_len`]).
    There {
        /// Offset in the file: a multiple of the sub-buffer size.
        at: u64,
        /// Length: a multiple of the sub-buffer size.
        len: u64,
    },
}

impl<R> Data<R> {
    fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Copied(_, len) | Self::There { len, .. } => *len,
        }
    }
}

/// Writes the file. `cpus` has the sub-buffers of each CPU, from CPU 0.
///
/// # Errors
/// If the file cannot be written, or a part is too large for the format.
pub fn write<R: Read>(
    out: &mut (impl Write + Seek),
    head: &Head,
    cpus: &mut [Data<R>],
) -> Result<()> {
    let failed = |e: io::Error| Error::failed(format!("cannot write the file: {e}"));
    write_head(out, head, cpus.len()).map_err(failed)?;
    data(out, head, cpus).map_err(failed)
}

/// Length of the part of the file in front of the sub-buffers, for this number of CPUs.
///
/// # Errors
/// If a part is too large for the format.
pub fn head_len(head: &Head, cpus: usize) -> Result<u64> {
    let mut len = Length(0);
    let written = write_head(&mut len, head, cpus);
    written.map_err(|e| Error::failed(format!("cannot write the file: {e}")))?;
    Ok(len.0 + table_len(cpus))
}

fn table_len(cpus: usize) -> u64 {
    u64::try_from(cpus).map_or(u64::MAX, |cpus| 16 * cpus)
}

/// Counts the bytes written to it.
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += u64::try_from(bytes.len()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The part of the head that perf stores in the `HEADER_TRACING_DATA` section of its files, in version 0.6 of the format.
///
/// # Errors
/// If a part is too large for the format.
pub fn tracing_data(head: &Head) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let written = write_common(&mut out, "0.6", head);
    written.map_err(|e| Error::failed(format!("cannot describe the events: {e}")))?;
    Ok(out)
}

/// Writes the part that a `trace.dat` and perf's section have in common.
fn write_common(out: &mut impl Write, version: &str, head: &Head) -> io::Result<()> {
    out.write_all(b"\x17\x08\x44tracing")?;
    out.write_all(version.as_bytes())?;
    out.write_all(&[0])?;
    out.write_all(&[u8::from(cfg!(target_endian = "big")), long()])?;
    out.write_all(&word(head.page_size)?)?;
    out.write_all(b"header_page\0")?;
    sized(out, head.header_page.as_bytes())?;
    out.write_all(b"header_event\0")?;
    sized(out, head.header_event.as_bytes())?;
    out.write_all(&word(head.ftrace.len())?)?;
    for format in &head.ftrace {
        sized(out, format.as_bytes())?;
    }
    out.write_all(&word(head.systems.len())?)?;
    for (name, formats) in &head.systems {
        out.write_all(name.as_bytes())?;
        out.write_all(&[0])?;
        out.write_all(&word(formats.len())?)?;
        for format in formats {
            sized(out, format.as_bytes())?;
        }
    }
    for bytes in [&head.kallsyms, &head.printk_formats] {
        out.write_all(&word(bytes.len())?)?;
        out.write_all(bytes)?;
    }
    sized(out, &head.cmdlines)
}

fn write_head(out: &mut impl Write, head: &Head, cpus: usize) -> io::Result<()> {
    write_common(out, "6", head)?;
    out.write_all(&word(cpus)?)?;
    out.write_all(b"options  \0")?;
    let version = format!("tracering {}", env!("CARGO_PKG_VERSION"));
    for (number, text) in [
        (option::TRACECLOCK, &head.clock),
        (option::UNAME, &head.uname),
        (option::VERSION, &version),
    ] {
        let text = [text.as_bytes(), &[0]].concat();
        write_option(out, number, &text)?;
    }
    for text in &head.stats {
        write_option(out, option::CPUSTAT, &[text.as_bytes(), &[0]].concat())?;
    }
    write_option(out, option::CPUCOUNT, &word(cpus)?)?;
    out.write_all(&0_u16.to_ne_bytes())?;
    out.write_all(b"flyrecord\0")
}

fn data<R: Read>(
    out: &mut (impl Write + Seek),
    head: &Head,
    cpus: &mut [Data<R>],
) -> io::Result<()> {
    let page = u64::try_from(head.page_size).map_err(io::Error::other)?;
    let front = out.stream_position()? + table_len(cpus.len());
    // Copied sub-buffers follow those that the file already has.
    let mut end = front;
    for cpu in cpus.iter() {
        if let Data::There { at, len } = cpu {
            if *at < front {
                return Err(io::Error::other(format!(
                    "{front} bytes are before the events, and there is space for {at}"
                )));
            }
            end = end.max(at + len);
        }
    }
    let start = end.next_multiple_of(page.max(1));
    let mut next = start;
    for cpu in cpus.iter() {
        let at = match cpu {
            Data::There { at, .. } => *at,
            Data::Copied(..) | Data::None => next,
        };
        out.write_all(&at.to_ne_bytes())?;
        out.write_all(&cpu.len().to_ne_bytes())?;
        if let Data::Copied(_, len) = cpu {
            next += len;
        }
    }
    out.seek(SeekFrom::Start(start))?;
    for cpu in cpus {
        let Data::Copied(data, len) = cpu else {
            continue;
        };
        let copied = io::copy(&mut data.take(*len), out)?;
        if copied != *len {
            return Err(io::Error::other(format!(
                "a CPU has {copied} bytes, and not {len}"
            )));
        }
    }
    out.flush()
}

/// Length of a `long` of this program, in bytes.
fn long() -> u8 {
    if cfg!(target_pointer_width = "32") {
        4
    } else {
        8
    }
}

fn word(n: usize) -> io::Result<[u8; 4]> {
    let n = u32::try_from(n).map_err(|_| {
        io::Error::other(format!("{n} is more than a trace.dat can say of one part"))
    })?;
    Ok(n.to_ne_bytes())
}

fn sized(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let len = u64::try_from(bytes.len()).map_err(io::Error::other)?;
    out.write_all(&len.to_ne_bytes())?;
    out.write_all(bytes)
}

fn write_option(out: &mut impl Write, number: u16, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&number.to_ne_bytes())?;
    out.write_all(&word(bytes.len())?)?;
    out.write_all(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Cursor;

    use super::*;

    #[test]
    fn data_is_aligned_and_where_the_table_says() {
        let head = Head {
            page_size: 4096,
            header_page: "page".to_owned(),
            header_event: "event".to_owned(),
            ftrace: vec!["a".to_owned()],
            systems: vec![("sched".to_owned(), vec!["b".to_owned(), "c".to_owned()])],
            kallsyms: vec![1; 3],
            ..Head::default()
        };
        let pages = [vec![7_u8; 8192], Vec::new(), vec![9; 4096]];
        let mut cpus = pages
            .each_ref()
            .map(|page| Data::Copied(&**page, u64::try_from(page.len()).unwrap()));
        let mut out = Cursor::new(Vec::new());
        write(&mut out, &head, &mut cpus).unwrap();
        let bytes = out.into_inner();
        let at = bytes
            .windows(10)
            .position(|window| window == b"flyrecord\0")
            .unwrap();
        let table = bytes.get(at + 10..at + 10 + 48).unwrap();
        let numbers: Vec<_> = table
            .chunks(8)
            .map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap()))
            .collect();
        assert_eq!(numbers, [4096, 8192, 12288, 0, 12288, 4096]);
        assert_eq!(bytes.len(), 16384);
        assert!(bytes
            .get(4096..12288)
            .unwrap()
            .iter()
            .all(|byte| *byte == 7));
        assert!(bytes.get(12288..).unwrap().iter().all(|byte| *byte == 9));
    }

    #[test]
    fn data_that_is_short_is_an_error() {
        let mut cpus = [Data::Copied(&[0_u8; 10][..], 4096)];
        let mut out = Cursor::new(Vec::new());
        let error = write(&mut out, &Head::default(), &mut cpus).unwrap_err();
        assert!(
            error.to_string().contains("10 bytes, and not 4096"),
            "{error}"
        );
    }

    #[test]
    fn data_that_is_there_stays() {
        let head = Head {
            page_size: 4096,
            ..Head::default()
        };
        let front = head_len(&head, 3).unwrap();
        let mut file = Cursor::new(vec![7_u8; 16384]);
        let there = Data::There {
            at: 8192,
            len: 8192,
        };
        let mut cpus = [Data::Copied(&[9_u8; 4096][..], 4096), there, Data::None];
        write(&mut file, &head, &mut cpus).unwrap();
        let bytes = file.into_inner();
        let front = usize::try_from(front).unwrap();
        let numbers: Vec<_> = bytes[front - 48..front]
            .chunks(8)
            .map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap()))
            .collect();
        assert_eq!(numbers, [16384, 4096, 8192, 8192, 20480, 0]);
        assert_eq!(bytes.len(), 20480);
        assert!(bytes[front..16384].iter().all(|byte| *byte == 7));
        assert!(bytes[16384..].iter().all(|byte| *byte == 9));
    }

    #[test]
    fn a_head_without_space_is_an_error() {
        let head = Head {
            page_size: 1,
            ..Head::default()
        };
        let front = head_len(&head, 1).unwrap();
        for (at, fits) in [(front, true), (front - 1, false)] {
            let mut cpus = [Data::<&[u8]>::There { at, len: 1 }];
            let written = write(&mut Cursor::new(Vec::new()), &head, &mut cpus);
            assert_eq!(written.is_ok(), fits, "{written:?}");
        }
    }
}
