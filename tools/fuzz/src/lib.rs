// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fuzz targets, one function each. A target may refuse its input. It must not panic, loop for ever, or take memory out of proportion
//! to the input.
//!
//! `make fuzz` runs the targets under libFuzzer. `tests/replay.rs` runs them on the stored corpus, without it.

use std::alloc::System;
use std::hint::black_box;
use std::io::Cursor;
use std::path::Path;
use std::sync::LazyLock;

use auxrec::control::{Channel, Lines};
use auxrec::delay::{Delay, Switch};
use auxrec::pmu::{Pmus, Term};
use auxrec::{size, target};
use auxview::{check, convert, dump, json, report};
use cap::Cap;
use perfdata::{Feature, Features, File, IndexEntry, RecordType, Stream};

mod device;
mod flamegraph;
mod program;
mod seeds;
mod trace_dat;
mod tracering;

pub use device::device;
pub use flamegraph::flamegraph;
pub use program::program;
pub use seeds::seeds;
pub use tracering::tracering;

/// Counts the allocated memory, and limits each input to [`allowance`].
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// A target: its name, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// Memory in bytes that the report of a problem, or a picture, takes for any input.
const BASE: usize = 4 << 20;

/// All targets.
pub const TARGETS: [Target; 9] = [
    ("file", file),
    ("recover", recover),
    ("check", check),
    ("convert", convert),
    ("text", text),
    ("device", device),
    ("program", program),
    ("flamegraph", flamegraph),
    ("tracering", tracering),
];

/// Maximum memory of an input of `len` bytes.
#[must_use]
pub fn allowance(len: usize) -> usize {
    64 * len + BASE
}

/// Runs a target on an input. An allocation beyond [`allowance`] fails, which ends the program.
///
/// # Panics
/// If the target does.
pub fn run(target: fn(&[u8]), input: &[u8]) {
    let limit = ALLOCATOR.allocated().saturating_add(allowance(input.len()));
    // The limit is never below the allocated memory, so it cannot be refused.
    let _ = ALLOCATOR.set_limit(limit);
    target(input);
    let _ = ALLOCATOR.set_limit(usize::MAX);
}

/// Defines the program of a target.
#[macro_export]
macro_rules! target {
    ($target:path) => {
        libfuzzer_sys::fuzz_target!(|input: &[u8]| $crate::run($target, input));
    };
}

/// Reads everything in a file, as a stream and in memory.
///
/// # Panics
/// If the two results differ.
pub fn file(input: &[u8]) {
    let file = match File::parse(input) {
        Ok(file) => file,
        Err(e) => {
            let error = Stream::open(Cursor::new(input)).err();
            assert_eq!(error.map(|e| e.to_string()), Some(e.to_string()));
            return;
        }
    };
    black_box(streamed(input, &file));
    for record in file.records().map_while(Result::ok) {
        assert!(file
            .record_at(IndexEntry {
                offset: record.offset,
                size: 8
            })
            .is_ok());
        let _ = black_box(file.decode(&record));
    }
    for section in file.features().iter().chain(file.spare()) {
        let _ = black_box(section.string());
        let _ = black_box(section.cmdline());
        let _ = black_box(section.pmu_mappings());
        let _ = black_box(section.events());
        let _ = black_box(section.sample_time());
        let _ = black_box(section.clock_data());
        let _ = black_box(section.notes());
        let _ = black_box(section.bpf_functions());
        if let Ok(index) = section.index() {
            for entry in index {
                let _ = black_box(file.record_at(entry));
            }
        }
    }
}

/// Reads a file as a stream, and compares it with the same file in memory. Returns the number of records, and of bytes of trace. [`None`]
/// if a record is invalid.
fn streamed(input: &[u8], file: &File<'_>) -> Option<(u64, u64)> {
    let mut stream = match Stream::open(Cursor::new(input)) {
        Ok(stream) => stream,
        Err(e) => panic!("it cannot be read as it comes: {e}"),
    };
    assert_eq!(stream.events(), file.events());
    assert_eq!(stream.is_finished(), file.is_finished());
    for section in file.features() {
        let read = stream.feature(section.feature);
        assert!(read.is_ok_and(|read| read.is_some_and(|read| read.bytes == section.bytes)));
    }
    let _ = black_box(stream.features());
    let (mut records, mut trace) = (0, 0);
    let mut portion = [0; 1000];
    for record in file.records() {
        let read = stream.record().map_err(|e| e.to_string());
        let record = match record {
            Ok(record) => record,
            Err(e) => {
                assert_eq!(read.err(), Some(e.to_string()));
                return None;
            }
        };
        let payload: &[u8] = &[];
        let expected = perfdata::Record { payload, ..record };
        assert_eq!(read.as_ref(), Ok(&Some(expected)));
        records += 1;
        let mut rest = record.payload;
        loop {
            let len = match stream.payload(&mut portion) {
                Ok(len) => len,
                Err(e) => panic!("a payload cannot be read: {e}"),
            };
            let (now, later) = rest.split_at(len.min(rest.len()));
            assert_eq!(&portion[..len], now);
            if len == 0 {
                assert!(later.is_empty());
                break;
            }
            rest = later;
        }
        trace += u64::try_from(record.payload.len()).unwrap_or(u64::MAX);
    }
    assert!(stream.record().is_ok_and(|record| record.is_none()));
    Some((records, trace))
}

