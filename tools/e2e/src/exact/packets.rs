// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What libipt needs of a recording that stock perf made with `--kcore`: the packets of a CPU, and where in `kcore` which code is.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use auxrec::trace::Trace;
use clap::Args;
use object::{Object, ObjectSegment};
use perfdata::Event;

/// Which, and where they go.
#[derive(Args, Debug)]
pub struct Packets {
    /// The recording, a folder.
    recording: PathBuf,
    /// The CPU.
    cpu: u32,
    /// Where the files go: PREFIX.pt and PREFIX.list.
    prefix: PathBuf,
}

/// Writes them. A line of the list is where a part of `kcore` is in that file, its length, and its address: as in the list of the trace
/// unit.
pub fn write(asked: &Packets) -> Result<()> {
    let Packets {
        recording,
        cpu,
        prefix,
    } = asked;
    let read = |file| {
        let path = recording.join(file);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let data = read("data")?;
    let trace = Trace::read(&data)?;
    ensure!(trace.problems.is_empty(), "{:?}", trace.problems);
    for file in &trace.files {
        for record in file.records() {
            let (event, _) = file.decode(&record?)?;
            let changed = matches!(event, Event::TextPoke(..));
            ensure!(!changed, "the kernel has changed its code: {event:x?}");
        }
    }
    let of_cpu = trace.rings.values().filter(|ring| ring.cpu == Some(*cpu));
    let pieces = of_cpu.flat_map(|ring| &ring.pieces);
    let packets: Vec<_> = pieces.map(|piece| piece.bytes).collect();

    let kcore = read("kcore_dir/kcore")?;
    let kcore = object::File::parse(&kcore[..]).context("kcore is no ELF file")?;
    let mut list = String::new();
    for part in kcore.segments() {
        let (at, len) = part.file_range();
        writeln!(list, "{at:x} {len:x} {:x}", part.address())?;
    }
    fs::write(prefix.with_extension("pt"), packets.concat())?;
    fs::write(prefix.with_extension("list"), list)?;
    Ok(())
}
