// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A long recording needs no more memory than a short one. The test counts what the whole process allocates, so it is alone.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{BufReader, BufWriter};

use peak_alloc::PeakAlloc;
use perfdata::{recover, Attr, Auxtrace, Features, FinishedRound, OpenSpillFile, Stream, Writer};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Number of pieces of trace in two hours, at 60 a second. The index has 16 bytes for each.
const PIECES: u64 = 2 * 60 * 60 * 60;
/// Limit of the memory in bytes: less than a third of that index.
const MAX: usize = 2 << 20;

/// The most memory, in bytes, that `what` has allocated at a time.
fn peak<T>(what: impl FnOnce() -> T) -> (T, usize) {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let done = what();
    (done, MEMORY.peak_usage() - before)
}

fn spill_file() -> OpenSpillFile {
    Box::new(|| Ok(Box::new(tempfile::tempfile()?)))
}

/// Writes all pieces into a file.
fn write(file: &File, spill_file: Option<OpenSpillFile>) -> Writer<BufWriter<&File>> {
    let events = [(Attr::default(), vec![1])];
    let mut writer = Writer::new(BufWriter::new(file), &events).unwrap();
    if let Some(make) = spill_file {
        writer.spill_index_to(make);
    }
    for n in 0..PIECES {
        let aux = Auxtrace {
            size: 8,
            offset: n * 8,
            ..Auxtrace::default()
        };
        writer.auxtrace(&aux).unwrap();
        writer.payload(&n.to_le_bytes()).unwrap();
        writer.record(&FinishedRound, None).unwrap();
    }
    writer
}

/// Reads the index, and some of the pieces that it lists.
fn read(file: &File) {
    let mut index = Vec::new();
    let mut stream = Stream::found(BufReader::new(file)).unwrap();
    stream.index(|entry| index.push(entry.offset)).unwrap();
    assert_eq!(u64::try_from(index.len()).unwrap(), PIECES);
    for (n, at) in (0..PIECES).zip(index).step_by(997) {
        stream.go_to(at).unwrap();
        stream.record().unwrap().unwrap();
        let mut trace = [0; 8];
        assert_eq!(stream.payload(&mut trace).unwrap(), 8);
        assert_eq!(u64::from_le_bytes(trace), n);
    }
}

#[test]
fn a_long_recording_takes_no_more_memory_than_a_short_one() {
    let file = tempfile::tempfile().unwrap();
    let (_, max) = peak(|| {
        let mut writer = write(&file, Some(spill_file()));
        writer.try_finish(&Features::new()).unwrap();
    });
    assert!(max < MAX, "recording has taken {max} bytes");
    read(&file);

    // Recovery takes no more memory, either.
    let mut killed = tempfile::tempfile().unwrap();
    let mut writer = write(&killed, Some(spill_file()));
    writer.checkpoint().unwrap();
    writer.into_inner().into_inner().unwrap();
    let cut = |file: &mut File, len| file.set_len(len);
    let (found, max) = peak(|| recover(&mut killed, |_, _| {}, cut, Some(spill_file())).unwrap());
    assert!(max < MAX, "recovery has taken {max} bytes");
    assert_eq!(found.pieces, PIECES);
    read(&killed);

    // Without a spill file the index stays in memory.
    let file = tempfile::tempfile().unwrap();
    let (_, max) = peak(|| write(&file, None));
    assert!(max > 2 * MAX, "only {max} bytes were counted");
}
