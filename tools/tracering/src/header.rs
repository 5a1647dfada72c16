// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The header of a sub-buffer, which `events/header_page` and `events/header_event` describe.

use crate::error::{Error, Result};
use crate::text::declarations;

const PAGE: &str = "events/header_page";
const EVENT: &str = "events/header_event";

/// Maximum length of a header that is accepted, in bytes.
const MAX_HEADER: usize = 64;
/// Maximum length of a sub-buffer, in bytes: a commit has 20 bits for the size.
pub(crate) const MAX_SUBBUF: usize = 1 << 20;

/// The layout of `struct buffer_data_page`.
///
/// It depends on the kernel's word size, not on that of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    /// Offset of `time_stamp`, which has 8 bytes.
    pub time_stamp: usize,
    /// Offset of `commit`.
    pub commit: usize,
    /// Length of `commit`, that of a `long` of the kernel: 4 or 8 bytes.
    pub commit_len: usize,
    /// Offset of the first event.
    pub data: usize,
    /// Number of bytes of events that a sub-buffer holds.
    pub capacity: usize,
}

impl PageHeader {
    /// The header of a kernel with `long`s of `long` bytes (4 or 8), and sub-buffers of `subbuf_size` bytes.
    #[must_use]
    pub fn new(long: usize, subbuf_size: usize) -> Self {
        Self {
            time_stamp: 0,
            commit: 8,
            commit_len: long,
            data: 8 + long,
            capacity: subbuf_size.saturating_sub(8 + long),
        }
    }

    /// Reads the text of `header_page`.
    ///
    /// # Errors
    /// If a field is missing, or its offset or size is not valid.
    pub fn parse(text: &str) -> Result<Self> {
        let (mut time_stamp, mut commit, mut data) = (None, None, None);
        for line in declarations(PAGE, text)? {
            let slot = match line.name() {
                "timestamp" => &mut time_stamp,
                "commit" => &mut commit,
                "data" => &mut data,
                _ => continue,
            };
            if slot.replace(line).is_some() {
                return Err(Error::malformed(PAGE, line.at, "a field comes twice"));
            }
        }
        let missing = |name| move || Error::malformed(PAGE, text.len(), format!("no field {name}"));
        let time_stamp = time_stamp.ok_or_else(missing("timestamp"))?;
        let commit = commit.ok_or_else(missing("commit"))?;
        let data = data.ok_or_else(missing("data"))?;
        if time_stamp.size != 8 {
            let why = format!("timestamp has {} bytes, not 8", time_stamp.size);
            return Err(Error::malformed(PAGE, time_stamp.at, why));
        }
        if ![4, 8].contains(&commit.size) {
            let why = format!("commit has {} bytes, not 4 or 8", commit.size);
            return Err(Error::malformed(PAGE, commit.at, why));
        }
        // Each number is below 2^32, so the sums cannot overflow.
        let (first, second) = if time_stamp.offset < commit.offset {
            (time_stamp, commit)
        } else {
            (commit, time_stamp)
        };
        let ends = [first.offset + first.size, second.offset + second.size];
        if ends[0] > second.offset || ends[1] > data.offset || data.offset > MAX_HEADER {
            return Err(Error::malformed(PAGE, data.at, "fields overlap"));
        }
        if data.offset % 4 != 0 || data.size == 0 || data.offset + data.size > MAX_SUBBUF {
            let why = format!("no data of {} bytes from {} on", data.size, data.offset);
            return Err(Error::malformed(PAGE, data.at, why));
        }
        Ok(Self {
            time_stamp: time_stamp.offset,
            commit: commit.offset,
            commit_len: commit.size,
            data: data.offset,
            capacity: data.size,
        })
    }

    /// Length of a sub-buffer including its header, in bytes.
    #[must_use]
    pub fn subbuf_size(&self) -> usize {
        self.data + self.capacity
    }
}

