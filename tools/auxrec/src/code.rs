// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Generated code: code that no file has, from a JIT or written over by the program.
//!
//! A decoder needs the code as it was when it was executed. `soft_pt` reports such code by a tracepoint before it is executed, and then
//! restarts the trace with a later timestamp. [`Code`] stores each piece in a file beside the recording. It replaces the sample of the
//! tracepoint by an MMAP2 record: from this time on, that part of the file is mapped at that address. Stock perf decodes with these
//! records. The kernel's own records of executable anonymous memory would override them, so they are removed: the tracepoint reports all
//! code that is executed there.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use perfdata::{
    append, Attr, Event, FileId, Mmap2, Record, RecordType, Records, SampleId, SampleType,
};

use crate::error::{Error, Result};
use crate::pmu::Pmus;
use crate::sys;

/// The beginning of the file. The recorder does not overwrite a file that begins differently.
const MAGIC: &[u8; 16] = b"auxrec's code\n\0\0";

/// The tracepoint that reports generated code.
const TRACEPOINT: &str = "rust_stepping:rust_stepping_code";

const PROT_READ: u32 = 1;
const PROT_EXEC: u32 = 4;
const MAP_PRIVATE: u32 = 2;

/// Stores the code that a tracer reports.
#[derive(Debug)]
pub struct Code {
    attr: Attr,
    path: PathBuf,
    store: Mutex<Store>,
    /// The text of a file from the beginning of the page into which the trigger puts its breakpoint. A process then has its own copy of
    /// that page, and the tracer reports it. Code that is the same as in the file is left out: decoders find it there, with its symbols.
    probed: Vec<u8>,
}

#[derive(Debug, Default)]
struct Store {
    /// [`None`] until there is code to write.
    file: Option<File>,
    len: u64,
    /// Offset of each piece in the file.
    pieces: HashMap<Vec<u8>, u64>,
}

/// A sample of the tracepoint.
struct CodeSample<'a> {
    id: SampleId,
    address: u64,
    text: &'a [u8],
}

impl Code {
    /// Prepares to store code beside this recording; [`None`] if the tracepoint does not exist, or may not be used.
    ///
    /// # Errors
    /// If a file of this name exists, and the recorder has not written it.
    pub fn beside(output: &Path) -> Result<Option<Self>> {
        let Some(code) = Self::of(output) else {
            return Ok(None);
        };
        if !is_ours(&code.path) {
            return Err(Error::usage(format!(
                "code that the program generates would be written to {}, which is there and is none of the recorder's files: \
                 move it away, or choose another name with -o",
                code.path.display()
            )));
        }
        Ok(Some(code))
    }

    fn of(output: &Path) -> Option<Self> {
        let event = Pmus::symbol(TRACEPOINT, TRACEPOINT)?;
        let attr = Attr {
            sample_type: SampleType::RAW,
            sample_period: 1,
            ..event.attr()
        };
        let name = output.file_name()?;
        let mut file = OsString::from(name);
        file.push(".code");
        let dir = match output.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => fs::canonicalize(dir).ok()?,
            _ => std::env::current_dir().ok()?,
        };

        sys::Event::open(&attr, 0, -1).ok()?;
        Some(Self {
            attr,
            path: dir.join(file),
            store: Mutex::default(),
            probed: Vec::new(),
        })
    }

    /// Sets the text from the beginning of the page that has the trigger's breakpoint.
    pub(crate) fn set_probed(&mut self, text: Vec<u8>) {
        self.probed = text;
    }

    /// The attribute of the tracepoint's event.
    #[must_use]
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// Replaces the samples of the tracepoint, whose events have the ids `code`. The new records look as if the event `tracking` with the
    /// attribute `attr` had written them.
    ///
    /// # Errors
    /// If the bytes are no records, or the file cannot be written.
    pub(crate) fn replace(
        &self,
        bytes: &mut Vec<u8>,
        code: &[u64],
        tracking: u64,
        attr: &Attr,
    ) -> Result<()> {
        let is_code = |record: &Record<'_>| {
            record.kind == RecordType::SAMPLE
                && word(record.body, 0).is_some_and(|id| code.contains(&id))
        };
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = Vec::new();
        let mut rest = 0;
        let mut at = 0;
        for record in Records::new(bytes, 0) {
            let record = record?;
            let end = at + 8 + record.body.len();
            let is_code = is_code(&record);
            if is_code || is_anonymous(&record, attr)? {
                out.extend(bytes.get(rest..at).unwrap_or_default());
                rest = end;
            }
            let sample = CodeSample::parse(record.body, tracking).filter(|_| is_code);
            if let Some(sample) = sample.filter(|sample| !sample.is_of(&self.probed)) {
                self.add_mapping(&mut store, &sample, attr, &mut out)?;
            }
            at = end;
        }
        if rest != 0 {
            out.extend(bytes.get(rest..).unwrap_or_default());
            *bytes = out;
        }
        Ok(())
    }

    fn add_mapping(
        &self,
        store: &mut Store,
        sample: &CodeSample<'_>,
        attr: &Attr,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let pgoff = match store.pieces.get(sample.text) {
            Some(pgoff) => *pgoff,
            None => self.write(store, sample.text)?,
        };
        let map = Mmap2 {
            pid: sample.id.pid.unwrap_or(0),
            tid: sample.id.tid.unwrap_or(0),
            addr: sample.address,
            len: length(sample.text),
            pgoff,
            file: FileId::Inode {
                dev: (0, 0),
                ino: 0,
                generation: 0,
            },
            prot: PROT_READ | PROT_EXEC,
            flags: MAP_PRIVATE,
            filename: self.path.as_os_str().as_bytes(),
        };
        Ok(append(&map, Some((&sample.id, attr)), out)?)
    }

    /// Appends a piece to the file. Returns its offset.
    fn write(&self, store: &mut Store, text: &[u8]) -> Result<u64> {
        let failed = |e| {
            Error::failed(format!(
                "cannot write the code that a program generates to {}: {e}",
                self.path.display()
            ))
        };
        let file = match &mut store.file {
            Some(file) => file,
            none => {
                let mut options = File::options();
                // Only the user may read the memory of their programs.
                options.write(true).create(true).truncate(true).mode(0o600);
                let mut file = options.open(&self.path).map_err(failed)?;
                file.write_all(MAGIC).map_err(failed)?;
                store.len = length(MAGIC);
                none.insert(file)
            }
        };
        let at = store.len;
        file.write_all(text).map_err(failed)?;
        store.len += length(text);
        store.pieces.insert(text.to_vec(), at);
        Ok(at)
    }
}

