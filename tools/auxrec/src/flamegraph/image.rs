// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The files that programs have mapped: their text, and where their functions are.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ObjectSymbol, SymbolKind};

use crate::error::{Error, Result};

/// A file's text. Offsets count from the beginning of the file.
#[derive(Debug)]
pub(super) struct Image {
    /// What it is called for people.
    pub(super) name: String,
    text: Vec<(u64, Vec<u8>)>,
    /// Sorted, and none reaches into the next.
    functions: Vec<(Range<u64>, String)>,
}

impl Image {
    /// Reads what was mapped from `path`, below `root`. `build_id` is what the kernel found there, if it looked.
    pub(super) fn read(path: &str, root: &Path, build_id: Option<&[u8]>) -> Result<Self> {
        let place = below(root, path);
        let shown = place.display();
        let why = |e: &dyn std::fmt::Display| {
            Error::failed(format!(
                "the trace needs the code of {shown}, which cannot be read: {e}; report where it was recorded, or give --symfs a directory that has it"
            ))
        };
        // Whatever else it is might not end.
        if !fs::metadata(&place).map_err(|e| why(&e))?.is_file() {
            return Err(why(&"it is no regular file"));
        }
        let bytes = fs::read(&place).map_err(|e| why(&e))?;
        let image = Self::parse(base_name(path), &bytes).map_err(|e| why(&e))?;
        let found = object::File::parse(bytes.as_slice())
            .ok()
            .and_then(|file| file.build_id().ok().flatten().map(<[u8]>::to_vec));
        // The kernel's may be cut, or filled up.
        let same = |a: &[u8], b: &[u8]| a.iter().zip(b).all(|(a, b)| a == b);
        match (build_id, found) {
            (Some(traced), Some(found)) if !same(traced, &found) => Err(Error::failed(format!(
                "{shown} is not the file that was traced: its build-id is {}, that was {}; give --symfs a directory that has it",
                hex(&found),
                hex(traced)
            ))),
            _ => Ok(image),
        }
    }

    /// This kernel's vDSO, which has no file.
    pub(super) fn vdso() -> Option<Self> {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let (start, end) = maps
            .lines()
            .find(|line| line.ends_with("[vdso]"))?
            .split_once(' ')?
            .0
            .split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
        let mut memory = fs::File::open("/proc/self/mem").ok()?;
        memory.seek(SeekFrom::Start(start)).ok()?;
        memory.read_exact(&mut bytes).ok()?;
        Self::parse("[vdso]", &bytes).ok()
    }

    fn parse(name: &str, bytes: &[u8]) -> object::Result<Self> {
        let segments = match object::FileKind::parse(bytes)? {
            object::FileKind::Elf32 => segments::<elf::FileHeader32<object::Endianness>>(bytes)?,
            _ => segments::<elf::FileHeader64<object::Endianness>>(bytes)?,
        };
        let file = object::File::parse(bytes)?;
        let mut functions: Vec<_> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| {
                // Code of assemblers' often has no type.
                matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown)
                    && symbol.is_definition()
            })
            .filter_map(|symbol| {
                let at = segments
                    .iter()
                    .find_map(|segment| segment.offset(symbol.address()))?;
                let name = symbol.name().ok().filter(|name| !name.is_empty())?;
                Some((
                    at..at.saturating_add(symbol.size()),
                    symbol.is_global(),
                    name,
                ))
            })
            .collect();
        // Of several names for one place a global one that has a length, and of these the shortest.
        functions.sort_by_key(|(at, global, name)| {
            (at.start, at.is_empty(), !global, name.len(), *name)
        });
        functions.dedup_by_key(|(at, ..)| at.start);
        let ends: Vec<_> = functions.iter().skip(1).map(|(at, ..)| at.start).collect();
        let functions = functions
            .iter()
            .zip(ends.into_iter().map(Some).chain([None]))
            .map(|((at, _, name), next)| {
                let next = next.unwrap_or(u64::MAX);
                let end = if at.is_empty() {
                    next
                } else {
                    at.end.min(next)
                };
                (at.start..end, readable(name))
            })
            .collect();
        let text = segments
            .iter()
            .filter(|segment| segment.executable)
            .filter_map(|segment| {
                let start = usize::try_from(segment.file.start).ok()?;
                let end = usize::try_from(segment.file.end).ok()?.min(bytes.len());
                Some((segment.file.start, bytes.get(start..end)?.to_vec()))
            })
            .collect();
        Ok(Self {
            name: name.to_owned(),
            text,
            functions,
        })
    }

    /// What stands at `offset`, up to the end of the segment.
    pub(super) fn text(&self, offset: u64) -> Option<&[u8]> {
        self.text.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(at..).filter(|rest| !rest.is_empty())
        })
    }

    /// The function that `offset` is in, and where it is.
    pub(super) fn function(&self, offset: u64) -> Option<(&Range<u64>, &str)> {
        let after = self.functions.partition_point(|(at, _)| at.start <= offset);
        let (at, name) = self.functions.get(after.checked_sub(1)?)?;
        at.contains(&offset).then_some((at, name))
    }

    /// Where the next function behind `offset` begins.
    pub(super) fn next_function(&self, offset: u64) -> Option<u64> {
        let after = self.functions.partition_point(|(at, _)| at.start <= offset);
        self.functions.get(after).map(|(at, _)| at.start)
    }
}

/// What a program header says.
struct Segment {
    file: Range<u64>,
    address: u64,
    executable: bool,
}

impl Segment {
    fn offset(&self, address: u64) -> Option<u64> {
        let at = self
            .file
            .start
            .checked_add(address.checked_sub(self.address)?)?;
        self.file.contains(&at).then_some(at)
    }
}

fn segments<F: FileHeader<Endian = object::Endianness>>(
    bytes: &[u8],
) -> object::Result<Vec<Segment>> {
    let header = F::parse(bytes)?;
    let endian = header.endian()?;
    Ok(header
        .program_headers(endian, bytes)?
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
        .map(|segment| {
            let start: u64 = segment.p_offset(endian).into();
            Segment {
                file: start..start.saturating_add(segment.p_filesz(endian).into()),
                address: segment.p_vaddr(endian).into(),
                executable: segment.p_flags(endian) & elf::PF_X != 0,
            }
        })
        .collect())
}

/// `path` below `root`, and not beside it.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

pub(super) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The name as the program's source has it.
fn readable(name: &str) -> String {
    if let Ok(name) = rustc_demangle::try_demangle(name) {
        return format!("{name:#}");
    }
    // Other names can be those of types.
    name.starts_with("_Z")
        .then(|| {
            cpp_demangle::Symbol::new(name)
                .ok()?
                .demangle(&Default::default())
                .ok()
        })
        .flatten()
        .unwrap_or_else(|| name.to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}