/// Finishes a file. The result is a file whose records can all be read, in memory and as a stream, and whose index has all AUXTRACE
/// records. A file that is finished already does not change.
///
/// # Panics
/// If one of these is not true.
pub fn recover(input: &[u8]) {
    let mut bytes = Cursor::new(input.to_vec());
    let cut = |file: &mut Cursor<Vec<u8>>, len: u64| {
        file.get_mut()
            .truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    };
    let note = |features: &mut Features, _: &perfdata::Recovered| {
        features.notes(&[("ended", "recovered")]);
    };
    let Ok(found) = perfdata::recover(&mut bytes, note, cut, None) else {
        return;
    };
    if found.was_finished {
        assert_eq!(
            bytes.get_ref(),
            input,
            "a file that is finished is left alone"
        );
        return;
    }
    let out = bytes.get_ref().clone();
    let file = File::parse(&out).map_err(|e| e.to_string());
    let file = match file {
        Ok(file) => file,
        // Spare features that make no sense are no reason to lose the records.
        Err(e) => panic!("it cannot be read: {e}"),
    };
    let (mut records, mut trace) = (0, 0);
    for record in file.records() {
        match record {
            Ok(record) => trace += u64::try_from(record.payload.len()).unwrap_or(u64::MAX),
            Err(e) => panic!("a record cannot be read: {e}"),
        }
        records += 1;
    }
    assert_eq!(records, found.records);
    assert_eq!(streamed(&out, &file), Some((records, trace)));
    assert_eq!(
        file.feature(Feature::AUXTRACE)
            .map_or(0, |s| s.index().map_or(0, |i| i.len())),
        usize::try_from(found.pieces).unwrap_or(usize::MAX),
    );
}

/// Runs `auxrec check`, `report` and `dump` on a file.
pub fn check(input: &[u8]) {
    if let Ok(findings) = check::check(input) {
        black_box(findings.to_string());
        black_box(json::findings(&findings));
    }
    let _ = black_box(report::report(input, &mut std::io::sink()));
    let _ = black_box(dump::dump(input, &mut std::io::sink()));
    let _ = black_box(json::report(input));
    let _ = black_box(report::timeline(input));
}

/// Decompresses a file. The result is a perf.data file without compressed trace.
///
/// # Panics
/// If it is not.
pub fn convert(input: &[u8]) {
    let Ok(out) = convert::convert(input, Cursor::new(Vec::new()), None) else {
        return;
    };
    let out = out.into_inner();
    let file = match File::parse(&out) {
        Ok(file) => file,
        Err(e) => panic!("it cannot be read: {e}"),
    };
    for record in file.records() {
        let kind = record.map(|record| record.kind).map_err(|e| e.to_string());
        assert!(kind.is_ok_and(|kind| kind != RecordType::AUXTRACE_ZSTD));
    }
}

/// PMUs in a directory like that of sysfs.
static PMUS: LazyLock<Option<(tempfile::TempDir, Pmus)>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().ok()?;
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).ok()?;
        std::fs::write(path, text).ok()
    };
    write("pattern/type", "42\n")?;
    write("pattern/format/rate", "config:0-23\n")?;
    write("pattern/format/split", "config1:0-3,60-63\n")?;
    write("pattern/events/slow", "rate=0x40\n")?;
    let pmus = Pmus::at(dir.path());
    Some((dir, pmus))
});

/// Parses words of a command line, and files of sysfs. The first byte selects the parser.
///
/// # Panics
/// If a parser returns an impossible value.
pub fn text(input: &[u8]) {
    let Some((&which, bytes)) = input.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(bytes);
    match which {
        b's' => {
            let _ = black_box(size::parse_size(&text, 4096));
        }
        b'r' => {
            if let Ok(rings) = size::parse_rings(&text, 4096) {
                for size in [rings.data, rings.aux].into_iter().flatten() {
                    assert!(size.is_power_of_two() && size >= 4096, "{size}");
                }
            }
        }
        b'c' => {
            if let Ok(cpus) = target::parse_cpus(&text) {
                assert!(cpus.is_sorted() && !cpus.is_empty());
            }
        }
        b'i' => {
            let _ = black_box(target::parse_ids(&text));
        }
        b'd' => {
            if let Ok(delay) = Delay::parse(&text) {
                assert!(delay.steps().is_sorted_by_key(|(at, _)| *at));
            }
        }
        b'o' => {
            let _ = black_box(Switch::parse(&text));
        }
        b'h' => {
            let _ = black_box(Channel::parse(&text));
        }
        // Commands on a FIFO: the result is the same in whatever portions they come.
        b'l' => {
            let whole = Lines::default().feed(bytes);
            let mut lines = Lines::default();
            let pieces: Vec<_> = bytes.chunks(3).flat_map(|b| lines.feed(b)).collect();
            assert_eq!(whole, pieces);
        }
        b't' => {
            if let Some(term) = Term::parse(&text) {
                let max = term.max();
                assert!(term.put(0, max).is_some());
                assert_eq!(max.checked_add(1).and_then(|more| term.put(0, more)), None);
            }
        }
        _ => {
            if let Some((_, pmus)) = &*PMUS {
                if let Ok(spec) = pmus.event(&text) {
                    black_box(spec.attr());
                }
            }
        }
    }
}
