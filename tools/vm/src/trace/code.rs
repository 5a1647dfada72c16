// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The kernel's code as it was when the trace began, in a file like `/proc/kcore`, and the changes since then.

use crate::error::{Error, OnFile, Result};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// Runs of pages that are at most this many bytes apart are in one segment, as perf makes a map for each segment.
const GAP: u64 = 1 << 24;

/// The offset of the first segment in the file. Like its address, the offset of each segment is at a page boundary.
const FRONT: u64 = 1 << 16;

/// A change of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Poke {
    /// The time at which the plugin saw it, in ticks of the guest's TSC.
    pub(super) when: u64,
    /// The address of the first changed byte.
    pub(super) address: u64,
    /// The bytes before the change.
    pub(super) old: Vec<u8>,
    /// The bytes after the change.
    pub(super) new: Vec<u8>,
}

impl Poke {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut word = || words.next();
        let poke = Self {
            when: u64::from_str_radix(word()?, 16).ok()?,
            address: u64::from_str_radix(word()?, 16).ok()?,
            old: bytes(word()?)?,
            new: bytes(word()?)?,
        };
        (poke.old.len() == poke.new.len()).then_some(poke)
    }
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok())
        .collect()
}

/// Reads the changes that the plugin has written, oldest first.
pub(super) fn pokes(path: &Path) -> Result<Vec<Poke>> {
    let text = fs::read_to_string(path).on("read", path)?;
    let all: Option<Vec<_>> = text.lines().map(Poke::parse).collect();
    all.ok_or_else(|| cut(path))
}

fn cut(path: &Path) -> Error {
    Error::Other(format!(
        "{} is incomplete: QEMU was ended, or the disk is full",
        path.display()
    ))
}

/// Code in runs of pages. Each has its address and its bytes. They are sorted by address.
#[derive(Debug, Default)]
pub(super) struct Code(Vec<(u64, Vec<u8>)>);

impl Code {
    /// Reads the image that the plugin has written.
    pub(super) fn read(image: &Path, list: &Path) -> Result<Self> {
        let pages = fs::read(image).on("read", image)?;
        let text = fs::read_to_string(list).on("read", list)?;
        let run = |line: &str| {
            let mut numbers = line.split(' ').map(|word| u64::from_str_radix(word, 16));
            let mut number = || numbers.next()?.ok();
            let (offset, len, address) = (number()?, number()?, number()?);
            let first = usize::try_from(offset).ok()?;
            let end = usize::try_from(offset.checked_add(len)?).ok()?;
            Some((address, pages.get(first..end)?.to_vec()))
        };
        let runs: Option<Vec<_>> = text.lines().map(run).collect();
        runs.map(Self).ok_or_else(|| cut(image))
    }

    /// Undoes these changes, the last one first.
    pub(super) fn undo(&mut self, pokes: &[Poke]) {
        for poke in pokes.iter().rev() {
            let run = self
                .0
                .partition_point(|(address, _)| *address <= poke.address);
            let Some((address, run)) = run.checked_sub(1).and_then(|run| self.0.get_mut(run))
            else {
                continue;
            };
            let at = usize::try_from(poke.address - *address).unwrap_or(usize::MAX);
            if let Some(place) = run
                .get_mut(at..)
                .and_then(|run| run.get_mut(..poke.old.len()))
            {
                place.copy_from_slice(&poke.old);
            }
        }
    }

    /// The segments that contain the code and the range `text`: the first address and the end of each.
    fn segments(&self, text: (u64, u64)) -> Vec<(u64, u64)> {
        let end =
            |(address, bytes): &(u64, Vec<u8>)| address + u64::try_from(bytes.len()).unwrap_or(0);
        let mut all: Vec<_> = self.0.iter().map(|run| (run.0, end(run))).collect();
        all.push(text);
        all.sort_unstable();
        let mut segments: Vec<(u64, u64)> = Vec::new();
        for (first, end) in all {
            match segments.last_mut() {
                Some((_, last)) if first <= last.saturating_add(GAP) => *last = end.max(*last),
                _ => segments.push((first, end)),
            }
        }
        segments
    }