/// Checks that `header_event` describes the event format that this crate reads. No kernel has another one so far.
///
/// # Errors
/// If a value is missing, or is not the expected one.
pub fn check_event_header(text: &str) -> Result<()> {
    const KNOWN: [(&str, &str); 7] = [
        ("type_len", "5 bits"),
        ("time_delta", "27 bits"),
        ("array", "32 bits"),
        ("padding", "type == 29"),
        ("time_extend", "type == 30"),
        ("time_stamp", "type == 31"),
        ("data max type_len", "28"),
    ];
    for (name, expected) in KNOWN {
        let found = text.lines().find_map(|line| {
            let line = line.trim().strip_prefix(name)?.trim_start();
            Some(line.strip_prefix(':').or(line.strip_prefix("=="))?.trim())
        });
        let at = found.map_or(text.len(), |found| crate::text::offset_in(text, found));
        if found != Some(expected) {
            let found = found.unwrap_or("missing");
            let why = format!("{name} is {found}, not {expected}");
            return Err(Error::malformed(EVENT, at, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const X86_64: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: char overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";
    const EVENTS: &str =
        "# compressed entry header\n\ttype_len    :    5 bits\n\ttime_delta  :   27 bits\n\
        \tarray       :   32 bits\n\n\tpadding     : type == 29\n\ttime_extend : type == 30\n\
        \ttime_stamp : type == 31\n\tdata max type_len  == 28\n";

    #[test]
    fn headers_of_both_word_sizes() {
        assert_eq!(PageHeader::parse(X86_64).unwrap(), PageHeader::new(8, 4096));
        let arm = X86_64
            .replace("commit;\toffset:8;\tsize:8", "commit;\toffset:8;\tsize:4")
            .replace("offset:16;\tsize:4080", "offset:12;\tsize:4084");
        assert_eq!(PageHeader::parse(&arm).unwrap(), PageHeader::new(4, 4096));
        let big = X86_64.replace("4080", "65520");
        assert_eq!(PageHeader::parse(&big).unwrap().subbuf_size(), 65536);
    }

    #[test]
    fn headers_that_cannot_be() {
        for (from, to, says) in [
            ("timestamp", "time", "byte 199: no field timestamp"),
            ("commit", "commits", "byte 199: no field commit"),
            ("data", "date", "byte 199: no field data"),
            ("overwrite", "commit", "byte 106: a field comes twice"),
            (
                "size:8;\tsigned:0",
                "size:4;\tsigned:0",
                "byte 8: timestamp has 4 bytes, not 8",
            ),
            (
                "size:8;\tsigned:1",
                "size:2;\tsigned:1",
                "byte 57: commit has 2 bytes, not 4 or 8",
            ),
            ("offset:16", "offset:12", "fields overlap"),
            ("offset:16", "offset:4294967295", "fields overlap"),
            ("offset:0", "offset:4", "fields overlap"),
            ("4080", "0", "no data of 0 bytes from 16 on"),
            ("4080", "1048576", "no data of 1048576 bytes"),
            (
                "4080",
                "99999999999",
                "byte 167: size: 99999999999 is no number",
            ),
            ("offset:16;", "", "no offset"),
        ] {
            let text = X86_64.replacen(from, to, 1);
            assert_ne!(text, X86_64);
            let error = PageHeader::parse(&text).unwrap_err().to_string();
            let says = says.trim_start_matches(char::is_whitespace);
            let what = says.split_once(": ").map_or(says, |(_, what)| what);
            assert!(error.contains(what), "{from} -> {to}: {error}");
        }
        assert!(PageHeader::parse("").is_err());
    }

    #[test]
    fn event_headers() {
        check_event_header(EVENTS).unwrap();
        for (from, to) in [
            ("5 bits", "6 bits"),
            ("30", "29"),
            ("== 28", "== 20"),
            ("array", "a"),
        ] {
            let error = check_event_header(&EVENTS.replace(from, to)).unwrap_err();
            assert!(error.to_string().starts_with("events/header_event, byte "));
        }
    }
}
