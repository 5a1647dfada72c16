// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Extracts the files that libipt needs from a recording by stock perf with `--kcore`: the packets of a CPU, and the places of the code in
//! files.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{bail, ensure, Context, Result};
use auxview::pieces::Pieces;
use auxview::trace::Trace;
use clap::Args;
use object::{Object, ObjectSegment};
use perfdata::{Event, Mmap2};

/// Which, and where they go.
#[derive(Args, Debug)]
pub struct Packets {
    /// The recording, a folder.
    recording: PathBuf,
    /// The CPU.
    cpu: u32,
    /// Where the files go: PREFIX.pt and PREFIX.parts.
    prefix: PathBuf,
}

/// Addresses of programs are below this one.
const KERNEL: u64 = 1 << 63;

/// Writes the files. A line of `PREFIX.parts` is an argument of `ptwalk`: a file, the offset and length of a part of it, and its address.
///
/// libipt does not get address spaces here. All processes must have the same code at each address, so addresses must not be random.
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
    let mut parts = Parts::default();
    let file = perfdata::File::parse(&data)?;
    for record in file.records() {
        match file.decode(&record?)?.0 {
            Event::Mmap2(map) => parts.map(&map)?,
            event @ Event::TextPoke(..) => {
                bail!("the kernel has changed its code: {event:x?}")
            }
            _ => {}
        }
    }
    let of_cpu = trace.rings.values().filter(|ring| ring.cpu == Some(*cpu));
    let files = [&data];
    let mut all = Pieces::of(&files);
    let mut packets = Vec::new();
    for piece in of_cpu.flat_map(|ring| &ring.pieces) {
        packets.extend(all.bytes(piece)?);
    }

    let kcore = read("kcore_dir/kcore")?;
    let kcore = object::File::parse(&kcore[..]).context("kcore is no ELF file")?;
    let name = recording.join("kcore_dir/kcore").display().to_string();
    for part in kcore.segments() {
        let (at, len) = part.file_range();
        parts.add(part.address(), len, name.clone(), at)?;
    }
    fs::write(prefix.with_extension("pt"), packets)?;
    fs::write(prefix.with_extension("parts"), parts.lines())?;
    Ok(())
}

/// Parts of files by their addresses: length, file, and offset in the file.
#[derive(Default)]
struct Parts(BTreeMap<u64, (u64, String, u64)>);

impl Parts {
    /// Adds a mapping of a process, if it is a program's code.
    fn map(&mut self, map: &Mmap2<'_>) -> Result<()> {
        let name = std::str::from_utf8(map.filename)?.trim_end_matches('\0');
        let executes = map.prot & 4 != 0;
        if executes && map.addr < KERNEL && name.starts_with('/') && !name.starts_with("//") {
            self.add(map.addr, map.len, name.to_owned(), map.pgoff)?;
        }
        Ok(())
    }

    fn add(&mut self, at: u64, len: u64, file: String, offset: u64) -> Result<()> {
        let part = (len, file, offset);
        let end = at.saturating_add(len);
        let before = self.0.range(..end).next_back();
        let overlaps = before.filter(|(other, part)| other.saturating_add(part.0) > at);
        match overlaps {
            Some((other, there)) if (*other, there) != (at, &part) => bail!(
                "{} is at {other:#x}, and {} at {at:#x} where that is",
                there.1,
                part.1
            ),
            _ => self.0.insert(at, part),
        };
        Ok(())
    }

    fn lines(&self) -> String {
        let line = |(at, (len, file, offset)): (_, &(_, String, _))| {
            format!("{file}:{offset:x}:{len:x}:{at:x}\n")
        };
        self.0.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_are_not_at_one_address() {
        let mut parts = Parts::default();
        let mut add = |at, len, file: &str| parts.add(at, len, file.to_owned(), 0x30).is_ok();
        assert!(add(0x2000, 0x1000, "/a"));
        assert!(add(0x1000, 0x1000, "/b"));
        assert!(add(0x3000, 0x1000, "/b"));
        // The same mapping in another process.
        assert!(add(0x2000, 0x1000, "/a"));
        for (at, len, file) in [
            (0x2000, 0x1000, "/b"),
            (0x2000, 0x800, "/a"),
            (0x1800, 0x1000, "/c"),
            (0x2800, 0x100, "/c"),
            (0x500, 0x4000, "/c"),
        ] {
            assert!(!add(at, len, file), "{at:x}");
        }
        let lines = "/b:30:1000:1000\n/a:30:1000:2000\n/b:30:1000:3000\n";
        assert_eq!(parts.lines(), lines);
    }
}