    /// Writes the code in the format of `/proc/kcore`. `text` is the range of the kernel's text: perf needs all of it in one segment.
    pub(super) fn write(&self, path: &Path, text: (u64, u64)) -> Result<()> {
        let mut file = File::create(path).on("create", path)?;
        let mut offset = FRONT;
        let mut places = Vec::new();
        for (first, end) in self.segments(text) {
            places.push((first, end, offset));
            offset += (end - first).next_multiple_of(4096);
        }
        let count = u16::try_from(places.len()).unwrap_or(u16::MAX);
        let mut front = header(count);
        for (first, end, offset) in &places {
            front.extend(segment(*first, end - first, *offset));
        }
        file.write_all(&front).on("write", path)?;
        for (address, bytes) in &self.0 {
            let place = places
                .iter()
                .find(|(first, end, _)| (first..end).contains(&address));
            let Some((first, _, offset)) = place else {
                continue;
            };
            file.seek(SeekFrom::Start(offset + (address - first)))
                .on("write", path)?;
            file.write_all(bytes).on("write", path)?;
        }
        file.set_len(offset).on("write", path)
    }
}

/// The header of an ELF core file of x86-64 with this number of segments.
fn header(segments: u16) -> Vec<u8> {
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    for half in [4u16, 62] {
        out.extend(half.to_le_bytes());
    }
    out.extend(1u32.to_le_bytes());
    // No entry point, the program headers right after this header, no sections.
    for word in [0u64, 64, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(0u32.to_le_bytes());
    for half in [64, 56, segments, 0, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    out
}

/// The program header of a segment that can be read, written and executed.
fn segment(address: u64, len: u64, offset: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [1u32, 7] {
        out.extend(word.to_le_bytes());
    }
    for word in [offset, address, 0, len, len, 4096] {
        out.extend(word.to_le_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_undone_from_the_last_to_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        fs::write(file("image"), [vec![0x90; 4096], vec![0xcc; 4096]].concat()).unwrap();
        fs::write(
            file("list"),
            "0 1000 ffffffff81000000\n1000 1000 ffffffffc0000000\n",
        )
        .unwrap();
        fs::write(
            file("pokes"),
            "10 ffffffff81000002 0101 0202\n20 ffffffff81000003 0203 9090\n",
        )
        .unwrap();
        let pokes = pokes(&file("pokes")).unwrap();
        assert_eq!((pokes[1].when, &*pokes[1].old), (0x20, &[2, 3][..]));
        let mut code = Code::read(&file("image"), &file("list")).unwrap();
        code.undo(&pokes);
        assert_eq!(code.0[0].1[..6], [0x90, 0x90, 1, 1, 3, 0x90]);

        code.write(
            &file("kcore"),
            (0xffff_ffff_8100_0000, 0xffff_ffff_8100_3000),
        )
        .unwrap();
        let kcore = fs::read(file("kcore")).unwrap();
        let word = |at: usize| u64::from_le_bytes(*kcore[at..].first_chunk().unwrap());
        // Offset, address and length of the two segments.
        assert_eq!(
            [word(72), word(80), word(96)],
            [FRONT, 0xffff_ffff_8100_0000, 0x3000]
        );
        assert_eq!(
            [word(128), word(136), word(152)],
            [FRONT + 0x3000, 0xffff_ffff_c000_0000, 0x1000]
        );
        assert_eq!(kcore[0x1_0002], 1);
        assert_eq!((kcore.len(), kcore[0x1_3000]), (0x1_4000, 0xcc));
    }

    #[test]
    fn a_file_that_was_cut_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pokes");
        for text in [
            "10 ffffffff81000002 01",
            "10 ffffffff81000002 0101 02\n",
            "x\n",
        ] {
            fs::write(&path, text).unwrap();
            let why = pokes(&path).unwrap_err().to_string();
            assert!(why.contains("incomplete"), "{why}");
        }
    }
}
