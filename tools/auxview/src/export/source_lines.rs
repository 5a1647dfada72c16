// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Source lines and inlined functions, from the debug information of programs.
//!
//! The crate `addr2line` reads them. It needs neither a C library nor a process of its own, and reads only what is needed.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use addr2line::Context;
use gimli::{Dwarf, EndianRcSlice, RunTimeEndian, SectionId};
use object::{Object, ObjectSection};

use crate::flamegraph::calls::Site;
use crate::flamegraph::code::Code;
use crate::flamegraph::image;

/// A function at a place in the code, and its source line there.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) source: Option<(String, u32)>,
}

type Reader = EndianRcSlice<RunTimeEndian>;

/// The debug information of files, by the number of the file. [`None`] if none could be loaded.
pub(super) struct SourceLines {
    root: PathBuf,
    files: HashMap<usize, Option<Context<Reader>>>,
    /// Bytes of debug information in memory.
    taken: usize,
}

impl fmt::Debug for SourceLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceLines")
            .field("root", &self.root)
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

impl SourceLines {
    /// Maximum number of bytes of debug information.
    const MAX: usize = 96 << 20;

    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            files: HashMap::new(),
            taken: 0,
        }
    }

    /// The functions at a place, the innermost first; none without debug information.
    pub(super) fn frames(&mut self, (number, offset): Site, code: &Code) -> Vec<Line> {
        let Self { root, files, taken } = self;
        let context = files
            .entry(number)
            .or_insert_with(|| load(root, code.path(number)?, taken));
        let found = || {
            let context = context.as_ref()?;
            let address = code.address(number, offset)?;
            let mut frames = context.find_frames(address).skip_all_loads().ok()?;
            let mut lines = Vec::new();
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.and_then(|function| {
                    let name = function.raw_name().ok()?;
                    Some(image::readable(&name))
                });
                let source = frame.location.and_then(|place| {
                    Some((place.file?.to_owned(), place.line.unwrap_or_default()))
                });
                lines.push(Line {
                    name: name.unwrap_or_else(|| "?".to_owned()),
                    source,
                });
            }
            Some(lines)
        };
        found().unwrap_or_default()
    }
}

/// The debug information in the file itself, or else in the file that its build-id names.
fn load(root: &Path, path: &[u8], taken: &mut usize) -> Option<Context<Reader>> {
    let bytes = image::contents(root, path).ok()?;
    if let Some(found) = parse(&bytes, taken) {
        return Some(found);
    }
    let id = object::File::parse(bytes.as_slice())
        .ok()?
        .build_id()
        .ok()??
        .to_vec();
    drop(bytes);
    let (first, rest) = id.split_first()?;
    let path = format!(
        "/usr/lib/debug/.build-id/{first:02x}/{}.debug",
        image::hex(rest)
    );
    let bytes = image::contents(root, path.as_bytes()).ok()?;
    let file = object::File::parse(bytes.as_slice()).ok()?;
    if file.build_id().ok()?? != id {
        return None;
    }
    parse(&bytes, taken)
}

fn parse(bytes: &[u8], taken: &mut usize) -> Option<Context<Reader>> {
    let file = object::File::parse(bytes).ok()?;
    file.section_by_name(".debug_info")?;
    let endian = match file.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    let mut size = *taken;
    let section = |id: SectionId| {
        let data = file
            .section_by_name(id.name())
            .and_then(|section| section.uncompressed_data().ok())
            .unwrap_or_default();
        size = size.saturating_add(data.len());
        if size > SourceLines::MAX {
            return Err(());
        }
        Ok(EndianRcSlice::new(Rc::from(&*data), endian))
    };
    let dwarf = Dwarf::load(section).ok()?;
    let context = Context::from_dwarf(dwarf).ok()?;
    *taken = size;
    Some(context)
}