impl<'a> CodeSample<'a> {
    /// Parses the body of a sample: identifier, address, process and thread, time, CPU, and the fields of the tracepoint.
    fn parse(body: &'a [u8], tracking: u64) -> Option<Self> {
        let half = |at| Some(u32::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let len = usize::try_from(half(40)?).ok()?;
        let raw = body.get(44..)?.get(..len)?;
        let place = u32::from_le_bytes(*raw.get(20..)?.first_chunk()?);
        let (start, len) = (place & 0xffff, place >> 16);

        Some(Self {
            id: SampleId {
                pid: Some(half(16)?),
                tid: Some(half(20)?),
                time: Some(word(body, 24)?),
                id: Some(tracking),
                stream_id: None,
                cpu: Some(half(32)?),
            },
            address: word(raw, 8)?,
            text: raw
                .get(usize::try_from(start).ok()?..)?
                .get(..usize::try_from(len).ok()?)?,
        })
    }
}

impl CodeSample<'_> {
    /// Whether the page that begins with these bytes has the same code at this address.
    fn is_of(&self, page: &[u8]) -> bool {
        let at = usize::try_from(self.address).unwrap_or(usize::MAX) % sys::page_size();
        page.get(at..)
            .is_some_and(|rest| rest.starts_with(self.text))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Whether there is no such file, or the recorder has written it.
fn is_ours(path: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    match File::open(path) {
        Ok(mut file) => file.read_exact(&mut magic).is_ok() && magic == *MAGIC,
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Whether this is the record of executable memory that has no file.
fn is_anonymous(record: &Record<'_>, attr: &Attr) -> Result<bool> {
    if record.kind != RecordType::MMAP2 {
        return Ok(false);
    }
    Ok(match record.event(attr)? {
        Event::Mmap2(map) => map.prot & PROT_EXEC != 0 && has_no_file(map.filename),
        _ => false,
    })
}

/// Whether the kernel gives this name to memory without a readable file.
fn has_no_file(name: &[u8]) -> bool {
    let prefixes = [
        &b"//anon"[..],
        b"[heap]",
        b"[stack",
        b"[anon",
        b"/memfd:",
        b"/dev/zero",
        b"/anon_hugepage",
        b"/SYSV",
    ];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test.

    use super::*;

    #[test]
    fn no_file_of_another_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.code");
        assert!(is_ours(&path));
        for (content, ours) in [
            (&b""[..], false),
            (b"auxrec", false),
            (b"auxrec's code of mine", false),
            (b"auxrec's code\n\0\0\x90", true),
        ] {
            fs::write(&path, content).unwrap();
            assert_eq!(is_ours(&path), ours, "{content:?}");
        }
        // A path that cannot be read does not count as the recorder's file.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(!is_ours(&path));
    }

    #[test]
    fn the_page_of_the_trigger_is_left_out() {
        let page = b"\x90\x55\xc3";
        for (address, text, is_of) in [
            (0x7000, &b"\x90"[..], true),
            (0x7001, b"\x55\xc3", true),
            (0x7001, b"\xcc", false),
            (0x7002, b"\xc3\x90", false),
            (0x7010, b"\x90", false),
        ] {
            let id = SampleId::default();
            let sample = CodeSample { id, address, text };
            assert_eq!(sample.is_of(page), is_of, "{address:#x} {text:x?}");
            assert!(!sample.is_of(&[]));
        }
    }

    #[test]
    fn anonymous_memory_has_no_file() {
        let names: [(&[u8], bool); 7] = [
            (b"//anon\0\0", true),
            (b"[heap]", true),
            (b"[vdso]", false),
            (b"/memfd:doublemapper (deleted)\0", true),
            (b"/usr/lib/libc.so.6", false),
            (b"/tmp/gone (deleted)\0\0\0", false),
            (b"/anonymous", false),
        ];
        for (name, expected) in names {
            let said = String::from_utf8_lossy(name);
            assert_eq!(has_no_file(name), expected, "{said}");
        }
    }
}
